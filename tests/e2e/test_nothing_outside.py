"""A cell that plants links and names that lead out: the host writes and reads nothing there."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol.errors import RlmError
from support.fake_client import FakeClient, spawned

pytestmark = pytest.mark.anyio
PRECIOUS = b"precious"
PLANTED = (
    "artifacts",
    "results",
    "harness",
    *(f"kernel-state.{kind}" for kind in ("dill", "json", "sig", "next.dill", "next.json")),
    "sub-1",
    "contracts.jsonl",
)
PLANT = """
import os, shutil
here = os.environ["RLM_SESSION_DIR"]
for name in {names}:
    path = os.path.join(here, name)
    if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path)
    elif os.path.lexists(path): os.unlink(path)
    os.symlink({target!r}, path)
"""
FLOOD = "print('x' * 3_000_000)"


class Outside:
    """What lies beyond the home, and must stay as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder / "outside", folder / "outside" / "file"
        self.folder.mkdir()
        self.file.write_bytes(PRECIOUS)

    def check(self) -> None:
        assert [path.name for path in self.folder.iterdir()] == ["file"]
        assert self.file.read_bytes() == PRECIOUS
        assert stat.S_IMODE(self.file.stat().st_mode) & 0o200


class Place:
    def __init__(self, client: FakeClient, home: Path, session: dict[str, Any]) -> None:
        self.client, self.home, self.session = client, home, session
        self.where = {"sessionId": session["id"]}
        self.folder = Path(session["artifactsPath"])

    async def run(self, code: str) -> dict[str, Any]:
        return await self.client.request("repl/execute", {**self.where, "code": code})

    async def attempt(self, method: str, **params: Any) -> Any:
        """Ask for something that may be refused."""
        with contextlib.suppress(RlmError):
            return await self.client.request(method, {**self.where, **params})


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with spawned(tmp_path) as client:
        params = {"cwd": str(tmp_path), "model": "scripted/echo"}
        yield Place(
            client, tmp_path / "rlm", (await client.request("session/create", params))["session"]
        )


@pytest.mark.parametrize("kind", ["folder", "file"])
async def test_links_in_a_sessions_folder_lead_the_host_nowhere(
    place: Place, tmp_path: Path, kind: str
) -> None:
    outside = Outside(tmp_path)
    target = outside.folder if kind == "folder" else outside.file
    await place.run("x = 1")
    await place.run(PLANT.format(names=PLANTED, target=str(target)))
    flooded = await place.run(FLOOD)
    assert flooded["status"] == "ok"
    outside.check()
    if flooded.get("artifact"):
        await place.attempt("artifact/read", id=flooded["artifact"])
    await place.attempt("repl/snapshot")
    await place.attempt("repl/restore")
    await place.run(
        "try:\n    child = await rlm('say hi', model='scripted/echo', unguarded=True)\n"
        "except Exception as why: print(why)"
    )
    await place.attempt("repl/restart", restore=True)
    outside.check()
    assert (await place.run("6 * 7"))["result"] == "42"
    await place.attempt("session/delete")
    outside.check()


async def test_a_childs_folder_that_becomes_a_link_leads_nowhere(
    place: Place, tmp_path: Path
) -> None:
    outside = Outside(tmp_path)
    made = await place.run(
        "child = await rlm('say hi', model='scripted/echo', unguarded=True)\nstr(child.session_dir)"
    )
    folder = Path(made["result"].strip("'"))
    assert folder.parent == place.folder
    await place.client.until("session/quiet", deadline_s=30)
    await place.run(PLANT.format(names=(folder.name,), target=str(outside.folder)))
    await place.run(
        "try: await child.send('go on')\nexcept Exception as why: print(why)\n"
        "import asyncio; await asyncio.sleep(0.2)"
    )
    outside.check()
    assert (await place.run("6 * 7"))["result"] == "42"


@pytest.mark.parametrize(
    "name", ["../../../auth.json", "..", "/etc/passwd", "a/b", "%2e%2e", "link.txt", "x\0y", ""]
)
async def test_an_artifact_is_read_by_its_name_only(
    place: Place, tmp_path: Path, name: str
) -> None:
    outside = Outside(tmp_path)
    artifact = (await place.run(FLOOD))["artifact"]
    assert artifact
    await place.run(
        "import os; os.symlink("
        f"{str(outside.file)!r}, os.environ['RLM_SESSION_DIR'] + '/artifacts/link.txt')"
    )
    with pytest.raises(RlmError):
        await place.client.request("artifact/read", {**place.where, "id": name})
    assert (await place.client.request("artifact/read", {**place.where, "id": artifact}))["text"]


async def test_everything_is_the_owners_alone(place: Place, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        await place.run(FLOOD)
        await place.run("child = await rlm('say hi', model='scripted/echo', unguarded=True)")
        await place.client.request("repl/snapshot", place.where)
        await asyncio.sleep(0)
    finally:
        os.umask(old)
    ours = [place.home / "sessions", place.folder, place.home / "keys", place.home / "logs"]
    seen = [path for folder in ours for path in (folder, *folder.rglob("*"))]
    assert len(seen) > 10
    open_to_others = [
        f"{path}: {path.stat().st_mode:o}" for path in seen if path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
