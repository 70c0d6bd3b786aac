"""Result contracts and context policies: what a spawn may agree on, and what each side then gets."""

import re
from typing import Any

import pytest

from rlm_host.children import contract
from rlm_host.sessions import json_schema
from rlm_protocol.child import ContextPolicy, ResultContract
from rlm_protocol.errors import ContractInvalid, FieldNotAdmitted, ResultInvalid

OBJECT = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("text", "not a mapping"),
        ({"schemaa": {}, "zink": 1}, "schemaa, zink"),
        ({"required": 1}, "result.required"),
        ({"schema": []}, "not a JSON Schema object"),
        ({"schema": {"type": "strin"}}, "$.type"),
        ({"schema": {"enum": [float("nan")]}}, "not JSON"),
        ({"schema": {"enum": [{1, 2}]}}, "not JSON"),
        ({"schema": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "another dialect"),
        ({"schema": {"$ref": "https://example.org/a.json"}}, "outside itself"),
        ({"schema": {"properties": {"a": {"items": {"$ref": "other.json"}}}}}, "outside itself"),
        ({"schema": {"$dynamicRef": "file:///etc/passwd"}}, "outside itself"),
        ({"schema": {"$ref": "#/$defs/gone"}}, "does not define"),
        ({"schema": {"$ref": "#nowhere"}}, "does not define"),
        ({"schema": {"allOf": [{"$id": "urn:x", "$ref": "#"}]}}, "nested $id"),
        ({"schema": {"$ref": "#"}}, "without end"),
        ({"schema": {"properties": {"": {"$ref": "#/properties/"}}}}, "without end"),
        ({"schema": {"pattern": "("}}, "pattern"),
        ({"schema": {"patternProperties": {"[": {}}}}, "pattern"),
        ({"schema": {"description": "x" * 70_000}}, "65536 are admitted"),
        ({"sink": 3}, "result.sink"),
        ({"sink": ""}, "result.sink"),
        ({"sink": "/etc/passwd"}, "relative"),
        ({"sink": "a/"}, "relative"),
        ({"sink": "../out.json"}, "leads out"),
        ({"sink": "a/../../out.json"}, "leads out"),
        ({"sink": ".rlm-contract.json"}, "hidden"),
        ({"sink": "a\0b"}, "not a path"),
        ({"sink": "x" * 201}, "too long"),
        ({"sink": "child.jsonl"}, "the host's own"),
        ({"sink": "sub-00000000/x.json"}, "the host's own"),
        ({"sink": "kernel-state.dill"}, "the host's own"),
        ({"sink": "results/1.json"}, "the host's own"),
    ],
)
def test_what_a_result_contract_may_not_be(given: Any, said: str) -> None:
    with pytest.raises(ContractInvalid, match=re.escape(said)):
        contract.read_result(given)


def test_a_deep_schema_is_refused_and_not_a_crash() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3_000):
        schema = {"not": schema}
    with pytest.raises(ContractInvalid):
        contract.read_result({"schema": schema})


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, ResultContract()),
        ({"required": True}, ResultContract(required=True)),
        ({"schema": OBJECT}, ResultContract(schema=OBJECT)),
        ({"schema": True}, ResultContract(schema=True)),
        ({"sink": "out/./a.json"}, ResultContract(sink="out/a.json")),
    ],
)
def test_what_a_result_contract_may_be(given: Any, want: ResultContract) -> None:
    assert contract.read_result(given) == want


def test_references_inside_the_schema_and_names_that_look_like_keywords_are_admitted() -> None:
    schema = {
        "$defs": {"tree": {"type": "object", "properties": {"kids": {"$ref": "#/$defs/list"}}}},
        "properties": {"$ref": {"type": "string"}, "$id": {}, "t": {"$ref": "#/$defs/tree"}},
        "default": {"$ref": "https://example.org/not-a-reference"},
    }
    schema["$defs"]["list"] = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    made = contract.read_result({"schema": schema})
    contract.check_value(made, {"$ref": "x", "t": {"kids": [{"kids": []}]}})
    with pytest.raises(ResultInvalid, match=r"\$\.t\.kids\[0\]\.kids"):
        contract.check_value(made, {"t": {"kids": [{"kids": 3}]}})


@pytest.mark.parametrize(
    ("given", "contracted", "said"),
    [
        (3, True, "not a mapping"),
        ({"observ": True}, True, "observ"),
        ({"terminal": 0}, True, "context.terminal"),
        ({"messages": "yes"}, True, "context.messages"),
        ({"observe": None}, True, "context.observe"),
        ({"fields": "status"}, True, "context.fields"),
        ({"fields": ["a", "a"]}, True, "distinct"),
        ({"fields": [1]}, True, "context.fields"),
        ({"fields": ["a"]}, False, "no result contract"),
    ],
)
def test_what_a_context_policy_may_not_be(given: Any, contracted: bool, said: str) -> None:
    with pytest.raises(ContractInvalid, match=said):
        contract.read_context(given, contracted=contracted)


def test_a_context_policy_allows_everything_unless_it_says_otherwise() -> None:
    assert contract.read_context(None, contracted=False) == ContextPolicy()
    assert contract.read_context({}, contracted=True) == ContextPolicy(
        terminal=True, messages=True, observe=True, fields=None
    )
    assert contract.read_context(
        {"terminal": False, "fields": ["a", "b"]}, contracted=True
    ) == ContextPolicy(terminal=False, fields=("a", "b"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "not JSON"),
        ({"status": float("inf")}, "not JSON"),
        ({"status": {1}}, "not JSON"),
        ({"status": "\ud83c"}, "not JSON"),
        ({"status": "x" * 9_000_000}, "too large"),
    ],
)
def test_a_value_that_is_not_json_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ResultInvalid, match=said):
        contract.encode_result(value)


@pytest.mark.parametrize(
    ("value", "said"), [({"status": 3}, r"\$\.status"), ({}, "status"), ([], "object")]
)
def test_a_value_against_its_schema_is_refused_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(ResultInvalid, match=said):
        contract.check_value(ResultContract(schema=OBJECT), value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ResultInvalid, match="not JSON"):
        contract.encode_result(value)


def test_stored_bytes_are_canonical_and_exact() -> None:
    assert contract.encode_result({"b": 2**70, "a": "é"}) == (
        '{"a":"é","b":1180591620717411303424}'.encode()
    )
    stored = contract.encode_result({"b": 1, "a": 2})
    assert stored == contract.encode_result({"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("admitted", "asked", "want"),
    [
        (None, None, {"a": 1, "b": 2}),
        (None, ("b",), {"b": 2}),
        (None, ("b", "zz"), {"b": 2}),
        (None, (), {}),
        (("a",), None, {"a": 1}),
        (("a", "c"), None, {"a": 1}),
        (("a", "c"), ("c",), {}),
        ((), None, {}),
    ],
)
def test_the_parent_sees_admitted_fields_only(admitted: Any, asked: Any, want: Any) -> None:
    policy = ContextPolicy(fields=admitted)
    assert contract.project({"a": 1, "b": 2}, policy, asked) == want


@pytest.mark.parametrize(
    ("admitted", "asked", "value"),
    [
        (("a",), ("b",), {"a": 1, "b": 2}),
        (("a",), ("a", "b"), {"a": 1, "b": 2}),
        (("a",), None, [1]),
        (None, ("a",), [1]),
    ],
)
def test_asking_for_more_is_an_error_that_names_nothing(
    admitted: Any, asked: Any, value: Any
) -> None:
    with pytest.raises(FieldNotAdmitted) as caught:
        contract.project(value, ContextPolicy(fields=admitted), asked)
    assert caught.value.data == {}
    assert "'b'" not in str(caught.value)


def test_damaged_bytes_are_refused() -> None:
    for damaged in (b'{"status"', b"\xff", b"[" * 100_000):
        with pytest.raises(ResultInvalid):
            contract.decode_result(damaged)


@pytest.mark.parametrize(
    ("schema", "slow"),
    [
        ({"properties": {"pattern": {"type": "string"}}}, False),
        ({"items": {"properties": {"a": {"pattern": "a"}}}}, True),
        ({"patternProperties": {"a": {}}}, True),
        ({"$defs": {"x": {"uniqueItems": True}}}, True),
        (True, False),
        (None, False),
    ],
)
def test_schemas_that_can_take_long_are_known(schema: Any, slow: bool) -> None:
    assert json_schema.is_slow(schema) == slow
