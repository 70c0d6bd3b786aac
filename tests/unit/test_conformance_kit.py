"""The kit itself: what it reads, how it judges, what it reports."""

import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from rlm_protocol.conformance import __main__ as command_line
from rlm_protocol.conformance import host, report, runner, runtime
from rlm_protocol.conformance.host.frames import Stray, StrictReader
from rlm_protocol.conformance.language import Language
from rlm_protocol.conformance.promise import (
    Broken,
    NotSupported,
    Outcome,
    Promise,
    Violations,
    expect,
)

ROOT = Path(__file__).parents[2]


class Kit:
    """The least that the runner needs."""

    def __init__(self, announced: int | None = 3) -> None:
        self.violations = Violations()
        self.announced = announced
        self.discarded = 0

    def discard(self) -> None:
        self.discarded += 1


def fails(_: Kit) -> None:
    raise Broken("it is broken")


def lacks(_: Kit) -> None:
    raise NotSupported("it is not there")


def passes(_: Kit) -> None:
    return


def verdicts(kit: Kit, *promises: Promise) -> list[str]:
    return [outcome.verdict for outcome in runner.run(kit, promises, budget_s=60)]  # type: ignore[type-var]


def promise(id_: str, *checks: object, since: int = 1) -> Promise:
    return Promise(id=id_, text="It holds.", checks=checks, since=since)  # type: ignore[arg-type]


def test_one_broken_check_breaks_the_promise_and_ends_the_process() -> None:
    kit = Kit()
    assert verdicts(kit, promise("a.x", passes, fails, lacks)) == ["failed"]
    assert kit.discarded == 2, "after the check, and at the end"


def test_what_no_check_can_see_is_not_supported() -> None:
    assert verdicts(Kit(), promise("a.x", lacks), promise("a.y", lacks, passes)) == [
        "notSupported",
        "passed",
    ]


def test_an_old_protocol_is_not_blamed_for_what_came_later() -> None:
    assert verdicts(Kit(1), promise("a.x", fails, since=3)) == ["notSupported"]
    assert verdicts(Kit(3), promise("a.x", fails, since=3)) == ["failed"]


def test_what_is_seen_in_passing_counts_also_against_earlier_promises() -> None:
    kit = Kit()

    def sees(_: Kit) -> None:
        kit.violations.add("a.x", "a torn frame")
        kit.violations.add("a.x", "a torn frame")

    outcomes = runner.run(kit, [promise("a.x", passes), promise("a.y", sees)], budget_s=60)  # type: ignore[type-var]
    assert [o.verdict for o in outcomes] == ["failed", "passed"]
    assert outcomes[0].reasons == ("a torn frame (2 times)",)


def test_no_check_is_started_after_the_budget() -> None:
    (outcome,) = runner.run(Kit(), [promise("a.x", passes)], budget_s=-1)  # type: ignore[type-var]
    assert outcome.verdict == "failed"
    assert "the time for the whole run is over" in outcome.reasons[0]


def test_selecting() -> None:
    rows = [promise("a.x"), promise("a.y"), promise("b.x")]
    assert [p.id for p in runner.select(rows, profiles=["a"])] == ["a.x", "a.y"]
    assert [p.id for p in runner.select(rows, only=["a.*", "b.x"])] == ["a.x", "a.y", "b.x"]
    assert [p.id for p in runner.select(rows, profiles=["b"], only=["b.x"])] == ["b.x"]
    with pytest.raises(ValueError, match="c"):
        runner.select(rows, only=["c"])
    with pytest.raises(ValueError, match="nobody"):
        runner.select(rows, profiles=["nobody"])


def test_expect_shows_what_was_seen() -> None:
    expect(True, "never said")
    with pytest.raises(Broken, match=r"^it is odd; seen: 5$"):
        expect(False, "it is odd", seen=5)


@pytest.mark.parametrize("promises", [runtime.PROMISES, host.PROMISES], ids=["runtime", "host"])
def test_every_promise_is_whole(promises: tuple[Promise, ...]) -> None:
    assert len({p.id for p in promises}) == len(promises)
    for row in promises:
        assert row.text.endswith("."), row.id
        assert row.checks, row.id


def test_the_profiles_are_the_documented_ones() -> None:
    assert {p.profile for p in runtime.PROMISES} == {"core", "interrupt", "bridge", "snapshot"}
    assert {p.profile for p in host.PROMISES} == {"base", "session", "repl"}


# --- the strict reader ----------------------------------------------------------------------------


def read(*chunks: bytes) -> list[bytes]:
    reader = StrictReader()
    return [out for chunk in chunks for out in reader.receive(chunk)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_frames_may_come_in_any_pieces(size: int) -> None:
    stream = b"Content-Length: 2\r\n\r\n{}Content-Length: 3\r\nContent-Type: x\r\n\r\n[1]"
    assert read(*(stream[n : n + size] for n in range(0, len(stream), size))) == [b"{}", b"[1]"]


@pytest.mark.parametrize(
    "noise", [b"debug: hello\n", b"Could not load\n", b"\n", b"Content-Length: x\r\n\r\n", b"{}"]
)
def test_stray_bytes_are_told_and_the_next_frame_is_found(noise: bytes) -> None:
    out = read(noise + b"Content-Length: 2\r\n\r\n{}")
    assert out[-1] == b"{}"
    assert all(isinstance(one, Stray) for one in out[:-1])
    assert b"".join(out[:-1]) == noise


@pytest.mark.parametrize(
    "head", [b"content-length: 2\r\n\r\n", b"Content-Length: 2\n\n", b"Content-Length:2\r\n\r\n"]
)
def test_what_a_client_could_only_forgive_is_stray(head: bytes) -> None:
    assert any(isinstance(one, Stray) for one in read(head + b"{}Content-Length: 2\r\n\r\n[]"))


# --- languages ------------------------------------------------------------------------------------


def test_a_language_file(tmp_path: Path) -> None:
    file = tmp_path / "lua.toml"
    file.write_text('[value]\ncode = "return 1 + 1"\nresult = "2"\n[gate]\ncode = "wait(@gate@)"\n')
    language = Language(file)
    assert language.code("gate", gate="/a/b") == "wait(/a/b)"
    assert language.field("value", "result") == "2"
    with pytest.raises(NotSupported, match="snapshot"):
        language.code("snapshot")
    file.write_text("[value]\nresult = 2\n")
    with pytest.raises(ValueError, match="value"):
        Language(file)


def test_no_module_of_the_kit_holds_a_cell() -> None:
    for path in (ROOT / "protocol/rlm_protocol/conformance").rglob("*.py"):
        source = path.read_text()
        assert "import asyncio" not in source, path
        assert "print(" not in source, path


# --- reports --------------------------------------------------------------------------------------

OUTCOMES = [
    Outcome(id="a.x", profile="a", text="It holds.", verdict="passed", took_ms=1500),
    Outcome(id="a.y", profile="a", text="It holds.", verdict="failed", reasons=("bad \x1b <&>",)),
    Outcome(id="b.z", profile="b", text="It holds.", verdict="notSupported", reasons=("no",)),
]


def test_the_table() -> None:
    assert [line.split()[1] for line in map(report.line, OUTCOMES)] == ["passed", "FAILED", "not"]
    assert "    - bad" in report.line(OUTCOMES[1])
    assert report.summary(OUTCOMES) == "1 passed, 1 failed, 1 not supported, in 1.5 s"


def test_junit() -> None:
    suite = xml.fromstring(report.to_junit(OUTCOMES, kind="host"))[0]
    assert {k: suite.get(k) for k in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["a.y"]


def test_json() -> None:
    document = json.loads(report.to_json(OUTCOMES, kind="host", command=["x"]))
    assert document["counts"] == {"passed": 1, "failed": 1, "notSupported": 1}
    assert document["promises"][1] == {
        "id": "a.y",
        "profile": "a",
        "text": "It holds.",
        "verdict": "failed",
        "reasons": ["bad \x1b <&>"],
        "tookMs": 0,
    }


# --- the command line -----------------------------------------------------------------------------


def test_a_command_that_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit, data = tmp_path / "r.xml", tmp_path / "r.json"
    options = ["--only", "core.result", "--junit", str(junit), "--json", str(data)]
    code = command_line.main(["runtime", *options, "--", sys.executable, "-c", "raise SystemExit"])
    assert code == 1
    out = capsys.readouterr().out
    assert "core.result" in out
    assert "it does not start" in out
    assert out.endswith("0 passed, 1 failed, 0 not supported, in 0.0 s\n") or "1 failed" in out
    assert json.loads(data.read_bytes())["counts"]["failed"] == 1
    assert xml.parse(junit).getroot()[0].get("failures") == "1"


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["host", "--list", "--profile", "repl"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == sum(p.profile == "repl" for p in host.PROMISES)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nothing"],
        ["runtime"],
        ["runtime", "--only", "nope", "--", "true"],
        ["runtime", "--profile", "nope", "--", "true"],
        ["runtime", "--language", "/nowhere.toml", "--", "true"],
        ["host", "--colour", "--", "true"],
    ],
)
def test_wrong_usage_is_said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command_line.main(argv)
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_kit_needs_msgspec_alone() -> None:
    code = (
        "import sys, rlm_protocol.conformance.__main__\n"
        "roots = {name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "print(*sorted(roots - {'rlm_protocol', 'msgspec', '__mp_main__'}))\n"
    )
    bare = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    foreign = {name for name in bare.stdout.split() if not name.startswith("_")}
    assert foreign <= {"sitecustomize", "usercustomize", "typing_extensions"}
