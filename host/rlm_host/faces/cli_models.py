"""`rlm-host models` and `rlm-host auth`."""

import argparse
import getpass
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from rlm_protocol.errors import AuthRequired, RlmError

from .. import config, paths
from ..client import HostClient
from .cli_client import INTERRUPTED, print_json, with_host
from .console import Console
from .launch import say_error


def models(argv: Sequence[str]) -> int:
    """`rlm-host models`."""
    parser = argparse.ArgumentParser(
        prog="rlm-host models", description="List models that a session can use now."
    )
    parser.add_argument("query", nargs="?", default="", help="words that the name must have")
    parser.add_argument("--all", action="store_true", help="those without a key, too")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(argv)

    async def work(client: HostClient) -> int:
        params = {"query": options.query, "limit": options.limit, "unavailable": options.all}
        found = await client.request("model/list", params)
        if options.json:
            print_json(found)
            return 0
        table = Table(box=None, pad_edge=False)
        for heading in ("model", "window", "output", "thinking", ""):
            table.add_column(heading, no_wrap=heading == "model")
        for model in found["models"]:
            notes = [
                note
                for note, holds in (
                    ("default", model["selector"] == found["default"]),
                    ("scripted, no model", model["scripted"]),
                    ("no key", not model["available"]),
                )
                if holds
            ]
            table.add_row(
                model["selector"],
                _count(model["contextWindow"]),
                _count(model["maxOutputTokens"]),
                " ".join(model["thinkingLevels"]),
                ", ".join(notes),
            )
        Console().print(table)
        return 0

    return with_host("rlm-host models", work)


def auth(argv: Sequence[str]) -> int:
    """`rlm-host auth`. A key is read from the terminal or stdin, never from the arguments."""
    parser = argparse.ArgumentParser(
        prog="rlm-host auth", description="Keep, check and remove provider keys."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="which providers have a usable key")
    status.add_argument("--json", action="store_true", help="for programs")
    keeping = commands.add_parser("set", help="keep a key, asked for without echo")
    removing = commands.add_parser("remove", help="remove a kept key")
    for command in (keeping, removing):
        command.add_argument("provider")
    parser.add_argument("--config", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    try:
        return _auth(options)
    except RlmError as why:
        say_error("rlm-host auth", why, "Kept keys are unchanged.")
        return 1
    except (KeyboardInterrupt, EOFError):
        sys.stderr.write("rlm-host auth: stopped. Kept keys are unchanged.\n")
        return INTERRUPTED


def _auth(options: argparse.Namespace) -> int:
    from ..models.credentials import Credentials
    from ..models.settings import read_providers

    env = dict(os.environ)
    home = paths.rlm_home(env)
    settings = config.load(home, options.config)
    providers = read_providers(settings.providers, base_dir=settings.base_dir)
    credentials = Credentials(
        paths.auth(home), providers, env=env, now_ms=lambda: time.time_ns() // 1_000_000
    )
    if options.command == "set":
        asks = sys.stdin.isatty()
        prompt = f"key of {options.provider}: "
        credentials.set(options.provider, getpass.getpass(prompt) if asks else sys.stdin.read())
        sys.stdout.write(f"kept the key of {options.provider} in {paths.auth(home)}\n")
        return 0
    if options.command == "remove":
        if not credentials.remove(options.provider):
            raise AuthRequired(f"No key of {options.provider} was kept.")
        sys.stdout.write(f"removed the key of {options.provider}\n")
        return 0
    states = credentials.states()
    if options.json:
        print_json(
            [{"provider": s.provider, "status": s.status, "source": s.source} for s in states]
        )
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("provider", "key", "from", ""):
        table.add_column(heading)
    for state in states:
        table.add_row(state.provider, state.status, state.source or "", Text(state.reason))
    Console().print(table)
    return 0


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
