"""
Parameters of any method, made from its Struct: mostly right in form, and wild in content.

A generator that knows the form gets past the decoder, to where the values are used; random bytes
never do. The same random numbers give the same parameters.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

INTS = (0, 1, 2, 50, 1000, -1, 2**31, 2**53, 2**63 - 1, 2**64)
TEXTS = (
    *("", " ", "a", "run: 1 + 1", "x" * 5000, "\x00", "é🍸\u2028", "None", "{}", "-"),
    *("..", "../../etc/passwd", "/", "/nonexistent", "a/b", "a\nb", "%s{0}", "'\"\\"),
)
VALUES = (None, True, 0, -1, 1.5, 2**70, "x", [], {}, [[[]]], {"": None}, {"a": [1, {"b": "c"}]})


class Wild:
    """Makes parameters. `known` gives values worth trying for a field of that name."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.known: Mapping[str, Sequence[Any]] = {}

    def params(self, struct: type[msgspec.Struct]) -> dict[str, Any]:
        """Give one object for `struct`, now and then with a field too many or of a wrong type."""
        made = self._struct(inspect.type_info(struct))
        if self._one_in(25):
            made["surplus"] = self._pick(VALUES)
        if made and self._one_in(10):
            made[self._pick(sorted(made))] = self._pick(VALUES)
        return made

    def _struct(self, info: Any) -> dict[str, Any]:
        made = {}
        for field in info.fields:
            if not field.required and self._one_in(2):
                continue
            name = field.encode_name
            if name in self.known and not self._one_in(8):
                made[name] = self._pick(self.known[name])
            else:
                made[name] = self._value(field.type)
        return made

    def _value(self, info: Any, depth: int = 0) -> Any:
        match info:
            case inspect.UnionType(types=types):
                return self._value(self._pick(types), depth)
            case inspect.Metadata(type=inner):
                return self._value(inner, depth)
            case inspect.StructType():
                made = self._struct(info)
                return made if info.tag_field is None else {info.tag_field: info.tag, **made}
            case inspect.LiteralType(values=values):
                return self._pick(values)
            case inspect.EnumType(cls=cls):
                return self._pick([member.value for member in cls])
            case inspect.NoneType():
                return None
            case inspect.BoolType():
                return self._one_in(2)
            case inspect.IntType():
                return self._pick(INTS)
            case inspect.FloatType():
                return self._pick((0.0, -1.0, 0.5, 1e300, 1))
            case inspect.StrType():
                return self._pick(TEXTS)
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                count = self._random.randrange(3) if depth < 4 else 0
                return [self._value(item, depth + 1) for _ in range(count)]
            case inspect.DictType(value_type=item):
                count = self._random.randrange(3) if depth < 4 else 0
                return {self._pick(TEXTS): self._value(item, depth + 1) for _ in range(count)}
            case inspect.AnyType():
                return self._pick(VALUES)
        raise AssertionError(f"no values for {info}")

    def _pick(self, among: Sequence[Any]) -> Any:
        return among[self._random.randrange(len(among))]

    def _one_in(self, count: int) -> bool:
        return self._random.randrange(count) == 0
