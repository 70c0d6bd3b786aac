"""
Our host with handlers that misbehave on order: `python -m support.rpc_host`.

Everything but the handlers is the product's: descriptors, frames, queue, signals, exit codes.
`repl/execute` does what its `code` says, `turn/start` sends as many deltas as its text says.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import anyio

from rlm_host import app as real_app
from rlm_host.config import Config
from rlm_host.faces import cli_stdio
from rlm_host.rpc.context import Context, Handlers
from rlm_host.rpc.services import Services
from rlm_protocol.errors import KernelBusy
from rlm_protocol.host import ToolCallRequest
from rlm_protocol.item import AgentMessage, ItemCompleted, ItemDelta, ItemStarted
from rlm_protocol.repl import ReplExecuteParams, ReplExecuteResult, ReplStatusChanged
from rlm_protocol.turn import TurnCompleted, TurnStarted, TurnStartParams, TurnStartResult
from rlm_protocol.usage import Usage

LOG: list[str] = []
"""What ran, in order; `repl/execute` of `log` gives it."""


async def execute(context: Context, params: ReplExecuteParams) -> object:
    code, _, argument = params.code.partition(" ")
    LOG.append(params.code)
    result = ReplExecuteResult(cell_id="c", status="ok", result=argument)
    match code:
        case "echo":
            return result
        case "log":
            return ReplExecuteResult(cell_id="c", status="ok", result="\n".join(LOG))
        case "wait":
            notice = ReplStatusChanged(
                session_id="s", seq=1, gen=1, status="busy", incarnation=1, reason=params.code
            )
            context.attachment.notify("repl/status", notice)
            await anyio.sleep_forever()
        case "finish":  # will not be cancelled
            with contextlib.suppress(anyio.get_cancelled_exc_class()):
                await anyio.sleep_forever()
            return result
        case "print":
            print("stray print", flush=True)
            os.write(1, b"stray write\n")
            sys.__stdout__.write("stray text\n")
            sys.__stdout__.flush()
            subprocess.run(["echo", "stray child"], check=True)  # noqa: ASYNC221
            return ReplExecuteResult(cell_id="c", status="ok", result=sys.stdin.read())
        case "bug":
            raise ValueError("the secret of the host")
        case "refuse":
            raise KernelBusy(queued=100)
        case "nan":
            return ReplStatusChanged(
                session_id="s", seq=1, gen=1, status=float("nan"), incarnation=1
            )  # type: ignore[arg-type]
        case "surrogate":
            return ReplExecuteResult(cell_id="c", status="ok", result="a\ud800b")
        case "unencodable":
            return object()
        case "large":
            return ReplExecuteResult(cell_id="c", status="ok", result="x" * int(argument))
        case "ask":
            request = ToolCallRequest(session_id="s", call_id="t", name="n", arguments={})
            raw = await context.attachment.request("tool/call", request)
            return ReplExecuteResult(cell_id="c", status="ok", result=bytes(raw).decode())
        case "ask-and-leave":
            request = ToolCallRequest(session_id="s", call_id="t", name="n", arguments={})
            with anyio.move_on_after(0.05):
                await context.attachment.request("tool/call", request)
            return result
        case "hang":  # holds the whole loop, as no handler may
            await anyio.lowlevel.checkpoint()
            while True:
                pass
    raise AssertionError(params.code)


async def start(context: Context, params: TurnStartParams) -> TurnStartResult:
    """Answer, then send `count` deltas of `size` characters as one turn."""
    count, size = map(int, params.input[0].text.split())
    about = {"session_id": params.session_id, "gen": 1}

    def run() -> None:
        notify = context.attachment.notify
        item = AgentMessage(id="i", text="", status="inProgress")
        notify("turn/started", TurnStarted(**about, seq=1, turn_id="t"))
        notify("item/started", ItemStarted(**about, seq=2, item=item))
        for n in range(count):
            delta = ItemDelta(
                **about, seq=2, item_id="i", channel="text", offset=n * size, text="x" * size
            )
            notify("item/delta", delta)
        whole = AgentMessage(id="i", text=str(count * size))
        notify("item/completed", ItemCompleted(**about, seq=3, item=whole))
        done = TurnCompleted(**about, seq=4, turn_id="t", status="completed", usage=Usage())
        notify("turn/completed", done)

    context.after_answer(run)
    return TurnStartResult(turn_id="t")


class App:
    @contextlib.asynccontextmanager
    async def build(
        self,
        config: Config,
        env: Mapping[str, str],
        *,
        home: Path,
        stop: Callable[[str], None],
        socket: Path | None = None,
        on_secret: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[Services]:
        async with real_app.build(
            config, env, home=home, stop=stop, socket=socket, on_secret=on_secret
        ) as services:
            yield services

    def handlers(self) -> Handlers:
        from rlm_host.rpc.handlers import host

        return {**host.HANDLERS, "repl/execute": execute, "turn/start": start}


def main() -> int:
    from rlm_host.rpc.claim import claim_stdio

    return cli_stdio.run(claim_stdio(), sys.argv[1:], App())


if __name__ == "__main__":
    sys.exit(main())
