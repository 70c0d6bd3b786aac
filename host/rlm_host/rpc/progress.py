"""LSP's work-done progress: shown while something runs, and cancelled by the editor."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio

from rlm_protocol.errors import RlmError

from .attachment import ClientAttachment


class Shown:
    """One progress that the editor shows; without an editor that can, nothing is sent."""

    def __init__(self, attachment: ClientAttachment, token: str | None) -> None:
        self._attachment = attachment
        self._token = token
        self.cancelled = False
        """Whether the editor has cancelled it."""

    def report(self, message: str, part: float) -> None:
        """Tell how far it is; `part` is 0 to 1."""
        self.send({"kind": "report", "message": message, "percentage": int(100 * part)})

    def send(self, value: dict[str, Any]) -> None:
        """Send one value."""
        if self._token is not None:
            self._attachment.tell("$/progress", {"token": self._token, "value": value})


class Progress:
    """The progresses of one client."""

    def __init__(self, attachment: ClientAttachment, *, offered: bool) -> None:
        self._attachment = attachment
        self._offered = offered
        self._made = 0
        self._scopes: dict[str, anyio.CancelScope] = {}

    @contextlib.asynccontextmanager
    async def shown(self, title: str) -> AsyncIterator[Shown]:
        """Show a progress for the length of the block; the editor's cancel cancels the block."""
        token = await self._create()
        shown = Shown(self._attachment, token)
        shown.send({"kind": "begin", "title": title, "cancellable": True, "percentage": 0})
        try:
            with anyio.CancelScope() as scope:
                if token is not None:
                    self._scopes[token] = scope
                yield shown
            shown.cancelled = scope.cancelled_caught
        finally:
            if token is not None:
                self._scopes.pop(token, None)
            shown.send({"kind": "end"})

    def cancelled(self, token: object) -> None:
        """Take the editor's cancel; one that comes too late has no effect."""
        scope = self._scopes.get(token) if isinstance(token, str) else None
        if scope is not None:
            scope.cancel()

    async def _create(self) -> str | None:
        if not self._offered:
            return None
        self._made += 1
        token = f"rlm-{self._attachment.id}-{self._made}"
        try:
            await self._attachment.request("window/workDoneProgress/create", {"token": token})
        except RlmError:
            return None
        return token
