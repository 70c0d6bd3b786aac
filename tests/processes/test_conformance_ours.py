"""Our own runtime keeps every promise of the kit; for our host see tests/e2e."""

import sys
from pathlib import Path

from rlm_protocol.conformance import runner, runtime
from rlm_protocol.conformance.child import no_orphans
from rlm_protocol.conformance.language import Language
from rlm_protocol.conformance.promise import Outcome
from rlm_protocol.conformance.runtime.kit import RuntimeKit

RUNTIME = [sys.executable, "-P", "-m", "rlm.repl"]
TIMEOUT_S = 30


def broken(outcomes: list[Outcome]) -> dict[str, tuple[str, ...]]:
    return {o.id: o.reasons for o in outcomes if o.verdict != "passed"}


def runtime_outcomes(tmp_path: Path, command: list[str]) -> list[Outcome]:
    with no_orphans() as adopts:
        kit = RuntimeKit(command, Language(), tmp_path, timeout_s=TIMEOUT_S, adopts=adopts)
        with kit:
            return runner.run(kit, runtime.PROMISES, budget_s=300)


def test_our_runtime_keeps_every_promise(tmp_path: Path) -> None:
    assert broken(runtime_outcomes(tmp_path, RUNTIME)) == {}


def test_protocol_1_is_an_announcement_only(tmp_path: Path) -> None:
    command = [*RUNTIME, "--protocol", "1"]
    with RuntimeKit(command, Language(), tmp_path, timeout_s=TIMEOUT_S) as kit:
        promises = runner.select(runtime.PROMISES, only=("core.announce", "bridge.roundtrip"))
        assert broken(runner.run(kit, promises, budget_s=60)) == {}
        assert kit.announced == 1
