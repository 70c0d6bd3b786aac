"""`rlm-host loop` on a run store that is opened here, without a host."""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from rlm_protocol import loop as wire
from rlm_protocol.errors import RlmError

from ..loops.moving import export_run, import_run
from ..loops.report import read_page
from ..loops.stores.base import ControlAction, RunReader, RunStore
from ..loops.stores.open import open_runs, open_store
from ..loops.submission import fork_run
from ..loops.wire import report_of, run_of
from .cli_client import INTERRUPTED, print_json
from .console import Console
from .launch import say_error
from .loop_view import head_line

PROGRAM = "rlm-host loop"
UNCHANGED = "Nothing was changed."
DAY_MS = 86_400_000
PRUNED_AT_ONCE = 100
S = TypeVar("S", bound=RunReader)


class Asked(Protocol):
    """Who answers `loop/*` requests: a host, or a store."""

    async def request(self, method: str, params: Any) -> Any:
        """Give the result. Raises RlmError."""


class StoreRuns:
    """Answers from a store, as a host would, what needs nobody to work on a run."""

    def __init__(self, store: RunReader) -> None:
        self._store = store

    async def request(self, method: str, params: Any) -> Any:
        """See `Asked`."""
        return msgspec.to_builtins(self._answer(method, params))

    def hints(self, on_hint: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """See `RunReader.hints`."""
        return self._store.hints(on_hint)

    def _answer(self, method: str, params: Any) -> msgspec.Struct:
        store, run_id = self._store, params.get("runId", "")
        match method:
            case "loop/list":
                page = store.list(**params)
                runs = tuple(map(run_of, page.runs))
                return wire.LoopListResult(runs=runs, next_cursor=page.cursor)
            case "loop/snapshot":
                return wire.LoopSnapshotResult(head=msgspec.to_builtins(store.head(run_id).head))
            case "loop/report":
                after, limit = params["after"], params["limit"]
                return report_of(read_page(store, run_id, after=after, limit=limit))
            case "loop/fork":
                generation, child = params["generation"], params["newRunId"]
                child = fork_run(store, run_id, generation, code=Path.cwd(), new_run_id=child)
                return wire.RunResult(run=run_of(store.head(child)))
        action: ControlAction = method.removeprefix("loop/")  # type: ignore[assignment]
        reason = params["reason"] or CONTROL_REASONS[action]
        return wire.RunResult(run=run_of(store.request(run_id, action, reason)))


CONTROL_REASONS = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def with_store(url: str, work: Callable[[Asked], Awaitable[int]], *, kept: str = UNCHANGED) -> int:
    """Let `work` ask a store; give the exit code. An error is one line on stderr and code 1."""

    async def main(store: RunReader) -> int:
        return await work(StoreRuns(store))

    return _on_store(open_runs, url, lambda store: asyncio.run(main(store)), kept)


def export(options: argparse.Namespace) -> int:
    """Write a run to stdout. What was cut off is refused by `loop import`."""

    def work(store: RunReader) -> int:
        for line in export_run(store, options.run):
            sys.stdout.buffer.write(line)
        return 0

    return _on_store(open_runs, options.store, work)


def take_in(options: argparse.Namespace) -> int:
    """Take a run from stdin into a store."""

    def work(store: RunStore) -> int:
        run = msgspec.to_builtins(run_of(import_run(store, sys.stdin.buffer)))
        if options.json:
            print_json(run)
        else:
            Console().print(head_line(run), soft_wrap=True)
        return 0

    return _on_store(open_store, options.store, work)


def prune(options: argparse.Namespace) -> int:
    """Delete the runs that have been over for so many days."""

    def work(store: RunStore) -> int:
        before_ms = int(time.time() * 1000 - options.older_than * DAY_MS)
        deleted = 0
        while found := store.prune(before_ms=before_ms, limit=PRUNED_AT_ONCE):
            deleted += found
        if options.json:
            print_json({"deleted": deleted})
        else:
            sys.stdout.write(f"{deleted} runs deleted\n")
        return 0

    return _on_store(open_store, options.store, work, "Runs that were not deleted are kept.")


def _on_store(
    open_url: Callable[[str], S], url: str, work: Callable[[S], int], kept: str = UNCHANGED
) -> int:
    try:
        with contextlib.closing(open_url(url)) as store:
            return work(store)
    except (RlmError, OSError) as why:
        if isinstance(why, BrokenPipeError):
            raise
        say_error(PROGRAM, why, kept)
    except KeyboardInterrupt:
        return say_interrupted(kept)
    return 1


def say_interrupted(kept: str) -> int:
    """Tell a person in one line; give the exit code."""
    sys.stderr.write(f"\n{PROGRAM}: stopped. {kept}\n")
    return INTERRUPTED
