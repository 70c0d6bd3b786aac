"""
Result contracts and context policies: read at the spawn, enforced at submit, projected at read.

Pure. Everything here comes from a cell, so every malformed value is a declared error and nothing is
ever fetched: a schema that needs the network, or cannot be decided, is refused at the spawn.
"""

import json
from pathlib import PurePosixPath
from typing import Any

from rlm_protocol import limits
from rlm_protocol.child import ContextPolicy, ResultContract
from rlm_protocol.errors import ContractInvalid, FieldNotAdmitted, ResultInvalid

from ..sessions import json_schema
from ..sessions.json_schema import Mismatch, short

RESULT_KEYS = ("schema", "sink", "required")
CONTEXT_KEYS = ("terminal", "messages", "observe", "fields")


def read_result(given: object) -> ResultContract:
    """
    Read the `result` option of a spawn.

    Raises:
        ContractInvalid: not exactly a mapping of schema, sink and required, or one of them is not
            usable. The error says which and why.
    """
    options = _options("result", given, RESULT_KEYS)
    required = options.get("required", False)
    if not isinstance(required, bool):
        raise ContractInvalid("result.required is not True or False.", option="result.required")
    schema = options.get("schema")
    if schema is not None:
        check_schema(schema)
    sink = options.get("sink")
    return ResultContract(
        schema=schema, sink=None if sink is None else read_sink(sink), required=required
    )


def read_context(given: object, *, contracted: bool) -> ContextPolicy:
    """
    Read the `context` option of a spawn; None gives the defaults, which allow everything.

    Raises:
        ContractInvalid: an unknown key, a switch that is no bool, or `fields` that are not distinct
            strings, or that belong to no result contract (`contracted`).
    """
    options = _options("context", {} if given is None else given, CONTEXT_KEYS)
    fields = options.pop("fields", None)
    for key, value in options.items():
        if not isinstance(value, bool):
            raise ContractInvalid(f"context.{key} is not True or False.", option=f"context.{key}")
    if fields is None:
        return ContextPolicy(**options)
    if not contracted:
        raise ContractInvalid(
            "context.fields admits fields of a result, and the spawn has no result contract.",
            option="context.fields",
        )
    if (
        not isinstance(fields, list | tuple)
        or not all(isinstance(field, str) for field in fields)
        or len(set(fields)) != len(fields)
    ):
        raise ContractInvalid(
            "context.fields is not a list of distinct field names.", option="context.fields"
        )
    return ContextPolicy(**options, fields=tuple(fields))


def read_sink(given: object) -> str:
    """
    Give the sink as a relative POSIX path that stays inside the child's directory.

    Hidden names and the host's own files there (journals, kernel state, grandchildren, ...) are
    refused, so that a result can never overwrite what the host believes.

    Raises:
        ContractInvalid: it is no such path.
    """
    reason = ""
    if not isinstance(given, str) or not given or "\0" in given:
        reason = "it is not a path"
    else:
        parts = PurePosixPath(given).parts
        if given.startswith("/") or given.endswith("/") or not parts:
            reason = "it is not a relative path of a file"
        elif any(part.startswith(".") or len(part.encode()) > 200 for part in parts):
            reason = "a part of it is hidden, leads out of the directory, or is too long"
        elif _is_the_hosts(parts[0]):
            reason = f"{parts[0]!r} is the host's own"
    if reason:
        raise ContractInvalid(
            f"result.sink must name a file inside the child's directory: {reason}.",
            option="result.sink",
        )
    return str(PurePosixPath(str(given)))


def check_schema(schema: object) -> None:
    """Hold a result's schema to the rules of `json_schema.check_schema`. Raises ContractInvalid."""

    def refuse(reason: str) -> ContractInvalid:
        return ContractInvalid(f"result.schema {reason}", option="result.schema")

    json_schema.check_schema(schema, refuse)


def encode_result(value: Any) -> bytes:
    """
    Give the bytes that are stored for a submitted value.

    They are canonical (sorted keys, no spaces): the same value always gives the same bytes.

    Raises:
        ResultInvalid: not JSON, or larger than the limit. Nothing was stored.
    """
    try:
        stored = json.dumps(
            value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        ).encode()
    except (TypeError, ValueError, RecursionError) as why:  # UnicodeEncodeError is a ValueError
        raise ResultInvalid(f"The value is not JSON: {short(why)}") from why
    if len(stored) > limits.RESULT_BYTES:
        raise ResultInvalid(
            "The value is too large; write a file and submit its path.",
            size_bytes=len(stored),
            limit_bytes=limits.RESULT_BYTES,
        )
    return stored


def decode_result(stored: bytes) -> Any:
    """Give the value of stored bytes. Raises ResultInvalid when they are damaged."""
    try:
        return json.loads(stored)
    except (ValueError, RecursionError) as why:
        raise ResultInvalid("The stored result is damaged.") from why


def check_value(contract: ResultContract | None, value: Any) -> None:
    """
    Hold a decoded value to the contract's schema.

    Raises:
        ResultInvalid: it does not fit; `path` and `rule` say where and why.
    """
    if contract is not None and contract.schema is not None:
        found = json_schema.mismatch(contract.schema, value)
        if found is not None:
            raise result_invalid(found)


def result_invalid(found: Mismatch) -> ResultInvalid:
    """Give the refusal of a value that does not fit its contract."""
    if found.path is None:
        return ResultInvalid(f"The value was not admitted: {found.reason}. Nothing was stored.")
    return ResultInvalid(
        f"The value does not fit the contract at {found.path}: {found.reason}",
        path=found.path,
        rule=found.rule,
    )


def project(value: Any, policy: ContextPolicy, fields: tuple[str, ...] | None) -> Any:
    """
    Give what the parent may see of a result.

    `fields` None gives all admitted fields: the whole value when the policy admits everything. An
    admitted field that the value does not have is left out.

    Raises:
        FieldNotAdmitted: `fields` asks for more than the policy admits, or for fields of a value
            that has none. The error names none of them.
    """
    admitted = policy.fields
    if admitted is None and fields is None:
        return value
    if not isinstance(value, dict):
        raise FieldNotAdmitted("The result is not an object, so it has no fields to admit.")
    if admitted is not None and not set(fields or ()) <= set(admitted):
        raise FieldNotAdmitted
    wanted = admitted if fields is None else fields
    return {field: value[field] for field in wanted or () if field in value}


def _options(option: str, given: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ContractInvalid(f"{option} is not a mapping of {', '.join(known)}.", option=option)
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        raise ContractInvalid(
            f"{option} has unknown keys: {', '.join(unknown)}; known are {', '.join(known)}.",
            option=option,
            unknown=unknown,
        )
    return dict(given)


def _is_the_hosts(name: str) -> bool:
    return (
        name.startswith(("kernel-state", "sub-"))
        or name.endswith((".jsonl", ".corrupt"))
        or name in ("artifacts", "harness", "results", "scheduled-jobs.json")
    )
