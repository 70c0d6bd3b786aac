"""Steps that are described instead of being functions: external commands, and the client."""

import os
import sys
from pathlib import Path

import anyio
import pytest

from rlm_host.loops.inputs import LoopConfig
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.steps import ClientRunner, CommandRunner, work_of
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_host.processes.spawn import Processes
from rlm_protocol import loop as wire
from rlm_protocol.errors import HostLost, Unsupported
from rlm_protocol.loop_records import StepFailed, Steps
from support.processes import alive, until

pytestmark = pytest.mark.anyio
ECHO = """
import json, sys
context = json.load(sys.stdin)
print("some noise")
print(json.dumps({"reward": context["generation"] / 10, "artifactId": f"a{context['generation']}",
                  "cost": 1, "evidence": {"told": context}}))
"""


@pytest.fixture
def store(tmp_path: Path):
    opened = SqliteRunStore(tmp_path / "runs.sqlite3")
    yield opened
    opened.close()


@pytest.fixture
def runners(tmp_path: Path):
    env = {"PATH": os.environ["PATH"]}
    return {wire.CommandStep: CommandRunner(Processes(None), env=env, cwd=tmp_path)}


def python(code: str, *arguments: str, **more) -> wire.CommandStep:
    return wire.CommandStep(argv=(sys.executable, "-c", code, *arguments), **more)


async def run(store, runners, steps: Steps, **config):
    values = {"max_generations": 2, "step_attempts": 1, **config}
    loops = LoopKernel(store, LoopConfig("t", "w", **values))
    work = work_of(steps, runners)
    run_id = loops.submit(steps=steps)
    return await loops.arun(run_id, "w", work.step, apply=work.apply, rollback=work.rollback)


def failures(store, report) -> list[StepFailed]:
    return [row.event for row in store.events(report.run_id) if isinstance(row.event, StepFailed)]


async def test_a_command_gets_the_context_and_gives_an_observation(store, runners) -> None:
    report = await run(store, runners, Steps(step=python(ECHO)))
    assert [(g.reward, g.artifact_id, g.cost) for g in report.generations] == [
        (0.0, "a0", 1.0), (0.1, "a1", 1.0),
    ]  # fmt: skip
    told = store.get(report.run_id, "generation:1").event.observation.evidence["told"]
    assert (told["runId"], told["generation"], told["bestReward"]) == (report.run_id, 1, 0.0)
    assert told["recent"][0]["action"] == "accept"
    assert told["seed"] > 0


async def test_a_command_applies_and_rolls_back(store, runners, tmp_path) -> None:
    note = "import sys; open('told', 'a').write(sys.argv[1] + ' ' + sys.stdin.read())"
    measure = (
        "import json, sys; n = json.load(sys.stdin)['generation'];"
        "print(json.dumps({'reward': [0.5, 0.6, 0.1][n], 'liveReward': [None, 0.5, 0.1][n],"
        " 'artifactId': f'a{n}'}))"
    )
    steps = Steps(step=python(measure), apply=python(note, "A"), rollback=python(note, "R"))
    report = await run(store, runners, steps, max_generations=3, rollback_drop=0.2)
    assert [g.action for g in report.generations] == ["accept", "accept", "rollback"]
    assert all(g.applied for g in report.generations)
    lines = (tmp_path / "told").read_text().splitlines()
    assert [line[0] for line in lines] == ["A", "A", "R"]
    assert '"artifactId":"a1"' in lines[1]
    assert '"artifactId":"a0"' in lines[2], "the artifact that shall live again"
    assert '"action":"rollback"' in lines[2]


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (python("import sys; sys.exit('no luck')"), "StepFailed", "no luck"),
        (python("print('not json')"), "StepFailed", "not json"),
        (python('print(\'{"reward": "high"}\')'), "StepFailed", "no observation"),
        (python("pass"), "StepFailed", "no observation"),
        (python("import time; time.sleep(60)", timeout_ms=300), "StepFailed", "longer than 300 ms"),
        (wire.CommandStep(argv=("no-such-program",)), "FileNotFoundError", "no-such-program"),
    ],
)
async def test_a_command_that_fails_is_a_recorded_failure(
    store, runners, step, error, message
) -> None:
    report = await run(store, runners, Steps(step=step))
    assert (report.status, report.generations) == ("running", [])
    (failure,) = failures(store, report)
    assert failure.error == error
    assert message in failure.message


async def test_nan_of_a_command_is_a_rejected_measurement(store, runners) -> None:
    report = await run(store, runners, Steps(step=python('print(\'{"reward": "nan"}\')')))
    assert [g.reason for g in report.generations] == ["invalid_observation"] * 2


async def test_a_cancelled_command_is_gone_with_its_whole_tree(store, runners, tmp_path) -> None:
    code = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True);"
        "open('pids.new', 'w').write(f'{os.getpid()} {child.pid}'); os.rename('pids.new', 'pids');"
        "time.sleep(600)"
    )
    steps = Steps(step=python(code))
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=2))
    run_id = loops.submit(steps=steps)
    pids = tmp_path / "pids"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loops.arun, run_id, "w", work_of(steps, runners).step)
        await until(pids.exists, "the command")
        loops.cancel(run_id, "enough")
    assert loops.report(run_id).stopped_reason == "enough"
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


async def test_a_command_may_end_in_order_before_it_is_ended(store, runners, tmp_path) -> None:
    code = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: (open('ended', 'w').close(), sys.exit(3)));"
        "open('began', 'w').close(); time.sleep(600)"
    )
    steps = Steps(step=python(code))
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=2))
    run_id = loops.submit(steps=steps)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loops.arun, run_id, "w", work_of(steps, runners).step)
        await until((tmp_path / "began").exists, "the command")
        tasks.cancel_scope.cancel()
    assert (tmp_path / "ended").exists()
    assert store.head(run_id).owner is None


async def test_the_client_makes_steps_and_applies(store) -> None:
    asked: list[wire.LoopStepRequest | wire.LoopApplyRequest] = []

    class Client:
        async def step(self, request: wire.LoopStepRequest) -> wire.StepObservation:
            asked.append(request)
            if len(asked) == 1:
                raise HostLost("the client has gone")
            return wire.StepObservation(reward=0.5, artifact_id="x")

        async def apply(self, request: wire.LoopApplyRequest) -> None:
            asked.append(request)

    runners = {wire.ClientStep: ClientRunner(Client())}
    steps = Steps(step=wire.ClientStep(), apply=wire.ClientStep(timeout_ms=30_000))
    report = await run(store, runners, steps, step_attempts=2, max_generations=1)
    assert [f.error for f in failures(store, report)] == ["HostLost"]
    assert [type(request) for request in asked] == [
        wire.LoopStepRequest, wire.LoopStepRequest, wire.LoopApplyRequest,
    ]  # fmt: skip
    assert asked[0].context.seed == asked[1].context.seed
    assert [r.context.attempt for r in asked] == [1, 2, 1]
    assert asked[2].observation.artifact_id == "x"


async def test_a_client_that_never_answers_is_not_waited_for_after_a_cancel(store) -> None:
    asked = anyio.Event()

    class Client:
        async def step(self, request):
            asked.set()
            await anyio.sleep_forever()

    runners = {wire.ClientStep: ClientRunner(Client())}
    steps = Steps(step=wire.ClientStep())
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=2))
    run_id = loops.submit(steps=steps)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loops.arun, run_id, "w", work_of(steps, runners).step)
        await asked.wait()
        loops.cancel(run_id, "enough")
    assert loops.report(run_id).status == "cancelled"


def test_a_place_that_the_host_does_not_offer_is_named(runners) -> None:
    with pytest.raises(Unsupported, match="client"):
        work_of(Steps(step=python(ECHO), apply=wire.ClientStep()), runners)
