"""Completion and inspection look; they never run what they look at."""

from typing import Any

import pytest

from rlm import _inspect
from rlm_protocol import kernel as k


class Trap:
    """Everything that user code can hook raises."""

    real = 1
    __slots__ = ("__dict__", "slot")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"ran __getattr__({name})")

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"ran __getattribute__({name})")

    def __repr__(self) -> str:
        raise AssertionError("ran __repr__")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("ran __eq__")

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        raise AssertionError("ran __bool__")

    def __len__(self) -> int:
        raise AssertionError("ran __len__")

    def __dir__(self) -> Any:
        raise AssertionError("ran __dir__")

    @property
    def __class__(self) -> Any:
        raise AssertionError("ran __class__")

    @property
    def prop(self) -> int:
        raise AssertionError("ran a property")

    def method(self, a: int, /, b: Any = "one", *rest: int, c: str = "x", **more: int) -> None:
        """Do it."""


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError("ran the metaclass")


def trap() -> Trap:
    made = Trap.__new__(Trap)
    object.__setattr__(made, "slot", {"inner": 1})
    object.__getattribute__(made, "__dict__")["own"] = 5
    return made


def function(a, b=2, *, key="k" * 200):  # type: ignore[no-untyped-def]
    """First line.

    Second.
    """


NAMESPACE: dict[str, Any] = {
    "trap": trap(),
    "Trap": Trap,
    "Bad": Meta("Bad", (), {"x": 1}),
    "table": {"alpha": 1, "al pha": 2, "beta": 3, 5: 6, "it's": 7},
    "function": function,
    "number": 41,
    "nested": [trap(), {"t": trap()}, {trap()}],
    "_hidden": 1,
    "os": __import__("os"),
}


@pytest.mark.parametrize(
    ("before", "start", "some"),
    [
        ("nu", 0, ["number"]),
        ("x = nu", 4, ["number"]),
        ("tr", 0, ["trap"]),
        ("pri", 0, ["print"]),
        ("whi", 0, ["while"]),
        ("_hid", 0, ["_hidden"]),
        ("trap.", 5, ["method", "own", "prop", "real", "slot"]),
        ("trap.me", 5, ["method"]),
        ("trap.slot['in", 11, ["inner"]),
        ("Trap.r", 5, ["real"]),
        ("Bad.x", 4, ["x"]),
        ("table['al", 7, ["al pha", "alpha"]),
        ('table["', 7, ["al pha", "alpha", "beta"]),
        ("os.path.jo", 8, ["join"]),
        ("import os.pa", 7, ["os.path"]),
        ("a\nnumber.bit_l", 9, ["bit_length"]),
        ("f(1).x", 5, []),
        ("nothing.x", 8, []),
        ("nothing['x", 9, []),
    ],
)
def test_complete(before: str, start: int, some: list[str]) -> None:
    got = _inspect.complete(before, NAMESPACE)
    assert got[0] == start
    assert set(some) <= set(got[1])
    assert bool(got[1]) == bool(some)


@pytest.mark.parametrize(
    ("code", "cursor", "starts"),
    [
        ("function", 3, "def function(a, b=2, *, key='kkk"),
        ("trap.method", 8, "def method(self, a, /, b='one', *rest, c='x', **more)\n\nDo it."),
        ("trap", 1, "trap: Trap = <Trap>"),
        ("trap.slot", 9, "slot: dict = {'inner': 1}"),
        ("number", 0, "number: int = 41"),
        ("nested", 2, "nested: list = [<Trap>, {'t': <Trap>}, {<Trap>}]"),
        ("Trap", 2, "class Trap"),
        ("len", 1, "len($module, obj, /)"),
        ("os.path", 1, "os: module"),
    ],
)
def test_inspect(code: str, cursor: int, starts: str) -> None:
    text = _inspect.describe_at(code, cursor, NAMESPACE)
    assert text is not None
    assert text.startswith(starts)


@pytest.mark.parametrize(("code", "cursor"), [("nope", 1), ("trap.prop", 7), ("1 + 2", 2), ("", 0)])
def test_nothing_to_say(code: str, cursor: int) -> None:
    assert _inspect.describe_at(code, cursor, NAMESPACE) is None


def test_a_cursor_outside_is_refused() -> None:
    done = _inspect.answer(k.Inspect(id="i", code="x", cursor=5), {})
    assert (done.status, bool(done.reason)) == ("error", True)


def test_details_of_every_name() -> None:
    names = [name for name in NAMESPACE if not name.startswith("_")]
    rows = {row.name: row for row in _inspect.details(NAMESPACE, names)}
    assert rows["table"].preview == "{'alpha': 1, 'al pha': 2, 'beta': 3, 5: 6, \"it's\": 7}"
    assert rows["trap"].size is None
    assert rows["number"].size is not None


def test_previews_stay_short() -> None:
    deep: list[Any] = []
    deep.append(deep)
    for value in ("x" * 10**6, list(range(10**6)), deep, 10**5000, {i: i for i in range(10**5)}):
        assert len(_inspect.preview(value)) < 500
