"""The kit against a correct runtime, and against one broken runtime for every promise."""

import re
import sys
from pathlib import Path

import pytest

from rlm_protocol.conformance.runtime import PROMISES
from support.kit_runs import Job, Runs, not_kept

SUPPORT = Path(__file__).parents[1] / "support"
REFERENCE = (sys.executable, str(SUPPORT / "reference_runtime.py"))
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


def mutant_job(mutant: str, promise: str) -> Job:
    hangs = mutant in HANG
    canaries = () if hangs or mutant in LOUD else CANARIES
    return Job(
        kind="runtime",
        command=(*REFERENCE, mutant),
        promises=(*(c for c in canaries if c != promise), promise),
        timeout_s=2 if hangs else 30,
    )


@pytest.mark.parametrize("job", [Job(kind="runtime", command=REFERENCE)], ids=["reference"])
def test_a_correct_runtime_keeps_every_promise(found: Runs, job: Job) -> None:
    assert not_kept(found(job)) == {}


@pytest.mark.parametrize(
    ("promise", "job"), [(p, mutant_job(m, p)) for m, p in MUTANTS.items()], ids=MUTANTS
)
def test_a_broken_runtime_is_caught(found: Runs, promise: str, job: Job) -> None:
    broken = not_kept(found(job))
    assert broken.keys() == {promise}
    assert broken[promise]


def test_every_promise_has_its_mutant() -> None:
    assert sorted(MUTANTS.values()) == sorted(promise.id for promise in PROMISES)


def test_every_mutant_is_there() -> None:
    files = ("reference_runtime.py", "reference_streams.py", "reference_snapshot.py")
    source = "".join((SUPPORT / name).read_text() for name in files)
    assert set(re.findall(r'broken\("([^"]+)"\)', source)) - {"..."} == set(MUTANTS)
