"""Wild parameters for every method: each request is answered or refused by its name, nothing breaks."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol.errors import RlmError
from rlm_protocol.methods import METHODS
from support.fake_client import FakeClient, spawned
from support.wild_params import Wild

pytestmark = pytest.mark.anyio
ENDS = {"shutdown", "initialize"}
ROUNDS = 12


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def known_values(client: FakeClient, folder: Path) -> dict[str, list[Any]]:
    """Make things, and give their names by the field that names them."""
    sessions = []
    for _ in range(3):
        made = await client.request(
            "session/create", {"cwd": str(folder), "model": "scripted/python"}
        )
        sessions.append(made["session"]["id"])
    options = {"model": "scripted/python", "unguarded": True}
    spawn = {"sessionId": sessions[0], "prompt": "run: 1", "options": options}
    child = await client.request("agent/spawn", spawn)
    config = {"tenant": "t", "workspace": "w", "maxGenerations": 1}
    submit = {"config": config, "step": {"kind": "command", "argv": ["true"]}}
    run = await client.request("loop/submit", submit)
    return {
        "sessionId": sessions,
        "cwd": [str(folder), "/", "relative"],
        "model": ["scripted/echo", "scripted/python", "openai/none"],
        "target": [child["agent"]["name"], child["agent"]["childId"], "nobody"],
        "runId": [run["run"]["runId"]],
        "code": ["1", "x = 1", "def (", "raise ValueError", "print('x' * 10**6)"],
        "idempotencyKey": [f"k{n}" for n in range(5)],
        "path": [["log", "level"], ["model"], ["providers", "x"], ["kernel", "packages", "y"]],
        "python": [None],
        "launcher": [[]],
    }


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_that_a_client_asks_is_our_bug(tmp_path: Path, seed: int) -> None:
    verdicts: Counter[str] = Counter()
    bugs = []
    async with spawned(tmp_path) as client:
        wild = Wild(seed)

        async def ask(method: str, params: dict[str, Any]) -> None:
            try:
                await client.request(method, params)
            except RlmError as refused:
                verdicts[refused.kind] += 1
                if refused.kind == "internalError":
                    bugs.append((method, params, str(refused)))
            else:
                verdicts["answered"] += 1

        rows = [
            row for row in METHODS.values() if row.direction == "client" and row.name not in ENDS
        ]
        for _ in range(ROUNDS):
            wild.known = await known_values(client, tmp_path)
            asked = [ask(row.name, wild.params(row.params)) for row in rows]
            await asyncio.gather(*asked)
        await client.request("host/status")
        log = (tmp_path / "rlm" / "logs" / "host.log").read_text()
    assert not bugs, (bugs[:5], verdicts)
    assert "Traceback" not in log, log[-4000:]
    assert verdicts["answered"] > ROUNDS * 5, verdicts
