"""Σ own = the root's aggregate, over random trees of real sessions and whatever befalls them."""

import contextlib
import json
import random
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from rlm_host.children.kin import registry_of
from rlm_host.children.usage import own_of_tree, total
from rlm_host.models.provider import Done, Event, ProviderError, Request
from rlm_host.models.provider import Usage as Measured
from rlm_host.sessions.session import SessionActor
from rlm_protocol import records as r
from rlm_protocol.errors import PolicyDenied, SessionClosed, SessionNotFound, TurnBusy
from rlm_protocol.session import SessionForkParams, TreeNode
from rlm_protocol.usage import Usage
from support.family import STEPS, Family, family
from support.processes import in_time, until

pytestmark = pytest.mark.anyio

SAY = json.dumps([{"text": "done"}])
STEPS_OF_A_LIFE = 30


class Moody:
    """Makes the scripted provider measure well, badly or not at all, and fail now and then."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def spoil(self, host: Family, monkeypatch: pytest.MonkeyPatch) -> None:
        provider = host.models.provider_for(STEPS)[1]
        original = provider.stream

        async def stream(request: Request) -> AsyncGenerator[Event, None]:
            mood = self.chance.choice(["good", "good", "cached", "unpriced", "unmeasured", "fails"])
            async for event in original(request):
                if not isinstance(event, Done):
                    yield event
                elif mood == "fails":
                    raise ProviderError("auth", "The key was withdrawn in the middle.")
                else:
                    yield msgspec.structs.replace(event, usage=_measured(mood, event.usage))

        monkeypatch.setattr(provider, "stream", stream)


def _measured(mood: str, usage: Measured) -> Measured:
    match mood:
        case "cached":
            return Measured(
                input_tokens=9,
                cache_read_tokens=7,
                cache_write_tokens=5,
                output_tokens=3,
                cost_nano_usd=11,
            )
        case "unpriced":
            return Measured(input_tokens=9, output_tokens=3, cost_nano_usd=None)
        case "unmeasured":
            return Measured(measured=False)
    return usage


async def settled(host: Family, root: SessionActor) -> None:
    """Wait until nothing of a tree goes on."""
    await until(lambda: all(_rests(actor) for actor in host.store.loaded()))
    await in_time(root.wait_idle())


def _rests(actor: SessionActor) -> bool:
    return not registry_of(actor).busy() and actor.state.turn is None and not actor.state.pending


def written(path: Path) -> Usage:
    """What a session used itself, by its journal alone; of a fork, what it was forked with, too."""
    found = [r.decode_line(line) for line in path.read_bytes().splitlines()]
    records = [one.record for one in found if isinstance(one, r.Entry)]
    return total(
        one.usage for one in records if isinstance(one, r.ProviderOutcome | r.ProviderFailed)
    )


def journals(host: Family) -> dict[str, Path]:
    return {path.stem: path for path in host.home.rglob("*.jsonl") if path.stem != "orphans"}


def nodes(node: TreeNode) -> list[TreeNode]:
    return [node, *(one for child in node.children for one in nodes(child))]


async def check(host: Family, roots: list[str]) -> None:
    """The sums agree as soon as nothing goes on; a late notice may start one more turn."""
    deadline = time.monotonic() + 30
    for root_id in roots:
        while not await _adds_up(host, root_id):
            assert time.monotonic() < deadline, f"the sums of {root_id} do not agree"


async def _adds_up(host: Family, root_id: str) -> bool:
    root = await host.store.get(root_id)
    await settled(host, root)
    tree = await host.children.tree(root_id)
    if own_of_tree(tree) != tree.subtree or tree.subtree != root.state.subtree:
        return False
    paths = journals(host)
    of_a_fork = root.state.opened.fork is not None
    return of_a_fork or tree.subtree == total(written(paths[node.id]) for node in nodes(tree))


async def live(host: Family, chance: random.Random, roots: list[str]) -> None:
    """Do one more thing."""
    root = await host.store.get(chance.choice(roots))
    own = [a for a in host.children.agents(root) if a.status == "completed"]
    what = chance.choice(["spawn", "spawn", "spawn below", "say", "follow up", "delete", "fork"])
    # A fork's child is another's, and a model may have failed the one that is spoken to.
    with contextlib.suppress(PolicyDenied, SessionClosed, SessionNotFound, TurnBusy):
        if what == "spawn below" and own:
            middle = await host.store.get(chance.choice(own).session_id)
            await host.spawn(middle, SAY)
        elif what == "follow up" and own:
            await host.children.send(root, chance.choice(own).child_id, SAY)
        elif what == "delete" and own:
            await host.children.delete(root, chance.choice(own).child_id)
        elif what == "say":
            await host.say(root, SAY)
        elif what == "fork" and root.state.last_turn_id is not None and len(roots) < 3:
            roots.append((await host.store.fork(SessionForkParams(session_id=root.id))).id)
        else:
            await host.spawn(root, SAY)
    if chance.random() < 0.5:
        await settled(host, root)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_own_usage_adds_up_whatever_befalls_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, moody = random.Random(seed), Moody(seed)
    roots: list[str] = []
    for _ in range(3):  # hosts, one after the other; the next one finds what is still under way
        async with family(tmp_path) as host:
            with monkeypatch.context() as patch:
                moody.spoil(host, patch)
                if not roots:
                    roots.append((await host.root(model=STEPS)).id)
                await check(host, roots)
                for _ in range(STEPS_OF_A_LIFE // 3):
                    await live(host, chance, roots)
    async with family(tmp_path) as host:
        await check(host, roots)
        counted = total([(await host.children.tree(one)).subtree for one in roots])
    assert counted.responses > 5
    assert counted.unknown_cost
    assert counted.unmeasured
    assert counted.cache_write_tokens
