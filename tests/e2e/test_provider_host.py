"""A whole turn on a hosted model: the real host, a real kernel, a refusal on the way, no key outside."""

from pathlib import Path
from typing import Any

import pytest

from support.fake_client import spawned
from support.mock_dialects import Dialect
from support.mock_vendors import KEYS, SELECTORS, Answer, Asked, MockVendors, growth

pytestmark = pytest.mark.anyio
CANARY = "sk-canary-4711"
LOOK = """\
import os
everything = repr(dict(os.environ)) + repr(globals()) + repr(await rlm.find_models())
print("found" if "canary" + "-4711" in everything else "nothing", "chatty/chat-1" in everything)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Script:
    """Refuse once, then call, then answer with what the cell said."""

    def __init__(self) -> None:
        self.refused = False

    def __call__(self, asked: Asked) -> Answer:
        if not self.refused:
            self.refused = True
            return Answer(status=429, error_type="x", headers=(("retry-after-ms", "5"),))
        if "nothing" in asked.last_text or "found" in asked.last_text:
            return Answer(text=f"The cell said: {asked.last_text}")
        return Answer(text="I look.", think="hm", calls=(("python", {"code": LOOK}),))


def files_with(text: str, folder: Path) -> list[Path]:
    return [f for f in folder.rglob("*") if f.is_file() and text.encode() in f.read_bytes()]


@pytest.mark.parametrize(("dialect", "selector"), list(SELECTORS.items()))
async def test_a_turn_survives_a_refusal_and_no_key_is_seen_anywhere(
    tmp_path: Path, dialect: Dialect, selector: str
) -> None:
    with MockVendors(Script()) as vendors:
        (tmp_path / "rlm").mkdir(mode=0o700)
        (tmp_path / "rlm" / "config.toml").write_text(vendors.config())
        async with spawned(tmp_path, **dict.fromkeys(KEYS, CANARY)) as client:
            asked = {"cwd": str(tmp_path), "model": selector}
            session: dict[str, Any] = (await client.request("session/create", asked))["session"]
            said = [{"type": "text", "text": "Look around."}]
            turn = await client.request("turn/start", {"sessionId": session["id"], "input": said})
            done = await client.until(
                "turn/completed",
                lambda p: p["turnId"] == turn["turnId"],
                deadline_s=120,  # the first turn imports the vendor's library
            )
            usage = await client.request("usage/read", {"sessionId": session["id"]})
    told = repr([event.params for event in client.heard])
    assert done["status"] == "completed", told
    assert "The cell said: nothing True" in told.replace("\\n", "")
    refused, first, second = vendors.requests
    assert {request.key for request in vendors.requests} == {CANARY}
    assert {request.dialect for request in vendors.requests} == {dialect}
    assert refused.raw == first.raw, "a retry is the same request"
    assert growth(first, second) == 1.0
    assert usage["own"]["responses"] == 2
    assert usage["own"]["costNanoUsd"] > 0
    assert CANARY not in told + repr(client.story)
    assert files_with(CANARY, tmp_path) == []
