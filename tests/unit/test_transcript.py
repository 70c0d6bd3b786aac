"""The model's context: what enters where, whatever comes in between."""

from typing import Any

from rlm_host.models.provider import AssistantMessage, ToolResult, UserMessage
from rlm_host.sessions.prompt import BASE, INSTRUCTIONS_CHARS, Instructions, compose
from rlm_host.sessions.state import SessionState, closing_records
from rlm_host.sessions.transcript import NOT_RUN, UNCERTAIN, Transcript
from rlm_host.sessions.user_cells import bound_names
from rlm_protocol import records as r
from rlm_protocol.item import Notice, ReplCell
from rlm_protocol.item import UserMessage as UserItem
from rlm_protocol.usage import Usage

ASKED = r.ProviderIntent(turn_id="t", attempt=1, model="a/b", sha256="", messages=1)
ENDED = r.TurnCompleted(turn_id="t", status="interrupted")
HEADER = r.SessionOpened(session_id="s", name="n", cwd="/", model="a/b", prompt="", max_depth=2)


def answered(text: str, *calls: str) -> r.ProviderOutcome:
    return r.ProviderOutcome(
        turn_id="t",
        attempt=1,
        model="a/b",
        stop="end",
        usage=Usage(),
        text=text,
        calls=tuple(r.ToolUse(id=one, name="python", arguments={}) for one in calls),
    )


def said(text: str) -> r.ItemCompleted:
    return r.ItemCompleted(item=UserItem(id=text, text=text))


def result(call_id: str) -> r.ItemCompleted:
    cell = ReplCell(id=f"cell-{call_id}", code="x")
    return r.ItemCompleted(item=cell, shown=f"result of {call_id}", call_id=call_id)


def context(*records: r.Record) -> list[Any]:
    transcript = Transcript()
    for seq, record in enumerate(records, 1):
        transcript.apply(r.Entry(seq, 1, 1, record))
    return [one.text for one in transcript.messages]


def test_what_is_said_while_an_answer_is_awaited_enters_behind_it() -> None:
    assert context(said("a"), ASKED, said("b"), answered("1")) == ["a", "1", "b"]


def test_what_is_said_between_calls_and_results_enters_behind_them() -> None:
    records = (said("a"), ASKED, answered("1", "x", "y"), said("b"), result("x"))
    assert context(*records) == ["a", "1", "result of x"]
    assert context(*records, result("y")) == ["a", "1", "result of x", "result of y", "b"]
    assert context(*records, ENDED) == ["a", "1", "result of x", NOT_RUN, "b"]


def test_of_a_lost_host_only_the_call_that_was_next_can_have_run() -> None:
    """Its start may not be recorded yet: the start of a cell waits a moment for its end."""
    records = (said("a"), ASKED, answered("1", "x", "y", "z"), result("x"))
    state = SessionState()
    accepted = r.TurnAccepted(turn_id="t", origin="client")
    for seq, record in enumerate((HEADER, accepted, *records), 1):
        state.apply(r.Entry(seq, 1, 1, record))
    closing = closing_records(state, now_ms=2)
    assert [type(one) for one in closing] == [r.TurnCompleted]
    assert context(*records, *closing) == ["a", "1", "result of x", UNCERTAIN, NOT_RUN]


def test_a_failed_attempt_leaves_nothing_but_what_was_said_meanwhile() -> None:
    failed = r.ProviderFailed(turn_id="t", attempt=1, kind="connection", message="m")
    assert context(said("a"), ASKED, said("b"), failed) == ["a", "b"]


def test_notices_are_shown_only_where_they_say_so() -> None:
    notice = Notice(id="n", level="info", text="for people")
    hidden, shown = r.ItemCompleted(item=notice), r.ItemCompleted(item=notice, shown="for it")
    assert context(hidden, shown) == ["for it"]


def test_a_compaction_keeps_what_it_names() -> None:
    compacted = r.ContextCompacted(summary="sum", kept_from_seq=3, item_id="i")
    got = context(said("a"), answered("1"), said("b"), answered("2"), compacted, said("c"))
    assert got[1:] == ["b", "2", "c"]
    assert got[0].endswith("sum")


def test_kinds_of_messages() -> None:
    transcript = Transcript()
    records = [said("a"), answered("1", "x"), result("x"), answered("2")]
    for seq, record in enumerate(records, 1):
        transcript.apply(r.Entry(seq, 1, 1, record))
    kinds = [type(one) for one in transcript.messages]
    assert kinds == [UserMessage, AssistantMessage, ToolResult, AssistantMessage]
    assert not transcript.unanswered


# --- the prompt -----------------------------------------------------------------------------------


def test_the_prompt_says_what_an_agent_must_know() -> None:
    for needed in (
        "await rlm(",
        "unguarded=True",
        "find_models",
        "get_result",
        "bash(",
        "end your turn",
    ):
        assert needed in BASE, needed
    assert "submit_result" not in BASE
    child = compose([], is_child=True)
    assert child.startswith(BASE)
    assert "submit_result" in child
    assert "send_parent" in child


def test_instructions_come_under_their_origin_and_are_bounded() -> None:
    long = "x" * (INSTRUCTIONS_CHARS + 5)
    prompt = compose(
        [Instructions("Mine."), Instructions(" "), Instructions(long, "/w/AGENTS.md")],
        is_child=False,
    )
    assert prompt.startswith(
        f"{BASE}\n# Instructions\n\nMine.\n\n# Instructions from /w/AGENTS.md\n"
    )
    assert prompt.endswith("[5 characters were cut]\n")


# --- people's cells -------------------------------------------------------------------------------


def test_names_that_a_cell_binds() -> None:
    code = """
import os.path, numpy as np
from a import b as c
x, (y, *z) = 1, 2
def f(local): inner = 1
class K: attr = 1
for i in []: j = 1
with open("f") as h: pass
del gone
if (w := 5): pass
[comp for comp in []]
"""
    want = {"os", "np", "c", "x", "y", "z", "f", "K", "i", "j", "h", "gone", "w"}
    assert bound_names(code) == want
    for hostile in ("a" + ".b" * 30_000, "-" * 30_000 + "1", "(" * 30_000, "x =", "\0"):
        assert bound_names(hostile) == set()
