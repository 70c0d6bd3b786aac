"""
A runtime that breaks one promise: a proxy before ours. `python mutant_runtime.py MUTANT`.

Each mutant is a function from one line of ours to the lines that are passed on instead.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Change = Callable[[Event], list[Event]]


def only(kind: str, change: Change) -> Change:
    return lambda event: change(event) if event["event"] == kind else [event]


class Swap:
    """Hold a result back until its done has gone out."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.held: list[Event] = []

    def __call__(self, event: Event) -> list[Event]:
        if event["event"] == self.kind:
            self.held.append(event)
            return []
        if event["event"] == "done":
            held, self.held = self.held, []
            return [event, *held]
        return [event]


EVENTS: dict[str, tuple[str, Change]] = {
    "two dones": ("core.value", only("done", lambda e: [e, e])),
    "no done": ("core.value", only("done", lambda e: [])),
    "done before result": ("core.value", Swap("result")),
    "done before output": ("core.stdout", Swap("stdout")),
    "no ready": ("core.ready-first", only("ready", lambda e: [])),
    "two readies": ("core.value", only("ready", lambda e: [e, e])),
    "ready without protocol": ("core.ready-first", only("ready", lambda e: [{"event": "ready"}])),
    "result of None": ("core.nothing", only("done", lambda e: [{"event": "result", "id": e["id"], "text": "None"}, e] if e["status"] == "ok" else [e])),
    "another cell's output": ("core.stdout", only("stdout", lambda e: [e | {"id": "other"}])),
    "late output is nobody's": ("core.late-output", only("stdout", lambda e: [e | {"id": None}] if "late" in e["text"] else [e])),
    "output lost": ("core.many-lines", only("stdout", lambda e: [e | {"text": e["text"][:1000]}])),
    "output said twice": ("core.stdout", only("stdout", lambda e: [e, e])),
    "streams mixed up": ("core.stderr", only("stderr", lambda e: [e | {"event": "stdout"}])),
    "errors are ok": ("core.error", only("done", lambda e: [e | {"status": "ok"}])),
    "an error without a traceback": ("core.error", only("error", lambda e: [{k: v for k, v in e.items() if k != "traceback"}])),
    "protocol errors carry an id": ("core.unknown-type", only("error", lambda e: [e | {"id": "x"}] if e["id"] is None else [e])),
    "protocol errors are silent": ("core.no-json", only("error", lambda e: [] if e["id"] is None else [e])),
    "a frame over the limit": ("core.long-output", only("stdout", lambda e: [e | {"text": e["text"] * 40}])),
    "interrupts are called errors": ("interrupt.sleep", only("error", lambda e: [e | {"ename": "CancelledError"}] if e["ename"] == "KeyboardInterrupt" else [e])),
    "payloads flattened": ("bridge.round-trip", only("host_request", lambda e: [e | {"data": {**e["data"]["payload"], "type": e["data"]["type"]}}])),
    "skipped without reasons": ("snapshot.skipped", only("done", lambda e: [e | {"skipped": []}] if "skipped" in e else [e])),
    "saved unsorted": ("snapshot.round-trip", only("done", lambda e: [e | {"saved": []}] if "saved" in e else [e])),
}  # fmt: skip
REQUESTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "interrupts are lost": ("interrupt.busy", lambda line: b"" if b'"interrupt"' in line else line),
    "interrupts lose their target": ("interrupt.parked", lambda line: b'{"type":"interrupt"}\n' if b'"interrupt"' in line else line),
    "replies are lost": ("bridge.round-trip", lambda line: b"" if b'"host_reply"' in line else line),
    "shutdown is lost": ("core.shutdown", lambda line: b"" if b'"shutdown"' in line else line),
    "unknown fields are refused": ("core.unknown-field", lambda line: b"?\n" if b'"future"' in line else line),
    "blank lines are refused": ("core.blank-lines", lambda line: b"?\n" if not line.strip() else line),
    "restores are lost": ("snapshot.another-process", lambda line: line.replace(b"/state", b"/other") if b'"restore"' in line else line),
    "silence is not kept": ("core.silent", lambda line: line.replace(b'"silent":true', b'"silent":false')),
}  # fmt: skip
BYTES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a torn frame": ("core.many-lines", lambda line: line[:50] + b"\n" + line[50:] if b'"stdout"' in line else line),
    "a stray line": ("core.value", lambda line: b"Loading...\n" + line if b'"result"' in line else line),
    "a bare NaN": ("core.value", lambda line: line.replace(b'"42"', b"NaN")),
    "raw line separators": ("core.line-separators", lambda line: line.replace(b"\\u2028", "\u2028".encode())),
}  # fmt: skip
EXITS = {"a wrong exit code": "core.shutdown"}
CAUGHT_BY = {
    **{name: row[0] for table in (EVENTS, REQUESTS, BYTES) for name, row in table.items()},
    **EXITS,
}


def changed(change: Change, line: bytes) -> bytes:
    return b"".join(json.dumps(e).encode() + b"\n" for e in change(json.loads(line)))


def main(mutant: str) -> int:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rlm.repl"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    inward = REQUESTS[mutant][1] if mutant in REQUESTS else None
    threading.Thread(target=pass_in, args=(process, inward), daemon=True).start()
    outward: Callable[[bytes], bytes] = bytes
    if mutant in BYTES:
        outward = BYTES[mutant][1]
    elif mutant in EVENTS:
        change = EVENTS[mutant][1]
        outward = functools.partial(changed, change)
    while line := process.stdout.readline():
        try:
            sys.stdout.buffer.write(outward(line))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            break
    code = process.wait()
    return 3 if mutant in EXITS else code


def pass_in(process: "subprocess.Popen[bytes]", change: Callable[[bytes], bytes] | None) -> None:
    assert process.stdin is not None
    try:
        while line := sys.stdin.buffer.readline():
            process.stdin.write(change(line) if change else line)
    except BrokenPipeError:
        return
    process.stdin.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # our runtime sees its owner go
    code = main(sys.argv[1])
    os._exit(code)
