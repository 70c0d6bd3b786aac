"""Approvals: who is asked, whose answer counts, and that nothing is ever granted by itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlm_host.models.provider import Call, Done, ToolResult
from rlm_host.sessions.session import SessionActor
from rlm_protocol import records as r
from rlm_protocol.base import Cursor
from rlm_protocol.errors import ApprovalDenied, HostLost, StoreFull
from rlm_protocol.item import ReplCell
from rlm_protocol.limits import APPROVAL_MS
from rlm_protocol.session import Approvals, SessionCreateParams, SessionOptions
from support.journals import FaultyFiles
from support.processes import FakeClock
from support.sessions import (
    USAGE,
    Bench,
    Person,
    StubModels,
    answers,
    bench,
    deciding,
    finished,
    say,
    until,
)

pytestmark = pytest.mark.anyio

CELLS = SessionOptions(approvals=Approvals(cells="ask"))
SPAWNS = SessionOptions(approvals=Approvals(spawns="ask"))
NEVER = 10**9
DETAIL = {"prompt": "p", "options": {}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def calling(code: str) -> list[Any]:
    call = Call(id="call1", name="python", arguments={"code": code})
    return [call, Done(stop="tool_calls", usage=USAGE)]


def required(actor: SessionActor, cell_id: str | None = None) -> "asyncio.Future[None]":
    return asyncio.ensure_future(actor.approvals.require("spawn", DETAIL, cell_id=cell_id))


def kept(b: Bench, actor: SessionActor) -> list[Any]:
    return [one for one in b.records(actor) if isinstance(one, r.ApprovalAsked | r.ApprovalSettled)]


async def child_of(b: Bench, parent: SessionActor, name: str) -> SessionActor:
    depth = parent.depth + 1
    link = r.ParentLink(
        session_id=parent.id,
        root_id=parent.state.opened.parent.root_id if parent.state.opened.parent else parent.id,
        child_id=name,
        directory=f"{parent.state.opened.parent.directory}/{name}"
        if parent.state.opened.parent
        else name,
        depth=depth,
        max_depth=3,
    )
    params = SessionCreateParams(cwd=str(b.home), options=parent.inherited())
    return await b.store.create(params, parent=link)


# --- cells of a turn ------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "cells"), [("allow", ["say x"]), ("deny", [])])
async def test_the_first_answer_decides_and_everybody_is_told(
    tmp_path: Path, answer: str, cells: list[str]
) -> None:
    models = StubModels(answers(calling("say x"), say("ok")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create(options=CELLS)
        silent, decider = Person(), deciding(answer)
        await actor.attach(silent)
        turn_id = await actor.start_turn("go")
        await until(lambda: silent.asked)
        assert b.kernels[0].cells == []
        await actor.attach(decider)
        await finished(actor)
        assert silent.asked == decider.asked == silent.cancelled
        assert silent.asked[0].detail == {"code": "say x"}
        assert silent.resolved() == decider.resolved() == [answer]
        assert b.kernels[0].cells == cells
        result = models.requests[1].messages[-1]
        assert isinstance(result, ToolResult)
        assert ("Because." in result.text) == result.is_error == (answer == "deny")
        asked, settled = kept(b, actor)
        assert (asked.what, asked.turn_id, asked.detail) == ("cell", turn_id, {"code": "say x"})
        assert (settled.decision, settled.reason) == (answer, "Because.")


async def test_without_an_answer_it_is_denied_in_the_end(tmp_path: Path) -> None:
    clock = FakeClock()
    async with bench(tmp_path, answers(calling("say x"), say("ok")), clock=clock) as b:
        actor = await b.create(options=CELLS)
        await actor.start_turn("go")
        await until(lambda: clock.sleepers)
        clock.advance(APPROVAL_MS)
        await finished(actor)
        assert b.kernels[0].cells == []
        [cell] = [one for one in await b.items(actor) if isinstance(one, ReplCell)]
        assert cell.error is not None
        assert cell.error.ename == "ApprovalDenied"
        assert "nobody decided in time" in cell.error.evalue


async def test_an_interrupt_resolves_what_waits_for_a_person(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(calling("say x"))) as b:
        actor = await b.create(options=CELLS)
        person = Person()
        await actor.attach(person)
        await actor.start_turn("go")
        await until(lambda: person.asked)
        await actor.interrupt()
        await finished(actor)
        assert person.resolved() == ["cancelled"]
        assert person.cancelled == person.asked
        assert actor.state.last_status == "interrupted"


async def test_an_interrupt_resolves_every_approval_of_the_turn(tmp_path: Path) -> None:
    """What its cells ask for, too, and what a cell that has ended has left behind."""
    async with bench(tmp_path, answers(calling("hang"))) as b:
        actor = await b.create(options=SPAWNS)
        person = Person()
        await actor.attach(person)
        await actor.start_turn("go")
        await until(lambda: actor.cells.running)
        [cell_id] = actor.cells.running
        both = [required(actor, cell_id), required(actor, "cell-that-has-ended")]
        await until(lambda: len(person.asked) == 2)
        await actor.interrupt()
        for one in both:
            with pytest.raises(ApprovalDenied, match="cancelled"):
                await one
        assert person.resolved() == ["cancelled", "cancelled"]
        await finished(actor)


async def test_an_interrupt_leaves_alone_what_a_person_asked_for(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(calling("wait"))) as b:
        actor = await b.create(options=SPAWNS)
        person = Person()
        await actor.attach(person)
        await actor.start_turn("go")
        await until(lambda: actor.cells.running)
        mine = asyncio.ensure_future(actor.execute_cell("wait"))
        await until(lambda: len(actor.cells.running) == 2)
        [cell_id] = [one for one, turn_id in actor.cells.running.items() if turn_id is None]
        asking = required(actor, cell_id)
        await until(lambda: person.asked)
        await actor.interrupt()
        await finished(actor)
        assert not asking.done()
        asking.cancel()
        actor.kernel.interrupt()
        await mine


# --- whom and when --------------------------------------------------------------------------------


async def test_nobody_is_asked_without_the_option(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create()
        person = Person()
        await actor.attach(person)
        await required(actor)
        assert (person.asked, kept(b, actor)) == ([], [])


async def test_of_two_who_answer_at_once_one_decides(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create(options=SPAWNS)
        people = [deciding("deny"), deciding("allow")]
        for person in people:
            await actor.attach(person)
        with pytest.raises(ApprovalDenied) as caught:
            await required(actor)
        assert caught.value.data == {"what": "spawn", "decision": "deny"}
        assert [person.resolved() for person in people] == [["deny"], ["deny"]]
        assert [one.decision for one in kept(b, actor)[1:]] == ["deny"]


async def test_an_answer_after_the_expiry_changes_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with bench(tmp_path, clock=clock) as b:
        actor = await b.create(options=SPAWNS)
        person = Person()
        await actor.attach(person)
        asking = required(actor)
        await until(lambda: person.asked)
        person.answer = lambda *_: {"decision": "allow"}
        clock.advance(APPROVAL_MS)
        with pytest.raises(ApprovalDenied, match="in time"):
            await asking
        assert person.cancelled == person.asked
        assert person.resolved() == ["expired"]


async def test_a_client_that_goes_is_asked_again_when_it_comes_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create(options=SPAWNS)
        gone = Person(lambda *_: HostLost("gone"), "editor")
        await actor.attach(gone)
        asking = required(actor)
        await until(lambda: gone.asked)
        actor.detach(gone)
        back = deciding("allow", "editor")
        await actor.attach(back)
        await asking
        assert back.asked == gone.asked


async def test_who_is_asked_already_is_not_asked_twice(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create(options=SPAWNS)
        person = Person()
        await actor.attach(person)
        asking = required(actor)
        await until(lambda: person.asked)
        await actor.attach(person)
        await actor.attach(deciding("allow"))
        await asking
        assert len(person.asked) == 1


async def test_a_childs_request_reaches_the_clients_of_every_ancestor(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        root = await b.create(options=SPAWNS)
        child = await child_of(b, root, "sub-1")
        grandchild = await child_of(b, child, "sub-2")
        above, between, late = Person(), Person(), Person(name="late")
        stranger = Person()
        await root.attach(above)
        await child.attach(between)
        await (await b.create()).attach(stranger)
        asking = required(grandchild)
        await until(lambda: above.asked and between.asked)
        await root.attach(late)  # asked when it comes to an ancestor, too
        await until(lambda: late.asked)
        await child.attach(deciding("allow"))
        await asking
        people = (above, between, late)
        assert [person.resolved() for person in people] == [["allow"]] * 3
        [told] = above.told("approval/resolved")
        assert (told.session_id, told.seq) == (grandchild.id, grandchild.last_seq)
        assert stranger.asked == stranger.heard == []


async def test_a_client_of_child_and_parent_is_asked_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        root = await b.create(options=SPAWNS)
        child = await child_of(b, root, "sub-1")
        first = deciding("allow", "editor")
        second = deciding("allow", "editor")
        await root.attach(first)
        await child.attach(second)
        await required(child)
        assert len(first.asked) + len(second.asked) == 1


# --- crashes and disks ----------------------------------------------------------------------------


async def test_a_crash_while_it_waits_closes_it_and_grants_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(calling("say x"))) as b:
        actor = await b.create(options=CELLS)
        person = Person()
        await actor.attach(person)
        await actor.start_turn("go")
        await until(lambda: person.asked)
        path = b.home / "rlm" / "sessions" / f"{actor.id}.jsonl"
        crashed, session_id = path.read_bytes(), actor.id
    path.write_bytes(crashed)  # as kill -9 leaves it
    path.with_suffix(".checkpoint").unlink(missing_ok=True)
    async with bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        back = Person()
        heard = await actor.attach(back, Cursor(gen=1, seq=1))
        assert heard.replay == "complete"
        assert (back.asked, back.resolved()) == ([], ["cancelled"])
        assert actor.state.last_status == "interrupted"
        assert actor.state.open_approvals == {}
        assert b.kernels[0].cells == []


async def test_what_cannot_be_recorded_is_not_done(tmp_path: Path) -> None:
    files = FaultyFiles(NEVER, "enospc", persist=True)
    async with bench(tmp_path, files=files) as b:
        actor = await b.create(options=SPAWNS)

        def allow_on_a_full_disk(*_: Any) -> dict[str, str]:
            files.left = 1
            return {"decision": "allow"}

        await actor.attach(Person(allow_on_a_full_disk))
        with pytest.raises(StoreFull):
            await required(actor)
        files.left = NEVER
