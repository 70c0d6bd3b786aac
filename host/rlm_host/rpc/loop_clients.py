"""Which client hears of a run, and which one is asked for its steps."""

from typing import TYPE_CHECKING

import anyio
import msgspec

from rlm_protocol import loop as wire
from rlm_protocol.errors import HostLost
from rlm_protocol.rpc import EMPTY

if TYPE_CHECKING:
    from .context import Attachment


class LoopClients:
    """
    The clients that follow runs, in the order in which they came.

    A client follows a run from its `loop/submit`, `loop/run` or `loop/resume` until it is gone. The
    one that came last is asked for the steps of the kind `client`; when it goes while it is asked,
    the next that follows is asked again (steps are idempotent for run and generation).
    """

    def __init__(self) -> None:
        self._following: dict[str, list[Attachment]] = {}
        self._came: dict[str, anyio.Event] = {}

    def follow(self, run_id: str, client: "Attachment") -> None:
        """Let a client hear of a run until it is gone. Twice is once."""
        followers = self._following.setdefault(run_id, [])
        if client in followers:
            return
        followers.append(client)
        client.on_close(lambda: self._gone(run_id, client))
        if waited := self._came.pop(run_id, None):
            waited.set()

    def tell(self, method: str, run_id: str, payload: msgspec.Struct) -> None:
        """Notify everyone who follows the run."""
        for client in tuple(self._following.get(run_id, ())):
            client.notify(method, payload)

    async def step(self, request: wire.LoopStepRequest) -> wire.StepObservation:
        """Ask for one step. Raises RlmError for the client's refusal, or what it sent instead."""
        raw = await self._ask("loop/step", request.context.run_id, request)
        return msgspec.json.decode(raw, type=wire.StepObservation)

    async def apply(self, request: wire.LoopApplyRequest) -> None:
        """Ask for an apply or rollback. Raises RlmError for the client's refusal."""
        await self._ask("loop/apply", request.context.run_id, request)

    async def _ask(
        self, method: str, run_id: str, request: wire.LoopStepRequest | wire.LoopApplyRequest
    ) -> msgspec.Raw:
        while True:
            followers = self._following.get(run_id)
            if not followers:
                await self._came.setdefault(run_id, anyio.Event()).wait()
                continue
            client = followers[-1]
            try:
                return await client.request(method, request) or EMPTY
            except HostLost:
                self._gone(run_id, client)

    def _gone(self, run_id: str, client: "Attachment") -> None:
        followers = self._following.get(run_id, [])
        if client in followers:
            followers.remove(client)
        if not followers:
            self._following.pop(run_id, None)
