"""A template by its wire: what it does with orders, and when it ends."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlm_host.processes import facts
from rlm_protocol import warm
from support.processes import alive
from support.runtime_driver import PATIENCE_S, eventually
from support.template_driver import Fork, Template

pytestmark = pytest.mark.skipif(
    not facts.can_fork_guards(), reason="kernels start cold on this machine"
)


@pytest.fixture
def template() -> Iterator[Template]:
    with Template() as made:
        yield made


@pytest.fixture
def fork(template: Template) -> Iterator[Fork]:
    made = Fork(template.prepared())
    yield made
    made.close()


def test_a_fork_waits_and_then_lives(template: Template, fork: Fork) -> None:
    fork.live("/usr", RLM_SIGINT="doorbell", NAME="value")
    assert fork.value("import os; os.getcwd(), os.environ['NAME']") == ("/usr", "value")
    assert facts.process(fork.pid).parent == fork.guard
    assert facts.process(fork.guard).parent == template.process.pid
    fork.order(b"kill")
    assert template.told() == warm.Gone(pid=fork.guard, code=-signal.SIGKILL)


def test_a_fork_finds_everything_loaded(fork: Fork) -> None:
    fork.live()
    fork.run("from rlm._bootstrap import bind; bind()")
    code = "import sys; m = list(sys.modules); m[m.index('rlm._bash') + 1:]"
    loaded_later = set(fork.value(code)) - {"_multiprocessing"}  # by the last step of the template
    assert not loaded_later


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
    fork = Fork(template).live()
    assert fork.alive()
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
    assert fork.at_its_end()


def test_a_fork_whose_host_lets_go_of_it_ends(template: Template, fork: Fork) -> None:
    fork.let_go()
    assert template.told() == warm.Gone(pid=fork.guard, code=-signal.SIGKILL)


def test_a_template_that_is_retired_leaves_its_kernels_to_the_host(
    template: Template, fork: Fork
) -> None:
    facts.prctl(facts.PR_SET_CHILD_SUBREAPER, 1)
    try:
        fork.live()
        template.tell(warm.encode(warm.Retire()))
        assert template.process.wait(PATIENCE_S) == 0
        assert facts.process(fork.guard).parent == os.getpid()
        assert fork.alive()
        fork.order(b"kill")
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
