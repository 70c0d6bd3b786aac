"""`rlm-host loop`: durable loops from the command line."""

import argparse
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlm_protocol.errors import ConfigInvalid, HostLost

from ..client import HostClient, Subscription
from .cli_client import print_json, with_host

CONTROLS = {
    "cancel": "end a run for good",
    "pause": "let a run rest before its next generation",
    "resume": "let a paused run go on",
}
KEPT = "What was recorded is kept; `rlm-host loop run RUN` continues a run."
PAGE = 1000


def main(argv: Sequence[str]) -> int:
    """Run the command; give its exit code: 0 also when the loop stopped for a reason of its own."""
    parser = argparse.ArgumentParser(prog="rlm-host loop", description="Run and control loops.")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="submit a file, or continue a run, and watch it")
    running.add_argument("what", metavar="FILE|RUN", help="a JSON or TOML file, or a run's id")
    listing = commands.add_parser("list", help="newest first")
    listing.add_argument("--status", choices=("running", "paused", "completed", "cancelled"))
    listing.add_argument("--limit", type=int, default=50)
    showing = commands.add_parser("show", help="a run's head")
    reporting = commands.add_parser("report", help="a run's generations")
    controls = [commands.add_parser(name, help=text) for name, text in CONTROLS.items()]
    for control in controls:
        control.add_argument("--reason")
    for command in (showing, reporting, *controls):
        command.add_argument("run", metavar="RUN")
    for command in (running, listing, showing, reporting, *controls):
        command.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(argv)
    work = {"run": _run, "list": _list, "show": _show, "report": _report}.get(
        options.command, _control
    )
    return with_host("rlm-host loop", lambda client: work(client, options), kept=KEPT)


async def _run(client: HostClient, options: argparse.Namespace) -> int:
    run_id = options.what
    submission = _submission(Path(options.what))
    if submission is not None:
        run_id = (await client.request("loop/submit", submission))["run"]["runId"]
    console = Console(stderr=options.json)
    console.print(Text(f"run {run_id}", style="bold"), soft_wrap=True)
    async with client.notifications("loop/generation", "loop/completed") as events:
        run = (await client.request("loop/run", {"runId": run_id}))["run"]
        end: dict[str, Any] = {"runId": run_id, "run": run, "error": None}
        if run["status"] == "running":
            end = await _follow(events, run_id, console)
    if options.json:
        print_json(end)
    else:
        console.print(_head_line(end["run"]), soft_wrap=True)
    if end["error"]:
        console.print(Text(f"{end['error']} {KEPT}", style="red"))
        return 1
    return 0


async def _follow(events: Subscription, run_id: str, console: Console) -> dict[str, Any]:
    """Show generations as they are recorded, until the run ends; give the end."""
    async for event in events:
        if event.params["runId"] != run_id:
            continue
        if event.method == "loop/completed":
            return event.params
        console.print(_generation_line(event.params["generation"]))
    raise HostLost("The host stopped telling of the run.")


async def _list(client: HostClient, options: argparse.Namespace) -> int:
    params = {"limit": options.limit, "status": options.status}
    page = await client.request("loop/list", params)
    if options.json:
        print_json(page)
        return 0
    console = Console()
    for run in page["runs"]:
        console.print(_head_line(run), soft_wrap=True)
    return 0


async def _show(client: HostClient, options: argparse.Namespace) -> int:
    head = (await client.request("loop/snapshot", {"runId": options.run}))["head"]
    print_json(head)
    return 0


async def _report(client: HostClient, options: argparse.Namespace) -> int:
    generations: list[dict[str, Any]] = []
    after: int | None = -1
    while after is not None:
        page = await client.request(
            "loop/report", {"runId": options.run, "after": after, "limit": PAGE}
        )
        generations += page["generations"]
        after = page["nextAfter"]
    if options.json:
        print_json({"run": page["run"], "generations": generations})
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("gen", "artifact", "reward", "gain", "cost", "decision", "reason", "applied"):
        table.add_column(heading)
    for one in generations:
        table.add_row(
            str(one["generation"]),
            Text(str(one["artifactId"] or "")),
            *(_number(one[field]) for field in ("reward", "gain", "cost")),
            one["action"],
            one["reason"],
            "yes" if one["applied"] else "",
        )
    console = Console()
    console.print(table)
    console.print(_head_line(page["run"]), soft_wrap=True)
    return 0


async def _control(client: HostClient, options: argparse.Namespace) -> int:
    params = {"runId": options.run, "reason": options.reason}
    run = (await client.request(f"loop/{options.command}", params))["run"]
    if options.json:
        print_json(run)
    else:
        Console().print(_head_line(run), soft_wrap=True)
    return 0


def _submission(file: Path) -> dict[str, Any] | None:
    """Read `{config, step, apply?, rollback?}` in wire names; None without such a file."""
    if not file.is_file():
        return None
    try:
        text = file.read_bytes().decode()
        is_toml = file.suffix == ".toml"
        read: Any = tomllib.loads(text) if is_toml else json.loads(text)
    except (OSError, ValueError) as why:
        raise ConfigInvalid(f"{file} cannot be read: {why}.") from why
    if not isinstance(read, dict):
        raise ConfigInvalid(f"{file} holds no table.")
    return read


def _generation_line(generation: dict[str, Any]) -> Text:
    line = Text(f"{generation['generation']:>5}  {generation['action']:<9}")
    line.append(f"{_number(generation['reward']):>10}  {generation['reason']}")
    return line


def _head_line(run: dict[str, Any]) -> Text:
    line = Text(f"{run['runId']}  {run['status']}  generation {run['generation']}")
    if run.get("bestReward") is not None:
        line.append(f"  best {_number(run['bestReward'])} {run.get('bestArtifactId') or ''}")
    if run.get("stoppedReason"):
        line.append(f"  ({run['stoppedReason']})")
    return line


def _number(value: float | str | None) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value or "")
