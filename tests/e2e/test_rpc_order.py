"""The order of messages on the wire, in both directions."""

import json
import sys
from pathlib import Path

from support.fake_client import host_env
from support.raw_host import Host, notification, request

DEADLINE_S = 60
COMMAND = (sys.executable, "-P", "-m", "rlm_host")
URI = "file:///demo.py"


def test_a_request_sees_the_document_as_it_is_at_its_place_in_the_stream(tmp_path: Path) -> None:
    """Open, ask, change, ask, change, ask in one write, before and after the features are loaded."""
    item = {"uri": URI, "languageId": "python", "version": 1, "text": "# %%\nx = 1\n"}
    lens = {"textDocument": {"uri": URI}}

    def changed(version: int, cells: int) -> dict[str, object]:
        document = {"uri": URI, "version": version}
        changes = [{"text": "# %%\nx = 1\n" * cells}]
        return notification(
            "textDocument/didChange", {"textDocument": document, "contentChanges": changes}
        )

    with Host(COMMAND, deadline_s=DEADLINE_S, home=tmp_path, env=host_env(tmp_path)) as host:
        host.initialize()
        host.say(notification("textDocument/didOpen", {"textDocument": item}))
        host.say(request(1, "textDocument/codeLens", lens))
        per_cell = len(host.answer(1)["result"])
        host.say(
            request(2, "textDocument/codeLens", lens),
            changed(2, 2),
            request(3, "textDocument/codeLens", lens),
            changed(3, 3),
            request(4, "textDocument/codeLens", lens),
        )
        found = [len(host.answer(n)["result"]) for n in (2, 3, 4)]
    assert per_cell > 0
    assert found == sorted(set(found))


def test_nothing_is_heard_of_a_turn_before_its_answer(tmp_path: Path) -> None:
    with Host(COMMAND, deadline_s=DEADLINE_S, home=tmp_path, env=host_env(tmp_path)) as host:
        host.initialize()
        params = {"cwd": str(tmp_path), "model": "scripted/steps"}
        session_id = host.result("session/create", params)["session"]["id"]
        for n in range(20):
            since = len(host.notes)
            text = {"type": "text", "text": json.dumps([{"text": str(n)}])}
            answer = host.ask("turn/start", {"sessionId": session_id, "input": [text]})
            turn_id = answer["result"]["turnId"]
            while host.note("turn/completed", since)["params"]["turnId"] != turn_id:
                since += 1
            told = [place for place, one in enumerate(host.order) if turn_id in json.dumps(one)]
            assert host.order[told[0]] is answer
