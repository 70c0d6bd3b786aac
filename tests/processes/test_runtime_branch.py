"""The ability to fork a live kernel: between two cells it has one thread and takes new descriptors."""

import socket
import uuid

from support.runtime_driver import Runtime, eventually, living
from support.template_driver import Attached

BRANCH = """
import socket
from rlm import _branch
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
    link.connect({name!r})
    _branch.after_this_cell(link)
del _branch, link, socket
"""


class Branch(Attached):
    """The other half of a kernel."""

    def __init__(self, origin: Runtime, before: str = "", *, forked: bool = True) -> None:
        super().__init__()
        name = f"\0rlm-{uuid.uuid4().hex}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(name)
            listener.listen()
            cell = origin.start(before + BRANCH.format(name=name))
            link, _ = listener.accept()
        with link:
            socket.send_fds(link, [b"branch"], self.channels)
        self.handed_over()
        assert origin.until_done(cell).status == "ok"
        if forked:
            self.begin()


def test_a_live_kernel_is_forked_and_both_answer() -> None:
    with Runtime() as origin:
        origin.run("import asyncio, random; x = [1]; y = x; def_x = lambda: x")
        origin.run("big = bytearray(50_000_000)\nprint('chatter')\nawait asyncio.sleep(0.05)")
        branch = Branch(origin)
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
        branch = Branch(origin)
        cell = branch.started("import os; _ = os.write(1, b'go')\nwhile True: pass")
        other = origin.started("import os, time; _ = os.write(1, b'go')\ntime.sleep(3600)")
        branch.interrupt(cell)
        assert branch.until_done(cell).ename == "KeyboardInterrupt"
        branch.end()
        origin.interrupt(other)
        assert origin.until_done(other).ename == "KeyboardInterrupt"


def test_a_branch_branches_and_all_end_with_the_origin() -> None:
    with Runtime() as origin:
        first = Branch(origin, "n = 1\n")
        second = Branch(first, "n += 1\n")
        assert [r.value("n") for r in (origin, first, second)] == [1, 2, 2]
        pids = {first.pid, second.pid}
    eventually(lambda: not pids & set(living()), "the end of the branches")
    first.close()
    second.close()


def test_commands_that_have_ended_leave_no_thread() -> None:
    with Runtime() as origin:
        bash = "from rlm import bash\nr = await bash('echo {}')\nr.output"
        assert origin.value(bash.format(1)) == "1\n"
        names = "import threading; [t.name for t in threading.enumerate()]"
        eventually(lambda: "rlm-bash" not in origin.value(names), "the end of the reader")
        branch = Branch(origin)
        for runtime, number in ((origin, 2), (branch, 3), (branch, 4)):
            assert runtime.value(bash.format(number)) == f"{number}\n"
        branch.end()


def test_no_branch_while_a_thread_of_a_cell_runs() -> None:
    with Runtime() as origin:
        origin.run("import threading; e = threading.Event(); t = threading.Thread(target=e.wait)")
        origin.run("t.start()")
        refused = Branch(origin, forked=False)
        assert refused.at_its_end(), "its channels are closed"
        refused.close()
        assert origin.value("e.set(); t.join()") is None
        branch = Branch(origin)
        assert branch.alive()
        branch.end()
