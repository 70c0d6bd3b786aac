"""
Language features on pygls: the only module that knows pygls and lsprotocol.

Loaded by the first message that needs it. pygls keeps the documents and converts LSP types. It
never sees an id, sends nothing and answers nothing: the connection does, as for every method.
"""

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import TextDocument

from rlm_protocol import __version__
from rlm_protocol.errors import InvalidParams, KernelBusy
from rlm_protocol.host import InitializeParams
from rlm_protocol.session import SessionCreateParams

from .attachment import ClientAttachment
from .context import Context
from .documents import Cell, Results, cell_at, cells
from .progress import Progress
from .services import Services

log = logging.getLogger(__name__)

SOURCE = "rlm-host"
_CONTEXT: ContextVar[Context] = ContextVar("_CONTEXT")
"""The request that is being answered: pygls' registry does not carry it."""


class LanguageFeatures:
    """The documents of one client and what an editor shows in them."""

    def __init__(
        self, services: Services, attachment: ClientAttachment, params: InitializeParams
    ) -> None:
        self._services = services
        self._attachment = attachment
        self._server = LanguageServer(
            "rlm-host", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Incremental
        )
        self._protocol = self._server.protocol
        self._results: dict[str, Results] = {}
        self._sessions: dict[str, str] = {}  # workspace folder -> session id
        client = params.capabilities or {}
        workspace, window = client.get("workspace") or {}, client.get("window") or {}
        self._hears_sessions = "rlm" in (client.get("experimental") or {})
        self._refreshes = bool((workspace.get("inlayHint") or {}).get("refreshSupport"))
        self._progress = Progress(attachment, offered=bool(window.get("workDoneProgress")))
        self._features: dict[str, Callable[[Any], Awaitable[Any]]] = {
            lsp.TEXT_DOCUMENT_CODE_LENS: self._code_lenses,
            lsp.TEXT_DOCUMENT_INLAY_HINT: self._inlay_hints,
            lsp.TEXT_DOCUMENT_HOVER: self._hover,
            lsp.TEXT_DOCUMENT_COMPLETION: self._completion,
            lsp.WORKSPACE_EXECUTE_COMMAND: self._execute,
        }
        self._commands: dict[str, tuple[type[Any], Callable[..., Awaitable[Any]]]] = {
            "rlm.runCell": (_AtLine, self._run_cell),
            "rlm.runAbove": (_AtLine, self._run_above),
            "rlm.runAll": (_AtLine, self._run_all),
            "rlm.interrupt": (_InFile, self._interrupt),
            "rlm.useSession": (_WithSession, self._use_session),
        }
        self._initialize(params)

    # --- what the connection calls ----------------------------------------------------------------

    async def request(self, context: Context, method: str, raw: msgspec.Raw) -> Any:
        """
        Answer one of `LANGUAGE_REQUESTS`; give plain data.

        Raises:
            InvalidParams: the params are not those of LSP 3.17.
        """
        params = self._decode(method, raw)
        return self._protocol._converter.unstructure(await self._features[method](params))

    def notify(self, method: str, raw: msgspec.Raw) -> None:
        """Take one of `LANGUAGE_NOTIFICATIONS`, in order of arrival. Raises InvalidParams."""
        if method == "window/workDoneProgress/cancel":
            self._progress.cancelled(msgspec.json.decode(raw, type=dict).get("token"))
            return
        self._protocol._handle_notification(method, self._decode(method, raw))
        if method == lsp.TEXT_DOCUMENT_DID_CHANGE:
            uri = msgspec.json.decode(raw, type=_Changed).text_document.uri
            self._publish(self._document(uri))

    # --- pygls ------------------------------------------------------------------------------------

    def _initialize(self, params: InitializeParams) -> None:
        """Let pygls make its workspace. Positions are UTF-16, as the static capabilities say."""
        said = {
            "processId": None,
            "rootUri": params.root_uri,
            "workspaceFolders": params.workspace_folders,
            "capabilities": {"general": {"positionEncodings": ["utf-16"]}},
        }
        converted = self._protocol._converter.structure(said, lsp.InitializeParams)
        for _ in self._protocol.lsp_initialize(
            converted
        ):  # yields to handlers, of which it has none
            raise AssertionError("pygls has a handler that we did not register")

    def _decode(self, method: str, raw: msgspec.Raw) -> Any:
        message_type = self._protocol.get_message_type(method)
        assert message_type is not None, method
        message = {"jsonrpc": "2.0", "id": 0, "method": method}
        try:
            message["params"] = msgspec.json.decode(raw)
            return self._protocol._converter.structure(message, message_type).params
        except (ExceptionGroup, TypeError, ValueError, KeyError, AttributeError) as why:
            raise InvalidParams(f"These are not the parameters of {method}.", path="$") from why

    # --- documents --------------------------------------------------------------------------------

    def _document(self, uri: str) -> TextDocument:
        return self._protocol.workspace.get_text_document(uri)

    def _cells(self, uri: str) -> tuple[Cell, ...]:
        return cells(self._document(uri).lines)

    async def _code_lenses(self, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        uri = params.text_document.uri
        lenses = []
        for cell in self._cells(uri):
            titles = [("Run cell", "rlm.runCell")]
            titles += [("Run above", "rlm.runAbove")] if cell.index else [("Run all", "rlm.runAll")]
            lenses += [
                lsp.CodeLens(
                    range=_line(cell.start_line),
                    command=lsp.Command(title, name, arguments=[uri, cell.start_line]),
                )
                for title, name in titles
            ]
        return lenses

    async def _inlay_hints(self, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        uri = params.text_document.uri
        document, results = self._document(uri), self._results.get(uri)
        hints = []
        for cell in cells(document.lines) if results else ():
            text = results.hint(cell) if results else None
            if text is not None and params.range.start.line <= cell.end_line:
                end = len(document.lines[cell.end_line].rstrip("\r\n").encode("utf-16-le")) // 2
                place = lsp.Position(cell.end_line, end)
                hints.append(lsp.InlayHint(position=place, label=text, padding_left=True))
        return hints

    async def _hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        kernel = self._living_kernel(params.text_document.uri)
        if kernel is None:
            return None
        line, cursor = self._line_at(params.text_document.uri, params.position)
        try:
            found = await kernel.inspect(line, cursor)
        except KernelBusy:
            return None
        if not found.found:
            return None
        return lsp.Hover(contents=lsp.MarkupContent(lsp.MarkupKind.PlainText, found.text))

    async def _completion(self, params: lsp.CompletionParams) -> lsp.CompletionList | None:
        kernel = self._living_kernel(params.text_document.uri)
        if kernel is None:
            return None
        uri, place = params.text_document.uri, params.position
        line, cursor = self._line_at(uri, place)
        try:
            found = await kernel.complete(line, cursor)
        except KernelBusy:
            return None
        start = len(line[: found.cursor_start].encode("utf-16-le")) // 2
        replaced = lsp.Range(lsp.Position(place.line, start), place)
        items = [
            lsp.CompletionItem(label=match, text_edit=lsp.TextEdit(replaced, match))
            for match in found.matches
        ]
        return lsp.CompletionList(is_incomplete=False, items=items)

    def _line_at(self, uri: str, place: lsp.Position) -> tuple[str, int]:
        """Give a line and the cursor in it, counted in code points as the kernel counts."""
        document = self._document(uri)
        lines = document.lines
        if place.line >= len(lines):
            return "", 0
        there = document.position_codec.position_from_client_units(lines, place)
        line = lines[place.line].rstrip("\r\n")
        return line, min(there.character, len(line))

    # --- commands ---------------------------------------------------------------------------------

    async def _execute(self, params: lsp.ExecuteCommandParams) -> Any:
        if params.command not in self._commands:
            raise InvalidParams(f"There is no command {params.command[:80]!r}.", path="$.command")
        shape, command = self._commands[params.command]
        try:
            arguments = msgspec.convert(params.arguments or [], shape)
        except msgspec.ValidationError as why:
            raise InvalidParams(
                f"The arguments do not fit {params.command}: {why}.", path="$.arguments"
            ) from None
        return await command(*msgspec.structs.astuple(arguments))

    async def _run_cell(self, uri: str, line: int) -> dict[str, Any]:
        cell = cell_at(self._cells(uri), line)
        return await self._run(uri, [cell] if cell else [])

    async def _run_above(self, uri: str, line: int) -> dict[str, Any]:
        found = self._cells(uri)
        here = cell_at(found, line)
        return await self._run(uri, [c for c in found if here is not None and c.index < here.index])

    async def _run_all(self, uri: str, _line: int) -> dict[str, Any]:
        return await self._run(uri, list(self._cells(uri)))

    async def _run(self, uri: str, chosen: list[Cell]) -> dict[str, Any]:
        """Run cells one after the other, until one does not end well."""
        if not chosen:
            raise InvalidParams("There is no cell at this line.", path="$.arguments")
        actor = await self._services.sessions.get(await self._session_of(uri))
        results = self._results.setdefault(uri, Results())
        statuses: list[str] = []
        async with self._progress.shown(f"Running {len(chosen)} cells") as progress:
            for number, cell in enumerate(chosen):
                progress.report(cell.title or f"cell {cell.index + 1}", number / len(chosen))
                result = await actor.execute_cell(cell.code)
                results.put(cell.code, result)
                statuses.append(result.status)
                self._publish(self._document(uri))
                if result.status != "ok":
                    break
        return {"sessionId": actor.id, "statuses": statuses, "cancelled": progress.cancelled}

    async def _interrupt(self, uri: str) -> bool:
        session_id = self._sessions.get(self._folder_of(uri))
        if session_id is None:
            return False
        actor = await self._services.sessions.get(session_id)
        return actor.kernel.interrupt()

    async def _use_session(self, uri: str, session_id: str) -> None:
        actor = await self._services.sessions.get(session_id)
        self._sessions[self._folder_of(uri)] = actor.id

    async def _session_of(self, uri: str) -> str:
        """Give the session of the document's workspace, made when it is first needed."""
        folder = self._folder_of(uri)
        if folder not in self._sessions:
            params = SessionCreateParams(cwd=folder, name=Path(folder).name[:64] or None)
            actor = await self._services.sessions.create(params)
            self._sessions[folder] = actor.id
            if self._hears_sessions:
                await self._services.feeds.attach(_CONTEXT.get(), actor)
        return self._sessions[folder]

    def _folder_of(self, uri: str) -> str:
        """Give the workspace folder of a document, else the folder it lies in."""
        path = Path(to_fs_path(uri) or "/")
        folders = [Path(to_fs_path(f) or "/") for f in self._protocol.workspace.folders]
        inside = [folder for folder in folders if path.is_relative_to(folder)]
        return str(max(inside, key=lambda f: len(f.parts)) if inside else path.parent)

    def _living_kernel(self, uri: str) -> Any:
        session_id = self._sessions.get(self._folder_of(uri))
        for actor in self._services.agents.open_sessions:
            if actor.id == session_id and actor.kernel.status not in ("none", "dead"):
                return actor.kernel
        return None

    def _publish(self, document: TextDocument) -> None:
        """Send the document's errors, and ask the editor to fetch its hints again."""
        results = self._results.get(document.uri)
        if results is None:
            return
        found = cells(document.lines)
        results.keep(found)
        diagnostics = [
            lsp.Diagnostic(
                range=_line(fault.line, len(document.lines[fault.line].rstrip())),
                message=fault.text,
                severity=lsp.DiagnosticSeverity.Error,
                source=SOURCE,
            )
            for fault in results.faults(found)
        ]
        published = lsp.PublishDiagnosticsParams(uri=document.uri, diagnostics=diagnostics)
        plain = self._protocol._converter.unstructure(published)
        self._attachment.tell("textDocument/publishDiagnostics", plain)
        if self._refreshes:
            self._attachment.ask("workspace/inlayHint/refresh", None)


class _InFile(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    uri: str


class _AtLine(_InFile):
    line: int


class _WithSession(_InFile):
    session_id: str


class _Document(msgspec.Struct):
    uri: str


class _Changed(msgspec.Struct, rename="camel"):
    text_document: _Document


def _line(line: int, width: int = 0) -> lsp.Range:
    return lsp.Range(lsp.Position(line, 0), lsp.Position(line, width))
