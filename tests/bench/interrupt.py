"""P4: interrupt to done, 95th percentile, as milliseconds of the machine the goals are stated for."""

import math
import shutil
import socket
import time
from pathlib import Path

import runtime_bench as b
import takeover
from jupyter_peer import jupyter

GO = "import os; _ = os.write(1, b'go')\n"
CELLS = {
    "python loop": ("while True: pass", 5.0),
    "sleep": ("import time; time.sleep(60)", 5.0),
    "lock": ("import threading; l = threading.Lock(); l.acquire(); l.acquire()", 5.0),
    "await": ("import asyncio; await asyncio.sleep(60)", 5.0),
    "catastrophic re": ("import re; re.match(r'(a+)+$', 'a' * 64 + 'b')", 5.0),
    "print loop": ("while True: print('x' * 100)", 5.0),
    "subprocess": ("import subprocess; subprocess.run(['sleep', '60'])", 10.0),
    "1,000 tasks": (
        "import asyncio; await asyncio.gather(*(asyncio.sleep(60) for _ in range(1000)))",
        15.0,
    ),
}


IN_A_SANDBOX = ("python loop", "catastrophic re", "subprocess")
"""Measured beside the same outside, round by round; left out where there is no bubblewrap."""


class Ringing:
    """A runtime whose guard has a doorbell, with or without something before its argv."""

    def __init__(self, launcher: tuple[str, ...] = ()) -> None:
        self._bell, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        marks = {"RLM_SIGINT": "doorbell", "RLM_GUARD_FD": str(fd)}
        self.runtime = b.Lines((*launcher, *b.RUNTIME), pass_fds=[fd], **marks)
        theirs.close()

    def __enter__(self) -> "Ringing":
        return self

    def __exit__(self, *ended: object) -> None:
        self._bell.close()  # to the guard this is the host's end
        self.runtime.__exit__(*ended)

    def interrupt_ms(self, code: str) -> float:
        """Start a cell, interrupt it, and give how long it took to end."""
        id_ = self.runtime.start(GO + code)
        while "go" not in self.runtime.event().get("text", ""):
            continue
        time.sleep(0.02)  # let it get to where it blocks
        began = b.now()
        self.runtime.send({"type": "interrupt", "id": id_})
        self._bell.send(b"int")
        self.runtime.until_done(id_)
        return (b.now() - began) * 1000


def sandbox() -> tuple[str, ...] | None:
    """Give the profile's argv around the whole of this machine's Python."""
    from rlm_host.kernels.sandbox import PROGRAM, View, arguments, interpreter_folders

    if shutil.which(PROGRAM) is None:
        return None
    root, python = Path(__file__).resolve().parents[2], Path(b.PYTHON)
    folders = interpreter_folders(python, root, root / ".no-home")
    view = View(home=root / ".no-home", user_home=None, workspace=root, readable=folders)
    return (PROGRAM, *arguments(view))


PEER_GO = "print('go', flush=True)\n"
PEER_CELLS = ("python loop", "sleep", "subprocess", "await")
"""In this order: ipykernel never answers the last one."""


def measure(report: b.Report, rounds: int) -> None:
    bare = b.median([b.run_once(b.PYTHON, "-c", "pass") for _ in range(9)])
    scale = b.PASS_MS / (bare * 1000)
    with Ringing() as outside:
        for name, (code, goal) in CELLS.items():
            took = [outside.interrupt_ms(code) * scale for _ in range(rounds)]
            report.value(f"{name}, p95", [b.p95(took)], goal, " ms")
        if (launcher := sandbox()) is not None:
            with Ringing(launcher) as inside:
                for name in IN_A_SANDBOX:
                    pairs = [
                        [at.interrupt_ms(CELLS[name][0]) for at in (inside, outside)]
                        for _ in range(rounds)
                    ]
                    report.ratio(f"{name}, in a sandbox", *zip(*pairs, strict=True), 2.0)
    killed = [seconds * 1000 * scale for seconds in takeover.takeovers(rounds)]
    report.value("kill, answered by a spare, p95", [b.p95(killed)], 25.0, " ms")
    with jupyter() as peer:
        if peer is not None:
            for name in PEER_CELLS:
                one = peer.interrupted(PEER_GO + CELLS[name][0])
                report.told(
                    f"{name}, ipykernel", [math.inf if one is None else one * 1000 * scale], " ms"
                )


if __name__ == "__main__":
    b.main("P4", measure, rounds=40, short=10)
