"""
Language features of one connection (LSP 3.17), loaded by the first message that needs them.

What `initialize` announces is a table here, so that a client that never opens a file never waits
for pygls. Requests run as any other handler does: `rlm_protocol.rpc` has their ids, their
cancellation and their one answer; pygls has the features, the documents and the types.
"""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec

from rlm_protocol.errors import InvalidParams
from rlm_protocol.host import InitializeParams

from .attachment import ClientAttachment, internal_error
from .context import Context, Handler
from .lsp_cells import FolderSession, FolderSessions, Runs
from .services import Services

if TYPE_CHECKING:
    from .lsp_features import Features

log = logging.getLogger(__name__)

REQUESTS = frozenset(
    {
        "textDocument/codeLens",
        "textDocument/completion",
        "textDocument/hover",
        "textDocument/inlayHint",
        "workspace/executeCommand",
    }
)
NOTIFICATIONS = frozenset(
    {
        "textDocument/didChange",
        "textDocument/didClose",
        "textDocument/didOpen",
        "window/workDoneProgress/cancel",
        "workspace/didChangeWorkspaceFolders",
    }
)
COMMANDS = (
    "rlm.runCell",
    "rlm.runAbove",
    "rlm.runAll",
    "rlm.interrupt",
    "rlm.restart",
    "rlm.session",
    "rlm.useSession",
)
COMPLETION_TRIGGERS = (".", '"', "'")
ENCODINGS = ("utf-8", "utf-16", "utf-32")
INCREMENTAL = 2


def position_encoding(params: InitializeParams) -> str:
    """Give the first of the client's position encodings that we know; UTF-16 if it names none."""
    offered = _said(params.capabilities, "general", "positionEncodings")
    known = [one for one in offered if one in ENCODINGS] if isinstance(offered, list) else []
    return str(known[0]) if known else "utf-16"


def server_capabilities(params: InitializeParams) -> dict[str, Any]:
    """Give LSP's ServerCapabilities for this client: what pygls would build of the features."""
    folders = {"supported": True, "changeNotifications": True}
    return {
        "positionEncoding": position_encoding(params),
        "textDocumentSync": {"openClose": True, "change": INCREMENTAL, "save": False},
        "codeLensProvider": {"resolveProvider": False},
        "completionProvider": {"triggerCharacters": list(COMPLETION_TRIGGERS)},
        "executeCommandProvider": {"commands": list(COMMANDS)},
        "hoverProvider": True,
        "inlayHintProvider": {"resolveProvider": False},
        "workspace": {"workspaceFolders": folders, "fileOperations": {}},
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """What the features may know of the client and do to it and to sessions."""

    encoding: str
    root_uri: str | None
    folders: tuple[dict[str, Any], ...]
    sessions: FolderSessions
    open_session: Callable[[Context, Path], Awaitable[FolderSession]]
    runs: Runs
    tell: Callable[[str, Mapping[str, Any]], None]
    """Queue an LSP notification."""
    hints_changed: Callable[[], None]
    """Let the client ask for its inlay hints anew."""


class Language:
    """The features of one connection until its attachment closes."""

    def __init__(self, services: Services, attachment: ClientAttachment) -> None:
        self._services, self._attachment = services, attachment
        self._params = InitializeParams()
        self._features: Features | None = None
        self._loading: asyncio.Future[Features] | None = None
        self._early: list[tuple[str, msgspec.Raw]] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._sessions = FolderSessions(services)
        self._heard: set[str] = set()
        attachment.on_close(self._close)

    def initialize(self, params: InitializeParams) -> None:
        """Take note of the client."""
        self._params = params

    def handler(self, method: str) -> Handler | None:
        """Give what answers a language request, None for any other method."""
        if method not in REQUESTS:
            return None

        async def answer(context: Context, params: msgspec.Raw) -> object:
            return await (self._features or await self._load()).answer(context, method, params)

        return answer

    def notified(self, method: str, params: msgspec.Raw) -> None:
        """
        Take a notification, if it is one of the features'; what it breaks is logged.

        In its turn behind the requests before it, which have begun by then, and so see the
        documents as they were.
        """
        if method in NOTIFICATIONS:
            self._take(method, params)

    def _take(self, method: str, params: msgspec.Raw) -> None:
        if self._attachment.closed:
            return
        if self._features is None:
            self._early.append((method, params))
            self._launch(self._load())
            return
        try:
            self._features.notified(method, params)
        except InvalidParams as why:
            log.warning("%s: %s", self._attachment.id, why)
        except Exception as bug:  # the connection goes on, and so do the other documents
            internal_error(method, bug)

    async def _load(self) -> "Features":
        """Give the features, imported in a thread, with all that was said meanwhile."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._loading)

    async def _open(self) -> "Features":
        name = f"{__package__}.lsp_features"
        module = await anyio.to_thread.run_sync(importlib.import_module, name)
        client = self._params
        progress = _said(client.capabilities, "window", "workDoneProgress") is True
        features: Features = module.Features(
            Desk(
                encoding=position_encoding(client),
                root_uri=client.root_uri,
                folders=tuple(client.workspace_folders or ()),
                sessions=self._sessions,
                open_session=self._open_session,
                runs=Runs(self._attachment, can_show=progress, launch=self._launch),
                tell=self._attachment.tell,
                hints_changed=self._hints_changed,
            )
        )
        self._features = features
        early, self._early = self._early, []
        for method, params in early:
            self._take(method, params)
        return features

    def _hints_changed(self) -> None:
        if _said(self._params.capabilities, "workspace", "inlayHint", "refreshSupport"):
            self._attachment.ask("workspace/inlayHint/refresh", None)

    async def _open_session(self, context: Context, folder: Path) -> FolderSession:
        """Give the folder's session; a client that knows us hears it from now on."""
        found = await self._sessions.get(folder)
        if found.actor.id not in self._heard and self._knows_us:
            self._heard.add(found.actor.id)
            await self._services.feeds.attach(context, found.actor)
        return found

    @property
    def _knows_us(self) -> bool:
        return _said(self._params.capabilities, "experimental", "rlm") is not None

    def _launch(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (why := task.exception()) is not None:
            internal_error("the language features", why)

    def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._sessions.close()


def _said(capabilities: object, *path: str) -> object:
    """Give what a client says at a place of its capabilities, None when it says nothing there."""
    for name in path:
        if not isinstance(capabilities, dict):
            return None
        capabilities = capabilities.get(name)
    return capabilities
