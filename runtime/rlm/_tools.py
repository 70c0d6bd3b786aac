"""
The client's functions in the namespace of the cells: `await tools.NAME(**arguments)`.

The host checks the arguments against the tool's schema and asks the client. What is wrong with them
is raised at the call, as Python would: TypeError or ValueError.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from rlm_protocol.errors import InvalidParams
from rlm_protocol.session import ClientTool
from rlm_protocol.tool import documentation, parameters, signature, takes_more

from ._bridge import HostError, current

_SHAPE = frozenset({"type", "required", "additionalProperties", "unevaluatedProperties"})
"""Rules of a schema that a call breaks as it breaks a signature; others judge values."""


class Tools:
    """Functions of the client that is attached to this session; `dir(tools)` lists them."""

    def __init__(self, offered: tuple[ClientTool, ...]) -> None:
        self.__dict__.update({tool.name: _function(tool) for tool in offered})

    def __getattr__(self, name: str) -> Any:
        names = ", ".join(sorted(self.__dict__)) or "none"
        raise AttributeError(
            f"the client offers no tool {name!r}; it offers: {names}", name=name, obj=self
        )

    def __dir__(self) -> list[str]:
        return sorted(self.__dict__)

    def __repr__(self) -> str:
        return f"<tools of the client: {', '.join(dir(self)) or 'none'}>"

    def __reduce__(self) -> str:
        raise TypeError("the tools of a client cannot be saved; they are bound anew")


def bind(namespace: dict[str, Any], offered: str) -> None:
    """Bind `tools` to the functions of a JSON array; without any, only take ours away."""
    tools = msgspec.json.decode(offered, type=tuple[ClientTool, ...])
    if tools:
        namespace["tools"] = Tools(tools)
    elif type(namespace.get("tools")) is Tools:
        del namespace["tools"]


def _function(tool: ClientTool) -> Callable[..., Awaitable[Any]]:
    name = tool.name

    async def call(**arguments: Any) -> Any:
        return await _call(name, arguments)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = documentation(tool)
    shown: Any = call
    shown.__signature__ = _signature(tool.input_schema)  # for help()
    shown.__text_signature__ = signature(tool.input_schema)  # for editors, which run nothing
    return call


async def _call(name: str, arguments: dict[str, Any]) -> Any:
    try:
        reply = await current().request("tool.call", {"name": name, "arguments": arguments})
    except HostError as why:
        if why.kind != InvalidParams.kind:
            raise
        error = TypeError if why.data.get("rule") in _SHAPE else ValueError
        raise error(str(why)) from None
    return reply["value"]


def _signature(schema: dict[str, Any]) -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    rows = [
        inspect.Parameter(
            one.name,
            kind,
            default=inspect.Parameter.empty if one.required else ...,
            annotation=one.annotation or inspect.Parameter.empty,
        )
        for one in parameters(schema)
    ]
    if takes_more(schema):
        free = next(name for name in _free_names() if name not in {row.name for row in rows})
        rows.append(inspect.Parameter(free, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(rows)


def _free_names() -> Any:
    yield "more"
    yield from (f"more_{number}" for number in range(1, 1 << 16))
