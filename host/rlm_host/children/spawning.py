"""
Admission, carried out: what the pure boundary admits gets a directory, a document and its records.

A refusal at any step leaves nothing behind. Admission is durable before the handle returns, and
independent of the child's session, its kernel and its provider.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread

from rlm_protocol import records as r
from rlm_protocol.errors import StoreUnavailable
from rlm_protocol.item import ChildSpawn

from ..models.catalog import ModelInfo
from ..paths import Directory
from ..sessions.journal import store_error
from ..sessions.session import SessionActor
from .accounts import Accounts
from .admission import Admitted, Parent, admit, default_name
from .contract_journal import NAME, ContractJournal
from .kin import Kin, directory_of, registry_of
from .lifecycle import On
from .registry import Child
from .runner import Runner

DIRECTORY_TRIES = 100


class Spawning:
    """Admits children. Made once, by the service."""

    def __init__(
        self,
        kin: Kin,
        accounts: Accounts,
        runner: Runner,
        resolve: Callable[[str], ModelInfo],
    ) -> None:
        self._kin, self._accounts, self._runner = kin, accounts, runner
        self._resolve = resolve
        self._coming: dict[str, set[str]] = {}
        """Names of each parent's children whose admission is not durable yet."""

    async def spawn(
        self,
        parent: SessionActor,
        prompt: str,
        options: Mapping[str, Any],
        *,
        item_id: str | None = None,
        by_cell: bool = False,
    ) -> Child:
        """
        Admit a child and start it; `item_id` is the parent's item that asks for it.

        Must not be cancelled: a caller that gives up leaves it to run to its end.

        Raises:
            RlmError: the first rule of the boundary that the spawn breaks (`admission.admit`), or
                PolicyDenied when a person stopped the tree and it is a cell that asks, or
                StoreFull, StoreUnavailable. Nothing was left behind.
        """
        if by_cell:
            self._kin.unless_stopped(parent)
        stops, registry = self._runner.stops(parent), registry_of(parent)
        spec = await self.check(parent, prompt, options)
        coming = self._coming.setdefault(parent.id, set())
        child_id = self._new_id(parent)
        name = spec.name or default_name(prompt, child_id)
        coming.add(name)
        try:
            await self._admit(parent, _record(parent, spec, child_id, name, self._kin, item_id))
        finally:
            coming.discard(name)
        child = registry.children[child_id]
        if self._runner.stops(parent) != stops or parent.closing:
            await self._runner.feed(parent, child, On.CANCEL)
        else:
            self._runner.begin(parent, child)
            await self._runner.wake(parent)
        return child

    async def check(
        self, parent: SessionActor, prompt: str, options: Mapping[str, Any]
    ) -> Admitted:
        """Hold a spawn to the boundary as it is now; nothing happens. Raises as `spawn`."""
        if "jsonschema" not in sys.modules:  # the first spawn of a host does not stop it for others
            await anyio.to_thread.run_sync(importlib.import_module, "jsonschema")
        spawns_left = await self._accounts.spawns_left(parent)
        registry, opened = registry_of(parent), parent.state.opened
        coming = self._coming.get(parent.id, set())
        return admit(
            prompt,
            options,
            Parent(
                depth=opened.parent.depth if opened.parent else 0,
                max_depth=opened.max_depth,
                thinking=parent.state.thinking,
                taken=registry.taken() | coming,
                tools=frozenset(tool.name for tool in parent.state.options.tools or ()),
                living=len(registry.living()) + len(coming),
                children_max=self._kin.settings.living_max,
                spawns_left=spawns_left,
                alive=not parent.closing,
            ),
            resolve=self._resolve,
        )

    async def _admit(self, parent: SessionActor, record: r.ChildAdmitted) -> None:
        await self._accounts.reserve_spawn(parent, record.child_id)
        spawned = False
        try:
            home = parent.artifacts_path / record.child_id
            try:
                await anyio.to_thread.run_sync(_make_home, home, record, self._kin.clock.now_ms())
                await parent.append(record, r.ItemCompleted(item=self._item(record)))
            except OSError as why:
                raise store_error(why, str(home)) from why
            finally:
                spawned = record.child_id in registry_of(parent).children
                if not spawned:
                    await anyio.to_thread.run_sync(_remove_home, home)
        finally:
            await self._accounts.settle_spawn(parent, record.child_id, spawned=spawned)

    def _item(self, record: r.ChildAdmitted) -> ChildSpawn:
        now_ms = self._kin.clock.now_ms()
        return ChildSpawn(
            id=f"spawn-{record.child_id}",
            turn_id=record.turn_id,
            child_id=record.child_id,
            name=record.name,
            model=record.model,
            prompt=record.prompt,
            started_at_ms=now_ms,
            completed_at_ms=now_ms,
        )

    def _new_id(self, parent: SessionActor) -> str:
        for _ in range(DIRECTORY_TRIES):
            child_id = f"sub-{self._kin.new_hex(8)}"
            known = child_id in registry_of(parent).children
            if not known and not (parent.artifacts_path / child_id).exists():
                return child_id
        raise StoreUnavailable(
            f"No free name for a child's directory was found in {parent.artifacts_path}.",
            path=str(parent.artifacts_path),
        )


def _record(
    parent: SessionActor,
    spec: Admitted,
    child_id: str,
    name: str,
    kin: Kin,
    item_id: str | None,
) -> r.ChildAdmitted:
    turn = parent.state.turn
    return r.ChildAdmitted(
        child_id=child_id,
        parent_id=parent.id,
        session_id=f"session-{kin.new_hex(24)}",
        directory=directory_of(parent, child_id),
        name=name,
        model=spec.model,
        prompt=spec.prompt,
        depth=spec.depth,
        max_depth=spec.max_depth,
        thinking=spec.thinking,
        contract=spec.contract,
        context=spec.context,
        budget=spec.budget,
        tools=spec.tools,
        turn_id=turn.turn_id if turn else None,
        item_id=item_id,
    )


def _make_home(home: Path, record: r.ChildAdmitted, now_ms: int) -> None:
    with Directory.open(home.parent) as above, above.sub(home.name):
        ContractJournal.create(home, record, now_ms=now_ms)


def _remove_home(home: Path) -> None:
    """Take back what `_make_home` made; the disk may be in any state."""
    try:
        (home / NAME).unlink(missing_ok=True)
        home.rmdir()
    except OSError:
        return  # an empty directory may stay where the disk takes nothing any more
