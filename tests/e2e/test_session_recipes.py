"""Sandbox and limit as options of a session: journaled, inherited by children, changed, refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlm_host.faces.run import main as run_main
from rlm_protocol.errors import ConfigInvalid, InvalidParams, KernelUnavailable
from support.fake_client import FakeClient, spawned
from support.processes import until
from support.sandboxes import need_sandbox

pytestmark = pytest.mark.anyio
LIMIT = 500_000_000
RECIPE = {"sandbox": "workspace", "memoryBytes": LIMIT}
LOOK = (
    "import os, resource\n"
    "inside = os.readlink('/proc/self/ns/pid') != {outer!r}\n"
    "limit = resource.getrlimit(resource.RLIMIT_DATA)[0]\n"
    "with open({file!r}, 'w') as file: print(inside, limit, file=file)\n"
    "print(inside, limit)"
)


def look(file: str = "own") -> str:
    return LOOK.format(outer=os.readlink("/proc/self/ns/pid"), file=file)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def create(client: FakeClient, cwd: Path, **recipe: Any) -> dict[str, Any]:
    params = {"cwd": str(cwd), "model": "scripted/echo", "options": {"recipe": recipe}}
    return (await client.request("session/create", params))["session"]


async def shown(client: FakeClient, session: dict[str, Any], code: str) -> str:
    start = len(client.heard)
    run = await client.request("repl/execute", {"sessionId": session["id"], "code": code})
    assert run["status"] == "ok", run
    done = await client.until(
        "item/completed", lambda p: p["item"].get("code") == code, start=start
    )
    return str(done["item"]["stdout"])


async def test_it_is_journaled_inherited_and_survives_the_host(tmp_path: Path) -> None:
    need_sandbox()
    work = tmp_path / "work"
    work.mkdir()
    async with spawned(tmp_path) as client:
        session = await create(client, work, **RECIPE)
        assert await shown(client, session, look()) == f"True {LIMIT}\n"
        steps = json.dumps([{"call": look("seen")}, {"text": "done"}])
        spawn = f"child = await rlm({steps!r}, model='scripted/steps', unguarded=True)"
        await shown(client, session, spawn)
        await until(lambda: text_of(work / "seen"), "what the child saw")
        assert text_of(work / "seen") == f"True {LIMIT}\n"
    header = text_of(Path(session["journalPath"])).splitlines()[0]
    assert '"sandbox":"workspace"' in header
    assert f'"memoryBytes":{LIMIT}' in header
    async with spawned(tmp_path) as client:
        await client.request("session/resume", {"sessionId": session["id"]})
        assert await shown(client, session, look()) == f"True {LIMIT}\n"


async def test_a_session_is_put_into_a_sandbox_by_another_recipe(tmp_path: Path) -> None:
    need_sandbox()
    work = tmp_path / "work"
    work.mkdir()
    async with spawned(tmp_path) as client:
        session = await create(client, work)
        assert (await shown(client, session, f"kept = 1\n{look()}")).startswith("False")
        options = {"recipe": {"sandbox": "workspace"}}
        await client.request("session/configure", {"sessionId": session["id"], "options": options})
        assert (await shown(client, session, look())).startswith("True")
        assert await shown(client, session, "print(kept)") == "1\n"


async def test_the_settings_hold_for_sessions_that_name_nothing(tmp_path: Path) -> None:
    need_sandbox()
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "rlm").mkdir(mode=0o700)
    settings = f'[kernel]\nsandbox = "workspace"\nmemory_bytes = {LIMIT}\n'
    (tmp_path / "rlm" / "config.toml").write_text(settings)
    async with spawned(tmp_path) as client:
        session = await create(client, work)
        assert await shown(client, session, look()) == f"True {LIMIT}\n"
        contradiction = await create(client, work, launcher=["env"])
        with pytest.raises(ConfigInvalid):
            await shown(client, contradiction, "1")


async def test_without_bubblewrap_the_cell_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    async with spawned(tmp_path, PATH=str(tmp_path / "bin")) as client:
        session = await create(client, tmp_path, sandbox="workspace")
        with pytest.raises(KernelUnavailable, match="install bubblewrap"):
            await shown(client, session, "open('ran', 'w')")
    assert not (tmp_path / "ran").exists()


async def test_nonsense_is_refused_at_once(tmp_path: Path) -> None:
    async with spawned(tmp_path) as client:
        for wrong in ({"sandbox": "everything"}, {"memoryBytes": 1}, {"network": "yes"}):
            with pytest.raises(InvalidParams):
                await create(client, tmp_path, **wrong)


def test_the_command_line_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_main(["--sandbox", "everything", "--model", "m/n", "prompt"])
    assert "workspace" in capsys.readouterr().err
