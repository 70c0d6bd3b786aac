"""P2: one cell there and back, against a loop that decodes, executes and encodes."""

import runtime_bench as b
from jupyter_peer import jupyter

HUNDRED = "\n".join(f"x{i} = {i} + len('abc') * ({i} % 7)" for i in range(99)) + "\nx5"
CELLS = {
    "1+1": ("1+1", 1.6),
    "empty": ("", 1.45),
    "print": ("print('hello')", 2.2),
    "100 lines": (HUNDRED, 1.25),
}


def burst(peer: b.Lines, count: int) -> float:
    began = b.now()
    ids = [f"p{i}" for i in range(count)]
    for at in range(0, count, 100):
        peer.send(*({"type": "execute", "id": id_, "code": "1+1"} for id_ in ids[at : at + 100]))
        peer.until_done(ids[at + 99])
    return count / (b.now() - began)


def measure(report: b.Report, rounds: int) -> None:
    with b.Lines(b.RUNTIME) as ours, b.Lines(b.FLOOR) as floor, jupyter() as peer:
        for name, (code, goal) in CELLS.items():
            a, z, theirs = [], [], []
            # The floor has no output channel, so a print is compared with its empty cell.
            floor_code = "" if name == "print" else code
            for _ in range(rounds):
                a.append(b.median([ours.timed(code) for _ in range(100)]))
                z.append(b.median([floor.timed(floor_code) for _ in range(100)]))
                if peer is not None:
                    theirs.append(b.median([peer.timed(code) for _ in range(10)]))
            report.ratio(name, a, z, goal)
            if theirs:
                report.beside(f"{name}, ipykernel", theirs, z)
        rates = [(burst(ours, 2000), burst(floor, 2000)) for _ in range(rounds)]
        report.ratio(
            "pipelined rate", [r[0] for r in rates], [r[1] for r in rates], 0.5, least=True
        )
        used = []
        for _ in range(rounds):
            pair = []
            for peer in (ours, floor):
                before = peer.cpu_s()
                for _ in range(300):
                    peer.timed("1+1")
                pair.append(peer.cpu_s() - before)
            used.append(pair)
        with b.Lines(b.RUNTIME, RLM_CONTROL="in-band") as far:
            pairs = [
                [b.median([at.timed("1+1") for _ in range(100)]) for at in (far, ours)]
                for _ in range(rounds)
            ]
        report.beside("1+1, control in-band", *zip(*pairs, strict=True))
        report.ratio("CPU of 1+1", [u[0] for u in used], [u[1] for u in used], 2.0)


if __name__ == "__main__":
    b.main("P2", measure, rounds=15, short=5)
