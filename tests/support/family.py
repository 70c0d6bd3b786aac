"""A host's sessions with children, kernels and scripted models, without its JSON-RPC."""

import asyncio
import contextlib
import os
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rlm_host.children.kin import ChildrenSettings
from rlm_host.children.service import ChildrenService
from rlm_host.children.spending import Spending
from rlm_host.clock import SystemClock
from rlm_host.kernels.environment import KernelHost
from rlm_host.kernels.session_kernel import SessionKernel
from rlm_host.kernels.skills import Skills
from rlm_host.models.registry import Models
from rlm_host.processes.ledger import Ledger
from rlm_host.processes.spawn import Processes
from rlm_host.sessions.files import Files
from rlm_host.sessions.ports import SessionPorts
from rlm_host.sessions.session import SessionActor
from rlm_host.sessions.store import SessionStore
from rlm_protocol.agent import Agent
from rlm_protocol.item import ChildMessage
from rlm_protocol.session import SessionCreateParams, SessionItemsParams, SessionOptions
from rlm_protocol.usage import Budget
from support.processes import in_time

STEPS = "scripted/steps"
"""Plays the JSON list of steps in its task."""
PYTHON = "scripted/python"
"""Runs what follows `run:` at the beginning of its task, and answers with what it printed."""


class Family:
    """One host's worth of sessions. Made by `family`."""

    def __init__(
        self, home: Path, store: SessionStore, children: ChildrenService, models: Models
    ) -> None:
        self.home, self.store, self.children, self.models = home, store, children, models
        self.cwd = home.parent

    async def root(
        self, *, model: str = PYTHON, budget: Budget | None = None, **more: Any
    ) -> SessionActor:
        params = SessionCreateParams(
            cwd=str(self.cwd),
            model=model,
            options=SessionOptions(budget=budget) if budget else None,
            **more,
        )
        return await self.store.create(params)

    async def spawn(
        self, parent: SessionActor, prompt: str, *, model: str = STEPS, **options: Any
    ) -> Agent:
        options.setdefault("result", {})
        return await self.children.spawn(parent, prompt, {"model": model, **options})

    def agent(self, parent: SessionActor, target: str) -> Agent:
        found = [a for a in self.children.agents(parent) if target in (a.child_id, a.name)]
        assert len(found) == 1, found
        return found[0]

    async def ended(
        self, parent: SessionActor, *agents: Agent, patience_s: float = 30
    ) -> list[Agent]:
        """Wait until tasks are over; give the agents as they are then."""
        ids = [agent.child_id for agent in agents]
        deadline = time.monotonic() + patience_s
        while True:
            known = {a.child_id: a for a in self.children.agents(parent)}
            if all(known[i].status not in ("queued", "running") for i in ids):
                return [known[i] for i in ids]
            assert time.monotonic() < deadline, f"{ids} did not end in {patience_s} s"
            await asyncio.sleep(0.02)

    async def say(self, actor: SessionActor, text: str) -> None:
        """Run a turn to its end, and whatever follows it."""
        await actor.start_turn(text)
        await in_time(actor.wait_idle())

    async def cell(self, actor: SessionActor, code: str) -> str:
        """Run a client's cell; give its result's repr, or what it raised."""
        done = await in_time(actor.execute_cell(code))
        if done.error is not None:
            return f"{done.error.ename}: {done.error.evalue}"
        return done.result or ""

    async def items(self, actor: SessionActor) -> list[Any]:
        items: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self.store.items(SessionItemsParams(session_id=actor.id, cursor=cursor))
            items += page.items
            cursor = page.next_cursor
            if cursor is None:
                return items

    async def notices(self, actor: SessionActor) -> list[ChildMessage]:
        """Every end notice that the session has taken up."""
        items = await self.items(actor)
        return [i for i in items if isinstance(i, ChildMessage) and i.notice is not None]

    async def noticed(self, actor: SessionActor, count: int) -> list[ChildMessage]:
        """Wait until so many end notices have been taken up and the session is idle."""
        deadline = time.monotonic() + 30
        while len(found := await self.notices(actor)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} notices came"
            await asyncio.sleep(0.02)
        await in_time(actor.wait_idle())
        return await self.notices(actor)


@contextlib.asynccontextmanager
async def family(
    tmp_path: Path,
    *,
    settings: ChildrenSettings | None = None,
    providers: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    files: Files | None = None,
    snapshot_after_ms: int = 1_500,
    skills: Skills | None = None,
    spending: Spending | None = None,
) -> AsyncIterator[Family]:
    """A host on `tmp_path/home`; another one on the same path is that host after a restart."""
    home = tmp_path / "home"
    environ = {**os.environ, "RLM_KERNEL_PYTHON": sys.executable, **(env or {})}
    clock, processes = SystemClock(), Processes(Ledger(home))
    host = KernelHost(
        home=home,
        environ=environ,
        processes=processes,
        clock=clock,
        snapshot_after_ms=snapshot_after_ms,
    )
    models = Models(
        providers or {},
        base_dir=tmp_path,
        auth_file=home / "auth.json",
        env=environ,
        now_ms=clock.now_ms,
        monotonic_ms=clock.monotonic_ms,
        random=random.random,
    )
    ports = SessionPorts()

    def kernel(**more: Any) -> SessionKernel:
        return SessionKernel(host=host, **more)

    service = ChildrenService(
        models=models,
        clock=clock,
        processes=processes,
        ports=ports,
        settings=settings,
        spending=spending,
        new_hex=lambda digits: secrets.token_hex(digits)[:digits],
    )
    async with service:
        store = SessionStore(
            home=home,
            ephemeral_home=tmp_path / "ephemeral",
            clock=clock,
            kernels=kernel,
            models=models,
            ports=ports,
            files=files,
            skills=skills,
        )
        service.bind(store)
        async with store:
            yield Family(home, store, service, models)
    await models.aclose()
