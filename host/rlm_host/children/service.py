"""
The host side of `rlm.*`: what a cell's host requests and a client's `agent/*` come to.

`install` puts it into the ports of all sessions; `bind` gives it the store. It owns every task that
runs beside the sessions: leaving the block ends them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

import anyio.to_thread

from rlm_protocol import bridge
from rlm_protocol import records as r
from rlm_protocol.agent import Agent, AgentChanged
from rlm_protocol.errors import ContractRequired, InvalidParams, ResultConflict, RlmError
from rlm_protocol.limits import FIND_MODELS_MAX
from rlm_protocol.session import TreeNode

from ..clock import Clock
from ..models.catalog import ModelInfo
from ..models.registry import Models
from ..processes.spawn import Processes
from ..sessions.ports import SessionPorts
from ..sessions.session import SessionActor
from ..sessions.store import SessionStore
from .accounts import BUDGET, Accounts
from .budget import BudgetBook
from .contract import decode_result, encode_result, project
from .documents import Documents
from .kin import RECENT, REGISTRY, ChildrenSettings, Kin, registry_of
from .lifecycle import OPEN
from .mail import Mail
from .recent import Recent
from .recovery import Recovery
from .registry import Child, Registry, select
from .runner import Runner
from .spawning import Spawning
from .spending import Spending
from .tree import tree_of
from .validation import Validation

T = TypeVar("T")

log = logging.getLogger(__name__)


class ChildrenService:
    """Everything about children, for sessions (`install`) and for handlers (the public methods)."""

    def __init__(
        self,
        *,
        models: Models,
        clock: Clock,
        processes: Processes,
        ports: SessionPorts,
        new_hex: Callable[[int], str],
        settings: ChildrenSettings | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._models, self._ports = models, ports
        self._validation = Validation(processes)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._kin = Kin(clock=clock, settings=settings or ChildrenSettings(), new_hex=new_hex)
        self._documents = Documents(self._kin)
        self._spending = spending
        self._accounts = Accounts(self._kin, models.resolve, spending)
        self._runner = Runner(self._kin, self._accounts, self._documents, ports, self._start_task)
        self._recovery = Recovery(self._kin, self._accounts, self._runner)
        self._spawning = Spawning(self._kin, self._accounts, self._runner, models.resolve)
        self._mail = Mail(self._kin, self._documents, self._runner)
        self._install()

    def bind(self, store: SessionStore) -> None:
        """Take the store whose sessions have these ports; before any of them is opened."""
        self._kin.store = store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what still runs beside the sessions. They have been closed before."""
        self._closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        if self._spending is not None:
            self._spending.close()

    def _own(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have given up: nobody else is told of a refusal

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do all of it, or nothing, whether the one who asked still waits or not."""
        return await asyncio.shield(self._own(work))

    def _start_task(self, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        if not self._closed:
            self._own(self._guarded(work, args))

    async def _guarded(self, work: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        """One child's failure ends nothing but what it was doing."""
        try:
            await work(*args)
        except RlmError as why:
            log.warning("%s: %s", getattr(work, "__name__", work), why)
        except Exception:
            log.exception("%s failed with a bug", getattr(work, "__name__", work))

    def _install(self) -> None:
        ports, runner = self._ports, self._runner
        ports.folds |= {REGISTRY: Registry, RECENT: Recent, BUDGET: BudgetBook}
        ports.before_request.append(runner.before_request)
        ports.after_request.append(runner.after_request)
        ports.after_turn.append(runner.after_turn)
        ports.on_idle.append(runner.on_idle)
        ports.is_quiet.append(runner.is_quiet)
        ports.on_stop.append(runner.on_stop)
        ports.held_since.append(self._kin.held_since)
        ports.on_close.append(runner.on_close)
        ports.on_load.append(self._recovery.on_load)
        ports.may_open.append(self._recovery.may_open)
        for record in (r.ChildAdmitted, r.ChildStatusChanged, r.ChildDeleted):
            ports.project[record] = self._changed
        ports.host_requests |= {
            "rlm.run": self._run,
            "rlm.find_models": self._find_models,
            "rlm.list_subagents": self._list,
            "rlm.family": self._family,
            "rlm.send_parent": self._send_parent,
            "rlm.send_sibling": self._send_sibling,
            "rlm.send_child": self._send_child,
            "rlm.observe": self._observe,
            "rlm.info": self._info,
            "rlm.delete_subagent": self._delete,
            "rlm.submit_result": self._submit,
            "rlm.get_result": self._get_result,
        }

    def _changed(self, actor: SessionActor, entry: r.Entry) -> tuple[str, AgentChanged] | None:
        child = registry_of(actor).children.get(getattr(entry.record, "child_id", ""))
        if child is None:
            return None
        agent = self._kin.agent(actor, child)
        return "agent/changed", AgentChanged(
            session_id=actor.id, seq=entry.seq, gen=entry.gen, agent=agent
        )

    # --- what cells ask: one method for each type of the bridge ---

    async def _run(
        self, actor: SessionActor, payload: bridge.Run, cell_id: str | None
    ) -> bridge.Handle:
        self._kin.unless_stopped(actor)
        prompt, options = payload.prompt, payload.options
        if actor.approvals.wanted("spawn"):
            await self._spawning.check(actor, prompt, options)  # nobody is asked for a refusal
            detail = {"prompt": prompt, "options": options}
            await actor.approvals.require("spawn", detail, cell_id=cell_id)
        spawning = self._spawning.spawn(actor, prompt, options, item_id=cell_id, by_cell=True)
        child = await self._whole(spawning)
        return self._kin.handle(actor, child)

    async def _find_models(
        self, actor: SessionActor, payload: bridge.FindModels, cell_id: str | None
    ) -> bridge.Models:
        if not 1 <= payload.limit <= FIND_MODELS_MAX:
            raise InvalidParams(
                f"limit is a number from 1 to {FIND_MODELS_MAX}.", limit=payload.limit
            )
        found = self._models.find(payload.query, payload.limit)
        return bridge.Models(models=tuple(map(_model, found)))

    async def _list(
        self, actor: SessionActor, payload: bridge.Empty, cell_id: str | None
    ) -> bridge.Handles:
        living = registry_of(actor).living()
        return bridge.Handles(subagents=tuple(self._kin.handle(actor, one) for one in living))

    async def _family(
        self, actor: SessionActor, payload: bridge.Empty, cell_id: str | None
    ) -> bridge.Family:
        return await self._mail.family(actor)

    async def _send_parent(
        self, actor: SessionActor, payload: bridge.SendParent, cell_id: str | None
    ) -> bridge.Receipt:
        return await self._whole(self._mail.to_parent(actor, payload.message))

    async def _send_sibling(
        self, actor: SessionActor, payload: bridge.SendNamed, cell_id: str | None
    ) -> bridge.Receipt:
        return await self._whole(self._mail.to_sibling(actor, payload.name, payload.message))

    async def _send_child(
        self, actor: SessionActor, payload: bridge.SendNamed, cell_id: str | None
    ) -> bridge.Receipt:
        self._kin.unless_stopped(actor)
        sending = self._mail.to_child(actor, payload.name, payload.message, item_id=cell_id)
        return await self._whole(sending)

    async def _observe(
        self, actor: SessionActor, payload: bridge.Observe, cell_id: str | None
    ) -> bridge.Observation:
        child, messages = await self._mail.observe(
            actor, payload.target, payload.limit, payload.max_chars
        )
        return bridge.Observation(agent=self._kin.handle(actor, child), messages=messages)

    async def _info(
        self, actor: SessionActor, payload: bridge.Target, cell_id: str | None
    ) -> bridge.Handle:
        return self._kin.handle(actor, select(registry_of(actor).known(), payload.target))

    async def _delete(
        self, actor: SessionActor, payload: bridge.Target, cell_id: str | None
    ) -> bridge.Handle:
        child = select(registry_of(actor).known(), payload.target)
        await self._whole(self._runner.delete(actor, child, by_parent=True))
        return self._kin.handle(actor, child)

    async def _submit(
        self, actor: SessionActor, payload: bridge.SubmitResult, cell_id: str | None
    ) -> bridge.Submitted:
        parent, child = await self._kin.parent_of(actor)
        contract = child.admitted.contract
        if contract is None:
            raise ContractRequired("This child was spawned without a result contract.")
        data = await anyio.to_thread.run_sync(encode_result, payload.value)
        await self._validation.check(contract, payload.value)
        return await self._whole(self._store(parent, child, data))

    async def _store(self, parent: SessionActor, child: Child, data: bytes) -> bridge.Submitted:
        async with self._kin.live(child).lock:
            if child.status not in OPEN:
                raise ResultConflict(
                    f"Task {child.generation} has ended; its result can no longer be submitted.",
                    generation=child.generation,
                )
            stored = await self._documents.store(parent, child, child.generation, data)
        return bridge.Submitted(
            generation=child.generation, sha256=stored.sha256, size_bytes=stored.size_bytes
        )

    async def _get_result(
        self, actor: SessionActor, payload: bridge.GetResult, cell_id: str | None
    ) -> bridge.ChildResult:
        value, generation = await self.result(
            actor, payload.target, payload.fields, payload.generation
        )
        return bridge.ChildResult(value=value, generation=generation)

    # --- what clients ask ---

    def agents(self, actor: SessionActor) -> tuple[Agent, ...]:
        """Give every child but the deleted ones, terminal ones too, in order of admission."""
        return tuple(self._kin.agent(actor, child) for child in registry_of(actor).known())

    async def spawn(self, actor: SessionActor, prompt: str, options: Mapping[str, Any]) -> Agent:
        """Admit a child as a cell would. Raises what `Spawning.spawn` raises."""
        spawning = self._spawning.spawn(actor, prompt, options)
        return self._kin.agent(actor, await self._whole(spawning))

    async def send(self, actor: SessionActor, target: str, message: str) -> bridge.Receipt:
        """Write to a child in its parent's name. Raises what `Mail.to_child` raises."""
        return await self._whole(self._mail.to_child(actor, target, message))

    async def observe(
        self, actor: SessionActor, target: str, limit: int, max_chars: int
    ) -> tuple[Agent, tuple[bridge.ObservedMessage, ...]]:
        """Give a child and its last messages. Raises what `Mail.observe` raises."""
        child, messages = await self._mail.observe(actor, target, limit, max_chars)
        return self._kin.agent(actor, child), messages

    async def cancel(self, actor: SessionActor, target: str) -> Agent:
        """
        Cancel a child's task and everything below it; when this returns, nothing of it runs.

        A child without an open task keeps its status; what its cells left running ends, too.

        Raises:
            AgentNotFound, AgentAmbiguous: no child fits, or several do.
        """
        child = select(registry_of(actor).known(), target)
        await self._whole(self._runner.cancel(actor, child))
        return self._kin.agent(actor, child)

    async def delete(self, actor: SessionActor, target: str) -> Agent:
        """Delete a child and its subtree for good. Raises AgentNotFound, AgentAmbiguous."""
        child = select(registry_of(actor).known(), target)
        await self._whole(self._runner.delete(actor, child, by_parent=False))
        return self._kin.agent(actor, child)

    async def result(
        self,
        actor: SessionActor,
        target: str,
        fields: tuple[str, ...] | None,
        generation: int | None,
    ) -> tuple[Any, int]:
        """
        Give a child's stored result as its contract admits it, and the generation it belongs to.

        Raises:
            AgentNotFound, AgentAmbiguous: no child fits, or several do.
            ContractRequired: the child has no contract.
            ResultMissing: no result was submitted (yet).
            FieldNotAdmitted: `fields` asks for more than the spawn admitted.
            ResultInvalid: the stored bytes are damaged or do not fit the contract any more.
        """
        child = select(registry_of(actor).known(), target)
        contract = child.admitted.contract
        if contract is None:
            raise ContractRequired("This child was spawned without a result contract.")
        number, data = await self._documents.read(actor, child, generation)
        value = await anyio.to_thread.run_sync(decode_result, data)
        await self._validation.check(contract, value)
        return project(value, child.admitted.context, fields), number

    async def tree(self, session_id: str) -> TreeNode:
        """Give a session's tree with usage. Raises SessionNotFound."""
        return await tree_of(self._kin, session_id)


def _model(info: ModelInfo) -> bridge.Model:
    plain = next((tier for tier in info.prices if tier.above_input_tokens == 0), None)
    return bridge.Model(
        selector=info.selector,
        name=info.name,
        provider=info.provider,
        context_window=info.context_window_tokens,
        thinking_levels=info.thinking,
        input_nano_usd_per_token=plain.input_nano_usd_per_mtok // 1_000_000 if plain else None,
        output_nano_usd_per_token=plain.output_nano_usd_per_mtok // 1_000_000 if plain else None,
    )
