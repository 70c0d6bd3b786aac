"""Language features for `# %%` files: a third-party client (pytest-lsp) and a plain one of ours."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pytest_lsp import LanguageClient, client_capabilities, make_test_lsp_client

from rlm_host.rpc import language
from support.fake_client import host_env

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::ResourceWarning")]
DEADLINE_S = 60
TEXT = """# %% numbers
x = [1, 2, 3]
len(x)
# %% 𝄞 wrong
s = '𝄞'; t = x
1 / 0
# %% tail
y = x
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Editor:
    """pytest-lsp's client, attached to our host, and what the host has asked of it."""

    def __init__(self, client: LanguageClient, uri: str) -> None:
        self.client = client
        self.uri = uri
        self.refreshes = 0

    def progress(self) -> list[Any]:
        """Values of the one progress that the host has shown so far."""
        reports = self.client.progress_reports
        return [value for values in reports.values() for value in values]

    async def run(self, command: str, *arguments: object) -> Any:
        params = lsp.ExecuteCommandParams(command, [self.uri, *arguments])
        async with asyncio.timeout(DEADLINE_S):
            return await self.client.workspace_execute_command_async(params)

    def document(self) -> lsp.TextDocumentIdentifier:
        return lsp.TextDocumentIdentifier(self.uri)

    async def hints(self) -> list[str]:
        everything = lsp.Range(lsp.Position(0, 0), lsp.Position(100, 0))
        params = lsp.InlayHintParams(self.document(), everything)
        found = await self.client.text_document_inlay_hint_async(params)
        return [str(hint.label) for hint in found or []]


@pytest.fixture
async def editor(tmp_path: Path) -> AsyncIterator[Editor]:
    file = tmp_path / "cells.py"
    file.write_text(TEXT)
    client = make_test_lsp_client()
    made = Editor(client, file.as_uri())

    @client.feature(lsp.WORKSPACE_INLAY_HINT_REFRESH)
    def refresh(params: None) -> None:
        made.refreshes += 1

    await client.start_io(sys.executable, "-m", "rlm_host", env=host_env(tmp_path))
    capabilities = client_capabilities("neovim")
    capabilities.window = lsp.WindowClientCapabilities(work_done_progress=True)
    if capabilities.workspace is not None:
        capabilities.workspace.inlay_hint = lsp.InlayHintWorkspaceClientCapabilities(True)
    async with asyncio.timeout(DEADLINE_S):
        await client.initialize_session(
            lsp.InitializeParams(
                capabilities=capabilities,
                workspace_folders=[lsp.WorkspaceFolder(tmp_path.as_uri(), "root")],
            )
        )
    client.text_document_did_open(
        lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(made.uri, "python", 1, TEXT))
    )
    try:
        yield made
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await client.shutdown_session()
            await client.stop()


async def test_lenses_stand_at_the_markers(editor: Editor) -> None:
    lenses = await editor.client.text_document_code_lens_async(
        lsp.CodeLensParams(editor.document())
    )
    shown = [(lens.range.start.line, lens.command.title) for lens in lenses or [] if lens.command]
    assert shown == [
        (0, "Run cell"),
        (0, "Run all"),
        (3, "Run cell"),
        (3, "Run above"),
        (6, "Run cell"),
        (6, "Run above"),
    ]


async def test_a_cell_is_run_and_its_result_stands_beside_it(editor: Editor) -> None:
    done = await editor.run("rlm.runCell", 1)
    assert done["statuses"] == ["ok"]
    assert await editor.hints() == ["=> 3"]
    kinds = [value.kind for value in editor.progress()]
    assert kinds[0] == "begin"
    assert kinds[-1] == "end"
    async with asyncio.timeout(DEADLINE_S):
        while not editor.refreshes:
            await asyncio.sleep(0.01)


async def test_an_error_stands_at_the_line_that_raised_until_it_is_edited(editor: Editor) -> None:
    done = await editor.run("rlm.runAll", 0)
    assert done["statuses"] == ["ok", "error"]  # the third cell was not run
    (diagnostic,) = editor.client.diagnostics[editor.uri]
    assert diagnostic.range.start.line == 5
    assert diagnostic.message == "ZeroDivisionError: division by zero"
    assert await editor.hints() == ["=> 3", "ZeroDivisionError: division by zero"]
    line = lsp.Range(lsp.Position(5, 0), lsp.Position(5, 5))
    editor.client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(version=2, uri=editor.uri),
            [lsp.TextDocumentContentChangePartial(range=line, text="1 / 1")],
        )
    )
    assert await editor.hints() == ["=> 3"]
    assert not editor.client.diagnostics[editor.uri]
    assert (await editor.run("rlm.runCell", 5))["statuses"] == ["ok"]
    assert await editor.hints() == ["=> 3", "=> 1.0"]


async def test_hover_and_completion_see_the_live_namespace(editor: Editor) -> None:
    after_surrogates = lsp.Position(4, 14)  # the x of "s = '𝄞'; t = x", in UTF-16
    hover = lsp.HoverParams(editor.document(), after_surrogates)
    assert await editor.client.text_document_hover_async(hover) is None
    await editor.run("rlm.runCell", 0)
    found = await editor.client.text_document_hover_async(hover)
    assert found is not None
    assert isinstance(found.contents, lsp.MarkupContent)
    assert "x: list" in found.contents.value
    editor.client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(version=2, uri=editor.uri),
            [
                lsp.TextDocumentContentChangePartial(
                    range=lsp.Range(lsp.Position(4, 14), lsp.Position(4, 15)), text="x.app"
                )
            ],
        )
    )
    completion = await editor.client.text_document_completion_async(
        lsp.CompletionParams(editor.document(), lsp.Position(4, 19))
    )
    assert isinstance(completion, lsp.CompletionList)
    (item,) = completion.items
    assert item.label == "append"
    assert isinstance(item.text_edit, lsp.TextEdit)
    assert item.text_edit.range == lsp.Range(lsp.Position(4, 16), lsp.Position(4, 19))


async def test_a_running_cell_is_cancelled_by_its_progress(editor: Editor) -> None:
    change = lsp.TextDocumentContentChangeWholeDocument("# %%\nimport time\ntime.sleep(600)\n")
    editor.client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(version=2, uri=editor.uri), [change]
        )
    )
    running = asyncio.create_task(editor.run("rlm.runCell", 0))
    async with asyncio.timeout(DEADLINE_S):
        while not editor.progress():
            await asyncio.sleep(0.01)
    editor.client.window_work_done_progress_cancel(
        lsp.WorkDoneProgressCancelParams(token="rlm-client-1-1")
    )
    done = await running
    assert (done["statuses"], done["cancelled"]) == ([], True)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("rlm.noSuch", []), ("rlm.runCell", ["x"]), ("rlm.runCell", [1, 2, 3]), ("rlm.runCell", [])],
)
async def test_wrong_commands_are_refused(
    editor: Editor, command: str, arguments: list[object]
) -> None:
    with pytest.raises(JsonRpcInvalidParams):
        await editor.run(command, *arguments)


async def test_the_static_capabilities_are_what_pygls_would_announce() -> None:
    """What is served is announced, and nothing else is."""
    server = LanguageServer("x", "1", text_document_sync_kind=lsp.TextDocumentSyncKind.Incremental)
    for method in language.LANGUAGE_REQUESTS - {"workspace/executeCommand"}:
        server.feature(method)(lambda params: None)
    protocol = server.protocol
    said = lsp.InitializeParams(capabilities=lsp.ClientCapabilities())
    list(protocol.lsp_initialize(said))
    would = protocol._converter.unstructure(protocol.server_capabilities)
    for name in ("hoverProvider", "inlayHintProvider", "codeLensProvider", "completionProvider"):
        assert (name in language.CAPABILITIES) == (name in would), name
    assert would["positionEncoding"] == language.CAPABILITIES["positionEncoding"]
    assert (
        would["textDocumentSync"]["change"] == language.CAPABILITIES["textDocumentSync"]["change"]
    )
