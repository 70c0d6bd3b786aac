"""P8: requests and notifications through the host, against a synchronous floor and stock pygls."""

import host_bench as h
import runtime_bench as b

NESTED = {
    "items": [{"id": n, "tags": ["a", "b"], "at": {"line": n, "text": "x" * 20}} for n in range(14)]
}
ROUND_TRIPS = {
    "64 B": ("repl/execute", {"sessionId": "s", "code": "x" * 64}, 500, 2.0),
    "nested 1 KB": (
        "agent/spawn",
        {"sessionId": "s", "prompt": "p", "options": NESTED},
        500,
        1.6,
    ),
    "64 KB": ("repl/execute", {"sessionId": "s", "code": "x" * 65_536}, 100, 1.6),
}
PIPELINED = 5_000
DELTAS, DELTA_CHARS = 5_000, 40


def notified(process: h.Framed) -> float:
    """Give the seconds of one notification of many."""
    text = f"{DELTAS} {DELTA_CHARS}"
    began = b.now()
    params = {"sessionId": "s", "input": [{"type": "text", "text": text}]}
    process.start("turn/start", params)
    deltas = 0
    while (message := process.message()).get("method") != "turn/completed":
        deltas += message.get("method") == "item/delta"
    assert 0 < deltas <= DELTAS
    return (b.now() - began) / deltas


def measure(report: b.Report, rounds: int) -> None:
    commands = {"host": h.ECHO, "floor": h.FLOOR, "pygls": h.PEER}
    took: dict[tuple[str, str], list[float]] = {}
    with (
        h.home() as folder,
        h.Framed(h.ECHO, folder) as host,
        h.Framed(h.FLOOR, folder) as floor,
        h.Framed(h.PEER, folder) as pygls,
    ):
        processes = dict(zip(commands, (host, floor, pygls), strict=True))
        for process in processes.values():
            process.initialize()
            process.round_trip("repl/execute", {"sessionId": "s", "code": "warm"}, 100)
        small = ROUND_TRIPS["64 B"][:2]
        for _ in range(rounds):
            for who, process in processes.items():
                less = 5 if who == "pygls" else 1
                for name, (method, params, count, _) in ROUND_TRIPS.items():
                    one = process.round_trip(method, params, count // less)
                    took.setdefault((name, who), []).append(one)
                one = process.pipelined(*small, PIPELINED // less)
                took.setdefault(("pipelined", who), []).append(one)
                took.setdefault(("notified", who), []).append(notified(process))

    def rate(name: str, who: str) -> list[float]:
        return [1 / one for one in took[name, who]]

    for name, (_, _, _, goal) in ROUND_TRIPS.items():
        report.ratio(name, took[name, "host"], took[name, "floor"], goal)
    for name in ("pipelined", "notified"):
        report.ratio(
            f"{name}, rate to floor", rate(name, "host"), rate(name, "floor"), 0.9, least=True
        )
    for name in ("pipelined", "notified"):
        goal = 20 if name == "pipelined" else 1
        report.ratio(
            f"{name}, rate to pygls", rate(name, "host"), rate(name, "pygls"), goal, least=True
        )
    for name in ROUND_TRIPS:
        report.ratio(f"{name}, to pygls", took[name, "host"], took[name, "pygls"], 1)


if __name__ == "__main__":
    b.main("P8", measure, rounds=9, short=3)
