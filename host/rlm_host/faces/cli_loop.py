"""`rlm-host loop`: durable loops from the command line."""

import argparse
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from rlm_protocol.errors import ConfigInvalid, HostLost

from ..client import HostClient, Subscription
from ..loops.stores.base import LEASE_MS
from ..loops.stores.open import FORMS
from . import cli_loop_file, cli_loop_read, cli_loop_store
from .cli_client import print_json, with_host
from .cli_loop_store import PROGRAM
from .console import Console
from .loop_view import generation_line, head_line

CONTROLS = {
    "cancel": "end a run for good",
    "pause": "let a run rest before its next generation",
    "resume": "let a paused run go on",
}
KEPT = "What was recorded is kept; `rlm-host loop run RUN` continues a run."
WATCHED = "The run goes on as it would have without being watched."


def main(argv: Sequence[str]) -> int:
    """Run the command; give its exit code: 0 also when the loop stopped for a reason of its own."""
    options = _parser().parse_args(argv)
    if options.command in STORE_ONLY:
        return STORE_ONLY[options.command](options)
    if options.command == "run" and options.what.endswith(".py"):
        if not options.store:
            options.refuse(f"{options.what} needs --store: where its run is kept")
        return cli_loop_file.run_file(options)
    if options.command == "run":
        if options.store or options.worker or options.run:
            options.refuse("--store, --worker and --run go with a FILE.py")
        return with_host(PROGRAM, lambda client: _run(client, options), kept=KEPT)
    work = WORK.get(options.command, cli_loop_read.control)
    kept = WATCHED if options.command == "watch" else None
    if options.store:
        return cli_loop_store.with_store(
            options.store, lambda runs: work(runs, options), kept=kept or cli_loop_store.UNCHANGED
        )
    return with_host(PROGRAM, lambda client: work(client, options), kept=kept or KEPT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Run and control loops.")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="submit a file, or continue a run, and watch it")
    running.add_argument(
        "what",
        metavar="FILE.py|FILE|RUN",
        help="a Python file with config and step (apply, rollback, gates), run here under --store;"
        " or a JSON or TOML file, or a run's id, run by a host",
    )
    running.add_argument("--worker", metavar="NAME", help="who works on it, for people")
    running.add_argument("--run", metavar="ID", help="the run's id; default: the file's name")
    running.add_argument(
        "--lease-s",
        type=_seconds,
        default=LEASE_MS / 1000,
        metavar="S",
        help="how long a worker that has stopped keeps the run from others (default: %(default)g)",
    )
    running.set_defaults(refuse=running.error)
    listing = commands.add_parser("list", help="newest first")
    listing.add_argument(
        "--status", choices=("running", "paused", "completed", "cancelled", "failed")
    )
    listing.add_argument("--limit", type=_count, default=50, metavar="N")
    for scope in ("tenant", "workspace"):
        listing.add_argument(f"--{scope}", metavar="NAME", help=f"of this {scope} alone")
    showing = commands.add_parser("show", help="a run's head")
    reporting = commands.add_parser("report", help="a run's generations")
    watching = commands.add_parser("watch", help="look on, whoever works on the run")
    forking = commands.add_parser("fork", help="begin a run as another one began")
    controls = [commands.add_parser(name, help=text) for name, text in CONTROLS.items()]
    for control in controls:
        control.add_argument("--reason")
    exporting = commands.add_parser("export", help="write a run with all its history to stdout")
    importing = commands.add_parser("import", help="take a run from stdin into a store")
    pruning = commands.add_parser("prune", help="delete runs that are over")
    pruning.add_argument("--older-than", type=_days, required=True, metavar="DAYS")
    for command in (showing, reporting, watching, forking, exporting, *controls):
        command.add_argument("run", metavar="RUN")
    forking.add_argument("generation", type=int, metavar="GENERATION", help="the last one to keep")
    forking.add_argument("--as", dest="new", metavar="ID", help="the new run's id")
    for command in (running, listing, showing, reporting, watching, forking, *controls):
        command.add_argument("--store", metavar="URL", help=f"{FORMS}; default: the host's own")
    for command in (exporting, importing, pruning):
        command.add_argument("--store", metavar="URL", required=True, help=FORMS)
    for command in (running, reporting):
        forms = command.add_mutually_exclusive_group()
        forms.add_argument("--json", action="store_const", dest="form", const="json")
        forms.add_argument("--csv", action="store_const", dest="form", const="csv")
        forms.add_argument(
            "--html",
            action="store_const",
            dest="form",
            const="html",
            help="one page, for a browser",
        )
    for command in (listing, showing, forking, importing, pruning, *controls):
        command.add_argument("--json", action="store_true", help="for programs")
    return parser


def _seconds(text: str) -> float:
    return _between(text, 1, 3600)


def _days(text: str) -> float:
    return _between(text, 0, 36_500)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 1000")
    return int(text)


def _between(text: str, low: float, high: float) -> float:
    value = float(text)
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"must be from {low:g} to {high:g}")
    return value


async def _run(client: HostClient, options: argparse.Namespace) -> int:
    run_id = options.what
    submission = _submission(Path(options.what))
    if submission is not None:
        run_id = (await client.request("loop/submit", submission))["run"]["runId"]
    console = Console(stderr=options.form is not None)
    console.print(Text(f"run {run_id}", style="bold"), soft_wrap=True)
    async with client.notifications("loop/generation", "loop/completed") as events:
        run = (await client.request("loop/run", {"runId": run_id}))["run"]
        end: dict[str, Any] = {"runId": run_id, "run": run, "error": None}
        if run["status"] == "running":
            end = await _follow(events, run_id, console)
    if options.form == "json":
        print_json(end)
    elif options.form is not None:
        await cli_loop_read.report(client, argparse.Namespace(run=run_id, form=options.form))
    else:
        console.print(head_line(end["run"]), soft_wrap=True)
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
        console.print(generation_line(event.params["generation"]))
    raise HostLost("The host stopped telling of the run.")


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


WORK = {
    "list": cli_loop_read.list_runs,
    "show": cli_loop_read.show,
    "report": cli_loop_read.report,
    "watch": cli_loop_read.watch,
    "fork": cli_loop_read.fork,
}
STORE_ONLY = {
    "export": cli_loop_store.export,
    "import": cli_loop_store.take_in,
    "prune": cli_loop_store.prune,
}
"""They work on a store's files or tables; no host has a part in it."""
