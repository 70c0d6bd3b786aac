"""The editors' types are generated from the schemas, and fresh."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    path = ROOT / "editors/protocol/generate.py"
    spec = importlib.util.spec_from_file_location("editors_generate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_editors_types_are_fresh(generate: ModuleType) -> None:
    document = json.loads((ROOT / "schemas/host.json").read_text(encoding="utf-8"))
    for path, render in generate.FILES.items():
        fresh = (ROOT / path).read_text(encoding="utf-8") == render(document)
        assert fresh, (
            f"{path} is stale; renew it with: {sys.executable} editors/protocol/generate.py"
        )


@pytest.mark.parametrize(
    ("schema", "typescript", "lua"),
    [
        ({"type": "integer"}, "number", "integer"),
        ({"$ref": "#/$defs/Usage"}, "Usage", "rlm.Usage"),
        ({"enum": ["a", "b"]}, '"a" | "b"', '"a"|"b"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null", "string|nil"),
        ({"type": "array", "items": {"enum": [1, 2]}}, "Array<1 | 2>", "(1|2)[]"),
        ({"type": "object"}, "Record<string, unknown>", "table<string, any>"),
        (
            {"type": "object", "additionalProperties": {"type": "boolean"}},
            "Record<string, boolean>",
            "table<string, boolean>",
        ),
        ({}, "unknown", "any"),
    ],
)
def test_types(generate: ModuleType, schema: dict[str, object], typescript: str, lua: str) -> None:
    assert (generate.ts_type(schema), generate.lua_type(schema)) == (typescript, lua)


def test_what_may_be_missing_says_so(generate: ModuleType) -> None:
    schema = {
        "description": "A thing.",
        "properties": {"a": {"type": "string"}, "b": {"type": "number"}},
        "required": ["a"],
        "type": "object",
    }
    assert generate.ts_definition("T", schema) == (
        "/** A thing. */\nexport type T = {\n  a: string;\n  b?: number;\n};"
    )
    assert generate.lua_definition("T", schema) == (
        "--- A thing.\n---@class rlm.T\n---@field a string\n---@field b? number"
    )
