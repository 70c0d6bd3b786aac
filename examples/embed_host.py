"""Own a host in a program: run a cell and a turn. Needs no key: a script answers for the model."""

import asyncio
import os

from rlm_host.client import HostClient


async def main() -> None:
    async with HostClient.spawn() as client, client.notifications("turn/completed") as turns:
        where = {"cwd": os.getcwd(), "model": "scripted/python"}
        session = {"sessionId": (await client.request("session/create", where))["session"]["id"]}
        cell = await client.request("repl/execute", {**session, "code": "x = 20; x + 1"})
        text = {"type": "text", "text": "run: print(x * 2 + 2)"}
        await client.request("turn/start", {**session, "input": [text]})
        print(cell["result"], (await anext(turns)).params["status"])


asyncio.run(main())
