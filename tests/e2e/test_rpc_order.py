"""What lies in one write of the client begins in its order."""

import sys
from pathlib import Path

from support.fake_client import host_env
from support.raw_host import Host, notification, request

DEADLINE_S = 60
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

    command = (sys.executable, "-P", "-m", "rlm_host")
    with Host(command, deadline_s=DEADLINE_S, home=tmp_path, env=host_env(tmp_path)) as host:
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
