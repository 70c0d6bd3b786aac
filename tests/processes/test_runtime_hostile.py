"""No cell can end or wedge the runtime; where one ends its own process, the guard says how."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import sandboxes
from support.hostile_cells import BREAKING, CELLS, LAMING, Hostile
from support.runtime_driver import COMMAND, Ended, Runtime


class Pool:
    """A kernel that is replaced after it died."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._runtime: Runtime | None = None

    def get(self) -> Runtime:
        if self._runtime is None:
            self._runtime = Runtime(command=self._command)
            assert self._runtime.told() == b"pid %d" % self._runtime.pid
        return self._runtime

    def drop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()


@pytest.fixture(scope="module", params=["", "sandbox"])
def pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    command = COMMAND
    if request.param:
        folder = tmp_path_factory.mktemp("work")
        command = sandboxes.sandboxed(folder, folder.parent / "home")
    pool = Pool(command)
    yield pool
    pool.drop()


def test_there_are_enough_kinds() -> None:
    assert len(CELLS) >= 66
    assert len({row.name for row in CELLS}) == len(CELLS)


@pytest.mark.parametrize("row", CELLS, ids=lambda row: row.name)
def test_a_hostile_cell_is_answered_once_and_the_next_one_runs(pool: Pool, row: Hostile) -> None:
    runtime = pool.get()
    if row.dies is not None:
        runtime.start(row.code)
        with pytest.raises(Ended):
            runtime.until_done("r-none")
        assert runtime.told() == b"exit %d" % row.dies
        # A launcher tells a signal as a shell does.
        assert runtime.wait() in (row.dies, 128 - row.dies if row.dies < 0 else row.dies)
        pool.drop()
        return
    try:
        got = runtime.run(row.code)
        if row.ename is not None:
            assert got.ename == (row.ename or None), got
        after = runtime.run("print('still here')\n40 + 2")
        assert after.result == "42", after
        assert "still here\n" in after.text()
    except BaseException:
        pool.drop()
        raise


@pytest.mark.parametrize("name", BREAKING)
def test_a_broken_standard_library_is_not_felt(name: str) -> None:
    with Runtime() as runtime:
        runtime.run(BREAKING[name])
        got = runtime.run("import asyncio\nprint('seen')\nawait asyncio.sleep(0.01, 42)")
        assert (got.result, got.text()) == ("42", "seen\n"), got
        assert runtime.ask("complete", code="pri", cursor=3).status == "ok"
        looping = runtime.started("print('go')\nwhile True: pass")
        runtime.interrupt(looping, ring=False)
        assert runtime.until_done(looping).ename == "KeyboardInterrupt"


@pytest.mark.parametrize("name", LAMING)
def test_a_lamed_kernel_answers_every_request(name: str, tmp_path: Path) -> None:
    with Runtime() as runtime:
        runtime.run(LAMING[name])
        file = str(tmp_path / "state")
        for _ in range(2):
            runtime.run("1 + 1")
            runtime.run("import asyncio\nawait asyncio.sleep(0)")
            runtime.ask("complete", code="pri", cursor=3)
            runtime.ask("inspect", code="int", cursor=3)
            runtime.ask("list_names", detail=True)
            runtime.ask("snapshot", path=file, manifest_path=f"{file}.json")
            runtime.ask("restore", path=file)


def test_a_kernel_that_cannot_answer_ends() -> None:
    with Runtime() as runtime:
        runtime.start(
            "import sys\n"
            "def trace(frame, event, arg):\n"
            "    if frame.f_code.co_name == '_finish': raise ValueError\n"
            "sys.settrace(trace)"
        )
        with pytest.raises(Ended):
            runtime.until_done("r-none")
        assert runtime.wait() == 70


def test_files_of_the_workspace_are_never_taken_for_what_the_runtime_needs(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for name in {*sys.stdlib_module_names, "cloudpickle", "dill", "rlm", "rlm_protocol"}:
        (tmp_path / "work" / f"{name}.py").write_text(f"raise ImportError('shadow: {name}')")
    with Runtime(cwd=tmp_path / "work") as runtime:
        assert runtime.value("class C: pass\nc = C()\nimport rlm\n6 * 7") == 42
        assert runtime.value("(await rlm.bash('echo hi')).output") == "hi\n"
        assert runtime.run("rlm.harness, rlm.run, rlm.HostError").status == "ok"
        assert runtime.run("__import__('rlm.repl').repl.emit({'a/b': 1})").status == "ok"
        assert runtime.run("1 / 0").ename == "ZeroDivisionError"
        assert runtime.ask("complete", code="im", cursor=2).status == "ok"
        assert runtime.ask("inspect", code="c", cursor=1).status == "ok"
        assert runtime.ask("list_names", detail=True).status == "ok"
        path = str(tmp_path / "state")
        done = runtime.ask("snapshot", path=path, manifest_path=f"{path}.json").done
        assert (done["status"], done["saved"]) == ("ok", ["C", "c"]), done
        assert runtime.ask("restore", path=path).done["restored"] == ["C", "c"]
        assert "shadow: antigravity" in str(runtime.run("import antigravity").error)


def test_where_children_are_not_waited_for_the_namespace_is_saved(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with Runtime(cwd=tmp_path / "gone") as runtime:
        (tmp_path / "gone").rmdir()  # and there is no working directory any more
        runtime.run("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nclass C: pass")
        path = str(tmp_path / "state")
        done = runtime.ask("snapshot", path=path, manifest_path=f"{path}.json").done
        assert (done["status"], done["saved"]) == ("ok", ["C", "signal"])
        assert runtime.value("signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN")
