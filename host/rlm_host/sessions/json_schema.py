"""
JSON Schema of others, draft 2020-12: held to bounds before it is used. Pure.

Schemas come from cells and from clients: nothing is ever fetched, and one that needs the network,
is too large or cannot be decided is refused where it is given, not where it is used.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_protocol import limits
from rlm_protocol.errors import RlmError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_NAMES_TO_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
_PLAIN_DATA = frozenset({"const", "enum", "default", "examples"})
_SLOW = frozenset({"pattern", "patternProperties", "uniqueItems"})
_PROBES: tuple[Any, ...] = (None, True, 0, "", [], [None], {}, {"": None})
"""A schema that cannot decide these (it refers to itself without end) decides nothing."""
_TEXT_CHARS = 500

Refuse = Callable[[str], RlmError]
"""Gives the error for a reason that follows the schema's name: "is not valid at …"."""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Why a value does not fit: the sentence, the JSONPath of the place, and the keyword."""

    reason: str
    path: str | None = None
    rule: str | None = None


def check_schema(schema: object, refuse: Refuse) -> None:
    """Hold a schema to draft 2020-12, to 64 KiB, and to references inside itself; else `refuse`."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, dict | bool):
        raise refuse("is not a JSON Schema object.")
    try:
        size_bytes = len(json.dumps(schema, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as why:
        raise refuse(f"is not JSON: {short(why)}.") from why
    if size_bytes > limits.CONTRACT_SCHEMA_BYTES:
        raise refuse(f"has {size_bytes} bytes; {limits.CONTRACT_SCHEMA_BYTES} are admitted.")
    if isinstance(schema, dict) and schema.get("$schema", DIALECT).rstrip("#") != DIALECT:
        raise refuse("names another dialect than draft 2020-12.")
    try:
        Draft202012Validator.check_schema(schema)
        _check_references(schema, refuse)
        for probe in _PROBES:
            _validator(schema).is_valid(probe)
    except SchemaError as why:
        raise refuse(f"is not valid at {why.json_path}: {short(why.message)}") from why
    except RecursionError as why:
        raise refuse("is nested too deeply, or refers to itself without end.") from why


def mismatch(schema: dict[str, Any] | bool, value: Any) -> Mismatch | None:
    """Hold a JSON value to a schema that `check_schema` has admitted; None when it fits."""
    try:
        error = next(_validator(schema).iter_errors(value), None)
    except RecursionError:
        return Mismatch(reason="it is nested too deeply to be checked")
    if error is None:
        return None
    return Mismatch(reason=short(error.message), path=error.json_path, rule=str(error.validator))


def is_slow(schema: object) -> bool:
    """Whether checking a value can take far longer than reading it."""
    return any(not _SLOW.isdisjoint(subschema) for subschema in _subschemas(schema))


def short(text: object) -> str:
    """Give a text, cut for an error message."""
    said = str(text)
    return said if len(said) <= _TEXT_CHARS else said[:_TEXT_CHARS] + "..."


def _check_references(schema: Any, refuse: Refuse) -> None:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for subschema in _subschemas(schema):
        if "$id" in subschema and subschema is not schema:
            raise refuse("has a nested $id; only the root may have one.")
        for reference in (subschema[key] for key in _REFERENCES & subschema.keys()):
            if not str(reference).startswith("#"):
                raise refuse(f"refers outside itself: {short(reference)}.")
            try:
                resolver.lookup(str(reference))
            except Unresolvable as why:
                raise refuse(f"refers to {short(reference)}, which it does not define.") from why
        for pattern in (subschema.get("pattern"), *subschema.get("patternProperties", ())):
            try:
                re.compile(pattern or "")
            except (re.error, RecursionError, OverflowError) as why:
                raise refuse(f"has a pattern that Python cannot read: {short(why)}.") from why


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Give every object that may be a subschema, root first; what is plain data is left out."""
    if isinstance(schema, list):
        for element in schema:
            yield from _subschemas(element)
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in _NAMES_TO_SCHEMAS and isinstance(value, dict):
            for subschema in value.values():
                yield from _subschemas(subschema)
        elif key not in _PLAIN_DATA:
            yield from _subschemas(value)


def _validator(schema: Any) -> "Validator":
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())
