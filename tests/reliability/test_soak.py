"""A soak: sessions of one host that run thousands of cells; nothing piles up in host or kernels."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol.limits import KIB
from support.fake_client import FakeClient, spawned

pytestmark = pytest.mark.anyio
CELL_BYTES = 100
NOISE_BYTES = 128 * KIB
"""What an allocator keeps or not between two looks; in the long tier it no longer counts."""
HOST_CELL_BYTES = 1 * KIB
"""A host remembers a line of each item, for the pages that clients ask for."""
AT_ONCE = 20
CELLS = ("x = 1 + 1\nx", "print('line')", "1 / 0", "import asyncio; await asyncio.sleep(0)")
LOOK = (
    "import gc; gc.collect()\n"
    "(int(open('/proc/self/statm').read().split()[1]) * __import__('resource').getpagesize(),"
    " len(__import__('os').listdir('/proc/self/fd')), __import__('threading').active_count())"
)


async def run(client: FakeClient, where: dict[str, Any], count: int) -> None:
    """Run cells, some waiting while others run."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(n: int) -> None:
        async with room:
            code = CELLS[n % len(CELLS)]
            done = await client.client.request("repl/execute", {**where, "code": code})
            assert done["status"] == ("error" if code == "1 / 0" else "ok"), done

    await asyncio.gather(*(one(n) for n in range(count)))


async def look(client: FakeClient, where: dict[str, Any]) -> tuple[int, int, int]:
    """Give memory, descriptors and threads of a kernel."""
    done = await client.client.request("repl/execute", {**where, "code": LOOK})
    return tuple(map(int, done["result"].strip("()").split(",")))  # type: ignore[return-value]


def look_at(pid: int) -> tuple[int, int, int]:
    """Give memory, descriptors and threads of the host."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    held = [len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task")]
    return pages * os.sysconf("SC_PAGE_SIZE"), held[0], held[1]


@pytest.mark.parametrize(
    ("sessions", "cells"), [(2, 2_000), pytest.param(8, 10_000, marks=pytest.mark.long)]
)
async def test_nothing_piles_up(tmp_path: Path, sessions: int, cells: int) -> None:
    async with spawned(tmp_path) as client:
        host = client.client.process
        assert host is not None
        places = []
        for _ in range(sessions):
            params = {"cwd": str(tmp_path), "model": "scripted/echo"}
            made = await client.request("session/create", params)
            places.append({"sessionId": made["session"]["id"]})
        await asyncio.gather(*(run(client, where, 1_200) for where in places))
        for where in places:  # the first one loads its libraries, whenever it comes
            await client.request("repl/snapshot", where)
        kernels = [await look(client, where) for where in places]
        before = look_at(host.pid)
        await asyncio.gather(*(run(client, where, cells) for where in places))
        for (memory, *held), where in zip(kernels, places, strict=True):
            now, *still_held = await look(client, where)
            print(f"kernel: {(now - memory) / cells:.0f} bytes per cell, fds and threads {held}")
            assert now - memory <= CELL_BYTES * cells + NOISE_BYTES
            assert still_held == held
        memory, fds, threads = look_at(host.pid)
        print(f"host: {(memory - before[0]) / cells / sessions:.0f} bytes per cell, {fds} fds")
        assert memory - before[0] <= HOST_CELL_BYTES * cells * sessions + 64 * NOISE_BYTES
        assert fds <= before[1]
        assert threads <= before[2] + 2
