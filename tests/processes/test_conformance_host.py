"""The kit against a correct host, against one broken host for every promise, and stock pygls."""

import re
import sys
from pathlib import Path

import pytest

from rlm_protocol.conformance.host import PROMISES
from support.kit_runs import Job, Runs, not_kept

SUPPORT = Path(__file__).parents[1] / "support"
REFERENCE = (sys.executable, str(SUPPORT / "reference_host.py"))
STOCK = (sys.executable, str(SUPPORT / "stock_pygls.py"))
CANARIES = ("base.announce", "base.unknown-method")
"""Promises that a mutant of another one keeps: it is broken in one place, not dead."""

MUTANTS = {
    "header-case-matters": "base.header-case",
    "lf-refused": "base.header-lines",
    "extra-refused": "base.header-extra",
    "bad-header-is-0": "base.header-broken",
    "huge-dies": "base.header-huge",
    "split-lost": "base.split",
    "prints": "base.frames",
    "nan": "base.strict-json",
    "result-and-error": "base.shape",
    "bad-json-is-invalid": "base.bad-json",
    "invalid-is-bad-json": "base.invalid-request",
    "batch-served": "base.batch",
    "bad-id-echoed": "base.bad-id",
    "id-narrow": "base.id-echo",
    "params-required": "base.no-params",
    "params-end-it": "base.bad-params",
    "no-path": "base.wrong-params",
    "nested-counts": "base.nested",
    "dollar-is-invalid": "base.unknown-method",
    "notes-answered": "base.no-answer",
    "unasked-refused": "base.unasked-answer",
    "answers-twice": "base.one-answer",
    "drops-some": "base.pipelining",
    "in-flight-silent": "base.id-in-flight",
    "late-cancel-refused": "base.cancel-nothing",
    "cancel-answers-too": "base.cancel-race",
    "large-refused": "base.large",
    "too-large-ends": "base.too-large",
    "writes-block": "base.stalled-reader",
    "no-kind": "base.error-data",
    "reserved-code": "base.error-codes",
    "tells-traceback": "base.no-traceback",
    "popups": "base.no-popup",
    "declared-is-unknown": "base.unsupported",
    "schema-lacks-one": "base.schema",
    "editor-refused": "base.initialize",
    "no-limits": "base.announce",
    "serves-early": "base.before-initialize",
    "initialize-anything": "base.wrong-initialize",
    "initialize-again": "base.initialize-once",
    "speaks-all": "base.negotiation",
    "serves-late": "base.after-shutdown",
    "exit-is-5": "base.shutdown-exit",
    "exit-is-0": "base.exit-alone",
    "eof-ends-with-3": "base.eof",
    "sigpipe-kills": "base.closed-reader",
    "sigterm-is-7": "base.sigterm",
    "sigint-is-7": "base.sigint",
    "sighup-is-7": "base.sighup",
    "client-not-watched": "base.process-id",
    "lost-sync-is-0": "base.header-short",
    "status-bare": "session.status",
    "name-lost": "session.create",
    "model-substituted": "session.model",
    "unknown-is-failed": "session.unknown",
    "fields-ignored": "session.params",
    "archive-listed": "session.lifecycle",
    "keys-ignored": "session.idempotency",
    "echo-silent": "session.turn",
    "note-first": "session.answer-first",
    "completed-early": "session.completed-once",
    "deltas-whole": "session.deltas",
    "seq-goes-back": "session.seq",
    "pages-overlap": "session.items",
    "interrupt-completes": "session.interrupt",
    "replay-all": "session.replay",
    "detach-ignored": "session.detached",
    "memory-only": "session.durable",
    "lease-ignored": "session.leased",
    "errors-are-ok": "repl.execute",
    "one-kernel": "repl.namespace",
    "cells-overtake": "repl.order",
    "stderr-lost": "repl.output",
    "output-leaks": "repl.stray",
    "idle-interrupted": "repl.interrupt",
    "cancelled-is-ok": "repl.cancel",
    "cancelled-run": "repl.cancel-queued",
    "in-flight-runs": "repl.id-in-flight",
    "busy-refuses": "repl.responsive",
    "exit-code-lost": "repl.death",
    "restart-keeps": "repl.restart",
    "completes-nothing": "repl.complete",
    "artifact-cut": "repl.large",
    "ids-shared": "repl.tools",
    "tool-errors-lost": "repl.tools-error",
    "tool-goes-on": "repl.tools-cancel",
    "denied-runs": "repl.approvals",
    "approval-untold": "repl.approvals-cancel",
    "helper-left": "repl.leaves-nothing",
}
LOUD = {"answers-twice", "nan"}
"""Mutants that show in every exchange, so that the canaries die, too."""
HANG = {
    "batch-served",
    "split-lost",
    "drops-some",
    "in-flight-silent",
    "large-refused",
    "writes-block",
    "in-flight-runs",
    "ids-shared",
    "denied-runs",
    "approval-untold",
}
"""Mutants that never answer: what shows them is a deadline, here a short one."""

STOCK_DEFECTS = {
    "base.header-case": "hangs",
    "base.header-lines": "hangs",
    "base.no-params": "no answer",
    "base.bad-json": "no answer, a popup",
    "base.batch": "no answer",
    "base.bad-id": "no answer",
    "base.nested": "no answer",
    "base.header-huge": "waits for 100 GB",
    "base.stalled-reader": "blocks",
    "base.before-initialize": "served",
    "base.wrong-initialize": "no answer",
    "base.after-shutdown": "no answer",
    "base.exit-alone": "code 0",
    "base.sigint": "never ends",
    "base.process-id": "not watched",
    "base.no-popup": "shown to the user",
    "base.strict-json": "NaN",
    "base.frames": "a stray print",
    "base.no-traceback": "sent to the client",
}
"""What is known to be wrong with stock pygls 2.1.1, and how it shows."""
STOCK_KEEPS = ("base.id-echo", "base.large", "base.shutdown-exit")


STOCK_JOBS = [
    Job(kind="host", command=STOCK, promises=tuple(STOCK_DEFECTS)[part::4], timeout_s=1)
    for part in range(4)
]


def mutant_job(mutant: str, promise: str) -> Job:
    hangs = mutant in HANG
    canaries = () if hangs or mutant in LOUD else CANARIES
    return Job(
        kind="host",
        command=(*REFERENCE, mutant),
        promises=(*(c for c in canaries if c != promise), promise),
        timeout_s=2 if hangs else 30,
    )


@pytest.mark.parametrize("job", [Job(kind="host", command=REFERENCE)], ids=["reference"])
def test_a_correct_host_keeps_every_promise(found: Runs, job: Job) -> None:
    assert not_kept(found(job)) == {}


@pytest.mark.parametrize("job", STOCK_JOBS, ids=range(len(STOCK_JOBS)))
def test_the_defects_of_stock_pygls_are_reported(found: Runs, job: Job) -> None:
    assert not_kept(found(job)).keys() == set(job.promises)


@pytest.mark.parametrize(
    "job", [Job(kind="host", command=STOCK, promises=STOCK_KEEPS)], ids=["stock"]
)
def test_what_stock_pygls_keeps_is_not_reported(found: Runs, job: Job) -> None:
    assert not_kept(found(job)) == {}


@pytest.mark.parametrize(
    ("promise", "job"), [(p, mutant_job(m, p)) for m, p in MUTANTS.items()], ids=MUTANTS
)
def test_a_broken_host_is_caught(found: Runs, promise: str, job: Job) -> None:
    broken = not_kept(found(job))
    assert broken.keys() == {promise}
    assert broken[promise]


def test_every_promise_has_its_mutant() -> None:
    assert sorted(MUTANTS.values()) == sorted(promise.id for promise in PROMISES)


def test_every_mutant_is_there() -> None:
    files = ("reference_host.py", "reference_sessions.py", "reference_kernel.py")
    source = "".join((SUPPORT / name).read_text() for name in files)
    assert set(re.findall(r'broken\("([^"]+)"\)', source)) - {"..."} == set(MUTANTS)
