"""A method's params as its row's Struct, or the refusal that names the place that is wrong."""

import functools
import re
from typing import Any

import msgspec

from rlm_protocol.errors import InvalidParams
from rlm_protocol.framing import UNDECODABLE, decode_error
from rlm_protocol.methods import METHODS

_AT = re.compile(r"^(?P<what>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>[^`]*)`")


def decode_params(method: str, params: msgspec.Raw) -> Any:
    """
    Give the params as the Struct of the method's row; missing and null mean none.

    Raises:
        InvalidParams: with `path`, a JSONPath of the place that is wrong.
    """
    try:
        return _decoder(method).decode(params)
    except UNDECODABLE as why:
        reason = decode_error(why)
    if bytes(params) == b"null":
        return decode_params(method, msgspec.Raw(b"{}"))
    raise _invalid(reason)


@functools.cache
def _decoder(method: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(METHODS[method].params)


def _invalid(reason: str) -> InvalidParams:
    found = _AT.match(reason)
    what, path = (found["what"], found["path"]) if found else (reason, "$")
    field = _FIELD.search(what)
    if field is not None:
        path = f"{path}.{field['field']}"
    return InvalidParams(f"The parameters do not fit the method: {what}.", path=path)
