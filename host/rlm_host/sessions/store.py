"""All sessions of a home: create, find, list, fork, archive, delete; owner of every loaded one."""

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from rlm_protocol import __version__
from rlm_protocol import records as r
from rlm_protocol.errors import (
    Conflict,
    InvalidParams,
    RlmError,
    SessionClosed,
    SessionNotFound,
)
from rlm_protocol.session import (
    SessionCreateParams,
    SessionForkParams,
    SessionItemsParams,
    SessionItemsResult,
    SessionListParams,
    SessionListResult,
    SessionOptions,
)

from .. import paths
from ..clock import Clock
from ..kernels.skills import Skills
from ..models.catalog import check_thinking, clamp_thinking
from ..paths import Directory
from ..processes.ledger import this_process
from .files import Files
from .fork import Place, fork_header, write_fork
from .index import Index
from .journal import store_error
from .lease import Holder
from .opening import Opened, erase, open_journal
from .options import DEFAULTS, SessionDefaults, composed, env_of, public
from .pages import items_cursor, items_page, page_cursor
from .ports import Fold, KernelFactory, Models, SessionPorts
from .recorded import Environment
from .recovery import peek
from .requests import digest_of
from .session import SessionActor
from .state import SessionState
from .tools import check_tools
from .unloading import Unloader
from .verifying import verify_later

log = logging.getLogger(__name__)

THREADS = 8
T = TypeVar("T")


def fresh_id(prefix: str) -> str:
    """Give an id that nobody has."""
    return f"{prefix}_{secrets.token_hex(8)}"


class SessionStore:
    """
    Owns the sessions of `home`. An async context manager; leaving it closes every session.

    Args:
        home: RLM_HOME; created when the first session is.
        ephemeral_home: where non-persistent sessions lie.
        socket: this host's private socket, for `sessionLeased {owner}`.
        new_id: gives a fresh id for a prefix: `new_id("turn")`.
        unload_after_ms: what nobody has used for so long is let go; 0 keeps everything loaded.
    """

    def __init__(
        self,
        *,
        home: Path,
        ephemeral_home: Path,
        clock: Clock,
        kernels: KernelFactory,
        models: Models,
        ports: SessionPorts,
        defaults: SessionDefaults = DEFAULTS,
        socket: str | None = None,
        new_id: Callable[[str], str] = fresh_id,
        files: Files | None = None,
        skills: Skills | None = None,
        unload_after_ms: int = 0,
    ) -> None:
        self._home, self._ephemeral_home = home, ephemeral_home
        self._models, self._defaults, self._socket = models, defaults, socket
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="rlm-sessions")
        self._loaded: dict[str, SessionActor] = {}
        self._shared = Environment(
            home=home,
            clock=clock,
            executor=self._executor,
            files=files or Files(),
            skills=skills or Skills(),
            kernels=kernels,
            models=models,
            ports=ports,
            new_id=new_id,
            random=random.random,
            loaded=self._loaded,
        )
        self._index = Index(home)
        self._opening: dict[str, asyncio.Future[SessionActor]] = {}
        self._creating: dict[str, tuple[str, asyncio.Future[SessionActor]]] = {}
        self._background: set[asyncio.Future[Any]] = set()
        self._verifying: set[asyncio.Future[None]] = set()
        self._unloader = Unloader(self.loaded, clock=clock, after_ms=unload_after_ms)
        self._looked_through = False
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- create, get ---

    async def create(
        self,
        params: SessionCreateParams,
        *,
        parent: r.ParentLink | None = None,
        session_id: str | None = None,
    ) -> SessionActor:
        """
        Create a session, durable on return; a repeat of an idempotency key gives the same one.

        For a child `parent.directory` may exist already, and `session_id` may be chosen.

        Raises:
            InvalidParams: `cwd` is no folder, or a tool cannot be offered.
            ModelUnavailable, AuthRequired, ThinkingUnsupported: nothing was created.
            Conflict: the key came before with other parameters.
            StoreFull, StoreUnavailable: nothing was created.
        """
        if params.idempotency_key is None:
            return await self._create(params, parent, session_id, None)
        key, request = params.idempotency_key, digest_of("session/create", params)
        if key not in self._creating:
            creating = asyncio.ensure_future(self._create_once(params, parent, key, request))
            self._creating[key] = (request, self._own(creating))
            creating.add_done_callback(lambda _: self._creating.pop(key, None))
        known, running = self._creating[key]
        if known != request:
            raise Conflict("This key was used before with another request.", key=key)
        return await asyncio.shield(running)

    async def _create_once(
        self, params: SessionCreateParams, parent: r.ParentLink | None, key: str, request: str
    ) -> SessionActor:
        known = await self._indexed(lambda: self._index.created_by(key))
        if known is None:
            return await self._create(params, parent, None, request)
        session_id, before = known
        if before != request:
            raise Conflict("This key was used before with another request.", key=key)
        return await self.get(session_id)

    async def _create(
        self,
        params: SessionCreateParams,
        parent: r.ParentLink | None,
        session_id: str | None,
        request: str | None,
    ) -> SessionActor:
        self._check_open()
        chosen = self._defaults.model if params.model is None else params.model
        model = self._models.default(chosen)
        check_thinking(model, params.thinking)
        thinking = params.thinking
        if thinking is None and parent is None:
            thinking = clamp_thinking(model, self._defaults.thinking)
        cwd = Path(params.cwd)
        if not cwd.is_absolute() or not await self._thread(os.path.isdir, cwd):
            raise InvalidParams("cwd must be an absolute path of a folder.", path="$.cwd")
        session_id = session_id or self._shared.new_id("ses")
        options = params.options or SessionOptions()
        if options.tools:
            await self._thread(check_tools, options.tools)
        env = env_of(options)
        header = r.SessionOpened(
            session_id=session_id,
            name=params.name or f"{cwd.name or 'session'}-{session_id[-4:]}",
            cwd=params.cwd,
            model=model.selector,
            thinking=thinking,
            prompt="",
            max_depth=parent.max_depth if parent else self._defaults.max_depth,
            ephemeral=params.ephemeral,
            options=public(options),
            env_names=tuple(env),
            parent=parent,
            host_version=__version__,
            key=params.idempotency_key,
            request=request,
        )
        actor = await self._found_session(header, env)
        self._own(asyncio.ensure_future(self._models.warm_up(model.provider)))
        return actor

    async def _found_session(self, header: r.SessionOpened, env: dict[str, str]) -> SessionActor:
        """Write a new journal and open it."""
        folder = self._folder(header)

        def write() -> Opened:
            prompt, files = composed(self._home, header, header.options, self._shared.skills)
            whole = msgspec.structs.replace(header, prompt=prompt, instruction_files=files)
            now_ms = self._shared.clock.now_ms()
            with Directory.open(folder) as directory:
                line = r.encode_line(whole, seq=1, gen=1, at_ms=now_ms)
                self._shared.files.create(directory, f"{header.session_id}.jsonl", line)
            return self._open_journal(header.session_id, folder)

        actor = self._make(await self._thread_on(folder, write), folder, env)
        await self._start(actor, [])
        await self._remember(actor)
        return actor

    async def get(self, session_id: str) -> SessionActor:
        """
        Give the session, loaded when it is not.

        Raises:
            SessionNotFound: no such session, or it or an ancestor is deleted.
            SessionLeased: another process owns it; `owner` says which.
            SessionClosed: it is just being closed.
            StoreCorrupt, SchemaTooNew, StoreUnavailable: its journal cannot be opened.
        """
        self._check_open()
        actor = self._loaded.get(session_id)
        if actor is not None and self._unloader.lets_go(actor):
            await actor.close()  # when that is done it can be opened again
            self._check_open()
        elif actor is not None:
            if actor.closing:
                raise SessionClosed(session_id=session_id)
            actor.touch()
            return actor
        if session_id not in self._opening:
            opening = self._own(asyncio.ensure_future(self._load(session_id)))
            self._opening[session_id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(session_id, None))
        return await asyncio.shield(self._opening[session_id])

    async def _load(self, session_id: str) -> SessionActor:
        folder = await self._folder_of(session_id)
        found = await self._thread_on(folder, lambda: self._open_journal(session_id, folder))
        try:
            header = found.recovered.state.opened
            if found.recovered.state.deleted:
                raise SessionNotFound("The session is deleted.", session_id=session_id)
            if header.parent is not None:
                await self.get(header.parent.session_id)
                for check in self._shared.ports.may_open:
                    await check(header.parent, session_id)
            damage, found.recovered.damage = found.recovered.damage, []
            actor = self._make(found, folder, {})
        except BaseException:
            found.lease.release()
            found.directory.close()
            raise
        await self._start(actor, damage)
        if found.recovered.from_seq:
            later = verify_later(actor, found.recovered.place, self._shared.clock)
            verifying = self._own(asyncio.ensure_future(later))
            self._verifying.add(verifying)
            verifying.add_done_callback(self._verifying.discard)
        return actor

    async def _folder_of(self, session_id: str) -> Path:
        folder = None
        if paths.is_id(session_id):
            folder = await self._indexed(lambda: self._index.folder_of(session_id))
        if folder is None:
            raise SessionNotFound(session_id=session_id)
        return folder

    def _make_folds(self) -> dict[str, Fold]:
        return {key: make() for key, make in self._shared.ports.folds.items()}

    def _open_journal(self, session_id: str, folder: Path) -> Opened:
        holder = Holder(
            owner=this_process(), since_ms=self._shared.clock.now_ms(), socket=self._socket
        )
        return open_journal(
            folder, session_id, holder, files=self._shared.files, make_folds=self._make_folds
        )

    def _make(self, found: Opened, folder: Path, env: dict[str, str]) -> SessionActor:
        header = found.recovered.state.opened
        actor = SessionActor(
            self._shared,
            found.recovered,
            directory=found.directory,
            journal_name=f"{header.session_id}.jsonl",
            artifacts_path=self._artifacts(header, folder),
            lease=found.lease,
            env=env,
            on_changed=self._remember,
            on_closed=self._forget,
        )
        self._loaded[actor.id] = actor
        self._unloader.start()
        return actor

    async def _start(self, actor: SessionActor, damage: list[r.DamageFound]) -> None:
        """Have a session recover and begin; one that cannot is let go again."""
        try:
            await actor.start(damage)
        except BaseException:
            await actor.close()
            raise

    def loaded(self) -> tuple[SessionActor, ...]:
        """Give the sessions that are open in this process, in order of their opening."""
        return tuple(self._loaded.values())

    # --- read ---

    async def peek(self, session_id: str) -> tuple[SessionState, dict[str, Fold]]:
        """Give a session's folds without loading it: they are a reading, not kept up to date."""
        actor = self._loaded.get(session_id)
        if actor is not None:
            return actor.state, actor.folds
        folder = await self._folder_of(session_id)

        def look() -> tuple[SessionState, dict[str, Fold]]:
            with Directory.open(folder) as directory:
                return peek(directory, f"{session_id}.jsonl", self._make_folds)

        return await self._thread_on(folder, look)

    async def list(self, params: SessionListParams) -> SessionListResult:
        """Give a page of root sessions, newest first. Raises InvalidParams for a foreign cursor."""
        before = page_cursor(params.cursor)
        self._look_through()
        live = {actor.id: actor.summary() for actor in self._loaded.values()}
        rows = await self._thread_on(
            paths.sessions(self._home),
            lambda: self._index.page(
                before=before,
                limit=params.limit + 1,
                search=params.search or "",
                archived=params.archived,
                live=live,
            ),
        )
        more = len(rows) > params.limit
        rows = rows[: params.limit]
        cursor = f"{rows[-1].created_at_ms}.{rows[-1].id}" if more else None
        return SessionListResult(sessions=tuple(row.view for row in rows), next_cursor=cursor)

    def _look_through(self) -> None:
        """Have the index look at every journal, once and beside: others may have written some."""
        if not self._looked_through:
            self._looked_through = True
            self._own(self._thread(self._index.reconcile))

    async def items(self, params: SessionItemsParams) -> SessionItemsResult:
        """Give a page of a session's items, in the order in which they were completed."""
        actor = await self.get(params.session_id)
        place, upto, folder = items_cursor(params.cursor), actor.state.seq, actor.folder
        return await self._thread_on(folder, lambda: items_page(folder, params, place, upto))

    # --- fork, delete ---

    async def fork(self, params: SessionForkParams) -> SessionActor:
        """
        Copy a session's journal up to the end of a turn (default: its last) into a new session.

        Its kernel starts with the newest names of that turn that are kept; see `ForkOrigin`.

        Raises:
            InvalidParams: no such turn has ended.
            StoreCorrupt: the journal is damaged before that place.
        """
        source = await self.get(params.session_id)
        turn_id = params.at_turn_id or source.state.last_turn_id
        header = fork_header(
            source.state, self._shared.new_id("ses"), name=params.name, turn_id=turn_id
        )
        folder, now_ms = self._folder(header), self._shared.clock.now_ms()
        await source.save_unsaved()
        origin = Place(source.folder, source.id, source.artifacts_path)
        target = Place(folder, header.session_id, self._artifacts(header, folder))
        damage = list(source.state.damage)

        def copy() -> Opened:
            write_fork(origin, target, self._home, header=header, damage=damage, at_ms=now_ms)
            return self._open_journal(header.session_id, folder)

        actor = self._make(await self._thread_on(folder, copy), folder, {})
        await self._start(actor, [])
        await self._remember(actor)
        return actor

    async def delete(self, session_id: str) -> None:
        """Close the session and never open it again. Its transcript and artifacts stay on disk."""
        actor = await self.get(session_id)
        await actor.append(r.SessionDeleted())
        await self._remember(actor)
        await actor.close(reason="deleted")

    # --- life ---

    async def run_all(self, what: Callable[[SessionActor], Awaitable[None]]) -> None:
        """Do something to every loaded session, one failing not hindering the others."""
        for actor in self.loaded():
            try:
                await what(actor)
            except RlmError as why:
                log.warning("session %s: %s", actor.id, why)

    async def aclose(self) -> None:
        """Close every session, children before their parents. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        await self._unloader.stop()
        while loaded := self.loaded():
            deepest = max(actor.depth for actor in loaded)
            await asyncio.gather(*(one.close() for one in loaded if one.depth == deepest))
        self._index.stop()
        for task in self._verifying:
            task.cancel()
        if self._background:
            await asyncio.wait(tuple(self._background))
        await self._thread(self._index.close)
        self._executor.shutdown()

    async def _forget(self, actor: SessionActor) -> None:
        self._loaded.pop(actor.id, None)
        if actor.state.opened.ephemeral and actor.depth == 0:
            await self._thread(erase, actor.folder, actor.id, actor.artifacts_path)
        await self._remember(actor)

    async def _remember(self, actor: SessionActor) -> None:
        """Have the index know the session as it is now."""
        if not actor.state.opened.ephemeral:
            state = msgspec.structs.replace(actor.state)  # the fold goes on meanwhile
            await self._thread(self._index.put, state, actor.summary(), actor.folder)

    def _folder(self, header: r.SessionOpened) -> Path:
        """Give the folder that holds the session's journal."""
        home = self._ephemeral_home if header.ephemeral else self._home
        if header.parent is None:
            return paths.sessions(home)
        return paths.artifacts(home, header.parent.root_id) / header.parent.directory

    def _artifacts(self, header: r.SessionOpened, folder: Path) -> Path:
        home = self._ephemeral_home if header.ephemeral else self._home
        return folder if header.parent else paths.artifacts(home, header.session_id)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed("The host is shutting down.")

    def _own(self, task: "asyncio.Future[T]") -> "asyncio.Future[T]":
        self._background.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: "asyncio.Future[Any]") -> None:
        self._background.discard(task)
        why = None if task.cancelled() else task.exception()
        if why is not None and not isinstance(why, RlmError):
            log.error("a task of the session store failed with a bug", exc_info=why)

    def _thread(self, work: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    async def _indexed(self, ask: Callable[[], T]) -> T:
        """Ask the index. Raises StoreFull, StoreUnavailable."""
        return await self._thread_on(paths.sessions(self._home), ask)

    async def _thread_on(self, path: Path, work: Callable[[], T]) -> T:
        """Run blocking work on files below `path`. Raises StoreFull, StoreUnavailable."""
        try:
            return await self._thread(work)
        except OSError as why:
            raise store_error(why, why.filename or str(path)) from why
