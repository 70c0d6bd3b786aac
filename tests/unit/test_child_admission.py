"""The spawn boundary: every refusal is a row, and rows come in the order of the boundary."""

from collections.abc import Mapping
from typing import Any

import pytest

from rlm_host.children.admission import OPTIONS, Admitted, Parent, admit, default_name
from rlm_host.models.catalog import ModelInfo
from rlm_protocol import errors as e
from rlm_protocol.child import ContextPolicy, ResultContract
from rlm_protocol.errors import RlmError
from rlm_protocol.usage import Budget

KNOWN = ModelInfo(provider="Acme", name="big-1", thinking=("low", "medium", "high"))
PLAIN = ModelInfo(provider="scripted", name="demo")


def resolve(selector: str) -> ModelInfo:
    if selector.lower() == "acme/expired":
        raise e.AuthRequired
    for model in (KNOWN, PLAIN):
        if model.selector.lower() == selector.lower():
            return model
    raise e.ModelUnavailable(model=selector)


GOOD: dict[str, Any] = {"model": "acme/big-1", "result": {}}
PARENT = Parent(depth=0, max_depth=2)


def spawn(options: Mapping[str, Any], parent: Parent = PARENT, prompt: str = "do it") -> Admitted:
    return admit(prompt, options, parent, resolve=resolve)


WRONG: list[tuple[type[RlmError], dict[str, Any], dict[str, Any]]] = [
    # error, what the spawn says, what the parent is
    (e.UnknownOption, {"timeout": 3, "mdoel": "x/y"}, {}),
    (e.NameInvalid, {"name": " api"}, {}),
    (e.ContractRequired, {"result": None}, {}),
    (e.DepthLimit, {}, {"depth": 2}),
    (e.ModelUnavailable, {"model": "big-1"}, {}),
    (e.NameTaken, {"name": "api"}, {"taken": frozenset({"api"})}),
    (e.AuthRequired, {"model": "acme/expired"}, {}),
    (e.ThinkingUnsupported, {"thinking": "max"}, {}),
    (e.InvalidParams, {"tools": ["search"]}, {}),
    (e.InvalidParams, {"budget": {"usd": "a lot"}}, {}),
    (e.BudgetExhausted, {}, {"spawns_left": 0}),
    (e.ChildLimit, {}, {"living": 7, "children_max": 7}),
    (e.SessionClosed, {}, {"alive": False}),
]
"""The boundary from first to last. Each row breaks one rule that the rows before it do not."""


@pytest.mark.parametrize(("error", "options", "parent"), WRONG)
def test_each_rule_refuses(
    error: type[RlmError], options: dict[str, Any], parent: dict[str, Any]
) -> None:
    with pytest.raises(error):
        spawn({**GOOD, **options}, Parent(**{"depth": 0, "max_depth": 2, **parent}))


@pytest.mark.parametrize("first", range(len(WRONG)))
def test_of_several_broken_rules_the_first_speaks(first: int) -> None:
    """From each row on, everything after it is broken too."""
    options: dict[str, Any] = {}
    parent: dict[str, Any] = {"depth": 0, "max_depth": 2}
    for _, more_options, more_parent in reversed(WRONG[first:]):
        options, parent = {**options, **more_options}, {**parent, **more_parent}
    with pytest.raises(RlmError) as caught:
        spawn({**GOOD, **options}, Parent(**parent))
    assert type(caught.value) is WRONG[first][0]


def test_all_unknown_options_are_named_in_one_error_with_the_known_ones() -> None:
    with pytest.raises(e.UnknownOption) as caught:
        spawn({**GOOD, "zeta": 1, "alpha": 2})
    assert caught.value.data["unknown"] == ["alpha", "zeta"]
    assert all(name in str(caught.value) for name in OPTIONS)


@pytest.mark.parametrize("prompt", ["", " \n\t "])
def test_a_spawn_says_what_to_do(prompt: str) -> None:
    with pytest.raises(e.InvalidParams, match="prompt"):
        spawn(GOOD, prompt=prompt)


@pytest.mark.parametrize(
    "name",
    ["", " ", "a ", "\ta", "x" * 65, "all", "Parent", "SELF", "a\nb", "a\x00b", 3, ["a"], b"a"],
)
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(e.NameInvalid):
        spawn({**GOOD, "name": name})


@pytest.mark.parametrize("name", ["a", "x" * 64, "api reviewer", "Größe-β", "allow", "子"])
def test_names(name: str) -> None:
    assert spawn({**GOOD, "name": name}).name == name


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"result": None}, e.ContractRequired),
        ({"result": None, "unguarded": False}, e.ContractRequired),
        ({"result": None, "context": {"terminal": True}}, e.ContractRequired),
        ({"result": None, "unguarded": 1}, e.ContractInvalid),
        ({"result": None, "unguarded": "yes"}, e.ContractInvalid),
        ({"result": None, "unguarded": None}, e.ContractInvalid),
        ({"result": True}, e.ContractInvalid),
        ({"result": {"schema": {"type": "nope"}}}, e.ContractInvalid),
        ({"result": None, "unguarded": True, "context": {"fields": ["a"]}}, e.ContractInvalid),
    ],
)
def test_a_spawn_without_a_contract_says_unguarded_true(
    options: dict[str, Any], error: type[RlmError]
) -> None:
    with pytest.raises(error):
        spawn({**GOOD, **options})


def test_an_unguarded_child_has_no_contract_and_may_have_a_policy() -> None:
    got = spawn({"model": "acme/big-1", "unguarded": True, "context": {"messages": False}})
    assert got.contract is None
    assert got.context == ContextPolicy(messages=False)


@pytest.mark.parametrize(
    "model",
    [None, "", "/", "acme/", "/big-1", "acme", " acme/big-1", "acme/big 1", 3, "acme/other"],
)
def test_a_model_is_named_exactly_and_never_substituted(model: Any) -> None:
    with pytest.raises(e.ModelUnavailable):
        spawn({**GOOD, "model": model})


def test_the_selector_is_split_at_its_first_slash_and_compared_without_case() -> None:
    asked: list[str] = []

    def remember(selector: str) -> ModelInfo:
        asked.append(selector)
        return KNOWN

    got = admit("do", {"model": "ACME/org/Big", "result": {}}, PARENT, resolve=remember)
    assert asked == ["ACME/org/Big"]
    assert got.model == "Acme/big-1"


@pytest.mark.parametrize(
    ("given", "inherited", "model", "want"),
    [
        (None, None, "acme/big-1", None),
        (None, "medium", "acme/big-1", "medium"),
        (None, "max", "acme/big-1", "high"),
        (None, "off", "acme/big-1", "low"),
        (None, "high", "scripted/demo", None),
        ("low", "high", "acme/big-1", "low"),
        ("off", "high", "acme/big-1", e.ThinkingUnsupported),
        ("LOW", None, "acme/big-1", e.ThinkingUnsupported),
        ("low", None, "scripted/demo", e.ThinkingUnsupported),
        (3, None, "acme/big-1", e.ThinkingUnsupported),
    ],
)
def test_thinking_is_inherited_clamped_and_given_exactly(
    given: Any, inherited: Any, model: str, want: Any
) -> None:
    options = {"model": model, "result": {}, "thinking": given}
    parent = Parent(depth=0, max_depth=2, thinking=inherited)
    if isinstance(want, type):
        with pytest.raises(want):
            spawn(options, parent)
    else:
        assert spawn(options, parent).thinking == want


@pytest.mark.parametrize(
    ("budget", "want"),
    [
        ({"dollars": 3}, e.UnknownOption),
        ({"usd": -1}, e.InvalidParams),
        ({"usd": float("inf")}, e.InvalidParams),
        ({"usd": float("nan")}, e.InvalidParams),
        ({"tokens": 1.5}, e.InvalidParams),
        ({"tokens": True}, e.InvalidParams),
        ({"spawns": -1}, e.InvalidParams),
        (3, e.InvalidParams),
        ({}, Budget()),
        ({"usd": 1, "tokens": 0, "spawns": 2, "seconds": 0.5}, Budget(1, 0, 2, 0.5)),
    ],
)
def test_budgets(budget: Any, want: Any) -> None:
    if isinstance(want, type):
        with pytest.raises(want):
            spawn({**GOOD, "budget": budget})
    else:
        assert spawn({**GOOD, "budget": budget}).budget == want


@pytest.mark.parametrize(
    ("depth", "maximum", "admitted"), [(0, 2, True), (1, 2, True), (2, 2, False), (0, 0, False)]
)
def test_depth_is_the_hosts_own_record(depth: int, maximum: int, admitted: bool) -> None:
    parent = Parent(depth=depth, max_depth=maximum)
    if admitted:
        got = spawn(GOOD, parent)
        assert (got.depth, got.max_depth) == (depth + 1, maximum)
    else:
        with pytest.raises(e.DepthLimit) as caught:
            spawn(GOOD, parent)
        assert caught.value.data == {"depth": depth, "max_depth": maximum}


def test_everything_that_was_said_and_nothing_else_is_admitted() -> None:
    options = {
        "name": "api-reviewer",
        "model": "acme/BIG-1",
        "thinking": "high",
        "result": {"schema": {"type": "object"}, "sink": "out.json", "required": True},
        "context": {"observe": False, "fields": ["status"]},
        "unguarded": False,
        "budget": {"usd": 0.5},
        "tools": ["search", "search"],
    }
    parent = Parent(depth=1, max_depth=3, thinking="low", tools=frozenset({"search", "write"}))
    assert spawn(options, parent) == Admitted(
        prompt="do it",
        name="api-reviewer",
        model="Acme/big-1",
        thinking="high",
        contract=ResultContract(schema={"type": "object"}, sink="out.json", required=True),
        context=ContextPolicy(observe=False, fields=("status",)),
        budget=Budget(usd=0.5),
        tools=("search",),
        depth=2,
        max_depth=3,
    )


def test_tools_are_handed_on_by_name_only() -> None:
    parent = Parent(depth=0, max_depth=2, tools=frozenset({"search"}))
    assert spawn(GOOD, parent).tools == ()
    for wrong in ("search", ["search", 3], ["write"]):
        with pytest.raises(e.InvalidParams):
            spawn({**GOOD, "tools": wrong}, parent)


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        ("Inspect the API!", "subagent-inspect-the-api-89abcdef"),
        ("你好", "subagent-task-89abcdef"),
        ("--", "subagent-task-89abcdef"),
    ],
)
def test_a_child_without_a_name_is_called_by_its_task(prompt: str, want: str) -> None:
    assert default_name(prompt, "sub-89abcdef") == want


def test_a_default_name_always_fits() -> None:
    name = default_name("word " * 1000, "sub-89abcdef")
    assert len(name) <= 64
    assert spawn({**GOOD, "name": name}).name == name
