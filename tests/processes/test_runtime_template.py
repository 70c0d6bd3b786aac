"""A template by its wire: what it does with orders, and when it ends."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_host.processes import facts
from rlm_protocol import warm
from support.processes import alive
from support.runtime_driver import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(
    not facts.can_fork_guards(), reason="kernels start cold on this machine"
)


class Template:
    """A template and our end of it, not yet prepared."""

    def __init__(self, **env: str) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlm.repl"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"HOME": os.environ["HOME"], **env, warm.TEMPLATE_FD: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def tell(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.link, [data], fds)

    def told(self) -> warm.Told | None:
        """Give its next word; None when it has ended."""
        assert select.select([self.link], [], [], PATIENCE_S)[0], "the template says nothing"
        data, fds, _, _ = socket.recv_fds(self.link, 65536, 4)
        for fd in fds:
            os.close(fd)
        return warm.decode_told(data) if data else None

    def prepared(self) -> "Template":
        self.tell(warm.encode(warm.Prepare()))
        assert self.told() == warm.Ready()
        return self


class Fork:
    """A guard and a kernel of a template that wait for a birth."""

    def __init__(self, template: Template) -> None:
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.birth, birth = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, self.stdin = os.pipe()
        self.stdout, stdout = os.pipe()
        fds = (stdin, stdout, 2, control.fileno(), birth.fileno())
        template.tell(warm.encode(warm.Fork()), fds)
        for end in (control, birth):
            end.close()
        os.close(stdin)
        os.close(stdout)
        born = template.told()
        assert isinstance(born, warm.Born)
        self.guard = born.pid

    def live(self, *variables: tuple[bytes, bytes]) -> dict[str, Any]:
        """Give it an environment; give its first line."""
        folder = os.open("/", os.O_RDONLY)
        birth = warm.Birth(environment=variables)
        socket.send_fds(self.birth, [warm.encode(birth)], [folder])
        os.close(folder)
        line = b""
        while not line.endswith(b"\n"):
            more = os.read(self.stdout, 65536)
            assert more, "it ended instead of getting ready"
            line += more
        ready: dict[str, Any] = json.loads(line)
        return ready

    def close(self) -> None:
        for end in (self.control, self.birth):
            end.close()
        for fd in (self.stdin, self.stdout):
            os.close(fd)


@pytest.fixture
def template() -> Iterator[Template]:
    made = Template()
    try:
        yield made
    finally:
        made.link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            made.process.wait(PATIENCE_S)
        made.process.kill()
        made.process.wait()
        assert made.process.stdout is not None
        assert made.process.stdout.read() == b"", "a template says nothing to a kernel's host"
        made.process.stdout.close()


@pytest.fixture
def fork(template: Template) -> Iterator[Fork]:
    made = Fork(template.prepared())
    yield made
    made.close()


def test_a_fork_waits_and_then_lives(template: Template, fork: Fork) -> None:
    ready = fork.live((b"RLM_SIGINT", b"doorbell"))
    assert ready["event"] == "ready"
    assert facts.process(ready["pid"]).parent == fork.guard
    assert facts.process(fork.guard).parent == template.process.pid
    fork.control.send(b"kill")
    assert template.told() == warm.Gone(pid=fork.guard, code=-signal.SIGKILL)


def test_bad_orders_are_refused_one_by_one(template: Template) -> None:
    template.prepared()
    hostile = (
        b"\xff\xff",
        b"{}",
        warm.encode(warm.Ready()),
        warm.encode(warm.Fork()),
        b"\x81\xa4type\xa4prep",
    )
    for data in hostile:
        template.tell(data, (0,))
        assert isinstance(template.told(), warm.Refused), data
    assert len(os.listdir(f"/proc/{template.process.pid}/fd")) < 16, "what came with them is closed"
    fork = Fork(template)
    assert fork.live()["event"] == "ready"
    fork.close()


@pytest.mark.parametrize("birth", [b"\xc1 no birth", b""], ids=["garbage", "nothing"])
def test_a_fork_that_is_given_nonsense_ends_before_it_is_ready(
    template: Template, fork: Fork, birth: bytes
) -> None:
    if birth:
        socket.send_fds(fork.birth, [birth], [0])
    fork.birth.close()
    gone = template.told()
    assert isinstance(gone, warm.Gone)
    assert gone.pid == fork.guard
    assert os.read(fork.stdout, 1) == b""


def test_a_fork_whose_host_lets_go_of_it_ends(template: Template, fork: Fork) -> None:
    fork.control.close()
    assert template.told() == warm.Gone(pid=fork.guard, code=-signal.SIGKILL)


def test_a_template_whose_link_ends_leaves_its_kernels_to_the_host(
    template: Template, fork: Fork
) -> None:
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 1)
    try:
        ready = fork.live()
        template.link.close()
        assert template.process.wait(PATIENCE_S) == 0
        assert facts.process(fork.guard).parent == os.getpid()
        assert alive(ready["pid"])
        fork.control.send(b"kill")
        assert os.waitstatus_to_exitcode(os.waitpid(fork.guard, 0)[1]) == -signal.SIGKILL
    finally:
        facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 0)


def test_what_cannot_be_loaded_is_a_refusal_with_its_reason(template: Template) -> None:
    template.tell(warm.encode(warm.Prepare(preload=("no_such_module",))))
    refused = template.told()
    assert isinstance(refused, warm.Refused)
    assert "no_such_module" in refused.reason
    assert template.told() is None
    assert template.process.wait(PATIENCE_S) == 1


OWNER = """
import os, socket, subprocess, sys
from rlm_protocol import warm
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.set_inheritable(ours.fileno(), True)
env = {**os.environ, "RLM_TEMPLATE_FD": str(theirs.fileno())}
argv = [sys.executable, "-P", "-m", "rlm.repl"]
p = subprocess.Popen(argv, env=env, pass_fds=[theirs.fileno()], start_new_session=True)
theirs.close()
ours.send(warm.encode(warm.Prepare()))
ours.recv(100)
holder = subprocess.Popen(["sleep", "3600"], pass_fds=[ours.fileno()])
print(p.pid, holder.pid, flush=True)
sys.stdin.read()
"""


def test_a_template_ends_with_its_host_though_somebody_holds_the_link(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        template, holder = map(int, owner.stdout.readline().split())
        try:
            owner.kill()
            eventually(lambda: not alive(template), "the end of the template")
            assert alive(holder)
        finally:
            os.kill(holder, signal.SIGKILL)
