"""The shapes of test_runtime_orphans.py in kernels that were forked: nothing is left there either."""

import os
import signal
from collections.abc import Iterator

import pytest

from rlm_host.processes import facts
from rlm_protocol import warm
from support.orphan_shapes import GONE_S, SHAPES, prepare
from support.runtime_driver import eventually
from support.template_driver import Fork, Template

pytestmark = [
    pytest.mark.short,
    pytest.mark.skipif(not facts.can_fork_guards(), reason="kernels start cold on this machine"),
]
KILLED = ("kernel", "guard", "guard's word")


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with Template(PATH=os.environ["PATH"]) as made:
        yield made.prepared()


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_left(template: Template, shape: str, killed: str) -> None:
    neighbour = Fork(template).live(PATH=os.environ["PATH"])
    fork = Fork(template).live(PATH=os.environ["PATH"], HOME=os.environ["HOME"])
    fork.start(prepare(SHAPES[shape], os.urandom(16).hex()))
    fork.until(lambda e: "go" in e.get("text", "") or e["event"] == "done")
    kept = {neighbour.guard, neighbour.pid}
    assert {fork.guard, fork.pid} <= below(template) - kept
    if killed == "guard's word":
        fork.order(b"kill")
    else:
        os.kill(fork.guard if killed == "guard" else fork.pid, signal.SIGKILL)
    assert template.told() == warm.Gone(pid=fork.guard, code=-signal.SIGKILL)
    eventually(lambda: below(template) == kept, f"a template without {shape}", GONE_S)
    assert neighbour.alive()
    neighbour.end()
    fork.close()
    assert isinstance(template.told(), warm.Gone)


def below(template: Template) -> set[int]:
    return {fact.pid for fact in facts.descendants(template.process.pid)}
