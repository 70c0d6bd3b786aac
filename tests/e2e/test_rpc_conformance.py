"""Our host against the conformance kit, by the kit's own command line."""

import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from typing import Any

import pytest

from rlm_protocol.conformance.host import PROMISES
from support.fake_client import host_env


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("conformance")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rlm_protocol.conformance", "host", "--timeout", "30"),
            *("--json", str(folder / "report.json"), "--junit", str(folder / "report.xml")),
            *("--", sys.executable, "-m", "rlm_host"),
        ],
        env=host_env(folder),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    suite = xml.parse(folder / "report.xml").getroot()
    assert len(list(suite.iter("testcase"))) == len(PROMISES)
    read: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return read


@pytest.mark.parametrize("promise", [promise.id for promise in PROMISES])
def test_our_host_keeps_every_promise(report: dict[str, Any], promise: str) -> None:
    (outcome,) = [one for one in report["promises"] if one["id"] == promise]
    assert outcome["verdict"] == "passed", outcome
