"""The kit against a correct runtime, and against one broken runtime for every promise."""

import re
import sys
from pathlib import Path

import pytest

from rlm_protocol.conformance import runner
from rlm_protocol.conformance.child import no_orphans
from rlm_protocol.conformance.language import Language
from rlm_protocol.conformance.promise import Outcome
from rlm_protocol.conformance.runtime import PROMISES
from rlm_protocol.conformance.runtime.kit import RuntimeKit

SUPPORT = Path(__file__).parents[1] / "support"
REFERENCE = SUPPORT / "reference_runtime.py"
CANARIES = ("core.result", "core.error")
"""Promises that a mutant of another one keeps: it is broken in one place, not dead."""
LOUD = {"none-shown", "fresh-names", "done-twice", "overtakes"}
"""Mutants that show in every cell, so that the canaries die, too."""
HANG = {
    "large-refused",
    "duplicate-runs",
    "id-once",
    "buffered",
    "starved",
    "own-frames-only",
    "late-deaf",
    "catchable",
    "not-parked",
    "cancels-all",
    "handler-kept",
    "in-order",
    "too-large-sent",
    "odd-key-breaks",
}
"""Mutants that never answer: what shows them is a deadline, here a short one."""

MUTANTS = {
    "ready-twice": "core.ready",
    "announces-7": "core.announce",
    "surrogates-pass": "core.frames",
    "nan": "core.no-nan",
    "display-as-text": "core.display",
    "malformed-silent": "core.malformed",
    "unknown-ignored": "core.unknown-request",
    "id-coerced": "core.id-types",
    "blank-refused": "core.tolerant",
    "oversized-twice": "core.oversized",
    "large-refused": "core.large-request",
    "utf8-per-read": "core.utf8",
    "separators-bare": "core.separators",
    "semicolon-hides": "core.result",
    "none-shown": "core.no-result",
    "silent-speaks": "core.silent",
    "last-unbound": "core.last-value",
    "fresh-names": "core.namespace",
    "await-refused": "core.await",
    "partial-lost": "core.partial",
    "error-empty": "core.error",
    "coloured": "core.traceback",
    "result-first": "core.order",
    "done-twice": "core.done-once",
    "nonce-missing": "core.nonce",
    "overtakes": "core.fifo",
    "duplicate-runs": "core.duplicate-id",
    "id-once": "core.id-again",
    "exit-leaves": "core.survives",
    "tasks-weak": "core.background",
    "task-as-active": "core.task-output",
    "thread-as-active": "core.thread-output",
    "idle-as-last": "core.idle-output",
    "stderr-mixed": "core.streams",
    "flood-cut": "core.flood",
    "buffered": "core.while-running",
    "evalue-whole": "core.frame-cap",
    "result-whole": "core.result-cap",
    "no-fence": "core.process-output",
    "decode-per-read": "core.split-character",
    "native-cut": "core.native-output",
    "prints-by-fd": "core.closed-fds",
    "stdin-speaks": "core.stdin",
    "names-unsorted": "core.list-names",
    "complete-runs": "core.complete",
    "inspect-runs": "core.inspect",
    "shutdown-code-3": "core.shutdown",
    "busy-shutdown-silent": "core.shutdown-busy",
    "eof-code-1": "core.eof",
    "leaves-children": "core.leaves-nothing",
    "interrupt-renamed": "interrupt.running",
    "cancelled": "interrupt.await",
    "starved": "interrupt.starved",
    "own-frames-only": "interrupt.subprocess",
    "late-deaf": "interrupt.late",
    "catchable": "interrupt.uncatchable",
    "not-parked": "interrupt.same-write",
    "by-id-hits-running": "interrupt.by-id",
    "untargeted-stays": "interrupt.untargeted",
    "unknown-hits": "interrupt.unknown-id",
    "finished-parks": "interrupt.finished",
    "idle-parks": "interrupt.idle",
    "lingers": "interrupt.back-to-back",
    "frames-torn": "interrupt.output",
    "goes-on": "interrupt.silence",
    "cancels-all": "interrupt.others-live",
    "handler-kept": "interrupt.handler",
    "payload-flat": "bridge.roundtrip",
    "reply-as-text": "bridge.values",
    "payload-reroutes": "bridge.envelope",
    "error-returned": "bridge.error",
    "odd-is-ok": "bridge.odd-reply",
    "in-order": "bridge.many",
    "late-reply-told": "bridge.cancelled",
    "unknown-reply-told": "bridge.unasked",
    "reply-cut": "bridge.large",
    "too-large-sent": "bridge.too-large",
    "detached-lost": "bridge.detached",
    "lost-silently": "bridge.lost",
    "manifest-bare": "snapshot.pair",
    "restore-loses": "snapshot.roundtrip",
    "per-name": "snapshot.sharing",
    "own-globals": "snapshot.globals",
    "skips-silently": "snapshot.skipped",
    "files-reopened": "snapshot.files-safe",
    "missing-fails": "snapshot.missing",
    "corrupt-passes": "snapshot.corrupt",
    "caps-ignored": "snapshot.caps",
    "total-prunes": "snapshot.total",
    "nonsense-taken": "snapshot.nonsense",
    "manifest-optional": "snapshot.failed",
    "exits-at-restore": "snapshot.hostile-payload",
    "odd-key-breaks": "snapshot.odd-names",
    "world-readable": "snapshot.private",
    "writes-through": "snapshot.links",
}


def check(
    tmp_path: Path, *arguments: str, only: tuple[str, ...] = (), timeout_s: float
) -> dict[str, Outcome]:
    command = [sys.executable, str(REFERENCE), *arguments]
    promises = sorted(runner.select(PROMISES, only=only), key=lambda p: p.id not in CANARIES)
    with no_orphans() as adopts:
        kit = RuntimeKit(command, Language(), tmp_path, timeout_s=timeout_s, adopts=adopts)
        with kit:
            found = runner.run(kit, promises, budget_s=120)
    return {outcome.id: outcome for outcome in found}


def test_a_correct_runtime_keeps_every_promise(tmp_path: Path) -> None:
    found = check(tmp_path, timeout_s=30)
    assert {o.id: o.reasons for o in found.values() if o.verdict != "passed"} == {}


@pytest.mark.parametrize(("mutant", "promise"), MUTANTS.items(), ids=MUTANTS)
def test_a_broken_runtime_is_caught(tmp_path: Path, mutant: str, promise: str) -> None:
    hangs = mutant in HANG
    others = () if hangs or mutant in LOUD else tuple(c for c in CANARIES if c != promise)
    found = check(tmp_path, mutant, only=(promise, *others), timeout_s=2 if hangs else 30)
    assert found[promise].verdict == "failed"
    assert found[promise].reasons
    assert {canary: found[canary].reasons for canary in others} == dict.fromkeys(others, ())


def test_every_promise_has_its_mutant() -> None:
    assert sorted(MUTANTS.values()) == sorted(promise.id for promise in PROMISES)


def test_every_mutant_is_there() -> None:
    files = ("reference_runtime.py", "reference_streams.py", "reference_snapshot.py")
    source = "".join((SUPPORT / name).read_text() for name in files)
    assert set(re.findall(r'broken\("([^"]+)"\)', source)) - {"..."} == set(MUTANTS)
