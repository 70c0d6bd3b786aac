"""
Processes that work on a loop and die where a test wants it.

`python -m support.loop_child` forks one process per request: imported once, it is ready in a few
milliseconds. It answers on a descriptor of its own, for nothing may come between its answers:
Temporal's core, left to itself, printed to stdout. Each child writes what it does outside, with a sync, to the effects file beside its store.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

import anyio
import msgspec
import pytest

from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.stores.base import EventRow
from rlm_host.loops.stores.postgres import PostgresRunStore
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_host.loops.worker import Work
from rlm_protocol.errors import RlmError
from rlm_protocol.loop_records import Claimed, encode

REWARDS = (0.3, 0.5, 0.45, 0.1, 0.6, 0.7)
ACTIONS = ["accept", "accept", "reject", "rollback", "accept", "accept"]
LIVE = {3: 0.1}
CONFIG = dict(max_generations=len(REWARDS), rollback_drop=0.3, seed=7)
PATIENCE_S = 30.0
ANSWER_S = 240.0
"""Longer than any test waits for a child by itself."""
PR_SET_PDEATHSIG = 1


class Effects:
    """What was done outside, in order, by whatever process."""

    def __init__(self, db: Path) -> None:
        self.path = db.with_name(db.name + ".effects")

    def note(self, line: str) -> None:
        fd = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(fd, f"{line}\n".encode())
        os.fsync(fd)
        os.close(fd)

    def lines(self, word: str = "") -> list[str]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line for line in text.splitlines() if line.startswith(word)]

    def by_generation(self, word: str) -> dict[int, list[str]]:
        found = defaultdict(list)
        for line in self.lines(word + " "):
            found[int(line.split()[1])].append(line)
        return found

    def wait_for(self, met, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not met(self):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not in {PATIENCE_S} s; {self.lines()}")
            time.sleep(0.005)


class FailPoint:
    """Counts points; at the `nth` (of that name, or of any) it kills, stops or lets go on."""

    def __init__(self, action: str = "", nth: int = 0, point: str = "") -> None:
        self.action, self.nth, self.point, self.passed = action, nth, point, 0
        self.where: list[str] = []

    def __call__(self, point: str) -> None:
        self.where.append(point)
        if self.point in ("", point):
            self.passed += 1
            if self.passed == self.nth:
                os.kill(os.getpid(), getattr(signal, self.action))


def plain(rows: Sequence[EventRow]) -> list[tuple[str, bytes]]:
    """Give a whole history without what tells workers and their tokens apart."""
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    told = [row for row in rows if not isinstance(row.event, Claimed)]
    first = msgspec.structs.replace(told[0].event, provenance=None)
    events = [first, *(row.event for row in told[1:])]
    return [(row.key, encode(event)) for row, event in zip(told, events, strict=True)]


def store_at(db: Path, fault=lambda point: None):
    """Open the store of a test: the PostgreSQL one that a file names, or a SQLite file."""
    url = db.with_suffix(".url")
    if url.exists():
        return PostgresRunStore(url.read_text(), fault=fault)
    return SqliteRunStore(db, fault=fault)


def kernel_on(db: Path, fault=lambda point: None, *, lease_ms=30_000, **config) -> LoopKernel:
    store = store_at(db, fault)
    runs_of = LoopConfig("t", "w", **{**CONFIG, **config})
    # The code is where no Git is: each child would ask it for the state of the whole checkout.
    return LoopKernel(store, runs_of, fault=fault, lease_ms=lease_ms, code=db.parent)


def functions(db: Path, fault=lambda point: None, *, judge: str = "steady", crowd: int = 0) -> dict:
    """
    The step, apply and rollback of these tests.

    A `flipping` judge likes nothing twice; a `broken` one raises, then gives something else, then
    NaN, before it gives the first reward.
    """
    effects = Effects(db)

    def step(context) -> LoopObservation:
        n = context.generation
        fault("before_step")
        effects.note(f"step {n} seed{context.seed} attempt{context.attempt}")
        fault("in_step")
        if crowd and n == 0:
            effects.wait_for(lambda e: len(e.lines("refused")) >= crowd, "the others' refusal")
        reward = REWARDS[n]
        if judge == "flipping" and n == 1 and len(effects.by_generation("step")[1]) > 1:
            reward = 0.2
        if judge == "broken" and n == 0:
            if context.attempt == 1:
                raise OSError("the judge has left")
            if context.attempt == 2:
                return reward  # no observation
            reward = float("nan")
        fault("after_step")
        return LoopObservation(
            reward=reward, cost=1.0, artifact_id=f"a{n}", live_reward=LIVE.get(n), elapsed_ms=1.0
        )

    def apply(context, observation) -> None:
        fault("before_apply")
        effects.note(f"apply {context.generation} {observation.artifact_id} token{context.token}")
        fault("in_apply")
        fault("after_apply")

    def rollback(context, accepted) -> None:
        effects.note(f"rollback {context.generation} {accepted.artifact_id} token{context.token}")
        fault("in_rollback")

    return {"step": step, "apply": apply, "rollback": rollback}


def work(request: dict) -> str:
    """Work on a run as a request says and give how it ended."""
    db = Path(request["db"])
    if "cluster" in request:
        anyio.run(carry_out, *request["cluster"], db, request)
    if request.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"],) * 2)
    fault = FailPoint(**request.get("fault", {}))
    try:
        loops = kernel_on(db, fault, lease_ms=request.get("lease_ms", 30_000))
        named = functions(
            db, fault, judge=request.get("judge", "steady"), crowd=request.get("crowd", 0)
        )
        status = loops.run("run", request.get("worker", "child"), **named).status
    except RlmError as why:
        status = why.kind
        if status == "leaseHeld":
            Effects(db).note("refused")
    return status


def serve(answers_fd: int) -> None:
    """Fork a process per request; answer with its pid, later with how it ended."""
    answers = open(answers_fd, "w", buffering=1)  # noqa: SIM115 -- for the life of the process
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            print(os.waitstatus_to_exitcode(status) if pid else "", file=answers)
            continue
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # with its nursery
            code = 1
            with contextlib.suppress(BaseException):
                Path(request["out"]).write_text(work(request))
                code = 0
            os._exit(code)
        print(pid, file=answers)


class Child:
    def __init__(self, nursery: "Nursery", pid: int, out: Path) -> None:
        self.nursery, self.pid, self.out, self.over = nursery, pid, out, False

    def ended(self) -> str | int:
        """Wait; give its own word, or the number of the signal that ended it."""
        self.over = True
        deadline = time.monotonic() + ANSWER_S
        while not (said := self.nursery.ask({"wait": self.pid})):
            assert time.monotonic() < deadline, f"child {self.pid} works on; {self.nursery.stderr}"
            time.sleep(0.01)
        code = int(said)
        return self.out.read_text() if code == 0 else -code

    def end(self) -> None:
        """Make sure that it is gone."""
        if not self.over:
            os.kill(self.pid, signal.SIGKILL)
            self.ended()

    def wait_stopped(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.005)


def clock_env(shift: str) -> dict[str, str]:
    """Give the environment of a process whose wall clock, and no other, is days off."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        why = "the wall clock of one process is set by the Debian package faketime"
        if os.environ.get("RLM_TEST_SERVICES") == "required":
            pytest.fail(why)
        pytest.skip(why)
    return {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME": shift,
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


class Nursery:
    """Starts children; owned by `nursery()`."""

    def __init__(self, server: "subprocess.Popen[str]", answers: TextIO, folder: Path) -> None:
        self.server, self.answers, self.folder, self.count = server, answers, folder, 0
        self.asking = threading.Lock()

    @property
    def stdout(self) -> str:
        """What it and its children printed to stdout."""
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        """What it and its children printed to stderr: the log of those that set none up."""
        return (self.folder / "stderr").read_text()

    def ask(self, request: dict) -> str:
        """Give its answer, which is one line for one request. Any thread may ask."""
        with self.asking:
            self.server.stdin.write(json.dumps(request) + "\n")
            self.server.stdin.flush()
            ready, _, _ = select.select([self.answers], [], [], ANSWER_S)
            assert ready, f"no answer to {request} in {ANSWER_S} s; {self.stderr[-2000:]}"
            return self.answers.readline().rstrip("\n")

    def start(self, db: Path, **request) -> Child:
        with self.asking:
            self.count += 1
            out = self.folder / f"child-{self.count}.out"
        pid = self.ask({"db": str(db), "out": str(out), **request})
        return Child(self, int(pid), out)


@contextlib.contextmanager
def nursery(
    folder: Path, *imported: str, env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Nursery]:
    """Own a process that forks children, with these modules imported beforehand."""
    tests = Path(__file__).parents[1]
    ours, theirs = os.pipe()
    with contextlib.ExitStack() as block:
        answers = block.enter_context(open(ours))
        with open(theirs, "w"):
            server = subprocess.Popen(
                [sys.executable, "-m", "support.loop_child", str(theirs), *imported],
                stdin=subprocess.PIPE,
                stdout=block.enter_context((folder / "stdout").open("w")),
                stderr=block.enter_context((folder / "stderr").open("w")),
                text=True,
                cwd=tests,
                env={**os.environ, "PYTHONPATH": str(tests), **env},
                pass_fds=[theirs],
            )
        opened = Nursery(server, answers, folder)
        with server:
            yield opened
            server.stdin.close()
        assert not opened.stdout, "stdout is a command's answer, and nobody else's"


class FailingLog:
    """A decision log that is a point of failure: what it is told is durable already."""

    def __init__(self, fault: FailPoint) -> None:
        self.fault = fault

    def record(self, run_id: str, event) -> None:
        self.fault("in_record")


async def carry_out(address: str, queue: str, db: Path, request: dict) -> None:
    """Work for a Temporal cluster until something ends this process."""
    from rlm_host.loops.temporal.worker import working

    fault = FailPoint(**request.get("fault", {}))
    named = functions(db, fault, judge=request.get("judge", "steady"))
    log = FailingLog(fault)
    async with working(address, Work(**named), queue=queue, decision_log=log, code=db.parent):
        await anyio.Path(request["ready"]).touch()
        await anyio.sleep_forever()


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)  # once, for all that are forked
    serve(int(sys.argv[1]))
