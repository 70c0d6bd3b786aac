"""P13: many children of one session: how long admission takes, and what an idle child holds."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import host_bench as h
import runtime_bench as b

CHILDREN = 20 if "--short" in sys.argv else 100
TASK = json.dumps([{"call": "x = 1"}, {"text": "done"}])
SPAWN = {"prompt": TASK, "options": {"model": "scripted/steps", "result": {}}}
MIB = 1 << 20


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def pss_bytes(pid: int) -> int:
    """Give the proportional memory of a process and all below it."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError), open(f"/proc/{one}/smaps_rollup") as file:
            total += next(int(row.split()[1]) * 1024 for row in file if row.startswith("Pss:"))
    return total


def measure(report: b.Report, rounds: int) -> None:
    bare_s = b.median([b.run_once(b.PYTHON, "-c", "pass") for _ in range(5)])
    scale = b.PASS_MS / (bare_s * 1000)
    admitted, held, each = [], [], []
    for _ in range(rounds):
        with h.home() as home, h.Framed(h.HOST, home) as host:
            host.initialize()
            params = {"cwd": str(home), "model": "scripted/echo"}
            root = {"sessionId": host.ask("session/create", params)["session"]["id"]}
            first = host.ask("repl/execute", {**root, "code": "1"})
            assert first["status"] == "ok"
            before = pss_bytes(host.process.pid)
            began, took = b.now(), []
            for _ in range(CHILDREN):
                asked = b.now()
                host.ask("agent/spawn", {**root, **SPAWN})
                took.append(b.now() - asked)
            while running(host, root):
                host.wait("agent/changed")
            each.append((b.now() - began) / CHILDREN)
            admitted.append(b.p95(took) * 1000 * scale)
            held.append((pss_bytes(host.process.pid) - before) / CHILDREN / MIB)
            kernels = len(list(tree(host.process.pid)))
    print(
        f"{CHILDREN} children in {b.median(each) * CHILDREN:.1f} s, {kernels} processes at the end"
    )
    report.value(f"admission of {CHILDREN}, p95", admitted, 50, "ms")
    report.value("PSS of an idle child", held, 12, "MiB")


def running(host: h.Framed, root: dict[str, str]) -> bool:
    """Tell whether any child is not over; all must have ended well."""
    agents = host.ask("agent/list", root)["agents"]
    ended = {agent["status"] for agent in agents} - {"queued", "running"}
    assert ended <= {"completed"}, ended
    assert len(agents) == CHILDREN
    return any(agent["status"] != "completed" for agent in agents)


if __name__ == "__main__":
    b.main("P13", measure, rounds=3, short=1)
