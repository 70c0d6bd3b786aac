"""What a handler is given: the host's services, and the attachment that asks."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from rlm_protocol.base import Params

from .services import Services


class Attachment(Protocol):
    """One client's connection, as handlers see it. Everything leaves through one ordered queue."""

    @property
    def id(self) -> str:
        """Unique among the attachments of this host."""

    def notify(self, method: str, payload: msgspec.Struct) -> None:
        """
        Queue a notification behind everything queued before.

        Whether it may be dropped for a slow client stands in its row of `methods.EVENTS`. Never
        waits, never raises for a client that is gone.
        """

    async def request(self, method: str, params: Params) -> msgspec.Raw:
        """
        Ask the client; give its raw result.

        Raises:
            HostLost: the attachment ended before the answer.
            RlmError: the client answered with an error.
        """

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when the attachment has ended, for whatever reason."""


Handler = Callable[["Context", Any], Awaitable[Any]]
"""
Decoded params in, result Struct (or None) out; RlmError is the refusal. At most 30 lines.

Requests start in the order of their arrival and then run side by side: what must stay in order is
put into its session's, kernel's or run's own queue before the handler's first wait. A request whose
client cancels it gets its handler cancelled (anyio); one whose client is gone runs to its end, for
what was asked may have been begun.
"""

Handlers = Mapping[str, Handler]
"""What each module of `rpc/handlers` exports as HANDLERS: method name -> handler."""


class Context(msgspec.Struct, frozen=True):
    """One request's surroundings."""

    services: Services
    attachment: Attachment
    request_id: int | str
    _after: list[Callable[[], None]]

    def after_answer(self, callback: Callable[[], None]) -> None:
        """
        Call back once when this request is settled: answered, refused, cancelled or lost.

        It runs directly after the answer was queued, before anything else can be: a handler that
        introduces something (a session, a turn) subscribes the client or releases the work here, so
        that no notification overtakes the answer.
        """
        self._after.append(callback)
