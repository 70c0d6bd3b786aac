"""P9: client, host, kernel and back: `repl/execute` of `1+1`, against all its floors in sequence."""

import os
from pathlib import Path

import host_bench as h
import runtime_bench as b

CELLS = 200


def synced(path: Path) -> float:
    """Give the seconds of one appended record made durable."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        began = b.now()
        for _ in range(CELLS):
            os.write(fd, b"x" * 200 + b"\n")
            os.fdatasync(fd)
        return (b.now() - began) / CELLS
    finally:
        os.close(fd)


def measure(report: b.Report, rounds: int) -> None:
    with (
        h.home() as folder,
        h.Framed(h.HOST, folder) as host,
        h.Framed(h.FLOOR, folder) as frames,
        b.Lines(b.FLOOR) as cells,
    ):
        host.initialize()
        frames.initialize()
        made = host.ask("session/create", {"cwd": str(folder), "model": "scripted/echo"})
        params = {"sessionId": made["session"]["id"], "code": "1+1"}
        assert host.ask("repl/execute", params)["result"] == "2"
        rows = []
        for _ in range(rounds):
            ours = host.round_trip("repl/execute", params, CELLS)
            exec_s = sum(cells.timed("1+1") for _ in range(CELLS)) / CELLS
            disk_s = synced(folder / "record")
            rows.append((ours, frames.round_trip("repl/execute", params, CELLS), exec_s, disk_s))
        floors = [sum(row[1:]) for row in rows]
        us = [f"{b.median(column) * 1e6:.0f}" for column in zip(*rows, strict=True)]
        print("host {} us; floors: frames {}, exec {}, fdatasync {}".format(*us))
        report.ratio("1+1", [row[0] for row in rows], floors, 2.5)


if __name__ == "__main__":
    b.main("P9", measure, rounds=9, short=3)
