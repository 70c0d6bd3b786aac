"""P1: cold start. Spawn to `ready` against `python -c pass`; to the first answer against `import asyncio`."""

import runtime_bench as b
from jupyter_peer import jupyter


def measure(report: b.Report, rounds: int) -> None:
    start, first, bare, loop = [], [], [], []
    for _ in range(rounds):
        bare.append(b.run_once(b.PYTHON, "-c", "pass"))
        loop.append(b.run_once(b.PYTHON, "-c", "import asyncio"))
        began = b.now()
        with b.Lines(b.RUNTIME) as runtime:
            start.append(b.now() - began)
        began = b.now()
        with b.Lines(b.RUNTIME, ready=False) as runtime:
            runtime.send({"type": "execute", "id": "a", "code": "1+1"})
            runtime.until_done("a")
            first.append(b.now() - began)
    report.ratio("ready", start, bare, 2.5)
    report.ratio("first 1+1", first, loop, 1.2)
    peers = []
    for _ in range(max(2, rounds // 8)):
        began = b.now()
        with jupyter() as peer:
            if peer is None:
                return
            peer.run("1+1")
            peers.append(b.now() - began)
    report.beside("first 1+1, ipykernel", peers, [b.median(loop)] * len(peers))


if __name__ == "__main__":
    b.main("P1", measure, rounds=40, short=8)
