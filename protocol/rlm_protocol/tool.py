"""
How a client's tool looks in Python: its signature and its documentation. Pure and total.

The host tells the model of it, the runtime shows it to `help()` and to editors: the same text.
"""

import json
import keyword
from typing import Any, NamedTuple

from .session import ClientTool

_TYPES = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
_ENUM_VALUES, _ENUM_CHARS = 8, 40
"""An enumeration that is longer is shown by its type."""


class Parameter(NamedTuple):
    """One keyword argument of a tool; `annotation` is "" where the schema says no type."""

    name: str
    annotation: str
    required: bool
    description: str


def parameters(schema: dict[str, Any]) -> tuple[Parameter, ...]:
    """Give the arguments that a schema names, the required ones first; only identifiers."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    found = [
        Parameter(name, _annotation(one), name in needed, _description(one))
        for name, one in (properties.items() if isinstance(properties, dict) else ())
        if is_argument(name)
    ]
    return tuple(sorted(found, key=lambda parameter: not parameter.required))


def is_argument(name: str) -> bool:
    """Tell whether a name can be written as a keyword argument."""
    return name.isidentifier() and not keyword.iskeyword(name)


def signature(schema: dict[str, Any]) -> str:
    """Give the arguments as Python writes them; `...` stands for an argument that may be left."""
    named = parameters(schema)
    parts = ["*"] if named else []
    for one in named:
        text = f"{one.name}: {one.annotation}" if one.annotation else one.name
        optional = " = ..." if one.annotation else "=..."
        parts.append(text if one.required else text + optional)
    if takes_more(schema):
        parts.append("**more")
    return f"({', '.join(parts)})"


def takes_more(schema: dict[str, Any]) -> bool:
    """Tell whether arguments may be given that `parameters` does not name."""
    properties = schema.get("properties")
    unwritable = any(not is_argument(name) for name in properties or ())
    return unwritable or schema.get("additionalProperties") is not False


def documentation(tool: ClientTool) -> str:
    """Give the description and what the schema says of each argument."""
    lines = [
        f"    {one.name}: {one.description}"
        for one in parameters(tool.input_schema)
        if one.description
    ]
    return "\n".join([tool.description.strip(), *(["", "Arguments:", *lines] if lines else [])])


def _annotation(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        shown = [repr(value) for value in values[: _ENUM_VALUES + 1]]
        if len(shown) <= _ENUM_VALUES and sum(map(len, shown)) <= _ENUM_CHARS:
            return f"Literal[{', '.join(shown)}]"
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return " | ".join(_TYPES[kind] for kind in kinds if isinstance(kind, str) and kind in _TYPES)


def _description(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    said = str(schema.get("description") or "").strip()
    if "default" in schema:
        said = f"{said} (default {json.dumps(schema['default'])})".strip()
    return " ".join(said.split())
