"""Folds of a journal: total, the same from a checkpoint, and prompts that only grow."""

import itertools
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_host.models.provider import AssistantMessage, ToolResult
from rlm_host.sessions.replay import missed_by
from rlm_host.sessions.scan import Found
from rlm_host.sessions.state import SessionState, closing_records
from rlm_host.sessions.transcript import Transcript
from rlm_protocol import records as r
from rlm_protocol.base import Cursor
from rlm_protocol.child import ChildUsageAttributed
from rlm_protocol.item import AgentMessage, Notice, ReplCell, UserMessage
from rlm_protocol.usage import Usage

HEADER = r.SessionOpened(
    session_id="s", name="n", cwd="/", model="a/b", prompt="p", max_depth=2, env_names=("A",)
)
few = st.integers(1, 3)
turns = few.map(lambda n: f"t{n}")
items = few.map(lambda n: f"i{n}")
calls = few.map(lambda n: f"c{n}")
usages = st.builds(Usage, input_tokens=few, cost_nano_usd=few, responses=st.just(1))
texts = st.sampled_from(["a", "b ü", ""])


def cell(item_id: str, author: str) -> ReplCell:
    return ReplCell(id=item_id, code="x = 1", author=author)  # type: ignore[arg-type]


anything = st.one_of(
    st.builds(r.SessionRenamed, name=texts),
    st.builds(r.ModelChanged, model=texts),
    st.builds(r.SessionArchived, archived=st.booleans()),
    st.builds(r.TurnAccepted, turn_id=turns, origin=st.sampled_from(["client", "message"])),
    st.builds(
        r.ProviderIntent, turn_id=turns, attempt=few, model=texts, sha256=texts, messages=few
    ),
    st.builds(
        r.ProviderOutcome,
        turn_id=turns,
        attempt=few,
        model=texts,
        stop=st.just("end"),
        usage=usages,
        text=texts,
        calls=st.lists(calls, max_size=3, unique=True).map(
            lambda ids: tuple(r.ToolUse(id=i, name="python", arguments={}) for i in ids)
        ),
    ),
    st.builds(
        r.ProviderFailed, turn_id=turns, attempt=few, kind=texts, message=texts, usage=usages
    ),
    st.builds(
        r.CellStarted,
        item_id=items,
        code=texts,
        author=st.sampled_from(["model", "client"]),
        turn_id=turns | st.none(),
        call_id=calls | st.none(),
    ),
    st.builds(
        r.ItemCompleted,
        item=st.one_of(
            st.builds(cell, items, st.sampled_from(["model", "client"])),
            st.builds(UserMessage, id=items, text=texts),
            st.builds(AgentMessage, id=items, text=texts),
            st.builds(Notice, id=items, text=texts, level=st.just("info")),
        ),
        shown=texts | st.none(),
        call_id=calls | st.none(),
    ),
    st.builds(
        r.TurnCompleted,
        turn_id=turns,
        status=st.sampled_from(["completed", "interrupted", "failed"]),
    ),
    st.builds(
        r.InputQueued,
        item=st.builds(UserMessage, id=items, text=texts),
        origin=st.just("message"),
        mode=st.sampled_from(["steer", "follow_up"]),
    ),
    st.builds(r.InputWithdrawn, item_id=items),
    st.builds(r.InputsHeld),
    st.builds(r.RequestReceived, key=texts, method=texts, request=texts),
    st.builds(r.RequestRecorded, key=texts, done=st.booleans()),
    st.builds(r.KernelStarted, incarnation=few, reason=st.just("first")),
    st.builds(ChildUsageAttributed, child_id=texts, child_usage=usages, aggregate=usages),
    st.builds(r.UnknownRecord, texts),
)
journals = st.lists(anything, max_size=16)


def entries(records: Sequence[object]) -> list[r.Entry]:
    return [r.Entry(n, 1, 1000 + n, one) for n, one in enumerate([HEADER, *records], 1)]  # type: ignore[arg-type]


def folded(given_: Sequence[r.Entry]) -> SessionState:
    state = SessionState()
    for entry in given_:
        state.apply(entry)
    return state


@settings(max_examples=60)
@given(journals, st.integers(0, 17))
def test_a_fold_goes_on_from_a_checkpoint_as_if_there_were_none(
    records: list[object], cut: int
) -> None:
    whole = entries(records)
    halfway = folded(whole[: cut + 1])
    resumed = msgspec.json.decode(msgspec.json.encode(halfway), type=SessionState)
    for entry in whole[cut + 1 :]:
        resumed.apply(entry)
    assert resumed == folded(whole)


@settings(max_examples=60)
@given(journals)
def test_recovery_closes_everything_once(records: list[object]) -> None:
    state = folded(entries(records))
    closing = closing_records(state, now_ms=5)
    for seq, record in enumerate(closing, state.seq + 1):
        state.apply(r.Entry(seq, 1, 5, record))
    assert (state.turn, state.open_cells) == (None, {})
    assert closing_records(state, now_ms=6) == []
    assert sum(isinstance(one, r.TurnCompleted) for one in closing) <= 1
    assert not any(isinstance(one, r.ProviderIntent) for one in closing), "nothing is sent again"


@settings(max_examples=60)
@given(journals)
def test_own_usage_is_the_sum_of_the_records(records: list[object]) -> None:
    state = folded(entries(records))
    kinds = r.ProviderOutcome | r.ProviderFailed
    own = sum((one.usage for one in records if isinstance(one, kinds)), Usage())
    children = [one.child_usage for one in records if isinstance(one, ChildUsageAttributed)]
    assert state.own == own
    assert state.subtree == sum(children, own)


@settings(max_examples=60)
@given(journals)
def test_prompts_only_grow_and_every_call_has_one_result(records: list[object]) -> None:
    transcript = Transcript()
    before: tuple[object, ...] = ()
    for entry in entries(records):
        transcript.apply(entry)
        now = transcript.messages
        assert now[: len(before)] == before
        before = now
    transcript.apply(r.Entry(99, 1, 1, r.TurnCompleted(turn_id="t", status="interrupted")))
    waiting: list[str] = []
    for message in transcript.messages:
        if isinstance(message, ToolResult):
            assert message.call_id in waiting
            waiting.remove(message.call_id)
        else:
            assert not waiting, "an answer's calls have no results"
            if isinstance(message, AssistantMessage):
                waiting = [call.id for call in message.calls]
    assert waiting == []


@settings(max_examples=60)
@given(journals, st.integers(0, 18), st.integers(0, 2))
def test_a_cursor_gets_exactly_what_it_missed(records: list[object], seq: int, gen: int) -> None:
    whole = entries(records)
    found = [Found(entry, 0, 1, b"") for entry in whole]

    def read_after(after: int) -> itertools.chain[Found]:
        return itertools.chain(one for one in found if one.entry.seq > after)

    replay, missed = missed_by(Cursor(gen=gen, seq=seq), 1, len(whole), [], read_after)
    if gen == 1 and seq <= len(whole):
        assert (replay, missed) == ("complete", whole[seq:])
    else:
        assert (replay, missed) == ("none", [])
