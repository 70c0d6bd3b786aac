"""Many loops in one host: in the background, side by side, each owned by the service's block."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from rlm_host.loops.audit import DecisionLog
from rlm_host.loops.service import LoopService
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_protocol import loop as wire
from rlm_protocol.errors import ConfigInvalid, Conflict, LeaseHeld, RunNotFound, Unsupported
from support.processes import until

pytestmark = pytest.mark.anyio


class Place:
    """Where the steps of these tests happen. `gate` holds them up."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.gate.set()
        self.stepping = 0

    async def step(self, spec, request: wire.LoopStepRequest) -> wire.StepObservation:
        self.stepping += 1
        try:
            await self.gate.wait()
        finally:
            self.stepping -= 1
        n = request.context.generation
        return wire.StepObservation(reward=n / 10, cost=1, artifact_id=f"a{n}")

    async def apply(self, spec, request: wire.LoopApplyRequest) -> None:
        if request.context.run_id == "buggy":
            raise KeyError("apply")


class Host:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = Place()
        self.told: list = []
        self.stores: list[SqliteRunStore] = []
        self.service: LoopService

    def open_store(self) -> SqliteRunStore:
        self.stores.append(SqliteRunStore(self.path))
        return self.stores[-1]

    def completed(self, run_id: str) -> bool:
        return any(
            isinstance(t, wire.LoopCompletedNotice) and t.run_id == run_id for t in self.told
        )


@contextlib.asynccontextmanager
async def host_on(path: Path, name: str = "host", log: Path | None = None) -> AsyncIterator[Host]:
    host = Host(path)
    service = LoopService(
        host.open_store,
        {wire.ClientStep: host.place},
        worker=name,
        lease_ms=600_000,  # renewals are too rare to bring any news in these tests
        on_generation=host.told.append,
        on_completed=host.told.append,
        open_log=None if log is None else lambda: DecisionLog(log),
    )
    try:
        async with service:
            host.service = service
            yield host
    finally:
        for store in host.stores:
            store.close()


@pytest.fixture
async def host(tmp_path: Path):
    async with host_on(tmp_path / "runs.sqlite3") as opened:
        yield opened


def submission(run_id: str | None = None, *, step=None, key=None, **config):
    values = {"max_generations": 3, **config}
    return wire.LoopSubmitParams(
        config=wire.LoopConfigParams(tenant="t", workspace="w", **values),
        step=step or wire.ClientStep(),
        apply=wire.ClientStep(),
        run_id=run_id,
        idempotency_key=key,
    )


async def test_the_store_is_opened_at_the_first_use(host) -> None:
    assert host.stores == []
    await host.service.list_runs(wire.LoopListParams())
    assert len(host.stores) == 1


async def test_a_run_moves_in_the_background_and_tells_each_generation(host) -> None:
    submitted = await host.service.submit(submission("run"))
    assert (submitted.status, submitted.generation) == ("running", 0)
    assert host.told == []
    host.place.gate = anyio.Event()
    answer = await host.service.run("run")
    assert answer.status == "running", "the answer comes at once"
    host.place.gate.set()
    await until(lambda: host.completed("run"))
    *generations, completed = host.told
    assert [g.generation.generation for g in generations] == [0, 1, 2]
    assert [g.run.generation for g in generations] == [1, 2, 3]
    assert [g.run.status for g in generations] == ["running", "running", "completed"]
    assert completed.error is None
    assert (completed.run.status, completed.run.stopped_reason) == ("completed", "max_generations")
    assert completed.run.best_artifact_id == "a2"
    assert host.service.running == 0


async def test_many_runs_move_side_by_side(host) -> None:
    host.place.gate = anyio.Event()
    for n in range(20):
        await host.service.submit(submission(f"run-{n}"))
        await host.service.run(f"run-{n}")
    await until(lambda: host.place.stepping == 20)
    assert host.service.running == 20
    host.place.gate.set()
    await until(lambda: host.service.running == 0)
    page = await host.service.list_runs(wire.LoopListParams(status="completed"))
    assert len(page.runs) == 20


async def test_a_run_that_moves_is_not_started_twice(host) -> None:
    await host.service.submit(submission("run"))
    host.place.gate = anyio.Event()
    for _ in range(3):
        await host.service.run("run")
    await until(lambda: host.place.stepping == 1)
    assert host.service.running == 1


async def test_leaving_the_block_ends_the_steps_and_another_host_goes_on(tmp_path) -> None:
    path = tmp_path / "runs.sqlite3"
    async with host_on(path) as first:
        await first.service.submit(submission("run"))
        first.place.gate = anyio.Event()
        await first.service.run("run")
        await until(lambda: first.place.stepping == 1)
    assert first.place.stepping == 0
    async with host_on(path) as second:
        await second.service.list_runs(wire.LoopListParams())
        assert second.told == [], "nothing moves before somebody asks"
        assert [run.run_id for run in await second.service.resume_interrupted()] == ["run"]
        await until(lambda: second.completed("run"))


async def test_another_hosts_run_is_refused_and_left_alone(tmp_path) -> None:
    path = tmp_path / "runs.sqlite3"
    async with host_on(path, "first") as first, host_on(path, "second") as second:
        await first.service.submit(submission("run"))
        first.place.gate = anyio.Event()
        await first.service.run("run")
        with pytest.raises(LeaseHeld) as held:
            await second.service.run("run")
        assert held.value.data["owner"] == "first"
        assert await second.service.resume_interrupted() == []
        assert second.told == []
        await second.service.cancel(wire.RunControlParams(run_id="run", reason="from afar"))
        await until(lambda: first.completed("run"))
        assert first.told[-1].run.stopped_reason == "from afar"


async def test_a_run_is_cancelled_while_it_steps(host) -> None:
    await host.service.submit(submission("run"))
    host.place.gate = anyio.Event()
    await host.service.run("run")
    await until(lambda: host.place.stepping == 1)
    await host.service.cancel(wire.RunControlParams(run_id="run"))
    await until(lambda: host.completed("run"))
    assert (host.told[-1].run.status, host.place.stepping) == ("cancelled", 0)


async def test_a_run_is_paused_and_resumed(host) -> None:
    await host.service.submit(submission("run"))
    host.place.gate = anyio.Event()
    await host.service.run("run")
    await until(lambda: host.place.stepping == 1)
    await host.service.pause(wire.RunControlParams(run_id="run", reason="lunch"))
    host.place.gate.set()
    await until(lambda: host.completed("run"))
    assert (host.told[-1].run.status, host.told[-1].run.generation) == ("paused", 1)
    assert (await host.service.run("run")).status == "paused"
    host.told.clear()
    await host.service.resume(wire.RunControlParams(run_id="run"))
    await until(lambda: host.completed("run"))
    assert host.told[-1].run.status == "completed"


async def test_a_failing_run_ends_alone_and_says_so(host) -> None:
    for name in ("buggy", "fine"):
        await host.service.submit(submission(name, step_attempts=1))
        await host.service.run(name)
    await until(lambda: host.completed("buggy") and host.completed("fine"))
    by_name = {t.run_id: t.run for t in host.told if isinstance(t, wire.LoopCompletedNotice)}
    assert by_name["buggy"].stopped_reason == "apply_failed"
    assert by_name["fine"].status == "completed"


async def test_a_bug_of_ours_ends_one_run_and_leaves_a_token(host, caplog) -> None:
    for name in ("broken", "fine"):
        await host.service.submit(submission(name))
    told = host.service._on_generation

    def broken(notice) -> None:
        if notice.run_id == "broken":
            raise ZeroDivisionError
        told(notice)

    host.service._on_generation = broken
    for name in ("broken", "fine"):
        await host.service.run(name)
    await until(lambda: host.completed("broken") and host.completed("fine"))
    errors = {t.run_id: t.error for t in host.told if isinstance(t, wire.LoopCompletedNotice)}
    assert errors["fine"] is None
    assert "ZeroDivisionError" in caplog.text
    assert errors["broken"].split()[-1].rstrip(".") in caplog.text
    assert "ZeroDivisionError" not in errors["broken"]


async def test_a_key_gives_the_same_run_and_another_request_under_it_is_a_conflict(host) -> None:
    first = await host.service.submit(submission(key="k"))
    assert (await host.service.submit(submission(key="k"))).run_id == first.run_id
    assert (await host.service.submit(submission(key="l"))).run_id != first.run_id
    with pytest.raises(Conflict):
        await host.service.submit(submission(key="k", max_generations=4))
    with pytest.raises(Conflict):
        await host.service.submit(submission(key="k", step=wire.ClientStep(timeout_ms=1)))


async def test_what_cannot_run_is_refused_and_not_kept(host) -> None:
    with pytest.raises(Unsupported):
        await host.service.submit(submission("run", step=wire.CommandStep(argv=("true",))))
    with pytest.raises(ConfigInvalid):
        await host.service.submit(submission("run", max_generations=0))
    for ask in (host.service.run, host.service.read, host.service.snapshot):
        with pytest.raises(RunNotFound):
            await ask("run")


async def test_a_report_comes_in_pages(host) -> None:
    await host.service.submit(submission("run", max_generations=7))
    await host.service.run("run")
    await until(lambda: host.completed("run"))
    seen, after = [], -1
    while True:
        page = await host.service.report(wire.LoopReportParams(run_id="run", after=after, limit=3))
        assert page.run.status == "completed"
        seen += [g.generation for g in page.generations]
        if page.next_after is None:
            break
        after = page.next_after
    assert seen == list(range(7))
    assert (await host.service.snapshot("run")).head["generation"] == 7


async def test_a_run_is_forked(host) -> None:
    await host.service.submit(submission("run"))
    await host.service.run("run")
    await until(lambda: host.completed("run"))
    child = await host.service.fork(
        wire.LoopForkParams(run_id="run", generation=0, new_run_id="child")
    )
    assert (child.run_id, child.generation) == ("child", 1)
    await host.service.run("child")
    await until(lambda: host.completed("child"))
    assert host.told[-1].run.generation == 3


async def test_decisions_are_read_from_the_log(tmp_path) -> None:
    async with host_on(tmp_path / "runs.sqlite3", log=tmp_path / "log.sqlite3") as host:
        await host.service.submit(submission("run"))
        await host.service.run("run")
        await until(lambda: host.completed("run"))
        page = await host.service.decisions(wire.LoopDecisionsParams(run_id="run", limit=2))
        assert [row.id for row in page.decisions] == ["run:generation:0", "run:generation:1"]
        assert page.next_after is not None
        rest = await host.service.decisions(wire.LoopDecisionsParams(after=page.next_after))
        assert [row.id for row in rest.decisions] == ["run:generation:2"]
        assert rest.next_after is None
    async with host_on(tmp_path / "other.sqlite3") as host:
        assert (await host.service.decisions(wire.LoopDecisionsParams())).decisions == ()
