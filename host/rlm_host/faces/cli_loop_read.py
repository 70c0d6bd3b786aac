"""`rlm-host loop` commands that look at runs, watch them or control them, wherever those are."""

import argparse
import asyncio
import contextlib
from collections.abc import Container, Iterator
from typing import Any

from rlm_protocol.loop_records import TERMINAL

from .cli_client import print_json
from .cli_loop_store import Asked, StoreRuns
from .console import Console
from .loop_plot import LiveReward
from .loop_view import LoopView, head_line, print_report

PAGE = 1000
LOOK_S = 0.5
"""How long a run that is watched is not looked at, without a hint."""


async def list_runs(client: Asked, options: argparse.Namespace) -> int:
    """Print the newest runs."""
    narrowed = {name: getattr(options, name) for name in ("tenant", "workspace", "status")}
    page = await client.request("loop/list", {"limit": options.limit, **narrowed})
    if options.json:
        print_json(page)
        return 0
    console = Console()
    for run in page["runs"]:
        console.print(head_line(run), soft_wrap=True)
    return 0


async def show(client: Asked, options: argparse.Namespace) -> int:
    """Print a run's head."""
    print_json((await client.request("loop/snapshot", {"runId": options.run}))["head"])
    return 0


async def report(client: Asked, options: argparse.Namespace) -> int:
    """Print a run with all its generations."""
    print_report(await whole_report(client, options.run), options.form)
    return 0


async def whole_report(client: Asked, run_id: str) -> dict[str, Any]:
    """Read every page of a report as one; its run is as the last page says."""
    generations: list[dict[str, Any]] = []
    claims: list[dict[str, Any]] = []
    after: int | None = -1
    while after is not None:
        page = await client.request("loop/report", {"runId": run_id, "after": after, "limit": PAGE})
        generations += page["generations"]
        claims += page["claims"]
        after = page["nextAfter"]
    return {
        "run": page["run"],
        "generations": generations,
        "provenance": page["provenance"],
        "claims": claims,
    }


async def watch(client: Asked, options: argparse.Namespace) -> int:
    """Show a run as it goes on, whoever works on it, until it is over; 1 when it has failed."""
    console = Console()
    with LoopView(console) as view:
        run = await follow(client, options.run, view)
    if console.is_terminal:
        console.print(view.last(), end="")
    console.print(head_line(run), soft_wrap=True)
    return 1 if run["status"] == "failed" else 0


async def follow(
    client: Asked, run_id: str, view: LoopView, until: Container[str] = TERMINAL
) -> dict[str, Any]:
    """Show what is recorded of a run until it has such a status, and give it as it is then."""
    after, live = -1, LiveReward()
    with _changes(client) as changed:
        while True:
            params = {"runId": run_id, "after": after, "limit": PAGE}
            page = await client.request("loop/report", params)
            for generation in page["generations"]:
                view.generation(generation, live.after(generation))
                after = generation["generation"]
            view.run(page["run"])
            if page["nextAfter"] is None:
                if page["run"]["status"] in until:
                    run: dict[str, Any] = page["run"]
                    return run
                await _until_changed(changed)


@contextlib.contextmanager
def _changes(client: Asked) -> Iterator[asyncio.Event]:
    """Give what is set when runs may have changed, if whoever is asked gives hints of that."""
    changed, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_hint() -> None:
        loop.call_soon_threadsafe(changed.set)

    hints = client.hints(on_hint) if isinstance(client, StoreRuns) else contextlib.nullcontext()
    with hints:
        yield changed


async def _until_changed(changed: asyncio.Event) -> None:
    """Wait for the next hint, but not longer than LOOK_S."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            await changed.wait()
    changed.clear()


async def fork(client: Asked, options: argparse.Namespace) -> int:
    """Submit a run that begins with another's generations, and say how to go on with it."""
    params = {"runId": options.run, "generation": options.generation, "newRunId": options.new}
    run = (await client.request("loop/fork", params))["run"]
    _print_run(run, options)
    return 0


async def control(client: Asked, options: argparse.Namespace) -> int:
    """Cancel, pause or resume a run."""
    params = {"runId": options.run, "reason": options.reason}
    run = (await client.request(f"loop/{options.command}", params))["run"]
    _print_run(run, options)
    return 0


def _print_run(run: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print_json(run)
    else:
        Console().print(head_line(run), soft_wrap=True)
