"""Own a host in a program: a cell, then a turn that a script answers in a model's place. No key."""

import asyncio
import os

from rlm_host.client import HostClient


async def main() -> None:
    async with HostClient.spawn() as client, client.notifications("item/completed") as items:
        made = await client.session.create(cwd=os.getcwd(), model="scripted/python")
        cell = await client.repl.execute(session_id=made.session.id, code="x = 20; x + 1")
        turn = await client.run_turn(made.session.id, "run: x * 2 + 2")
        async for event in items:
            if event.params["item"]["type"] == "agentMessage":
                break
        print(cell.result, turn.status, event.params["item"]["text"])


asyncio.run(main())
