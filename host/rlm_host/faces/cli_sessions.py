"""`rlm-host session list|show`."""

import argparse
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..client import HostClient
from .cli_client import print_json, when, with_host
from .console import Console
from .session_tree import session_tree
from .terminal import TerminalView


def session(argv: Sequence[str]) -> int:
    """Run the command; give its exit code."""
    parser = argparse.ArgumentParser(prog="rlm-host session", description="List and show sessions.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="newest first")
    listing.add_argument("--search", metavar="TEXT")
    listing.add_argument("--archived", action="store_true", help="the archived ones instead")
    listing.add_argument("--limit", type=int, default=50)
    showing = commands.add_parser("show", help="one session: its items, its tree, its cost")
    showing.add_argument("session", help="the session's id")
    showing.add_argument("--tree", action="store_true", help="its tree and cost only")
    for command in (listing, showing):
        command.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(argv)
    work = _list if options.command == "list" else _show
    return with_host("rlm-host session", lambda client: work(client, options))


async def _list(client: HostClient, options: argparse.Namespace) -> int:
    params = {"limit": options.limit, "archived": options.archived, "search": options.search}
    page = await client.request("session/list", params)
    if options.json:
        print_json(page)
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("session", "name", "model", "turns", "changed", "cost"):
        table.add_column(heading, no_wrap=heading in ("session", "changed"))
    for one in page["sessions"]:
        table.add_row(
            one["id"],
            Text(one["name"]),
            one["model"],
            str(one["turns"]),
            when(one["updatedAtMs"]),
            f"${one['usage']['costNanoUsd'] / 1e9:.4f}",
        )
    console = Console()
    console.print(table)
    if page.get("nextCursor"):
        console.print(Text("There are more; ask for a larger --limit.", style="dim"))
    return 0


async def _show(client: HostClient, options: argparse.Namespace) -> int:
    about = {"sessionId": options.session}
    shown = (await client.request("session/read", about))["session"]
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await client.request("session/items", {**about, "cursor": cursor, "limit": 1000})
        items += page["items"]
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    tree = (await client.request("session/tree", about))["root"]
    if options.json:
        print_json({"session": shown, "items": items, "tree": tree})
        return 0
    console = Console()
    view = TerminalView(console)
    for item in [] if options.tree else items:
        if item["type"] == "userMessage":
            console.print(Text(f"> {item['text']}", style="bold"))
        view.notification("item/completed", {"item": item})
    view.close()
    console.print(session_tree(tree))
    console.print(Text(f"journal {shown['journalPath']}", style="dim"), soft_wrap=True)
    return 0
