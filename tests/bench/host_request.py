"""P5: a cell's requests to its host: one after the other, and many in flight, against a ping-pong."""

import runtime_bench as b
from jupyter_peer import jupyter


def pings(peer: b.Lines, count: int) -> float:
    began = b.now()
    for i in range(count):
        peer.send({"type": "x", "id": f"h{i}", "payload": {}})
        peer.event()
    return (b.now() - began) / count


def requests(ours: b.Lines, count: int, at_once: int) -> float:
    code = (
        f"import asyncio, rlm\nasync def many():\n for _ in range({count // at_once}):\n"
        f"  await asyncio.gather(*(rlm.host_request('x', {{}}) for _ in range({at_once})))\nawait many()"
        if at_once > 1
        else f"import rlm\nfor _ in range({count}): await rlm.host_request('x', {{}})"
    )
    began = b.now()
    id_ = ours.start(code)
    batch: list[bytes] = []
    while True:
        event = ours.event()
        if event["event"] == "done":
            assert event["id"] == id_
            assert event["status"] == "ok"
            return (b.now() - began) / count
        batch.append(
            b.encode(
                {"type": "host_reply", "id": event["id"], "data": {"status": "ok", "result": 1}}
            )
            + b"\n"
        )
        if not ours.pending:
            ours.stdin.write(b"".join(batch))
            ours.stdin.flush()
            batch.clear()


def measure(report: b.Report, rounds: int) -> None:
    with b.Lines(b.RUNTIME) as ours, b.Lines((*b.FLOOR, "ping")) as floor:
        rows: list[tuple[float, ...]] = []
        for _ in range(rounds):
            rows.append(
                (
                    pings(floor, 1000),
                    requests(ours, 1000, 1),
                    requests(ours, 5000, 100),
                    requests(ours, 10_000, 1000),
                )
            )
        base = [r[0] for r in rows]
        with jupyter() as peer:
            if peer is not None:
                theirs = [peer.inputs(50) for _ in rows]
                report.beside("input() one after the other, ipykernel", theirs, base)
        report.ratio("one after the other", [r[1] for r in rows], base, 1.3)
        report.ratio(
            "100 in flight, rate", [1 / r[2] for r in rows], [1 / x for x in base], 2.0, least=True
        )
        report.ratio(
            "1,000 in flight, rate",
            [1 / r[3] for r in rows],
            [1 / x for x in base],
            4.0,
            least=True,
        )


if __name__ == "__main__":
    b.main("P5", measure, rounds=9, short=3)
