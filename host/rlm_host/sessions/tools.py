"""
The client's tools in a session: `await tools.NAME(...)` of a cell becomes `tool/call` at a client.

One client is asked, once: the one that declared the tools, else the first that knows the method.
What it was asked is a record before, what came of it one after; a crash between the two leaves a
call whose outcome is uncertain, and it is not asked again.
"""

import asyncio
import keyword
import logging
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlm_protocol import bridge
from rlm_protocol import records as r
from rlm_protocol.base import ErrorInfo
from rlm_protocol.errors import (
    HostLost,
    InvalidParams,
    MethodNotFound,
    RlmError,
    SessionClosed,
    TooLarge,
    ToolFailed,
    ToolUnavailable,
    Unsupported,
)
from rlm_protocol.framing import UNDECODABLE, decode_error
from rlm_protocol.host import ToolCallAnswer, ToolCallRequest
from rlm_protocol.item import ToolCall
from rlm_protocol.limits import OUTPUT_INLINE_BYTES, TOOL_CALL_MS, TOOL_RESULT_BYTES
from rlm_protocol.session import ClientTool

from .checking import Checker
from .json_schema import check_schema
from .ports import SessionPorts
from .subscriptions import Askable, audience

if TYPE_CHECKING:
    from .session import SessionActor

log = logging.getLogger(__name__)

LOST = "The client went away while it ran the tool; whether it did anything is not known."
ERROR_CHARS = 4096


def check_tools(tools: tuple[ClientTool, ...]) -> None:
    """
    Hold the tools of a client to their rules; a schema may take a moment.

    Raises:
        InvalidParams: a name that is no identifier or comes twice, or a schema that is not usable;
            `path` is the place.
    """
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"$.options.tools[{index}]"
        name = tool.name
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise InvalidParams(
                f"A tool's name is a Python identifier that does not begin with _; {name!r} is "
                "none.",
                path=f"{path}.name",
            )
        if name in seen:
            raise InvalidParams(f"Two tools are called {name!r}.", path=f"{path}.name")
        seen.add(name)
        _check_input_schema(tool, f"{path}.inputSchema")


def _check_input_schema(tool: ClientTool, path: str) -> None:
    def refuse(reason: str) -> InvalidParams:
        return InvalidParams(f"The inputSchema of {tool.name} {reason}", path=path)

    check_schema(tool.input_schema, refuse)
    if tool.input_schema.get("type", "object") != "object":
        raise refuse("does not describe an object: the keyword arguments.")


class ClientTools:
    """Serves the tool calls of all sessions. `checker` holds arguments to their schemas."""

    def __init__(self, checker: Checker, *, limit_ms: int = TOOL_CALL_MS) -> None:
        self._checker, self._limit_ms = checker, limit_ms

    def install(self, ports: SessionPorts) -> None:
        """Answer what cells ask of tools."""
        ports.host_requests["tool.call"] = self.call

    async def call(
        self, session: "SessionActor", asked: bridge.CallTool, cell_id: str | None
    ) -> bridge.ToolValue:
        """
        Run a tool for a cell.

        Raises:
            ToolUnavailable: the session has no such tool, nobody can run it, or it took too long.
            InvalidParams: the arguments do not fit; `path` and `rule` say where and why.
            ApprovalDenied: a person had to be asked, and did not allow it.
            ToolFailed, TooLarge: it failed, or its value is too large.
        """
        tools = {tool.name: tool for tool in session.state.options.tools or ()}
        tool = tools.get(asked.name)
        if tool is None:
            names = ", ".join(tools) or "none"
            raise ToolUnavailable(f"There is no tool {asked.name[:64]!r}; there are: {names}.")
        await self._check(tool, asked.arguments)
        detail = {"name": asked.name, "arguments": asked.arguments}
        await session.approvals.require("tool", detail, cell_id=cell_id)
        call = _Call(session, asked, cell_id, self._limit_ms)
        return bridge.ToolValue(value=await call.run())

    async def _check(self, tool: ClientTool, arguments: dict[str, Any]) -> None:
        found = await self._checker.mismatch(tool.input_schema, arguments)
        if found is not None:
            at = f" at {found.path}" if found.path not in (None, "$") else ""
            raise InvalidParams(
                f"tools.{tool.name}{at}: {found.reason}", path=found.path, rule=found.rule
            )


class _Call:
    """One call: its item, its records, its one question to one client."""

    def __init__(
        self, session: "SessionActor", asked: bridge.CallTool, cell_id: str | None, limit_ms: int
    ) -> None:
        self._session, self._asked, self._limit_ms = session, asked, limit_ms
        turn = session.turn_of(cell_id)
        self._item = ToolCall(
            id=session.new_id("call"),
            turn_id=turn.turn_id if turn else None,
            status="inProgress",
            name=asked.name,
            arguments={},
            cell_id=cell_id,
            started_at_ms=session.clock.now_ms(),
        )

    async def run(self) -> Any:
        """Give the tool's value; however this ends, the item is recorded with its end."""
        session, item_id = self._session, self._item.id
        arguments = self._asked.arguments
        self._change(await self._shown({"arguments": arguments}))
        started = session.write(self._started())
        session.subscriptions.open_item(item_id, session.last_seq, lambda: self._item)
        try:
            await started
            value = await self._ask()
            shown = await self._shown({"arguments": arguments, "result": value})
        except RlmError as why:
            failed = self._end("failed", {"error": _info(why)})
            if failed is not None:
                await asyncio.wait([failed])
            raise
        except BaseException:
            self._end("interrupted", {})
            raise
        ended = self._end("completed", shown)
        if ended is not None:
            await ended
        return value

    async def _ask(self) -> Any:
        """Ask the clients in their order, until one of them knows the method."""
        request = ToolCallRequest(
            session_id=self._session.id,
            call_id=self._item.id,
            name=self._asked.name,
            arguments=self._asked.arguments,
        )
        for client in _in_order(self._session):
            try:
                return _value_of(await self._answer_of(client, request))
            except (MethodNotFound, Unsupported):
                continue
        raise ToolUnavailable("No client that runs tools is attached to this session.")

    async def _answer_of(self, client: Askable, request: ToolCallRequest) -> msgspec.Raw:
        asking = asyncio.ensure_future(client.ask("tool/call", request))
        expiry = asyncio.ensure_future(self._session.clock.sleep(self._limit_ms))
        try:
            await asyncio.wait({asking, expiry}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ToolUnavailable(
                    f"The client did not answer within {self._limit_ms / 1000:.0f} s and was told "
                    "to stop; whether the tool did anything is not known."
                )
            return asking.result()
        except HostLost:
            raise ToolUnavailable(LOST) from None
        except (MethodNotFound, Unsupported, ToolUnavailable):
            raise
        except RlmError as why:
            raise ToolFailed(why.message) from None
        finally:
            asking.cancel()
            expiry.cancel()

    def _started(self) -> r.ToolCallStarted:
        item = self._item
        return r.ToolCallStarted(
            item_id=item.id,
            name=item.name,
            arguments=item.arguments,
            cell_id=item.cell_id,
            turn_id=item.turn_id,
            artifact=item.artifact,
        )

    def _end(
        self, status: Literal["completed", "failed", "interrupted"], fields: dict[str, Any]
    ) -> "asyncio.Future[r.Entry] | None":
        """Record the item as it will stay; None when the journal is closed."""
        session = self._session
        self._change({"status": status, "completed_at_ms": session.clock.now_ms(), **fields})
        session.subscriptions.close_item(self._item.id)
        try:
            return session.write(r.ItemCompleted(item=self._item))
        except SessionClosed:
            return None

    def _change(self, fields: dict[str, Any]) -> None:
        self._item = msgspec.structs.replace(self._item, **fields)

    async def _shown(self, content: dict[str, Any]) -> dict[str, Any]:
        """Give the item's fields for arguments and result; what is too long goes to a file."""
        data = msgspec.json.encode(content)
        if len(data) <= OUTPUT_INLINE_BYTES:
            return content
        name = f"{self._item.id}.json"
        artifact = await self._session.in_thread(self._keep, name, data)
        return {"arguments": {}, "result": None, "truncated": True, "artifact": artifact}

    def _keep(self, name: str, data: bytes) -> str | None:
        try:
            with self._session.artifacts() as folder:
                folder.write(name, data)
        except OSError as why:  # the call is worth more than its record's last detail
            log.warning("the tool call %s could not be kept: %s", name, why)
            return None
        return name


def _in_order(session: "SessionActor") -> list[Askable]:
    """Give the clients of a session and those above it: whoever declared the tools first."""
    declared = {one.tool_client for one in (session, *session.ancestors)}
    return sorted(audience(session), key=lambda client: client.client_id not in declared)


def _value_of(raw: msgspec.Raw) -> Any:
    """Give the value of a client's answer. Raises TooLarge, ToolFailed."""
    size_bytes = len(bytes(raw))
    if size_bytes > TOOL_RESULT_BYTES:
        raise TooLarge(
            "The tool's value is too large; have it write a file and give its path.",
            size_bytes=size_bytes,
            limit_bytes=TOOL_RESULT_BYTES,
        )
    try:
        answer = msgspec.json.decode(raw, type=ToolCallAnswer)
    except UNDECODABLE as why:
        raise ToolFailed(
            f"The client's answer is none to `tool/call`: {decode_error(why)}."
        ) from None
    if answer.error is not None:
        raise ToolFailed(answer.error[:ERROR_CHARS] or None)
    return answer.result


def _info(why: RlmError) -> ErrorInfo:
    return ErrorInfo(kind=why.kind, message=why.message, code=why.code, retryable=why.retryable)
