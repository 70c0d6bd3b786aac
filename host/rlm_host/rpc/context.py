"""What a handler is given: the host's services, and the attachment that asks."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from rlm_protocol.base import Params


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
"""Decoded params in, result Struct (or None) out; RlmError is the refusal. At most 30 lines."""

Handlers = Mapping[str, Handler]
"""What each module of `rpc/handlers` exports as HANDLERS: method name -> handler."""


class Context(msgspec.Struct, frozen=True):
    """One request's surroundings. `services` is the container that app.py builds."""

    services: Any
    attachment: Attachment
    request_id: int | str
