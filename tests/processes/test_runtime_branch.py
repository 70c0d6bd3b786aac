"""The ability to fork a live kernel: between two cells it has one thread and takes new descriptors."""

import os
import socket
import uuid
from typing import Any

from support.runtime_driver import Runtime, eventually, living

BRANCH = """
import socket
from rlm import _branch
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
    link.connect({name!r})
    _branch.after_this_cell(link)
del _branch, link, socket
"""


class Branch(Runtime):
    """The other half of a kernel, on channels that this test has made."""

    def __init__(self, origin: Runtime, before: str = "") -> None:
        self.strays: list[dict[str, Any]] = []
        self._buffer, self._count = bytearray(), 0
        name = f"\0rlm-{uuid.uuid4().hex}"
        self._link, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, self._in = os.pipe()
        self._out, stdout = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(name)
            listener.listen()
            cell = origin.start(before + BRANCH.format(name=name))
            link, _ = listener.accept()
        with link, control:
            socket.send_fds(link, [b"branch"], [stdin, stdout, 2, control.fileno()])
        os.close(stdin)
        os.close(stdout)
        assert origin.until_done(cell).status == "ok"
        self.ready = {}

    def begin(self) -> "Branch":
        self.ready = self.event()
        return self

    def end(self) -> None:
        """End it and wait for its guard's last word."""
        self._link.send(b"kill")
        while not self.told().startswith(b"exit"):
            continue
        self.close()

    def close(self) -> None:
        self._link.close()
        os.close(self._in)
        os.close(self._out)


def test_a_live_kernel_is_forked_and_both_answer() -> None:
    with Runtime() as origin:
        origin.run("import asyncio, random; x = [1]; y = x; def_x = lambda: x")
        origin.run("big = bytearray(50_000_000)\nprint('chatter')\nawait asyncio.sleep(0.05)")
        branch = Branch(origin).begin()
        assert branch.ready["nonce"] != origin.ready["nonce"]
        assert branch.pid != origin.pid
        for runtime, number in ((origin, 1), (branch, 2)):
            assert runtime.value(f"x.append({number}); x is y, def_x() is x, x") == (
                (True, True, [1, number])
            )
            assert runtime.value("import os; os.getpid()") == runtime.pid
            assert runtime.value("len(big)") == 50_000_000
            assert runtime.value("await asyncio.sleep(0.01, 7)") == 7
            printed = runtime.run(
                "import subprocess\nprint('a')\n_ = subprocess.run(['echo', 'b'])"
            )
            assert printed.text() == "a\nb\n"
        assert origin.value("random.random()") != branch.value("random.random()")
        branch.end()
        assert origin.alive()


def test_a_branch_is_interrupted_and_killed_alone() -> None:
    with Runtime() as origin:
        branch = Branch(origin).begin()
        cell = branch.started("import os; _ = os.write(1, b'go')\nwhile True: pass")
        other = origin.started("import os, time; _ = os.write(1, b'go')\ntime.sleep(3600)")
        branch.interrupt(cell)
        assert branch.until_done(cell).ename == "KeyboardInterrupt"
        branch.end()
        origin.interrupt(other)
        assert origin.until_done(other).ename == "KeyboardInterrupt"


def test_a_branch_branches_and_all_end_with_the_origin() -> None:
    with Runtime() as origin:
        first = Branch(origin, "n = 1\n").begin()
        second = Branch(first, "n += 1\n").begin()
        assert [r.value("n") for r in (origin, first, second)] == [1, 2, 2]
        pids = {first.pid, second.pid}
    eventually(lambda: not pids & set(living()), "the end of the branches")
    first.close()
    second.close()


def test_no_branch_while_a_thread_of_a_cell_runs() -> None:
    with Runtime() as origin:
        origin.run("import threading; e = threading.Event(); t = threading.Thread(target=e.wait)")
        origin.run("t.start()")
        refused = Branch(origin)
        assert os.read(refused._out, 1) == b"", "its channels are closed"
        refused.close()
        assert origin.value("e.set(); t.join()") is None
        branch = Branch(origin).begin()
        assert branch.alive()
        branch.end()
