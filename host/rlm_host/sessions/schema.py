"""The output schema of a turn: its check at the start, and that of the final answer. Pure."""

import json
import re
from typing import Any

from rlm_protocol.errors import InvalidParams, ResultInvalid, RlmError

_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


class NotValid(Exception):
    """An answer that does not fit; its text tells the model why, `error` the client."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Your answer does not fit the output schema: {reason}. Answer again with one JSON "
            "value that fits, and nothing else."
        )
        self.error: RlmError = ResultInvalid(
            f"The final answer does not fit the output schema: {reason}."
        )


def check_schema(schema: dict[str, Any]) -> None:
    """Raises InvalidParams when `schema` is no JSON Schema."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as why:
        raise InvalidParams(
            f"outputSchema is not valid at {why.json_path}: {why.message[:200]}",
            path="$.outputSchema",
        ) from None


def check_output(schema: dict[str, Any], answer: str) -> Any:
    """Give the JSON value of a final answer, also one inside a code fence. Raises NotValid."""
    from jsonschema import Draft202012Validator

    fenced = _FENCED.match(answer)
    try:
        value = json.loads(fenced.group(1) if fenced else answer)
    except (ValueError, RecursionError) as why:
        raise NotValid(f"it is not JSON ({str(why)[:100]})") from None
    error = next(Draft202012Validator(schema).iter_errors(value), None)
    if error is not None:
        raise NotValid(f"at {error.json_path}, {error.message[:200]}")
    return value
