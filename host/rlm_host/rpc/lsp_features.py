"""
The language features themselves, on pygls: its registry, its documents, its converter.

Imported by the first message that needs it (`lsp.Language`), for it takes a while. pygls never sees
a connection: it sends nothing, and ids, cancellation and answers are none of its business.
"""

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from lsprotocol import types as t
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter
from pygls.uris import to_fs_path
from pygls.workspace import TextDocument

from rlm_protocol import __version__
from rlm_protocol.errors import InvalidParams, KernelBusy, KernelDied
from rlm_protocol.framing import UNDECODABLE

from .context import Context
from .documents import Cell, CellResult, Results, cell_at, cells_of, lines_of
from .lsp import COMPLETION_TRIGGERS, Desk
from .lsp_cells import RunResult, SessionOf, Token

SOURCE = "rlm"
WRONG = (ExceptionGroup, TypeError, ValueError, LookupError)
"""What structuring a client's params raises when they do not fit."""
Work = Callable[[Context, Token | None], Awaitable[object]]
"""A command that knows what it has to do; the token is the client's, for progress."""


class Document(TextDocument):
    """A text document whose lines end where LSP says, and nowhere else: pygls splits at more."""

    @property
    def lines(self) -> Sequence[str]:
        """Give the lines with their ends."""
        return lines_of(self.source)


class Shown:
    """What one open document shows of its runs."""

    def __init__(self) -> None:
        self.results = Results()
        self.diagnostics: list[t.Diagnostic] = []


class Features:
    """The features of one client. `desk` is what they may do to the world."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shown: dict[str, Shown] = {}
        self._converter: Any = default_converter()  # type: ignore[no-untyped-call]
        self.server = LanguageServer(
            "rlm-host", __version__, converter_factory=lambda: self._converter
        )
        self._register()
        encodings: list[t.PositionEncodingKind | str] = [desk.encoding]
        client = t.ClientCapabilities(
            general=t.GeneralClientCapabilities(position_encodings=encodings)
        )
        folders = [
            t.WorkspaceFolder(uri=folder["uri"], name=str(folder.get("name", "")))
            for folder in desk.folders
            if isinstance(folder.get("uri"), str)
        ]
        self.initialized: t.InitializeResult = self._now(
            t.INITIALIZE,
            t.InitializeParams(
                capabilities=client, root_uri=desk.root_uri, workspace_folders=folders
            ),
        )

    def _register(self) -> None:
        triggers = t.CompletionOptions(trigger_characters=list(COMPLETION_TRIGGERS))
        features: dict[str, Callable[..., Any]] = {
            t.TEXT_DOCUMENT_DID_OPEN: self._opened,
            t.TEXT_DOCUMENT_DID_CHANGE: self._changed,
            t.TEXT_DOCUMENT_DID_CLOSE: self._closed,
            t.TEXT_DOCUMENT_CODE_LENS: self._lenses,
            t.TEXT_DOCUMENT_INLAY_HINT: self._hints,
            t.TEXT_DOCUMENT_HOVER: self._hover,
            t.TEXT_DOCUMENT_COMPLETION: self._complete,
        }
        # pygls writes on what it registers, which a method does not bear: hence the partials.
        for method, feature in features.items():
            options = triggers if method == t.TEXT_DOCUMENT_COMPLETION else None
            self.server.feature(method, options)(functools.partial(feature))
        commands: dict[str, Callable[..., Work]] = {
            "rlm.runCell": self._run_cell,
            "rlm.runAbove": self._run_above,
            "rlm.runAll": self._run_all,
            "rlm.interrupt": self._interrupt,
            "rlm.restart": self._restart,
            "rlm.session": self._session,
            "rlm.useSession": self._use_session,
        }
        for name, command in commands.items():
            self.server.command(name)(functools.partial(command))

    # --- messages ---------------------------------------------------------------------------------

    async def answer(self, context: Context, method: str, params: msgspec.Raw) -> object:
        """
        Answer one request.

        Raises:
            InvalidParams: the params do not fit the method.
            RlmError: what the method itself refuses.
        """
        given = self._structured(method, params)
        if method == t.WORKSPACE_EXECUTE_COMMAND:
            result = await self._command(context, given)
        else:
            result = self.server.protocol.fm.features[method](given)
            if inspect.isawaitable(result):
                result = await result
        return result if isinstance(result, msgspec.Struct) else self._converter.unstructure(result)

    def notified(self, method: str, params: msgspec.Raw) -> None:
        """Take one notification. Raises InvalidParams when its params do not fit."""
        given = self._structured(method, params)
        if method == t.WINDOW_WORK_DONE_PROGRESS_CANCEL:  # of progress that pygls knows nothing of
            self._desk.runs.cancel(given.token)
            return
        try:
            self._now(method, given)
        except WRONG as why:  # a document that is not open, a place outside of it
            raise InvalidParams(f"{method} does not fit what is open: {why!r}.") from None

    def _structured(self, method: str, params: msgspec.Raw) -> Any:
        wanted: Any = t.METHOD_TO_TYPES[method][2]
        try:
            return self._converter.structure(msgspec.json.decode(params), wanted)
        except (*WRONG, *UNDECODABLE) as why:
            raise InvalidParams(f"These are not the parameters of {method}.", path="$") from why

    def _now(self, method: str, params: Any) -> Any:
        """Run one of pygls's own handlers, a generator that yields ours, to its end."""
        steps: Generator[Any, Any, Any] = self.server.protocol.fm.builtin_features[method](params)
        given = None
        while True:
            try:
                handler, args, _ = steps.send(given)
            except StopIteration as end:
                return end.value
            given = handler(*args)

    async def _command(self, context: Context, params: t.ExecuteCommandParams) -> object:
        """Let pygls find the command and fit its arguments; run it here, where it is cancelled."""
        params.arguments = params.arguments or []
        steps = self.server.protocol.fm.builtin_features[t.WORKSPACE_EXECUTE_COMMAND](params)
        try:
            command, args, _ = steps.send(None)
        except JsonRpcInvalidParams as why:
            raise InvalidParams(f"{params.command}: {why}", path="$.arguments") from None
        finally:
            steps.close()
        work: Work = command(*args)
        return await work(context, params.work_done_token)

    # --- documents --------------------------------------------------------------------------------

    def _opened(self, params: t.DidOpenTextDocumentParams) -> None:
        uri = params.text_document.uri
        opened = self.server.workspace.text_documents[unquote(uri)]
        self.server.workspace.text_documents[unquote(uri)] = Document(
            uri,
            opened.source,
            opened.version,
            opened.language_id,
            sync_kind=t.TextDocumentSyncKind.Incremental,
            position_codec=opened.position_codec,
        )
        self._shown[unquote(uri)] = Shown()

    def _changed(self, params: t.DidChangeTextDocumentParams) -> None:
        self._publish(params.text_document.uri)

    def _closed(self, params: t.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        shown = self._shown.pop(unquote(uri), None)
        if shown is not None and shown.diagnostics:
            self._desk.tell(t.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS, {"uri": uri, "diagnostics": []})

    def _document(self, uri: str) -> TextDocument | None:
        document = self.server.workspace.text_documents.get(unquote(uri))
        return document if document is not None and document.language_id == "python" else None

    def _cells(self, uri: str) -> tuple[Cell, ...]:
        document = self._document(uri)
        return () if document is None else cells_of(document.source)

    # --- what is shown ----------------------------------------------------------------------------

    def _lenses(self, params: t.CodeLensParams) -> list[t.CodeLens]:
        uri = params.text_document.uri
        lenses = []
        before = 0
        for cell in self._cells(uri):
            if not cell.runs:
                continue
            titles: list[tuple[str, str, list[t.LSPAny]]] = [
                ("Run cell", "rlm.runCell", [uri, cell.line])
            ]
            if before:
                titles.append(("Run above", "rlm.runAbove", [uri, cell.line]))
            else:
                titles.append(("Run all", "rlm.runAll", [uri]))
            before += 1
            place = t.Range(t.Position(cell.line, 0), t.Position(cell.line, 0))
            lenses += [
                t.CodeLens(place, t.Command(title, name, arguments=of))
                for title, name, of in titles
            ]
        return lenses

    def _hints(self, params: t.InlayHintParams) -> list[t.InlayHint]:
        document, shown = self._document_and_shown(params.text_document.uri)
        if document is None or shown is None:
            return []
        first, last = params.range.start.line, params.range.end.line
        return [
            t.InlayHint(
                position=_end_of_line(document, cell.last_line),
                label=f"=> {result.summary}" if result.status == "ok" else result.summary,
                tooltip=result.detail or None,
                padding_left=True,
            )
            for cell, result in shown.results.shown(cells_of(document.source))
            if first <= cell.last_line <= last
        ]

    async def _hover(self, params: t.HoverParams) -> t.Hover | None:
        document = self._document(params.text_document.uri)
        session = self._desk.sessions.known(self._folder(params.text_document.uri))
        if document is None or session is None:
            return None
        line, at = _line_at(document, params.position)
        try:
            found = await session.actor.kernel.inspect(line, at)
        except (KernelBusy, KernelDied):
            return None
        if not found.found:
            return None
        fence = "`" * (max(map(len, re.findall("`+", found.text)), default=0) + 3)
        text = f"{fence}python\n{found.text}\n{fence}"
        return t.Hover(t.MarkupContent(t.MarkupKind.Markdown, text))

    async def _complete(self, params: t.CompletionParams) -> t.CompletionList:
        document = self._document(params.text_document.uri)
        session = self._desk.sessions.known(self._folder(params.text_document.uri))
        if document is None or session is None:
            return t.CompletionList(is_incomplete=False, items=[])
        line, at = _line_at(document, params.position)
        try:
            found = await session.actor.kernel.complete(line, at)
        except (KernelBusy, KernelDied):
            return t.CompletionList(is_incomplete=True, items=[])
        units = document.position_codec.client_num_units
        place = t.Range(
            t.Position(params.position.line, units(line[: found.cursor_start])),
            t.Position(params.position.line, units(line[: found.cursor_end])),
        )
        items = [
            t.CompletionItem(label=name, detail="live", text_edit=t.TextEdit(place, name))
            for name in found.matches
        ]
        return t.CompletionList(is_incomplete=False, items=items)

    def _document_and_shown(self, uri: str) -> tuple[TextDocument | None, Shown | None]:
        return self._document(uri), self._shown.get(unquote(uri))

    def _publish(self, uri: str) -> None:
        """Tell the client the diagnostics of a document if they are not what it has been told."""
        document, shown = self._document_and_shown(uri)
        if document is None or shown is None:
            return
        lines = document.lines
        now = [
            _diagnostic(document, lines, cell, result)
            for cell, result in shown.results.shown(cells_of(document.source))
            if result.status == "error"
        ]
        if now != shown.diagnostics:
            shown.diagnostics = now
            told = t.PublishDiagnosticsParams(uri, now, document.version)
            self._desk.tell(t.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS, self._converter.unstructure(told))

    # --- commands: what is to be done is settled when the command comes ---------------------------

    def _run_cell(self, uri: str, line: int) -> Work:
        cells = self._cells(uri)
        cell = cell_at(cells, line)
        return functools.partial(self._run, uri, cells, [cell] if cell is not None else [])

    def _run_above(self, uri: str, line: int) -> Work:
        cells = self._cells(uri)
        above = [cell for cell in cells if cell.end_line <= line]
        return functools.partial(self._run, uri, cells, above)

    def _run_all(self, uri: str) -> Work:
        cells = self._cells(uri)
        return functools.partial(self._run, uri, cells, cells)

    def _session(self, uri: str) -> Work:
        async def work(context: Context, _: Token | None) -> SessionOf:
            found = await self._desk.open_session(context, self._folder(uri))
            return SessionOf(session_id=found.actor.id)

        return work

    def _use_session(self, uri: str, session_id: str) -> Work:
        folder = self._folder(uri)

        async def work(context: Context, _: Token | None) -> SessionOf:
            await self._desk.sessions.use(folder, session_id)
            found = await self._desk.open_session(context, folder)
            return SessionOf(session_id=found.actor.id)

        return work

    def _interrupt(self, uri: str) -> Work:
        async def work(context: Context, _: Token | None) -> SessionOf:
            found = await self._desk.open_session(context, self._folder(uri))
            return SessionOf(session_id=found.actor.id, done=found.actor.kernel.interrupt())

        return work

    def _restart(self, uri: str) -> Work:
        folder = self._folder(uri)

        async def work(context: Context, _: Token | None) -> SessionOf:
            found = await self._desk.open_session(context, folder)
            await found.actor.kernel.restart(restore=False)
            for key, shown in self._shown.items():
                if self._folder(key) == folder:
                    shown.results.clear()
                    self._publish(key)
            self._desk.hints_changed()
            return SessionOf(session_id=found.actor.id)

        return work

    async def _run(
        self,
        uri: str,
        cells: Sequence[Cell],
        wanted: Sequence[Cell],
        context: Context,
        token: Token | None,
    ) -> RunResult:
        """Run the wanted ones of a document's cells."""
        runnable = [cell for cell in wanted if cell.runs]
        if not runnable:
            raise InvalidParams("There is no cell to run here.", path="$.arguments")
        session = await self._desk.open_session(context, self._folder(uri))

        def on_result(cell: Cell, result: CellResult) -> None:
            shown = self._shown.get(unquote(uri))
            if shown is not None:
                shown.results.put(cells, cell, result)
                self._publish(uri)
                self._desk.hints_changed()

        return await self._desk.runs.run(session, runnable, token=token, on_result=on_result)

    def _folder(self, uri: str) -> Path:
        """Give the workspace folder that a document lies in, else the document's own folder."""
        folders = [folder.uri for folder in self.server.workspace.folders.values()]
        if not folders and self._desk.root_uri:
            folders = [self._desk.root_uri]
        known = [path for one in folders if (path := _path(one)) is not None]
        file = _path(uri)
        around = [path for path in known if file is not None and file.is_relative_to(path)]
        if around:
            return max(around, key=lambda path: len(path.parts))
        if file is not None:
            return file.parent
        if known:
            return known[0]
        raise InvalidParams("The document lies in no folder: save it first.")


def _path(uri: str) -> Path | None:
    """Give the path of a file URI."""
    path = to_fs_path(uri) if uri.startswith("file:") else None
    return Path(path) if path else None


def _line_at(document: TextDocument, position: t.Position) -> tuple[str, int]:
    """Give the line without its end, and the place in it in code points."""
    lines = document.lines
    if position.line >= len(lines):
        return "", 0
    place = document.position_codec.position_from_client_units(lines, position)
    line = lines[position.line].rstrip("\r\n")
    return line, min(place.character, len(line))


def _end_of_line(document: TextDocument, line: int) -> t.Position:
    text = document.lines[line].rstrip("\r\n")
    return t.Position(line, document.position_codec.client_num_units(text))


def _diagnostic(
    document: TextDocument, lines: Sequence[str], cell: Cell, result: CellResult
) -> t.Diagnostic:
    line = cell.last_line if result.raised_line is None else cell.code_line + result.raised_line
    line = min(line, len(lines) - 1)
    indent = len(lines[line]) - len(lines[line].lstrip())
    return t.Diagnostic(
        range=t.Range(t.Position(line, indent), _end_of_line(document, line)),
        message=result.summary,
        severity=t.DiagnosticSeverity.Error,
        source=SOURCE,
    )
