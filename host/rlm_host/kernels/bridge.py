"""Requests of a kernel's cells to the host: one task each, answered once, ended with the kernel."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from rlm_protocol import bridge, kernel
from rlm_protocol.errors import InternalError, InvalidRequest, Overloaded, RlmError

from .cell import HostRequests

IN_FLIGHT = 4096
"""A thousand at once is ordinary work; a cell that floods gets `overloaded` and the host lives."""
log = logging.getLogger(__name__)


class Bridge:
    """Owns the open requests of one kernel process."""

    def __init__(self, handler: HostRequests, reply: Callable[[str, dict[str, Any]], None]) -> None:
        """`reply` sends the envelope of request `id`; it must not block."""
        self._handler = handler
        self._reply = reply
        self._open: dict[str, asyncio.Task[None]] = {}

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return len(self._open)

    def take(self, event: kernel.HostRequest) -> bool:
        """Begin to serve a request. False: its id is in flight already, the first one goes on."""
        if event.id in self._open:
            return False
        type_, payload = event.data.get("type"), event.data.get("payload", {})
        if not isinstance(type_, str) or not isinstance(payload, dict):
            self._refuse(event.id, InvalidRequest("A host request is {type, payload}."))
        elif type_ == "bridge.cancel":
            self._cancel(event.id, payload)
        elif len(self._open) >= IN_FLIGHT:
            self._refuse(event.id, Overloaded(max_in_flight=IN_FLIGHT))
        else:
            cell = event.cell if isinstance(event.cell, str) else None
            task = asyncio.create_task(self._serve(event.id, type_, payload, cell))
            self._open[event.id] = task
            task.add_done_callback(lambda _: self._open.pop(event.id))
        return True

    def cancel(self) -> None:
        """Cancel what is open: nobody is there to be answered."""
        for task in self._open.values():
            task.cancel()

    async def aclose(self) -> None:
        """Cancel what is open and wait until it has ended."""
        self.cancel()
        await asyncio.gather(*self._open.values(), return_exceptions=True)

    async def _serve(self, id_: str, type_: str, payload: dict[str, Any], cell: str | None) -> None:
        try:
            envelope = bridge.ok(await self._handler(type_, payload, cell))
        except RlmError as refusal:
            self._refuse(id_, refusal)
            return
        except Exception:
            token = secrets.token_hex(4)
            log.exception("host request %s failed [%s]", type_, token)
            self._refuse(id_, InternalError(token=token))
            return
        self._reply(id_, envelope)

    def _cancel(self, id_: str, payload: dict[str, Any]) -> None:
        try:
            wanted = msgspec.convert(payload, bridge.CancelRequest)
        except msgspec.ValidationError as why:
            self._refuse(id_, InvalidRequest(str(why)))
            return
        if (task := self._open.get(wanted.id)) is not None:
            task.cancel()
        self._reply(id_, bridge.ok(bridge.Acknowledged()))

    def _refuse(self, id_: str, error: RlmError) -> None:
        self._reply(id_, bridge.failed(error))
