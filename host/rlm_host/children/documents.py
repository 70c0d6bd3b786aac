"""The contract documents of all children, reached from the event loop: one call at a time each."""

import logging
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from rlm_protocol.child import StoredResult
from rlm_protocol.errors import RlmError

from ..sessions.journal import store_error
from ..sessions.session import SessionActor
from .contract_journal import ContractJournal
from .kin import Kin
from .registry import Child

T = TypeVar("T")

log = logging.getLogger(__name__)


class Documents:
    """Reads and writes `.rlm-contract.json` of children, each loaded when it is first needed."""

    def __init__(self, kin: Kin) -> None:
        self._kin = kin

    async def give(self, actor: SessionActor, child: Child, generation: int) -> None:
        """Note that a task was given."""
        await self._note(
            actor, child, lambda d: d.give(generation, now_ms=self._kin.clock.now_ms())
        )

    async def note(
        self, actor: SessionActor, child: Child, generation: int, **changes: object
    ) -> None:
        """
        Set fields of a task.

        The parent's journal has it already, so a disk that does not take it is only logged.
        """
        await self._note(actor, child, lambda d: d.note(generation, **changes))

    async def has_result(self, actor: SessionActor, child: Child, generation: int) -> bool:
        """Tell whether a task has a stored result."""
        if child.admitted.contract is None:
            return False
        task = await self.use(actor, child, lambda d: d.task(generation))
        return task is not None and task.result is not None

    async def store(
        self, actor: SessionActor, child: Child, generation: int, data: bytes
    ) -> StoredResult:
        """Store a result. Raises ResultConflict, StoreFull, StoreUnavailable."""
        now_ms = self._kin.clock.now_ms()
        return await self.use(actor, child, lambda d: d.store(generation, data, now_ms=now_ms))

    async def read(
        self, actor: SessionActor, child: Child, generation: int | None
    ) -> tuple[int, bytes]:
        """Give a stored result and its generation. Raises ResultMissing, ResultInvalid."""
        return await self.use(actor, child, lambda d: d.read(generation))

    async def use(
        self, actor: SessionActor, child: Child, work: Callable[[ContractJournal], T]
    ) -> T:
        """Do something with a child's document in a thread. `actor` is the child's parent."""
        live, home = self._kin.live(child), await self._kin.home_of(actor, child)

        def blocking() -> T:
            if live.document is None:
                live.document = ContractJournal.load(
                    home,
                    child.admitted,
                    generation=child.generation,
                    now_ms=self._kin.clock.now_ms(),
                )
            return work(live.document)

        async with live.document_lock:
            try:
                return await anyio.to_thread.run_sync(blocking)
            except OSError as why:
                raise store_error(why, str(home)) from why

    async def _note(
        self, actor: SessionActor, child: Child, work: Callable[[ContractJournal], None]
    ) -> None:
        try:
            await self.use(actor, child, work)
        except RlmError as why:
            log.warning("the document of %s is behind: %s", child.id, why)
