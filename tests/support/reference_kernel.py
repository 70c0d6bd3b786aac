"""A kernel of the reference host: the reference runtime in a process of its own."""

import asyncio
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import msgspec
from mutant import broken

from rlm_protocol import errors as e
from rlm_protocol.limits import KERNEL_REQUEST_BYTES, OUTPUT_INLINE_BYTES

RUNTIME = Path(__file__).with_name("reference_runtime.py")
TOOLS = """
import rlm

class Tools:
    def __getattr__(self, name):
        return lambda **arguments: rlm.host_request("tools." + name, arguments)

tools = Tools()
del Tools
"""


class Cell:
    """A request to the kernel, and what has come of it."""

    def __init__(self, code: str) -> None:
        self.id, self.code = f"cell-{secrets.token_hex(4)}", code
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.result: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.texts = {"stdout": "", "stderr": ""}


class Kernel:
    """Sends cells and reads events until the process ends."""

    def __init__(self, host: Any, session: Any, process: asyncio.subprocess.Process) -> None:
        self.host, self.session, self.process = host, session, process
        self.running: dict[str, Cell] = {}
        self.calls: set[asyncio.Task[None]] = set()
        self.dead = False

    @classmethod
    async def start(cls, host: Any, session: Any) -> "Kernel":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(RUNTIME),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=KERNEL_REQUEST_BYTES,
        )
        kernel = cls(host, session, process)
        host.start(kernel.listen())
        await kernel.ask("execute", code=TOOLS)
        return kernel

    def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(request) + b"\n")

    async def ask(self, type_: str, **fields: Any) -> dict[str, Any]:
        cell = Cell("")
        self.running[cell.id] = cell
        self.send(type=type_, id=cell.id, **fields)
        return await cell.done

    async def execute(self, code: str) -> dict[str, Any]:
        """Run a cell; being cancelled interrupts it, or keeps it from running."""
        cell = Cell(code)
        item = {"type": "replCell", "id": cell.id, "turnId": None, "code": code}
        self.session.live("item/started", {"item": {**item, "status": "inProgress"}})
        self.running[cell.id] = cell
        if broken("cells-overtake") and len(self.running) % 2:
            await asyncio.sleep(0.2)
        self.send(type="execute", id=cell.id, code=code)
        try:
            done = await cell.done
        except asyncio.CancelledError:
            self.send(type="interrupt", id=cell.id)
            raise
        stderr = "" if broken("stderr-lost") else cell.texts["stderr"]
        whole = {"stdout": cell.texts["stdout"], "stderr": stderr, "result": self.text(cell)}
        self.session.item({**item, "status": "completed", **whole})
        return self.outcome(cell, done)

    def outcome(self, cell: Cell, done: dict[str, Any]) -> dict[str, Any]:
        error = cell.error
        status = "ok" if done["status"] == "ok" or broken("errors-are-ok") else "error"
        if error is not None and error["ename"] == "KeyboardInterrupt":
            status = "interrupted"
        stdout = cell.texts["stdout"]
        artifact = None
        if len(stdout) > OUTPUT_INLINE_BYTES:
            artifact = f"{cell.id}.txt"
            text = stdout[:OUTPUT_INLINE_BYTES] if broken("artifact-cut") else stdout
            (self.session.store.home / f"{self.session.id}-{artifact}").write_text(text)
        return {
            "cellId": cell.id,
            "status": status,
            "result": self.text(cell),
            "error": error,
            "truncated": artifact is not None,
            "artifact": artifact,
        }

    def text(self, cell: Cell) -> str | None:
        return None if cell.result is None else cell.result["text"]

    def interrupt(self) -> None:
        self.send(type="interrupt")
        for call in self.calls:
            call.cancel()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            event = msgspec.json.decode(line)
            if event["event"] == "host_request":
                call = self.host.start(self.reply(event))
                self.calls.add(call)
                call.add_done_callback(self.calls.discard)
            elif event.get("id") in self.running:
                self.heard(self.running[event["id"]], event)
        self.dead = True
        code = await self.process.wait()
        code = 0 if broken("exit-code-lost") else code
        for cell in self.running.values():
            if not cell.done.done():
                cell.done.set_exception(e.KernelDied(exit_code=code, signal=None, stderr_tail=""))
                cell.done.exception()
        self.running.clear()

    def heard(self, cell: Cell, event: dict[str, Any]) -> None:
        match event["event"]:
            case "stdout" | "stderr" as stream:
                delta = {"itemId": cell.id, "channel": stream, "offset": len(cell.texts[stream])}
                cell.texts[stream] += event["text"]
                self.session.live("item/delta", {**delta, "text": event["text"]})
                if broken("output-leaks") and stream == "stderr":
                    os.write(self.host.write_fd, event["text"].encode())
            case "result":
                cell.result = event
            case "error":
                fields = ("ename", "evalue", "traceback")
                cell.error = {name: event[name] for name in fields}
            case "done":
                del self.running[cell.id]
                if not cell.done.done():
                    cell.done.set_result(event)

    async def reply(self, event: dict[str, Any]) -> None:
        call = {
            "sessionId": self.session.id,
            "callId": event["id"],
            "name": event["data"]["type"].removeprefix("tools."),
            "arguments": event["data"]["payload"],
        }
        try:
            data = await self.tool(call)
        except e.ApprovalDenied as why:
            data = {"status": "error", "error": why.message}
        self.send(type="host_reply", id=event["id"], data=data)

    async def tool(self, call: dict[str, Any]) -> dict[str, Any]:
        if self.session.asks:
            await self.approve(call)
        asking = self.host.ask("tool/call", call)
        if broken("tool-goes-on"):
            asking = asyncio.shield(self.host.start(asking))
        answer = await asking or {}
        if answer.get("error") is not None and not broken("tool-errors-lost"):
            return {"status": "error", "error": answer["error"]}
        return {"status": "ok", "result": answer.get("result")}

    async def approve(self, call: dict[str, Any]) -> None:
        request = {
            "sessionId": self.session.id,
            "approvalId": f"approval-{call['callId']}",
            "what": "tool",
            "detail": {name: call[name] for name in ("name", "arguments")},
            "expiresAtMs": 0,
        }
        decision = "cancelled"
        try:
            answer = await self.host.ask("approval/request", request)
            decision = answer["decision"]
        finally:
            if decision != "cancelled" or not broken("approval-untold"):
                told = {"approvalId": request["approvalId"], "decision": decision}
                self.session.live("approval/resolved", told)
        if decision != "allow" and not broken("denied-runs"):
            raise e.ApprovalDenied
