"""P4: interrupt to done, 95th percentile, as milliseconds of the machine the goals are stated for."""

import os
import socket
import time

import runtime_bench as b
import takeover

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


def measure(report: b.Report, rounds: int) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.set_inheritable(there.fileno(), True)
    bare = b.median([b.run_once(b.PYTHON, "-c", "pass") for _ in range(9)])
    scale = b.PASS_MS / (bare * 1000)
    command = (b.PYTHON, "-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])", *b.RUNTIME)
    import subprocess

    popen = subprocess.Popen
    subprocess.Popen = lambda *a, **k: popen(*a, **k, pass_fds=[there.fileno()])  # type: ignore[assignment, misc]
    try:
        runtime = b.Lines(command, RLM_SIGINT="doorbell", RLM_GUARD_FD=str(there.fileno()))
    finally:
        subprocess.Popen = popen  # type: ignore[misc]
    there.close()
    with runtime:
        for name, (code, goal) in CELLS.items():
            took = []
            for _ in range(rounds):
                id_ = runtime.start(GO + code)
                while "go" not in runtime.event().get("text", ""):
                    continue
                time.sleep(0.02)  # let it get to where it blocks
                began = b.now()
                runtime.send({"type": "interrupt", "id": id_})
                here.send(b"int")
                runtime.until_done(id_)
                took.append((b.now() - began) * 1000 * scale)
            report.value(f"{name}, p95", [b.p95(took)], goal, " ms")
    here.close()
    killed = [seconds * 1000 * scale for seconds in takeover.takeovers(rounds)]
    report.value("kill, answered by a spare, p95", [b.p95(killed)], 25.0, " ms")


if __name__ == "__main__":
    b.main("P4", measure, rounds=40, short=10)
