"""No cell can end or wedge the runtime; where one ends its own process, the guard says how."""

from collections.abc import Iterator

import pytest

from support import sandboxes
from support.hostile_cells import CELLS, Hostile
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
