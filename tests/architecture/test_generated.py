import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from rlm_protocol import methods, schema
from rlm_protocol.host import Loose

ROOT = Path(__file__).parents[2]


def test_generated_files_are_fresh() -> None:
    assert schema.stale(ROOT) == [], f"renew them with: {schema.REPAIR}"


def test_a_changed_file_is_seen_as_stale(tmp_path: Path) -> None:
    assert set(schema.stale(tmp_path)) == set(schema.FILES)
    assert schema.main([str(tmp_path)]) == 0
    assert schema.stale(tmp_path) == []
    (tmp_path / "schemas/host.json").write_text("{}")
    assert schema.main(["--check", str(tmp_path)]) == 1


def test_method_names_are_noun_slash_verb() -> None:
    for name in (*methods.METHODS, *methods.EVENTS):
        assert len(name.split("/")) == 2 or name in {
            "initialize",
            "initialized",
            "shutdown",
            "exit",
        }


def test_what_mutates_takes_an_idempotency_key() -> None:
    for m in methods.METHODS.values():
        has_key = "idempotency_key" in m.params.__struct_fields__
        assert has_key == m.mutates, m.name


def test_client_params_forbid_unknown_fields_unless_lsp_defines_them() -> None:
    for m in methods.METHODS.values():
        forbids = m.params.__struct_config__.forbid_unknown_fields
        assert forbids != issubclass(m.params, Loose), m.name


def test_every_params_field_that_is_optional_may_be_left_out() -> None:
    for m in methods.METHODS.values():
        if all(f.default is not msgspec.NODEFAULT for f in msgspec.structs.fields(m.params)):
            msgspec.convert({}, m.params)


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        ("session/create", {"cwd": "/x"}),
        ("session/create", {"cwd": ""}),
        ("session/create", {"cwd": "/x", "unguarded": True}),
        ("session/create", {"cwd": "/x", "name": "n" * 65}),
        ("session/create", {"cwd": "/x", "options": {"approvals": {"cells": "ask"}}}),
        ("session/create", {"cwd": "/x", "options": {"approvals": {"cells": "maybe"}}}),
        ("session/read", {"sessionId": "a.b-c_1"}),
        ("session/read", {"sessionId": "../x"}),
        ("session/read", {"sessionId": ".."}),
        ("session/read", {"session_id": "x"}),
        ("session/read", {}),
        ("repl/complete", {"sessionId": "s", "code": "x", "cursor": -1}),
        ("repl/complete", {"sessionId": "s", "code": "x", "cursor": 1}),
        ("turn/start", {"sessionId": "s", "input": [{"type": "text", "text": "hi"}]}),
        ("turn/start", {"sessionId": "s", "input": [{"type": "image"}]}),
    ],
)
def test_schema_and_code_agree(method: str, payload: dict[str, object]) -> None:
    """A client that checks with the schema and a host that checks with msgspec say the same."""
    document = json.loads((ROOT / "schemas/host.json").read_text())
    rules = {**document["methods"][method]["params"], "$defs": document["$defs"]}
    by_schema = jsonschema.Draft202012Validator(rules).is_valid(payload)
    try:
        msgspec.convert(payload, methods.METHODS[method].params)
        by_code = True
    except msgspec.ValidationError:
        by_code = False
    assert by_schema == by_code
