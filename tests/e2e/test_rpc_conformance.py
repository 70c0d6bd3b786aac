"""The conformance kit against our host, against mutants of it, and against stock pygls."""

import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlm_protocol.conformance import host as kit
from rlm_protocol.conformance.host_driver import Host
from rlm_protocol.conformance.host_exchanges import EXCHANGES
from rlm_protocol.conformance.host_frames import FRAMES
from support.broken_host import MUTANTS

TESTS = Path(__file__).parents[1]
STOCK = (sys.executable, "-m", "support.stock_pygls")
OURS = (sys.executable, "-m", "rlm_host")
IDS = [case.id for case in FRAMES] + list(EXCHANGES)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, kit.Outcome]:
    return {outcome.id: outcome for outcome in kit.run(OURS, deadline_s=30)}


@pytest.mark.parametrize("id_", IDS)
def test_our_host_keeps_every_promise(outcomes: dict[str, kit.Outcome], id_: str) -> None:
    outcome = outcomes[id_]
    assert outcome.broken is None, outcome.text


def test_the_kit_has_what_it_must_have() -> None:
    assert len(IDS) == len(set(IDS)) >= 60
    assert len(FRAMES) >= 50
    assert len(MUTANTS) >= 10


def broken_all(commands: dict[tuple[str, str], tuple[str, ...]]) -> dict[tuple[str, str], bool]:
    """Hold each command against one exchange, four at a time, for most of it is waiting."""

    def broken(key: tuple[str, str]) -> bool:
        (outcome,) = kit.run(commands[key], deadline_s=4, only=frozenset({key[1]}))
        return outcome.broken is not None

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(commands, pool.map(broken, commands), strict=True))


@pytest.fixture(scope="module")
def support_on_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        yield


@pytest.fixture(scope="module")
def mutants(support_on_path: None) -> dict[tuple[str, str], bool]:
    return broken_all(
        {
            (name, caught_by): (sys.executable, "-m", "support.broken_host", name)
            for name, (caught_by, _) in MUTANTS.items()
        }
    )


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_caught(mutants: dict[tuple[str, str], bool], name: str) -> None:
    assert mutants[name, MUTANTS[name][0]]


STOCK_DEFECTS = {
    "F1": "lower-case headers hang",
    "F3": "LF only hangs",
    "A1": "no answer without params",
    "B2": "no -32700",
    "B9": "no answer to a batch",
    "I4": "no answer to an id that is a list",
    "L1": "served before initialize",
    "L6": "silent after shutdown",
    "L9": "exit without shutdown is 0",
    "X6": "SIGINT never ends it",
    "X9": "does not watch processId",
}


@pytest.fixture(scope="module")
def stock(support_on_path: None) -> dict[tuple[str, str], bool]:
    return broken_all({("stock", id_): STOCK for id_ in STOCK_DEFECTS})


@pytest.mark.parametrize("id_", STOCK_DEFECTS)
def test_the_defects_of_stock_pygls_are_reported(
    stock: dict[tuple[str, str], bool], id_: str
) -> None:
    assert stock["stock", id_], STOCK_DEFECTS[id_]


def test_stock_pygls_keeps_some_promises(support_on_path: None) -> None:
    """So that the kit is seen to tell good from bad, and not to refuse all of it."""
    outcomes = kit.run(STOCK, deadline_s=20, only=frozenset({"L7", "X1"}))
    kept = [o.id for o in outcomes if o.broken is None]
    assert kept == ["L7", "X1"]


def test_the_report_is_readable_and_junit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], support_on_path: None
) -> None:
    file = tmp_path / "report.xml"
    command = [sys.executable, "-m", "support.broken_host", "unknown_is_invalid"]
    code = kit.main(["--junit", str(file), "--only", "M1,A1", "--", *command])
    assert code == 1
    out = capsys.readouterr().out
    assert "ok     A1" in out
    assert "BROKEN M1" in out
    assert "1 of 2 promises kept" in out
    suite = xml.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["M1: a method that nobody knows"]


@pytest.mark.parametrize("argv", [[], ["--only", "nope", "--", "true"], ["--colour"]])
def test_wrong_usage_is_said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        kit.main(argv)
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_driver_finds_a_host_that_does_not_start(tmp_path: Path) -> None:
    (outcome,) = kit.run(("false",), deadline_s=5, only=frozenset({"A1"}))
    assert outcome.broken is not None
    with Host(("true",), deadline_s=5, home=tmp_path) as host:
        host.ends_with(0)
