"""P12: opening a session to its first page, however long its journal; a page of many sessions."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import host_bench as h
import runtime_bench as b

from rlm_host import paths
from rlm_host.sessions import index
from rlm_protocol import records as r
from rlm_protocol.item import UserMessage

SHORT = "--short" in sys.argv
SIZES = (100, 10_000) if SHORT else (100, 10_000, 100_000)
SESSIONS = 1_000 if SHORT else 10_000
PAGES = 20


def record(home: Path, session_id: str, records: int, created_ms: int = 1) -> None:
    """Write a journal of so many records."""
    header = r.SessionOpened(
        session_id=session_id,
        name=session_id,
        cwd="/",
        model="scripted/echo",
        prompt="be good",
        max_depth=2,
    )
    lines = [r.encode_line(header, seq=1, gen=1, at_ms=created_ms)]
    for n in range(2, records + 1):
        said = r.ItemCompleted(item=UserMessage(id=f"i{n}", text=f"{n} " + "x" * 100))
        lines.append(r.encode_line(said, seq=n, gen=1, at_ms=n))
    journal = paths.journal(home, session_id)
    journal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    journal.write_bytes(b"".join(lines))
    journal.chmod(0o600)


def opened(home: Path) -> list[float]:
    """Give for each size the seconds of its first page in a host that has not opened it yet."""
    took = []
    with h.Framed(h.HOST, home) as host:
        host.initialize()
        first_page(host, "warm")
        for size in SIZES:
            began = b.now()
            first_page(host, f"s{size}")
            took.append(b.now() - began)
    return took


def first_page(host: h.Framed, session_id: str) -> None:
    host.ask("session/resume", {"sessionId": session_id})
    page = host.ask("session/items", {"sessionId": session_id, "limit": 50})
    assert len(page["items"]) == 50


def queried(connection: sqlite3.Connection) -> float:
    """Give the seconds of the page's query alone."""
    began = b.now()
    for _ in range(PAGES):
        rows = connection.execute(index._PAGE, (0, 2**62, "", "", 50)).fetchall()
        assert len(rows) == 50
    return (b.now() - began) / PAGES


def measure_resume(report: b.Report, rounds: int, home: Path) -> None:
    record(home, "warm", 100)
    for size in SIZES:
        record(home, f"s{size}", size)
    opened(home)  # leaves the checkpoints that a host leaves
    rows: list[Any] = list(zip(*(opened(home) for _ in range(rounds)), strict=True))
    for size, took in zip(SIZES[1:], rows[1:], strict=True):
        report.ratio(f"{size} records to {SIZES[0]}", took, rows[0], 1.5)


def measure_list(report: b.Report, rounds: int, home: Path) -> None:
    for n in range(SESSIONS):
        record(home, f"m{n}", 2, created_ms=n)
    listed, floor = [], []
    with h.Framed(h.HOST, home) as host:
        host.initialize()
        host.ask("session/list", {"limit": 50})  # builds the index
        connection = sqlite3.connect(paths.sessions(home) / index.NAME)
        for _ in range(rounds):
            floor.append(queried(connection))
            listed.append(host.round_trip("session/list", {"limit": 50}, PAGES))
        connection.close()
    report.ratio(f"a page of {SESSIONS} sessions to its query", listed, floor, 20)


def measure(report: b.Report, rounds: int) -> None:
    with h.home() as home:
        measure_resume(report, rounds, home)
    with h.home() as home:
        measure_list(report, rounds, home)


if __name__ == "__main__":
    b.main("P12", measure, rounds=15, short=5)
