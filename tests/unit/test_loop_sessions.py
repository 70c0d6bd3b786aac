"""Steps in sessions: cells and agents' turns, charged what their sessions were metered."""

import ast
import contextlib
import traceback
from pathlib import Path

import anyio
import msgspec
import pytest

from rlm_host.loops.inputs import LoopConfig
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.session_steps import AgentRunner, ReplRunner
from rlm_host.loops.steps import work_of
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_protocol import kernel as wire_kernel
from rlm_protocol import loop as wire
from rlm_protocol.loop_records import StepFailed, Steps
from support.sessions import StubKernel, answers, bench, hanging, say, until

pytestmark = pytest.mark.anyio
STUB = StubKernel.execute


async def evaluate(self, code: str, *, cell_id, on_event, silent=False):
    """Run a cell of Python, as a kernel does; the last expression is its result."""
    space = self.__dict__.setdefault("space", {})
    done = await STUB(self, "ok", cell_id=cell_id, on_event=on_event, silent=silent)
    if code == "wait":
        return await STUB(self, code, cell_id=cell_id, on_event=on_event, silent=silent)
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, "cell", "exec"), space)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), space) if last else None
    except Exception as why:
        lines = traceback.format_exception_only(why)
        on_event(
            wire_kernel.Error(
                id=cell_id, ename=type(why).__name__, evalue=str(why), traceback=lines
            )
        )
        return msgspec.structs.replace(done, status="error")
    if value is not None:
        on_event(wire_kernel.Result(id=cell_id, text=repr(value)))
    return done


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubKernel, "execute", evaluate)


@contextlib.asynccontextmanager
async def looping(folder: Path, *scripts, **config):
    """Own a session and a store; give a function that runs a loop on them."""
    store = SqliteRunStore(folder / "runs.sqlite3")
    async with bench(folder, answers(*scripts)) as b:
        actor = await b.create()
        runners = {
            wire.ReplStep: ReplRunner(b.store.get),
            wire.AgentStep: AgentRunner(b.store.get),
        }
        loops = LoopKernel(
            store, LoopConfig("t", "w", **{"max_generations": 1, "step_attempts": 1, **config})
        )

        async def run(step, apply=None):
            steps = Steps(step=step, apply=apply)
            work = work_of(steps, runners)
            run_id = loops.submit(steps=steps)
            return await loops.arun(
                run_id, "w", work.step, apply=work.apply, rollback=work.rollback
            )

        try:
            yield actor, run, loops
        finally:
            store.close()


def failures(loops, report) -> list[StepFailed]:
    rows = loops.store.events(report.run_id)
    return [row.event for row in rows if isinstance(row.event, StepFailed)]


async def test_a_cell_finds_the_context_and_leaves_an_observation(tmp_path) -> None:
    async with looping(tmp_path, max_generations=3) as (actor, run, _):
        step = wire.ReplStep(
            session_id=actor.id,
            code="observation = dict(reward=context['generation'] / 10, artifactId='a')",
        )
        apply = wire.ReplStep(
            session_id=actor.id,
            code="live = globals().get('live', []) + [(action, observation['reward'])]",
        )
        report = await run(step, apply)
        assert [g.reward for g in report.generations] == [0.0, 0.1, 0.2]
        shown = await actor.execute_cell("live")
        assert shown.result == "[('apply', 0.0), ('apply', 0.1), ('apply', 0.2)]"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ended with status 'error'"),
        ("pass", "no usable `observation`"),
        ("observation = {'rewrad': 1}", "no observation"),
        ("observation = {'reward': 'high'}", "no observation"),
    ],
)
async def test_a_cell_that_leaves_none_is_a_failed_attempt(tmp_path, code, message) -> None:
    async with looping(tmp_path) as (actor, run, loops):
        await actor.execute_cell("observation = {'reward': 1.0}  # of somebody else")
        report = await run(wire.ReplStep(session_id=actor.id, code=code))
        assert report.status == "running"
        assert message in failures(loops, report)[0].message


async def test_nan_is_a_failed_measurement_and_not_a_failed_step(tmp_path) -> None:
    async with looping(tmp_path) as (actor, run, _):
        step = wire.ReplStep(session_id=actor.id, code="observation = {'reward': float('nan')}")
        report = await run(step)
        assert report.generations[0].reason == "invalid_observation"


async def test_an_agents_step_is_charged_what_was_metered_and_not_what_it_says(tmp_path) -> None:
    scripts = (say("first"), say("second"))
    async with looping(tmp_path, *scripts, max_generations=2, cost_budget=1.0) as (actor, run, _):
        step = wire.AgentStep(
            session_id=actor.id,
            prompt="improve it",
            verify="observation = dict(reward=1.0, cost=0.9)",
        )
        report = await run(step)
        assert [g.cost for g in report.generations] == [5e-9, 5e-9]
        assert report.stopped_reason == "max_generations"


async def test_an_agents_apply_is_charged_too(tmp_path) -> None:
    scripts = (say("made it live"),)
    async with looping(tmp_path, *scripts) as (actor, run, _):
        step = wire.ReplStep(session_id=actor.id, code="observation = dict(reward=1.0, cost=9.0)")
        apply = wire.AgentStep(session_id=actor.id, prompt="make it live", verify="pass")
        report = await run(step, apply)
        assert [(g.applied, g.cost) for g in report.generations] == [(True, 5e-9)]
        assert report.cost == 5e-9


async def test_a_failed_verifier_is_charged_as_well(tmp_path) -> None:
    async with looping(tmp_path, say("first")) as (actor, run, loops):
        step = wire.AgentStep(session_id=actor.id, prompt="try", verify="assert False, 'bad'")
        report = await run(step)
        assert failures(loops, report)[0].cost == report.cost == 5e-9


async def test_a_cancel_ends_the_agents_turn(tmp_path) -> None:
    async with looping(tmp_path, [hanging]) as (actor, run, loops):
        step = wire.AgentStep(session_id=actor.id, prompt="think", verify="pass")
        async with anyio.create_task_group() as tasks:
            reports = []

            async def work() -> None:
                reports.append(await run(step))

            tasks.start_soon(work)
            await until(lambda: actor.state.turns)
            loops.cancel(loops.store.list().runs[0].run_id, "enough")
        assert reports[0].stopped_reason == "enough"
        assert actor.state.last_status == "interrupted"


async def test_a_cell_that_takes_too_long_is_interrupted(tmp_path) -> None:
    async with looping(tmp_path) as (actor, run, loops):
        report = await run(wire.ReplStep(session_id=actor.id, code="wait", timeout_ms=50))
        assert failures(loops, report)[0].error == "TimeoutError"


async def test_a_step_that_is_cut_short_leaves_a_turn_alone_that_ran_before(tmp_path) -> None:
    async with looping(tmp_path, [hanging]) as (actor, run, loops):
        turn_id = await actor.start_turn("somebody else's")
        await until(lambda: actor.state.turn)
        report = await run(wire.ReplStep(session_id=actor.id, code="wait", timeout_ms=50))
        assert failures(loops, report)[0].error == "TimeoutError"
        assert actor.state.turn.turn_id == turn_id
        await actor.interrupt(turn_id)
        await actor.wait_idle()
