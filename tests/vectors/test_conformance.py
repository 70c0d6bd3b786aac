"""The conformance kit: ours keeps every promise, and every broken runtime is caught by the promise it breaks."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlm_protocol.conformance import __main__ as command_line
from rlm_protocol.conformance import runner, vectors
from support import mutant_runtime
from support.runtime_driver import COMMAND

WORDS = vectors.language("python")
PROMISES = {promise.id: promise for promise in vectors.promises()}
MUTANT = str(Path(mutant_runtime.__file__))


@pytest.mark.parametrize("name", PROMISES)
def test_ours_keeps(name: str) -> None:
    outcome = runner.run(PROMISES[name], COMMAND, WORDS, patience_s=30)
    assert (outcome.verdict, outcome.reason) == ("passed", "")


def test_there_are_enough_mutants_of_every_profile() -> None:
    assert len(mutant_runtime.CAUGHT_BY) >= 10
    assert {PROMISES[p].profile for p in mutant_runtime.CAUGHT_BY.values()} == set(vectors.PROFILES)


@pytest.mark.parametrize("mutant", mutant_runtime.CAUGHT_BY)
def test_a_broken_runtime_is_caught(mutant: str) -> None:
    promise = PROMISES[mutant_runtime.CAUGHT_BY[mutant]]
    outcome = runner.run(promise, (sys.executable, MUTANT, mutant), WORDS, patience_s=4)
    assert outcome.verdict == "failed", mutant
    assert outcome.reason


def test_a_language_without_a_snippet_does_not_support_what_needs_it() -> None:
    few = vectors.Language({}, {}, {})
    outcome = runner.run(PROMISES["core.value"], ("/bin/false",), few)
    assert (outcome.verdict, outcome.reason) == ("not supported", "no snippet value")


@pytest.mark.parametrize("command", [("/bin/false",), ("/bin/cat",), ("/no/such/program",)])
def test_something_that_is_no_runtime_fails_and_does_not_hang(command: tuple[str, ...]) -> None:
    outcome = runner.run(PROMISES["core.value"], command, WORDS, patience_s=1)
    assert outcome.verdict == "failed"


def test_vectors_hold_no_code_and_have_unique_ids() -> None:
    assert len(PROMISES) == len(vectors.promises())
    for promise in PROMISES.values():
        assert promise.id.startswith(promise.profile + ".")
        assert not any("code" in m for step in promise.steps for m in step.send or ()), promise.id
        assert promise.snippets() <= WORDS.snippets.keys()


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["runtime", "--only", "core.va", "--", *COMMAND]
    assert command_line.main(argv) == 0
    assert "1 passed, 0 failed, 0 not supported" in capsys.readouterr().out
    assert command_line.main(["runtime", "--only", "core.va", "--", "/bin/false"]) == 1
    with pytest.raises(SystemExit):
        command_line.main(["runtime", "--language", "cobol", "--", "x"])
    capsys.readouterr()


def test_the_kit_needs_msgspec_alone() -> None:
    code = (
        "import sys\nfor name in ('rlm', 'rlm_host', 'cloudpickle', 'dill', 'anyio'): sys.modules[name] = None\n"
        "from rlm_protocol.conformance.__main__ import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: sys.exit(end.code)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
