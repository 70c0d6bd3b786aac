"""The language features by a client that is not ours, pytest-lsp, over a real host process."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types as t
from pygls.exceptions import JsonRpcException
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

from rlm_protocol.errors import InvalidParams, MethodNotFound
from support.fake_client import host_env, spawned

pytestmark = pytest.mark.anyio

DEADLINE_S = 30.0
TEXT = """\
import math
# %% first
x = [3, 1, 2]
sum(x)
# %% [markdown]
# Words.
# %% second
print("näh 🎈")
def f():
    return x.appendix

f()
# %%
x.a
"""


class Editor:
    """One open file of a workspace, as an editor has it."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.uri = (folder / "demo.py").as_uri()
        self.refreshed = 0

        @client.feature(t.WORKSPACE_INLAY_HINT_REFRESH)
        def refresh(_params: None) -> None:
            self.refreshed += 1

    @property
    def document(self) -> t.TextDocumentIdentifier:
        return t.TextDocumentIdentifier(self.uri)

    def open(self, text: str = TEXT, language: str = "python") -> None:
        item = t.TextDocumentItem(self.uri, language, 1, text)
        self.client.text_document_did_open(t.DidOpenTextDocumentParams(item))

    def change(self, version: int, *changes: t.TextDocumentContentChangeEvent) -> None:
        where = t.VersionedTextDocumentIdentifier(version, self.uri)
        self.client.text_document_did_change(t.DidChangeTextDocumentParams(where, list(changes)))

    async def command(self, name: str, *arguments: Any, token: str | None = None) -> Any:
        params = t.ExecuteCommandParams(name, list(arguments), work_done_token=token)
        return SimpleNamespace(**await self.client.workspace_execute_command_async(params))

    async def lenses(self) -> list[t.CodeLens]:
        found = await self.client.text_document_code_lens_async(t.CodeLensParams(self.document))
        return list(found or [])

    async def hints(self) -> list[t.InlayHint]:
        everywhere = t.Range(t.Position(0, 0), t.Position(1000, 0))
        found = await self.client.text_document_inlay_hint_async(
            t.InlayHintParams(self.document, everywhere)
        )
        return list(found or [])

    async def hover(self, line: int, character: int) -> str | None:
        params = t.HoverParams(self.document, t.Position(line, character))
        found = await self.client.text_document_hover_async(params)
        return None if found is None else found.contents.value  # type: ignore[union-attr]

    async def complete(self, line: int, character: int) -> list[t.CompletionItem]:
        params = t.CompletionParams(self.document, t.Position(line, character))
        found = await self.client.text_document_completion_async(params)
        assert isinstance(found, t.CompletionList)
        return list(found.items)

    def diagnostics(self) -> list[tuple[int, int, int, str]]:
        told = self.client.diagnostics.get(self.uri, ())
        return [
            (d.range.start.line, d.range.start.character, d.range.end.character, d.message)
            for d in told
        ]


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def editor(home: Path, like: str = "neovim") -> AsyncIterator[Editor]:
    """Own a host and an editor on a folder for the length of the block."""
    folder = home / "work"
    folder.mkdir(exist_ok=True)
    config = ClientServerConfig([sys.executable, "-m", "rlm_host"], server_env=host_env(home))
    client = await config.start()
    assert isinstance(client, LanguageClient)
    try:
        async with asyncio.timeout(4 * DEADLINE_S):
            place = t.WorkspaceFolder(folder.as_uri(), "work")
            params = t.InitializeParams(client_capabilities(like), workspace_folders=[place])
            await client.initialize_session(params)
            yield Editor(client, folder)
            await client.shutdown_session()
    finally:
        server = client._server
        if server is not None and server.returncode is None:
            server.terminate()  # the test has failed: `stop` waits for the end, it does not ask
        await client.stop()


async def test_cells_run_in_one_session_and_show_what_came_of_them(tmp_path: Path) -> None:
    async with editor(tmp_path) as ed:
        ed.open()
        lenses = [(lens.range.start.line, lens.command) for lens in await ed.lenses()]
        assert [(line, c.title, c.command, list(c.arguments or ())) for line, c in lenses if c] == [
            (0, "Run cell", "rlm.runCell", [ed.uri, 0]),
            (0, "Run all", "rlm.runAll", [ed.uri]),
            (1, "Run cell", "rlm.runCell", [ed.uri, 1]),
            (1, "Run above", "rlm.runAbove", [ed.uri, 1]),
            (6, "Run cell", "rlm.runCell", [ed.uri, 6]),
            (6, "Run above", "rlm.runAbove", [ed.uri, 6]),
            (12, "Run cell", "rlm.runCell", [ed.uri, 12]),
            (12, "Run above", "rlm.runAbove", [ed.uri, 12]),
        ]
        assert (await ed.hints(), await ed.hover(2, 0), await ed.complete(13, 3)) == ([], None, [])

        first = await ed.command("rlm.runCell", ed.uri, 2)
        assert (first.status, first.cells, first.result) == ("ok", 1, "6")
        [hint] = await ed.hints()
        assert (hint.label, hint.position) == ("=> 6", t.Position(3, 6))
        await until(lambda: ed.refreshed > 0)
        shown = await ed.hover(3, 4)
        assert shown is not None
        assert "[3, 1, 2]" in shown
        [append] = [item for item in await ed.complete(13, 3) if item.label == "append"]
        assert append.text_edit == t.TextEdit(
            t.Range(t.Position(13, 2), t.Position(13, 3)), "append"
        )

        second = await ed.command("rlm.runCell", ed.uri, 6)
        assert (second.sessionId, second.status) == (first.sessionId, "error")
        await until(lambda: bool(ed.diagnostics()))
        wrong = "AttributeError: 'list' object has no attribute 'appendix'"
        assert ed.diagnostics() == [(9, 4, 21, wrong)]
        assert [hint.label for hint in await ed.hints()] == ["=> 6", wrong]

        # A line more above: results and diagnostics move with their cells.
        at_start = t.Range(t.Position(0, 0), t.Position(0, 0))
        ed.change(2, t.TextDocumentContentChangePartial(range=at_start, text="\n"))
        assert [hint.position.line for hint in await ed.hints()] == [4, 12]
        await until(lambda: ed.diagnostics() == [(10, 4, 21, wrong)])
        # The code that raised is another now: nothing is said of it any more.
        name = t.Range(t.Position(10, 13), t.Position(10, 21))
        ed.change(3, t.TextDocumentContentChangePartial(range=name, text="pop()"))
        await until(lambda: ed.diagnostics() == [])
        assert [hint.label for hint in await ed.hints()] == ["=> 6"]

        above = await ed.command("rlm.runAbove", ed.uri, 13)
        assert (above.status, above.cells, above.result) == ("ok", 3, "2")
        every = await ed.command("rlm.runAll", ed.uri)
        assert (every.status, every.cells) == ("error", 4)
        assert ed.diagnostics() == [
            (14, 0, 3, "AttributeError: 'list' object has no attribute 'a'")
        ]

        restarted = await ed.command("rlm.restart", ed.uri)
        assert restarted.sessionId == first.sessionId
        assert (await ed.hints(), await ed.hover(4, 4)) == ([], None)
        await until(lambda: ed.diagnostics() == [])


async def test_a_run_has_progress_and_its_cancel_button_interrupts(tmp_path: Path) -> None:
    async with editor(tmp_path) as ed:
        ed.open('# %% wait\nprint("on")\nimport time\nwhile True: time.sleep(0.01)\n# %%\n1\n')
        running = asyncio.ensure_future(ed.command("rlm.runAll", ed.uri))
        reports = ed.client.progress_reports
        await until(lambda: any(reports.values()))
        [(token, said)] = reports.items()
        assert isinstance(said[0], t.WorkDoneProgressBegin)
        assert (said[0].title, said[0].message, said[0].cancellable) == (
            "Run cells",
            "1/2 wait",
            True,
        )
        ed.client.window_work_done_progress_cancel(t.WorkDoneProgressCancelParams(token))
        done = await running
        assert (done.status, done.cells) == ("interrupted", 1)
        await until(lambda: isinstance(said[-1], t.WorkDoneProgressEnd))
        assert [hint.label for hint in await ed.hints()] == ["interrupted"]
        assert (await ed.command("rlm.runCell", ed.uri, 4)).result == "1"

        # The same by a command, with progress under the client's own token.
        reports["mine"] = []
        running = asyncio.ensure_future(ed.command("rlm.runCell", ed.uri, 0, token="mine"))
        await until(lambda: bool(reports["mine"]))
        while not (await ed.command("rlm.interrupt", ed.uri)).done:
            await asyncio.sleep(0.01)
        assert (await running).status == "interrupted"
        # And by cancelling the request.
        params = t.ExecuteCommandParams("rlm.runCell", [ed.uri, 0])
        running = asyncio.ensure_future(
            ed.client.protocol.send_request_async(
                t.WORKSPACE_EXECUTE_COMMAND, params, msg_id="endless"
            )
        )
        await until(lambda: len(reports) == 4)
        ed.client.cancel_request(t.CancelParams("endless"))
        with pytest.raises(JsonRpcException) as refused:
            await running
        assert refused.value.code == -32800
        assert (await ed.command("rlm.runCell", ed.uri, 4)).result == "1"


async def test_the_agent_and_the_file_share_the_kernel(tmp_path: Path) -> None:
    async with editor(tmp_path) as ed:
        ed.open("# %%\nshared = 41\n# %%\nshared + 1\n")
        ran = await ed.command("rlm.runCell", ed.uri, 0)
        assert (await ed.command("rlm.session", ed.uri)).sessionId == ran.sessionId
        request = ed.client.protocol.send_request_async
        code = {"sessionId": ran.sessionId, "code": "shared += 10"}
        assert (await request("repl/execute", code)).status == "ok"
        assert (await ed.command("rlm.runCell", ed.uri, 2)).result == "52"
        session = (await request("session/read", {"sessionId": ran.sessionId})).session
        assert session.cwd == str(ed.folder)
    # A host of another day takes the folder's session up again; one that is deleted is replaced.
    async with editor(tmp_path) as ed:
        ed.open("# %%\n1\n")
        again = await ed.command("rlm.session", ed.uri)
        assert again.sessionId == ran.sessionId
        request = ed.client.protocol.send_request_async
        other = (await request("session/create", {"cwd": str(tmp_path)})).session.id
        used = await ed.command("rlm.useSession", ed.uri, other)
        assert used.sessionId == (await ed.command("rlm.runCell", ed.uri, 0)).sessionId == other
        for session_id in (other, again.sessionId):
            await request("session/delete", {"sessionId": session_id})
        ran = await ed.command("rlm.runCell", ed.uri, 0)
        assert (ran.result, ran.sessionId != again.sessionId) == ("1", True)


async def test_what_does_not_fit_is_refused_and_breaks_nothing(tmp_path: Path) -> None:
    async with editor(tmp_path, like="visual-studio-code") as ed:
        ed.change(7, t.TextDocumentContentChangeWholeDocument("never opened"))
        ed.open("# %%\n1\n", language="lua")
        assert await ed.lenses() == []
        ed.client.text_document_did_close(t.DidCloseTextDocumentParams(ed.document))
        ed.open("# %%\n'a\x0cb'\n")  # a form feed ends no line
        far = t.Range(t.Position(900, 900), t.Position(901, 0))  # taken for the end
        ed.change(2, t.TextDocumentContentChangePartial(range=far, text="# far"))
        for name, arguments in (
            ("rlm.nothing", []),
            ("rlm.runCell", []),
            ("rlm.runCell", [ed.uri, "x"]),
            ("rlm.runCell", [ed.uri, 77]),
            ("rlm.runAll", ["untitled:Untitled-1"]),
            ("rlm.runAll", [(ed.folder / "no/such/file.py").as_uri()]),
        ):
            with pytest.raises(JsonRpcException) as refused:
                await ed.command(name, *arguments)
            assert refused.value.code == -32602
        assert (await ed.command("rlm.runCell", ed.uri, 1)).result == r"'a\x0cb'"
        [hint] = await ed.hints()
        assert hint.position == t.Position(2, 5)


async def test_params_that_no_client_of_repute_would_send(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        for params in (None, {}, {"position": 3}, {"textDocument": 1, "position": []}):
            with pytest.raises(InvalidParams):
                await client.request("textDocument/hover", params)
        with pytest.raises(MethodNotFound):
            await client.request("textDocument/rename", {})
        assert await client.request("textDocument/codeLens", {"textDocument": {"uri": "x:"}}) == []
