"""Running cells of files: the session of each workspace folder, progress, and what came of it."""

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec

from rlm_protocol.base import Result
from rlm_protocol.errors import RlmError, SessionLeased, SessionNotFound
from rlm_protocol.item import ItemCompleted, ReplCell
from rlm_protocol.repl import ReplExecuteResult
from rlm_protocol.session import SessionCreateParams

from .attachment import ClientAttachment
from .documents import Cell, CellResult, detail_of, raised_line, summary_of
from .services import Services

if TYPE_CHECKING:
    from ..sessions.session import SessionActor

SESSIONS_TRIED = 16
"""So many sessions of one folder may be deleted, or held by other hosts, before one is free."""
ITEMS_KEPT = 64

Token = int | str


class RunResult(Result, frozen=True):
    """The answer of a command that runs cells: how the last of `cells` ended."""

    session_id: str
    status: Literal["ok", "error", "interrupted"]
    cells: int
    result: str | None = None
    error: str | None = None


class SessionOf(Result, frozen=True):
    """The answer of `rlm.session`, `rlm.interrupt` and `rlm.restart`."""

    session_id: str
    done: bool = True


class FolderSession:
    """A folder's session with an ear at it, for what cells print is told to listeners only."""

    def __init__(self, actor: "SessionActor") -> None:
        self.actor = actor
        self._heard: deque[ReplCell] = deque(maxlen=ITEMS_KEPT)

    def __call__(self, method: str, payload: msgspec.Struct) -> None:
        """Hear one notification: a `Listener`."""
        if isinstance(payload, ItemCompleted) and isinstance(payload.item, ReplCell):
            self._heard.append(payload.item)

    def item(self, cell_id: str) -> ReplCell | None:
        """Give a cell that has ended just now."""
        return next((item for item in self._heard if item.id == cell_id), None)


class FolderSessions:
    """
    The session of each workspace folder that one client runs cells in, opened by its first use.

    A folder finds its session again after a restart of the host: it is created by an idempotency
    key that is made of the folder's path. Where another host holds that session, or somebody has
    deleted it, the folder's next one is taken.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[Path, FolderSession] = {}
        self._opening: dict[Path, asyncio.Future[FolderSession]] = {}

    def known(self, folder: Path) -> FolderSession | None:
        """Give the folder's session if it is open."""
        found = self._open.get(folder)
        return None if found is None or found.actor.closing else found

    async def get(self, folder: Path) -> FolderSession:
        """
        Give the folder's session, created when there is none.

        Raises:
            InvalidParams: there is no such folder.
            SessionLeased: other hosts hold all sessions of the folder.
            StoreFull, StoreUnavailable, StoreCorrupt: its journal cannot be used.
        """
        found = self.known(folder)
        if found is not None:
            return found
        if folder not in self._opening:
            opening = asyncio.ensure_future(self._take(folder))
            self._opening[folder] = opening
            opening.add_done_callback(lambda _: self._opening.pop(folder, None))
        return await asyncio.shield(self._opening[folder])

    async def _take(self, folder: Path) -> FolderSession:
        digest = hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        refused: RlmError | None = None
        for nth in range(SESSIONS_TRIED):
            key = f"folder:{digest}:{nth}"
            params = SessionCreateParams(cwd=str(folder), idempotency_key=key)
            try:
                actor = await self._services.sessions.create(params)
            except (SessionNotFound, SessionLeased) as why:
                refused = why
                continue
            return await self._bind(folder, actor)
        assert refused is not None
        raise refused

    async def use(self, folder: Path, session_id: str) -> None:
        """Run the folder's cells in this session from now on. Raises as `SessionStore.get` does."""
        await self._bind(folder, await self._services.sessions.get(session_id))

    async def _bind(self, folder: Path, actor: "SessionActor") -> FolderSession:
        before = self._open.pop(folder, None)
        if before is not None:
            before.actor.detach(before)
        found = self._open[folder] = FolderSession(actor)
        await actor.attach(found)
        return found

    def close(self) -> None:
        """Listen no more. The sessions go on."""
        for found in self._open.values():
            found.actor.detach(found)
        self._open.clear()


class Progress:
    """
    Work-done progress of one run (LSP 3.17, Work Done Progress).

    With a token of the client's it begins at once; otherwise the client is asked for one, and what
    runs does not wait for its answer.
    """

    def __init__(self, attachment: ClientAttachment, token: Token, title: str) -> None:
        self.token = token
        self._attachment, self._title = attachment, title
        self._message: str | None = None
        self._state: Literal["new", "shown", "over"] = "new"

    async def ask(self) -> None:
        """Ask the client to show progress, and begin unless all is over meanwhile."""
        with contextlib.suppress(RlmError):  # it does not want any: then there is none
            await self._attachment.request("window/workDoneProgress/create", {"token": self.token})
            if self._state == "new":
                self.begin()

    def begin(self) -> None:
        """Begin."""
        self._state = "shown"
        self._say(kind="begin", title=self._title, cancellable=True, message=self._message)

    def report(self, message: str) -> None:
        """Say what is going on now."""
        self._message = message
        if self._state == "shown":
            self._say(kind="report", cancellable=True, message=message)

    def end(self) -> None:
        """End; nothing is said afterwards."""
        if self._state == "shown":
            self._say(kind="end")
        self._state = "over"

    def _say(self, **value: Any) -> None:
        given = {name: one for name, one in value.items() if one is not None}
        self._attachment.tell("$/progress", {"token": self.token, "value": given})


class Runs:
    """What one client has running. `can_show`: it takes progress that it did not ask for."""

    def __init__(
        self,
        attachment: ClientAttachment,
        *,
        can_show: bool,
        launch: Callable[[Any], None],
    ) -> None:
        self._attachment, self._can_show, self._launch = attachment, can_show, launch
        self._scopes: dict[Token, anyio.CancelScope] = {}
        self._next = 1

    def cancel(self, token: Token) -> None:
        """Cancel the run with this progress token; an unknown one is over already."""
        if (scope := self._scopes.get(token)) is not None:
            scope.cancel()

    async def run(
        self,
        session: FolderSession,
        cells: Sequence[Cell],
        *,
        token: Token | None,
        on_result: Callable[[Cell, CellResult], None],
    ) -> RunResult:
        """
        Run cells one after the other until one does not end well; give how the last one ended.

        Raises:
            RlmError: the kernel's or the store's; `on_result` has told it of the cell, too.
        """
        answer = RunResult(session_id=session.actor.id, status="ok", cells=0)
        begun = 0
        with self._shown(token, len(cells)) as (progress, scope), scope:
            for begun, cell in enumerate(cells, start=1):
                progress.report(_named(cell, begun, len(cells)))
                on_result(cell, CellResult(status="running", summary="running"))
                outcome = CellResult(status="interrupted", summary="interrupted")
                try:
                    ran = await session.actor.execute_cell(cell.code)
                    outcome = _outcome(ran, session.item(ran.cell_id))
                    answer = _answer(session, ran, begun)
                except RlmError as why:
                    outcome = CellResult(status="error", summary=summary_of(str(why)))
                    raise
                finally:
                    on_result(cell, outcome)
                if answer.status != "ok":
                    break
        if scope.cancelled_caught:
            return RunResult(session_id=session.actor.id, status="interrupted", cells=begun)
        return answer

    @contextlib.contextmanager
    def _shown(
        self, token: Token | None, count: int
    ) -> Iterator[tuple[Progress, anyio.CancelScope]]:
        """Show progress for the length of the block; the scope is what its cancel button ends."""
        given = token is not None
        if token is None:
            token, self._next = f"rlm-{self._next}", self._next + 1
        progress = Progress(self._attachment, token, "Run cell" if count == 1 else "Run cells")
        scope = self._scopes[token] = anyio.CancelScope()
        if given:
            progress.begin()
        elif self._can_show:
            self._launch(progress.ask())
        try:
            yield progress, scope
        finally:
            self._scopes.pop(token, None)
            progress.end()


def _named(cell: Cell, nth: int, count: int) -> str:
    name = cell.title or summary_of(cell.code.strip().partition("\n")[0])
    return name if count == 1 else f"{nth}/{count} {name}"


def _answer(session: FolderSession, ran: ReplExecuteResult, count: int) -> RunResult:
    error = f"{ran.error.ename}: {ran.error.evalue}" if ran.error is not None else None
    return RunResult(
        session_id=session.actor.id,
        status=ran.status,
        cells=count,
        result=ran.result,
        error=error,
    )


def _outcome(ran: ReplExecuteResult, item: ReplCell | None) -> CellResult:
    stdout, stderr = (item.stdout, item.stderr) if item is not None else ("", "")
    printed = detail_of(stdout, stderr, ran.result or "")
    if ran.status == "interrupted":
        return CellResult(status="interrupted", summary="interrupted", detail=printed)
    if ran.error is not None:
        traceback = "".join(ran.error.traceback)
        return CellResult(
            status="error",
            summary=summary_of(f"{ran.error.ename}: {ran.error.evalue}"),
            detail=detail_of(stdout, stderr, traceback),
            raised_line=raised_line(traceback),
        )
    last = (stdout or stderr).strip().rpartition("\n")[2]
    return CellResult(status="ok", summary=summary_of(ran.result or last or "ok"), detail=printed)
