"""A session as its client sees it: a real host process, a real kernel, a scripted model."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.fake_client import spawned

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def play(*steps: dict[str, Any]) -> str:
    """The input that makes `scripted/steps` answer with these steps."""
    return json.dumps(steps)


async def test_a_turn_with_a_cell(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        created = await client.request(
            "session/create", {"cwd": str(tmp_path), "model": "scripted/steps"}
        )
        session = created["session"]
        turn = await client.request(
            "turn/start",
            {
                "sessionId": session["id"],
                "input": [
                    {"type": "text", "text": play({"call": "print(6 * 7)"}, {"text": "done"})}
                ],
            },
        )
        done = await client.until("turn/completed", lambda p: p["turnId"] == turn["turnId"])
        print(json.dumps([(e.method, e.params) for e in client.heard], indent=1))
        assert done["status"] == "completed"
