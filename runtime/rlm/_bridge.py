"""
Pending requests of cells to their host, by id. Frames of one loop turn leave in one write.

Cancelling the awaiting task cancels the request, and the host is told. When the host is lost, all
pending and later requests fail at once (seed: rlm-runtime, Failure Modes).
"""

import asyncio
import itertools
import math
from _thread import get_ident
from typing import Any

from rlm_protocol.errors import TABLE, HostLost, ToolFailed, ToolUnavailable
from rlm_protocol.errors import ApprovalDenied as ApprovalRefused
from rlm_protocol.kernel import UNSET, HostRequest
from rlm_protocol.limits import KERNEL_FRAME_BYTES

from . import _frames
from ._capture import author

_DEPTH = 200


class HostError(RuntimeError):
    """
    The host refused a request.

    `code` and `kind` are those of the error table (None and "" for a host without one); `data`
    holds the details.
    """

    def __init__(self, message: str, code: int | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        row = TABLE.get(code) if code is not None else None
        self.kind = str(self.data.get("kind") or (row.kind if row else ""))


class ToolError(HostError):
    """A tool of the client failed, or no client could run it (`kind` `toolUnavailable`)."""


class ApprovalDenied(HostError):
    """A person did not allow this, or nobody decided in time; it was not done."""


_CLASSES: dict[int | None, type[HostError]] = {
    ApprovalRefused.code: ApprovalDenied,
    ToolFailed.code: ToolError,
    ToolUnavailable.code: ToolError,
}


class Bridge:
    """All requests of this kernel. Lives on the thread of `loop`, where it is made."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The kernel's own; set by the loop's owner before the first request."""
        self._thread = get_ident()
        self._ids = itertools.count(1)
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._lost = False
        self.frames: list[bytes] = []
        """What waits to be sent: the loop's owner does so at the end of each turn."""

    @property
    def pending(self) -> int:
        """How many requests wait for an answer."""
        return len(self._pending)

    async def request(self, type_: str, payload: dict[str, Any] | None = None) -> Any:
        """
        Ask the host and wait for its answer.

        Raises:
            HostError: the host refused.
            HostLost: the host is gone.
            TypeError: the type is no non-empty string, or the payload no dict or None.
            ValueError: the payload is no JSON value, or larger than a frame.
        """
        if get_ident() != self._thread and self.loop is not None:
            # A loop that a cell runs in another thread: asked on ours, or nobody would wake it.
            asking = asyncio.run_coroutine_threadsafe(self.request(type_, payload), self.loop)
            return await asyncio.wrap_future(asking)
        id_ = self._send(type_, payload)
        future = self._pending[id_] = asyncio.get_running_loop().create_future()
        try:
            reply = await future
        except asyncio.CancelledError:
            if not self._lost:
                self.notify("bridge.cancel", {"id": id_})
            raise
        finally:
            self._pending.pop(id_, None)
        return _open(reply)

    def notify(self, type_: str, payload: dict[str, Any]) -> None:
        """Tell the host something; its answer is ignored. Raises as `request` before sending."""
        self._send(type_, payload)

    def _send(self, type_: str, payload: dict[str, Any] | None) -> str:
        if not isinstance(type_, str) or not type_:
            raise TypeError("the request's type must be a non-empty string")
        if payload is not None and not isinstance(payload, dict):
            raise TypeError("the request's payload must be a dict or None")
        if self._lost:
            raise HostLost()
        body = payload or {}
        if body:
            check_json(body)
        id_ = f"h{next(self._ids)}"
        cell = author()
        frame = _frames.encode(
            HostRequest(
                id=id_,
                data={"type": type_, "payload": body},
                cell=UNSET if cell is None else cell,
            )
        )
        if len(frame) > KERNEL_FRAME_BYTES:
            raise ValueError(f"the request takes {len(frame)} bytes, over {KERNEL_FRAME_BYTES}")
        self.frames.append(frame)
        return id_

    def take(self) -> bytes:
        """Give what waits to be sent, for the caller to send."""
        frames = b"".join(self.frames)
        self.frames.clear()
        return frames

    def reply(self, id_: str, data: dict[str, Any]) -> None:
        """Take the host's answer; one that nobody waits for is ignored."""
        future = self._pending.get(id_)
        if future is not None and not future.done():
            future.set_result(data)

    def lose(self) -> None:
        """Note that the host is gone: fail everything that waits."""
        self._lost = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(HostLost())


def _open(reply: dict[str, Any]) -> Any:
    status = reply.get("status")
    if status == "ok":
        return reply.get("result")
    if status == "error":
        code = reply.get("code")
        code = code if isinstance(code, int) else None
        said = str(reply.get("error") or "the host gave no reason")
        raise _CLASSES.get(code, HostError)(said, code, reply.get("data"))
    raise HostError(f"the host's answer has the unknown status {status!r}")


def check_json(value: Any, path: str = "payload", depth: int = 0) -> None:
    """
    Refuse what would not arrive as it is.

    Raises:
        ValueError: naming the place: NaN, an integer beyond 64 bits, a set, a cycle, ….
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if depth > _DEPTH:
        raise ValueError(f"{path[:80]}… is nested too deeply, or holds itself")
    if kind is int:
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{path} is an integer beyond 64 bits")
    elif kind is float:
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value!r}, which JSON does not have")
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ValueError(f"{path} has a key that is no string: {key!r:.40}")
            check_json(item, f"{path}.{key}", depth + 1)
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):
            check_json(item, f"{path}[{index}]", depth + 1)
    else:
        raise ValueError(f"{path} is a {kind.__name__}, which JSON does not have")


_current: Bridge | None = None


def use(bridge: Bridge | None) -> None:
    """Make `bridge` the one that `rlm.host_request` speaks through."""
    global _current
    _current = bridge


def current() -> Bridge:
    """Give the kernel's bridge. Raises RuntimeError outside of a kernel."""
    if _current is None:
        raise RuntimeError("there is no host: this is not a kernel started by rlm-host")
    return _current


def active() -> bool:
    """Tell whether this process is a kernel."""
    return _current is not None
