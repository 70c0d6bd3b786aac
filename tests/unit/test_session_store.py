"""Sessions of a home: created once, found, listed, forked, owned, and recovered after a crash."""

import asyncio
import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rlm_host.models.provider import Call, Done, Text, UserMessage
from rlm_host.paths import Directory
from rlm_host.processes.ledger import this_process
from rlm_host.sessions.lease import Holder, Lease
from rlm_protocol import records as r
from rlm_protocol.base import Cursor, Empty
from rlm_protocol.errors import (
    ArtifactNotFound,
    Conflict,
    InvalidParams,
    KernelDied,
    ModelUnavailable,
    SessionClosed,
    SessionLeased,
    SessionNotFound,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    ThinkingUnsupported,
    TurnBusy,
    Uncertain,
)
from rlm_protocol.item import AgentMessage, ChildMessage, Notice, ReplCell
from rlm_protocol.session import (
    Approvals,
    KernelRecipe,
    SessionCreateParams,
    SessionForkParams,
    SessionItemsParams,
    SessionListParams,
    SessionOptions,
    SessionRenameParams,
)
from support.journals import FaultyFiles
from support.sessions import USAGE, Bench, StubModels, answers, bench, finished, say, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def journal(home: Path, session_id: str) -> Path:
    return home / "rlm" / "sessions" / f"{session_id}.jsonl"


def everything_below(home: Path) -> list[str]:
    return sorted(str(one.relative_to(home)) for one in home.rglob("*") if one.is_file())


async def a_session(b: Bench, *turns: str, **more: Any) -> str:
    actor = await b.create(**more)
    for text in turns:
        await finished(actor, actor.start_turn(text))
    return actor.id


def crash(home: Path, session_id: str, *records: r.Record) -> None:
    """What a killed host leaves: more records, and no goodbye."""
    path = journal(home, session_id)
    entries = [r.decode_line(line) for line in path.read_bytes().splitlines()]
    seq = max(one.seq for one in entries if isinstance(one, r.Entry))
    with path.open("ab") as file:
        for record in records:
            seq += 1
            file.write(r.encode_line(record, seq=seq, gen=1, at_ms=1))


# --- create ---------------------------------------------------------------------------------------


async def test_a_session_is_durable_when_it_is_there(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create(
            name="mine", thinking="low", options=SessionOptions(labels={"a": "b"})
        )
        view = actor.view()
        assert (view.name, view.status, view.depth, view.seq) == ("mine", "idle", 0, 1)
        assert view.journal_path == str(journal(tmp_path, actor.id))
        [opened] = b.records(actor)
        assert isinstance(opened, r.SessionOpened)
        assert (opened.model, opened.thinking) == ("stub/model", "low")
        assert opened.options.labels == {"a": "b"}
        assert journal(tmp_path, actor.id).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"model": "nobody/x"}, ModelUnavailable),
        ({"thinking": "max"}, ThinkingUnsupported),
        ({"cwd": "relative"}, InvalidParams),
        ({"cwd": "/no/such/folder"}, InvalidParams),
        ({"cwd": "/" + "x" * 5000}, InvalidParams),
    ],
)
async def test_a_refused_session_leaves_nothing(
    tmp_path: Path, given: dict[str, Any], error: type[Exception]
) -> None:
    async with bench(tmp_path) as b:
        with pytest.raises(error):
            await b.store.create(SessionCreateParams(**{"cwd": str(tmp_path), **given}))
        assert everything_below(tmp_path) == []


async def test_a_key_creates_one_session_also_after_a_restart(tmp_path: Path) -> None:
    params = SessionCreateParams(cwd=str(tmp_path), idempotency_key="k")
    async with bench(tmp_path) as b:
        one, two = await asyncio.gather(b.store.create(params), b.store.create(params))
        assert one is two
        with pytest.raises(Conflict):
            await b.store.create(SessionCreateParams(cwd="/", idempotency_key="k"))
    (tmp_path / "rlm" / "sessions" / "index.sqlite3").unlink()
    async with bench(tmp_path) as b:
        assert (await b.store.create(params)).id == one.id
        with pytest.raises(Conflict):
            await b.store.create(SessionCreateParams(cwd="/", idempotency_key="k"))


async def test_values_of_variables_never_reach_the_disk(tmp_path: Path) -> None:
    recipe = KernelRecipe(python="/py", env={"TOKEN": "canary-1"})
    async with bench(tmp_path) as b:
        actor = await b.create(options=SessionOptions(recipe=recipe))
        assert b.kernels[0].given["recipe"].env == {"TOKEN": "canary-1"}
        other = KernelRecipe(python="/py", env={"KEY": "canary-2"})
        await actor.configure(SessionOptions(recipe=other))
        assert actor.state.env_names == ("KEY",)
        assert b.kernels[0].closed
        assert b.kernels[1].given["recipe"].env == {"KEY": "canary-2"}
    for name in everything_below(tmp_path):
        assert b"canary" not in (tmp_path / name).read_bytes(), name


async def test_options_are_changed_field_by_field(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief.")
    async with bench(tmp_path) as b:
        actor = await b.create(options=SessionOptions(labels={"a": "1"}, instructions="First."))
        assert actor.state.prompt.endswith(
            f"# Instructions\n\nFirst.\n\n# Instructions from {tmp_path}/AGENTS.md\n\nBe brief.\n"
        )
        assert actor.state.opened.instruction_files == (f"{tmp_path}/AGENTS.md",)
        await actor.configure(SessionOptions(approvals=Approvals(cells="ask")))
        assert actor.state.options.labels == {"a": "1"}
        assert actor.state.options.approvals.cells == "ask"
        before = actor.state.prompt
        (tmp_path / "AGENTS.md").write_text("Be long.")
        assert actor.state.prompt == before
        await actor.configure(SessionOptions(instructions="Second."))
        assert "Second." in actor.state.prompt
        assert "Be long." in actor.state.prompt


@pytest.mark.parametrize("kind", ["folder", "pipe", "endless"])
async def test_instructions_that_are_no_file_are_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "AGENTS.md"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to("/dev/zero")
    async with bench(tmp_path) as b:
        assert (await b.create()).state.opened.instruction_files == ()


# --- get ------------------------------------------------------------------------------------------


async def test_a_session_comes_back_as_it_was(tmp_path: Path) -> None:
    models = StubModels(answers(say("one"), say("two")))
    async with bench(tmp_path, models=models) as b:
        session_id = await a_session(b, "first")
        view, items = b.store.loaded()[0].view(), await b.items(b.store.loaded()[0])
    async with bench(tmp_path, models=models) as b:
        actor = await b.store.get(session_id)
        assert actor is await b.store.get(session_id)
        assert actor.view() == view
        assert await b.items(actor) == items
        await finished(actor, actor.start_turn("second"))
        first, second = models.requests
        assert second.messages[: len(first.messages)] == first.messages
        assert second.instructions == first.instructions
        assert [m.text for m in second.messages] == ["first", "one", "second"]


@pytest.mark.parametrize("session_id", ["nobody", "../x", "..", "a/b", "x" * 65])
async def test_what_is_not_there_is_not_found(tmp_path: Path, session_id: str) -> None:
    async with bench(tmp_path) as b:
        with pytest.raises(SessionNotFound):
            await b.store.get(session_id)


async def test_a_session_has_one_owner(tmp_path: Path) -> None:
    async with bench(tmp_path) as one, bench(tmp_path) as two:
        session_id = await a_session(one)
        with pytest.raises(SessionLeased) as refused:
            await two.store.get(session_id)
        assert refused.value.data["owner"]["pid"] == this_process().pid
        assert [s.id for s in (await two.store.list(SessionListParams())).sessions] == [session_id]
        await one.store.loaded()[0].close()
        assert (await two.store.get(session_id)).id == session_id


async def test_a_journal_that_cannot_be_opened_is_an_error_and_stays(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        session_id = await a_session(b)
    path = journal(tmp_path, session_id)
    path.with_suffix(".checkpoint").unlink(missing_ok=True)
    path.write_bytes(b"rubbish\n" + path.read_bytes()[8:])
    before = path.read_bytes()
    async with bench(tmp_path) as b:
        with pytest.raises(StoreCorrupt):
            await b.store.get(session_id)
        assert path.read_bytes() == before
        holder = Holder(owner=this_process(), since_ms=1)
        with Directory.open(path.parent) as directory:
            Lease.take(directory, path.name, holder).release()  # it was let go


async def test_damage_is_told_and_recorded_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        session_id = await a_session(b, "one", "two")
    path = journal(tmp_path, session_id)
    path.with_suffix(".checkpoint").unlink()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"\xff" + lines[4][1:], *lines[5:]]))
    for _ in range(2):
        async with bench(tmp_path) as b:
            actor = await b.store.get(session_id)
            assert len(actor.state.damage) == 1
            heard: list[Any] = []
            resumed = await actor.attach(
                lambda method, payload, heard=heard: heard.append(payload), Cursor(gen=1, seq=2)
            )
            assert resumed.replay == "partial"
            notices = [p.item for p in heard if isinstance(getattr(p, "item", None), Notice)]
            assert [n.level for n in notices] == ["warning"]
            with pytest.raises(StoreCorrupt):
                await b.store.fork(SessionForkParams(session_id=session_id))


# --- after a crash --------------------------------------------------------------------------------


async def test_an_open_intent_is_closed_and_never_sent_again(tmp_path: Path) -> None:
    models = StubModels(answers())
    async with bench(tmp_path, models=models) as b:
        session_id = await a_session(b)
    crash(
        tmp_path,
        session_id,
        r.TurnAccepted(turn_id="t1"),
        r.ProviderIntent(turn_id="t1", attempt=1, model="stub/model", sha256="", messages=1),
    )
    async with bench(tmp_path, models=models) as b:
        actor = await b.store.get(session_id)
        await finished(actor)
        failed, ended = b.records(actor)[-2:]
        assert isinstance(failed, r.ProviderFailed)
        assert isinstance(ended, r.TurnCompleted)
        assert (failed.kind, failed.attempt, failed.usage.unmeasured) == ("interrupted", 1, 1)
        assert (ended.status, ended.phase) == ("interrupted", "request")
        assert ended.error is not None
        assert ended.error.kind == "hostLost"
        assert models.requests == []


async def test_an_open_cell_is_closed_and_its_call_is_answered(tmp_path: Path) -> None:
    models = StubModels(answers(say("ok")))
    async with bench(tmp_path, models=models) as b:
        session_id = await a_session(b)
    call = r.ToolUse(id="c1", name="python", arguments={"code": "x"})
    crash(
        tmp_path,
        session_id,
        r.TurnAccepted(turn_id="t1"),
        r.ProviderIntent(turn_id="t1", attempt=1, model="stub/model", sha256="", messages=1),
        r.ProviderOutcome(
            turn_id="t1",
            attempt=1,
            model="stub/model",
            stop="tool_calls",
            usage=r.Usage(),
            calls=(call,),
        ),
        r.CellStarted(item_id="i1", code="x", author="model", turn_id="t1", call_id="c1"),
    )
    async with bench(tmp_path, models=models) as b:
        actor = await b.store.get(session_id)
        [cell] = [one for one in await b.items(actor) if isinstance(one, ReplCell)]
        assert (cell.status, cell.code) == ("interrupted", "x")
        assert (actor.state.last_status, b.kernels[0].cells) == ("interrupted", [])
        await finished(actor, actor.start_turn("go on"))
        kinds = [type(m).__name__ for m in models.requests[0].messages]
        assert kinds == ["AssistantMessage", "ToolResult", "UserMessage"]


async def test_an_accepted_turn_that_never_ran_is_closed(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        session_id = await a_session(b)
    crash(tmp_path, session_id, r.TurnAccepted(turn_id="t1"))
    async with bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        ended = b.records(actor)[-1]
        assert isinstance(ended, r.TurnCompleted)
        assert ended.phase == "accepted"


async def test_a_full_disk_at_start_refuses_and_lets_go(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        session_id = await a_session(b)
    crash(tmp_path, session_id, r.TurnAccepted(turn_id="t1"))
    files = FaultyFiles(0, "enospc", persist=True)
    async with bench(tmp_path, files=files) as b:
        with pytest.raises(StoreFull):
            await b.store.get(session_id)
        assert b.store.loaded() == ()
        files.left = 10**9
        actor = await b.store.get(session_id)
        assert actor.state.last_status == "interrupted"


async def test_what_was_said_before_a_crash_wakes_the_session_once(tmp_path: Path) -> None:
    models = StubModels(answers(say("thanks"), say("no")))
    message = ChildMessage(
        id="m1", sender_id="c", sender_name="kid", relationship="child", text="result is 5"
    )
    async with bench(tmp_path, models=models) as b:
        session_id = await a_session(b)
    queued = r.InputQueued(item=message, origin="message", mode="steer", shown="kid: 5")
    crash(tmp_path, session_id, queued)
    for _ in range(2):
        async with bench(tmp_path, models=models) as b:
            actor = await b.store.get(session_id)
            await until(lambda actor=actor: actor.state.turns == 1 and actor.state.turn is None)
            await finished(actor)
            seq = actor.state.seq
            said = await actor.deliver(message, shown="kid: 5")
            assert (said, actor.state.turns, actor.state.seq) == ("delivered", 1, seq)
    assert [m.text for m in models.requests[0].messages] == ["kid: 5"]
    assert len(models.requests) == 1


async def test_follow_ups_of_a_person_wait_for_that_person_after_a_crash(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        session_id = await a_session(b)
    item = r.ItemCompleted(item=Notice(id="x", level="info", text="y")).item
    crash(tmp_path, session_id, r.InputQueued(item=item, origin="queue", mode="follow_up"))
    async with bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        await finished(actor)
        assert (actor.state.turns, len(actor.queued())) == (0, 1)
        await finished(actor, actor.start_turn("go"))
        assert (actor.state.turns, actor.queued()) == (2, ())


async def test_one_event_delivered_often_makes_one_turn(tmp_path: Path) -> None:
    models = StubModels(answers(*[say("ok")] * 5))
    notice = Notice(id="bash-1", level="info", text="finished")
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await asyncio.gather(
            *(actor.deliver(notice, shown="finished", origin="notice") for _ in range(3))
        )
        await finished(actor)
        await actor.deliver(notice, shown="finished", origin="notice")
        await finished(actor)
        assert (actor.state.turns, len(models.requests)) == (1, 1)


async def test_several_notices_share_a_turn_and_none_is_lost(tmp_path: Path) -> None:
    gate = asyncio.Event()
    models = StubModels(answers([gate.wait, *say("1")], say("2"), say("3")))
    async with bench(tmp_path, models=models) as b:
        actor = await b.create()
        await actor.start_turn("go")
        for n in range(3):
            await actor.deliver(
                Notice(id=f"n{n}", level="info", text=str(n)),
                shown=str(n),
                origin="notice",
                mode="follow_up",
            )
        gate.set()
        await finished(actor)
        said = [m.text for m in models.requests[-1].messages if isinstance(m, UserMessage)]
        assert said == ["go", "0", "1", "2"]
        assert actor.state.turns == 2, "the notices have one turn together"


# --- idempotency ----------------------------------------------------------------------------------


async def test_a_repeat_gets_what_the_first_got(tmp_path: Path) -> None:
    params = SessionRenameParams(session_id="s", name="new")
    ran: list[int] = []
    async with bench(tmp_path) as b:
        actor = await b.create()

        async def run() -> Empty:
            ran.append(1)
            await actor.rename("new")
            return Empty()

        first, second = await asyncio.gather(
            actor.once("k", "session/rename", params, run),
            actor.once("k", "session/rename", params, run),
        )
        assert (first, second, ran) == (Empty(), Empty(), [1])
        session_id = actor.id
    async with bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        assert await actor.once("k", "session/rename", params, run) == {}
        assert ran == [1]
        for method, other in [
            ("session/rename", SessionRenameParams(session_id="s", name="x")),
            ("session/archive", params),
        ]:
            with pytest.raises(Conflict):
                await actor.once("k", method, other, run)


async def test_received_without_a_result_is_uncertain_and_not_run(tmp_path: Path) -> None:
    from rlm_host.sessions.requests import digest_of

    params = SessionRenameParams(session_id="s", name="new")
    async with bench(tmp_path) as b:
        session_id = await a_session(b)
    received = r.RequestReceived(
        key="k", method="session/rename", request=digest_of("session/rename", params)
    )
    crash(tmp_path, session_id, received)
    async with bench(tmp_path) as b:
        actor = await b.store.get(session_id)

        async def run() -> None:
            raise AssertionError("run again")

        with pytest.raises(Uncertain):
            await actor.once("k", "session/rename", params, run)


async def test_a_refusal_frees_the_key_but_a_dead_kernel_does_not(tmp_path: Path) -> None:
    params = SessionRenameParams(session_id="s", name="new")
    errors: list[Exception] = [TurnBusy(), KernelDied(signal="SIGKILL"), AssertionError("again")]
    async with bench(tmp_path) as b:
        actor = await b.create()

        async def run() -> None:
            raise errors.pop(0)

        for key, error in [("a", TurnBusy), ("a", KernelDied), ("a", KernelDied)]:
            with pytest.raises(error):
                await actor.once(key, "session/rename", params, run)
        assert len(errors) == 1


# --- list, items, fork, delete --------------------------------------------------------------------


async def test_the_list_is_paged_searched_and_survives_a_lost_index(tmp_path: Path) -> None:
    index = tmp_path / "rlm" / "sessions" / "index.sqlite3"
    async with bench(tmp_path) as b:
        ids = [await a_session(b, name=f"name {n}") for n in range(5)]
        await b.store.loaded()[1].archive(True)
        child = r.ParentLink(
            session_id=ids[0],
            root_id=ids[0],
            child_id="sub",
            directory="sub-1",
            depth=1,
            max_depth=2,
        )
        await b.store.create(SessionCreateParams(cwd=str(tmp_path)), parent=child)

    def of_a_newer_version() -> None:
        with contextlib.closing(sqlite3.connect(index)) as connection:
            connection.executescript("drop table session; pragma user_version = 99;")

    def unwritable() -> None:  # as everything is in a home that can only be read
        for file in index.parent.glob("index.sqlite3*"):
            file.unlink()
        index.mkdir()

    def rubbish() -> None:
        index.write_bytes(b"rubbish" * 1000)

    for spoil in (lambda: None, index.unlink, rubbish, of_a_newer_version, unwritable):
        spoil()
        async with bench(tmp_path) as b:
            got, cursor = [], None
            while True:
                page = await b.store.list(SessionListParams(limit=2, cursor=cursor))
                got += [one.id for one in page.sessions]
                cursor = page.next_cursor
                if cursor is None:
                    break
            shown = [one for n, one in enumerate(ids) if n != 1]
            assert sorted(got) == sorted(shown), "each once, neither children nor archived ones"
            archived = await b.store.list(SessionListParams(archived=True))
            assert [one.id for one in archived.sessions] == [ids[1]]
            found = await b.store.list(SessionListParams(search="NAME 3"))
            assert [one.name for one in found.sessions] == ["name 3"]
            with pytest.raises(InvalidParams):
                await b.store.list(SessionListParams(cursor="../../etc"))


async def test_the_list_tells_what_another_host_has_changed(tmp_path: Path) -> None:
    async with bench(tmp_path) as one, bench(tmp_path) as two:
        await two.store.list(SessionListParams())
        session_id = await a_session(one, name="before")
        await one.store.loaded()[0].rename("after")
        [seen] = (await two.store.list(SessionListParams())).sessions
        assert (seen.id, seen.name) == (session_id, "after")


async def test_items_come_in_pages_and_by_turn(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(*[say("ok")] * 9)) as b:
        session_id = await a_session(b, *"abcdefg")
        got: list[Any] = []
        cursor = None
        while True:
            page = await b.store.items(
                SessionItemsParams(session_id=session_id, limit=3, cursor=cursor)
            )
            got += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        assert [one.text for one in got][::2] == list("abcdefg")
        turn_id = got[4].turn_id
        page = await b.store.items(SessionItemsParams(session_id=session_id, turn_id=turn_id))
        assert [one.text for one in page.items] == ["c", "ok"]
        for wrong in ("x", "-1.2", "1", "9" * 50):
            with pytest.raises(InvalidParams):
                await b.store.items(SessionItemsParams(session_id=session_id, cursor=wrong))


async def test_a_fork_has_the_turns_up_to_one_and_goes_its_own_way(tmp_path: Path) -> None:
    models = StubModels(answers(say("1"), say("2"), say("3"), say("4")))
    async with bench(tmp_path, models=models) as b:
        session_id = await a_session(b, "a", "b", "c")
        source = await b.store.get(session_id)
        before = journal(tmp_path, session_id).read_bytes()
        turn_ids = [one.turn_id for one in b.records(source) if isinstance(one, r.TurnCompleted)]
        fork = await b.store.fork(SessionForkParams(session_id=session_id, at_turn_id=turn_ids[1]))
        assert fork.state.turns == 2
        assert fork.state.opened.fork is not None
        assert fork.state.opened.fork.turn_id == turn_ids[1]
        assert [one.text for one in await b.items(fork)] == ["a", "1", "b", "2"]
        await finished(fork, fork.start_turn("other"))
        assert [m.text for m in models.requests[-1].messages] == ["a", "1", "b", "2", "other"]
        assert journal(tmp_path, session_id).read_bytes() == before
        whole = await b.store.fork(SessionForkParams(session_id=session_id, name="copy"))
        assert (whole.state.turns, whole.view().name) == (3, "copy")
        with pytest.raises(InvalidParams):
            await b.store.fork(SessionForkParams(session_id=session_id, at_turn_id="no"))
        empty = await b.create()
        assert (await b.store.fork(SessionForkParams(session_id=empty.id))).state.turns == 0
        assert not [one for one in everything_below(tmp_path) if one.endswith(".part")]


async def test_a_journal_that_somebody_removed_is_said_by_its_path(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        session_id = await a_session(b, "a")
        await b.store.get(session_id)
    async with bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        journal(tmp_path, session_id).unlink()
        with pytest.raises(StoreUnavailable) as refused:
            await actor.load_transcript()
        assert refused.value.data["path"] == str(journal(tmp_path, session_id))


async def test_a_deleted_session_is_gone_and_its_transcript_stays(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        session_id = await a_session(b, "a")
        actor = await b.store.get(session_id)
        await b.listen(actor)
        await b.store.delete(session_id)
        assert b.heard[-1][0] == "session/closed"
        assert b.heard[-1][1].reason == "deleted"
        assert b.kernels[0].closed
        with pytest.raises(SessionClosed):
            await actor.start_turn("x")
    for _ in range(2):
        async with bench(tmp_path) as b:
            with pytest.raises(SessionNotFound):
                await b.store.get(session_id)
            assert (await b.store.list(SessionListParams())).sessions == ()
        assert b"a" in journal(tmp_path, session_id).read_bytes()


async def test_an_ephemeral_session_leaves_the_home_alone(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(say("x"))) as b:
        actor = await b.create(ephemeral=True)
        await finished(actor, actor.start_turn("hi"))
        assert actor.view().journal_path is None
        assert (await b.store.list(SessionListParams())).sessions == ()
        assert b.kernels[0].given["persistent"] is False
        session_id = actor.id
        await actor.close()
        with pytest.raises(SessionNotFound):
            await b.store.get(session_id)
    left = [one for one in everything_below(tmp_path) if "index" not in one]
    assert left == [], "an ephemeral session leaves nothing at all"


# --- who hears what -------------------------------------------------------------------------------


async def test_two_clients_hear_the_same_in_the_same_order(tmp_path: Path) -> None:
    calls = [Text(delta="let me "), Call(id="1", name="python", arguments={"code": "say x"})]
    script = answers([*calls, Done(stop="tool_calls", usage=USAGE)], say("done"))
    async with bench(tmp_path, script) as b:
        actor = await b.create()
        one: list[tuple[str, Any]] = []
        two: list[tuple[str, Any]] = []
        await actor.attach(lambda *told: one.append(told))
        await actor.attach(lambda *told: two.append(told))
        await finished(actor, actor.start_turn("go"))
        assert one == two
        names = [method for method, _ in one]
        assert names[0] == "turn/started"
        assert names.index("turn/completed") > max(
            n for n, name in enumerate(names) if name.startswith("item/")
        )
        seqs = [p.seq for m, p in one if m not in ("item/delta", "usage/updated")]
        assert seqs == sorted(seqs)
        opened: dict[str, str] = {}
        for method, payload in one:
            if method == "item/started":
                opened[payload.item.id] = ""
            if method == "item/delta":
                assert payload.offset == len(opened[payload.item_id]), "deltas are contiguous"
                opened[payload.item_id] += payload.text
            if method == "item/completed" and payload.item.id in opened:
                item = payload.item
                assert opened[item.id] == (
                    item.text if isinstance(item, AgentMessage) else item.stdout
                )


async def test_a_client_that_comes_back_hears_exactly_what_it_missed(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(*[say("ok")] * 4)) as b:
        actor = await b.create()
        whole: list[Any] = []
        await actor.attach(lambda method, payload: whole.append((method, payload)))
        for text in "abc":
            await finished(actor, actor.start_turn(text))
        lasting = ("turn/started", "item/completed", "turn/completed")
        whole = [told for told in whole if told[0] in lasting]
        for seq in range(actor.state.seq + 1):
            missed: list[Any] = []
            resumed = await actor.attach(
                lambda method, payload, missed=missed: missed.append((method, payload)),
                Cursor(gen=1, seq=seq),
            )
            assert resumed.replay == "complete"
            assert resumed.cursor == Cursor(gen=1, seq=actor.state.seq)
            told = [one for one in missed if one[0] in lasting]
            assert told == [one for one in whole if one[1].seq > seq]
        for cursor in (None, Cursor(gen=2, seq=1), Cursor(gen=1, seq=999)):
            missed = []
            resumed = await actor.attach(lambda *one, missed=missed: missed.append(one), cursor)
            assert resumed.replay == "none"
            quiet = ["session/quiet"] if cursor else []
            assert [method for method, _ in missed] == quiet


async def test_a_client_that_comes_in_the_middle_gets_the_text_so_far(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = answers([Text(delta="Hello "), gate.wait, *say("world")])
    async with bench(tmp_path, script) as b:
        actor = await b.create()
        await b.listen(actor)
        await actor.start_turn("go")
        await until(lambda: any(method == "item/delta" for method, _ in b.heard))
        late: list[tuple[str, Any]] = []
        resumed = await actor.attach(lambda *told: late.append(told), Cursor(gen=1, seq=1))
        assert resumed.replay == "complete"
        gate.set()
        await finished(actor)
        [(at, started)] = [(n, p) for n, (m, p) in enumerate(late) if m == "item/started"]
        assert started.item.text == "Hello "
        delta = next(p for m, p in late[at:] if m == "item/delta")
        assert (delta.offset, delta.text) == (6, "world")


async def test_nothing_is_heard_of_what_is_not_durable(tmp_path: Path) -> None:
    from rlm_host.sessions.files import Files

    synced: list[int] = []
    heard_at: list[tuple[int, int]] = []

    class Counting(Files):
        def sync(self, fd: int) -> None:
            super().sync(fd)
            synced.append(len(journal_path.read_bytes().splitlines()))

    call = Call(id="1", name="python", arguments={"code": "say x"})
    script = answers([call, Done(stop="tool_calls", usage=USAGE)], say("ok"))
    async with bench(tmp_path, script, files=Counting()) as b:
        actor = await b.create()
        journal_path = journal(tmp_path, actor.id)
        await actor.attach(
            lambda method, payload: heard_at.append((payload.seq, synced[-1] if synced else 1))
        )
        await finished(actor, actor.start_turn("go"))
    assert all(seq <= on_disk for seq, on_disk in heard_at)


async def test_a_listener_that_left_hears_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, answers(say("ok"))) as b:
        actor = await b.create()
        heard: list[str] = []

        def listener(method: str, payload: object) -> None:
            heard.append(method)

        await actor.attach(listener)
        await actor.attach(listener)
        actor.detach(listener)
        await finished(actor, actor.start_turn("go"))
        assert heard == []


async def test_artifacts_are_read_by_id_only(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create()
        (tmp_path / "secret").write_text("x")
        with actor.artifacts() as folder:
            folder.write("text", "a€b".encode())
            folder.write("bytes", b"\xff\xfe\x00")
            (folder.path / "link").symlink_to(tmp_path / "secret")
        for wrong in ("nobody", "../../x", "link", "..", ""):
            with pytest.raises(ArtifactNotFound):
                await actor.read_artifact(wrong, 0, 10)
        first = await actor.read_artifact("text", 0, 3)
        assert (first.text, first.next_offset, first.size_bytes) == ("a", 1, 5)
        second = await actor.read_artifact("text", 1, 100)
        assert (second.text, second.next_offset) == ("€b", None)
        assert (await actor.read_artifact("bytes", 0, 10)).data == b"\xff\xfe\x00"
        assert (await actor.read_artifact("text", 99, 10)).text == ""


# --- large journals -------------------------------------------------------------------------------


async def test_a_long_session_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        actor = await b.create()
        session_id = actor.id
        for n in range(1100):
            actor.write(r.SessionRenamed(name=str(n)))
        await actor.append(r.SessionRenamed(name="last"))
    async with bench(tmp_path) as b:
        actor = await b.store.get(session_id)
        assert (actor.state.name, actor.state.seq) == ("last", 1102)
        assert actor._checkpointed == 1102
        missed: list[Any] = []
        await actor.attach(lambda *told: missed.append(told), Cursor(gen=1, seq=1090))
        assert [payload.seq for _, payload in missed[:-1]] == list(range(1091, 1103))
        assert missed[-1][0] == "session/quiet"
    assert json.loads(journal(tmp_path, session_id).read_bytes().splitlines()[0])["seq"] == 1
