import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.rpc.outbox import Outbox, merge
from rlm_protocol.item import AgentMessage, ItemCompleted, ItemDelta
from rlm_protocol.repl import ReplOutput
from rlm_protocol.usage import Usage, UsageUpdated


def encode(method: str, payload: msgspec.Struct) -> bytes:
    return msgspec.json.encode({"method": method, "params": payload}) + b"\n"


def delta(offset: int, text: str, *, session: str = "s", item: str = "i") -> ItemDelta:
    return ItemDelta(
        session_id=session, seq=1, gen=1, item_id=item, channel="text", offset=offset, text=text
    )


def completed(seq: int, *, session: str = "s", text: str = "") -> ItemCompleted:
    item = AgentMessage(id="i", text=text)
    return ItemCompleted(session_id=session, seq=seq, gen=1, item=item)


def outbox(soft: int = 2_000, hard: int = 4_000) -> Outbox:
    return Outbox(encode, soft_bytes=soft, hard_bytes=hard)


def put(box: Outbox, payload: ItemCompleted) -> None:
    box.put(encode("item/completed", payload), payload)


def drain(box: Outbox, chunk: int = 1 << 20) -> list[dict]:
    sent = b""
    while (head := box.head()) is not None:
        piece = bytes(head[:chunk])
        box.advance(len(piece))
        sent += piece
    return [json.loads(line) for line in sent.splitlines()]


def test_all_leaves_in_order_below_half_of_the_limit() -> None:
    box = outbox()
    for n in range(4):
        box.put_droppable("item/delta", delta(n, "x"))
    put(box, completed(2))
    assert [m["method"] for m in drain(box)] == ["item/delta"] * 4 + ["item/completed"]
    assert (box.unsent_bytes, box.dropped_bytes) == (0, 0)


def test_above_half_deltas_of_one_item_are_merged() -> None:
    box = outbox()
    put(box, completed(1, session="other", text="f" * 1_000))
    for n in range(50):
        box.put_droppable("item/delta", delta(2 * n, "ab"))
    messages = drain(box)
    assert len(messages) == 2
    assert messages[1]["params"]["text"] == "ab" * 50
    assert (box.dropped_bytes, box.unsent_bytes) == (0, 0)


def test_nothing_is_merged_over_a_message_of_its_session() -> None:
    box = outbox()
    put(box, completed(1, session="other", text="f" * 1_000))
    box.put_droppable("item/delta", delta(0, "a"))
    put(box, completed(2))
    box.put_droppable("item/delta", delta(1, "b"))
    assert [m["params"].get("text", "-") for m in drain(box)] == ["-", "a", "-", "b"]


def test_nothing_is_merged_over_an_answer() -> None:
    box = outbox()
    put(box, completed(1, session="other", text="f" * 1_000))
    box.put_droppable("item/delta", delta(0, "a"))
    box.put(b'{"method": "answer", "params": {}}\n')
    box.put_droppable("item/delta", delta(1, "b"))
    assert [m["method"] for m in drain(box)] == [
        "item/completed",
        "item/delta",
        "answer",
        "item/delta",
    ]


def test_nothing_is_merged_into_what_is_being_sent() -> None:
    box = outbox(soft=400)
    box.put_droppable("item/delta", delta(0, "a" * 200))
    head = box.head()
    assert head is not None
    box.advance(5)
    box.put_droppable("item/delta", delta(200, "b" * 5))
    rest = b""
    while (head := box.head()) is not None:
        rest += bytes(head)
        box.advance(len(head))
    assert rest.startswith(encode("item/delta", delta(0, "a" * 200))[5:])


def test_nothing_overtakes_what_came_while_there_was_room() -> None:
    """A delta waits from a crowded moment, one from a quiet moment: the next one joins neither."""
    box = outbox(soft=400_000, hard=1 << 20)

    def say(text: str) -> None:
        output = ReplOutput(session_id="s", seq=1, gen=1, channel="stdout", text=text)
        box.put_droppable("repl/output", output)

    def crowd() -> None:
        put(box, completed(1, session="other", text="f" * 250_000))

    crowd()
    say("a")
    head = box.head()
    assert head is not None
    box.advance(len(head))
    say("b")
    crowd()
    say("c")
    texts = [m["params"]["text"] for m in drain(box) if m["method"] == "repl/output"]
    assert texts == ["a", "b", "c"]


def test_a_delta_of_any_size_leaves_when_nothing_waits() -> None:
    box = outbox(soft=400)
    box.put_droppable("item/delta", delta(0, "x" * 1_000))
    assert [m["method"] for m in drain(box)] == ["item/delta"]
    assert box.dropped_bytes == 0


def test_above_the_limit_deltas_are_dropped_and_one_resync_waits() -> None:
    box = outbox()
    put(box, completed(7))
    for n in range(100):
        box.put_droppable("item/delta", delta(1_000 * n, "x" * 300, item=str(n)))
    assert box.dropped_bytes > 0
    messages = drain(box)
    resyncs = [m for m in messages if m["method"] == "session/resync"]
    assert [m["params"]["cursor"] for m in resyncs] == [{"gen": 1, "seq": 7}]
    kept = [len(encode("item/delta", delta(1_000 * n, "x" * 300, item=str(n)))) for n in range(100)]
    sent = [m for m in messages if m["method"] == "item/delta"]
    assert box.dropped_bytes == sum(kept[len(sent) :])


def test_a_new_loss_after_the_resync_was_sent_asks_again() -> None:
    box = outbox(soft=300)
    for _ in range(2):
        for n in range(10):
            box.put_droppable("item/delta", delta(n, "x" * 100, item=str(n)))
        assert [m["method"] for m in drain(box)].count("session/resync") == 1


def test_undroppable_messages_make_it_slow_but_one_may_be_large() -> None:
    box = outbox()
    put(box, completed(1, text="x" * 50_000))
    assert not box.slow
    put(box, completed(2))
    assert box.slow


def test_dropping_deltas_never_makes_it_slow() -> None:
    box = outbox()
    for n in range(10_000):
        box.put_droppable("item/delta", delta(n, "x" * 50, item=str(n)))
    assert not box.slow
    assert box.unsent_bytes <= 2_000 + 300


@pytest.mark.parametrize(
    ("old", "new", "joined"),
    [
        (delta(0, "ab"), delta(2, "c"), delta(0, "abc")),
        (delta(0, "ab"), delta(3, "c"), None),
        (delta(0, "ab"), delta(2, "c", item="j"), None),
        (delta(0, "a" * 40_000), delta(40_000, "b" * 40_000), None),
        (
            ReplOutput(session_id="s", seq=1, gen=1, channel="stdout", text="a"),
            ReplOutput(session_id="s", seq=1, gen=1, channel="stderr", text="b"),
            None,
        ),
        (
            UsageUpdated(session_id="s", seq=1, gen=1, own=Usage(), subtree=Usage()),
            UsageUpdated(session_id="s", seq=2, gen=1, own=Usage(responses=1), subtree=Usage()),
            UsageUpdated(session_id="s", seq=2, gen=1, own=Usage(responses=1), subtree=Usage()),
        ),
    ],
)
def test_what_can_be_joined(
    old: msgspec.Struct, new: msgspec.Struct, joined: msgspec.Struct | None
) -> None:
    assert merge(old, new) == joined


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("delta"), st.sampled_from("st"), st.sampled_from("ij"), st.integers(1, 90)
        ),
        st.tuples(st.just("record"), st.sampled_from("st"), st.just("i"), st.integers(1, 90)),
        st.tuples(st.just("send"), st.just("s"), st.just("i"), st.integers(1, 400)),
    ),
    max_size=80,
)


@given(steps)
def test_whatever_happens_records_are_whole_in_order_and_text_has_no_hole_unsaid(
    plan: list,
) -> None:
    """A reader that follows offsets and honours resyncs never misses text without being told."""
    box = outbox(soft=1_500, hard=1 << 30)
    sent, seq = b"", 0
    written: dict[tuple[str, str], int] = {}
    order: list[tuple[str, int]] = []
    for kind, session, item, size in plan:
        if kind == "delta":
            at = written.get((session, item), 0)
            box.put_droppable("item/delta", delta(at, "x" * size, session=session, item=item))
            written[session, item] = at + size
        elif kind == "record":
            seq += 1
            order.append((session, seq))
            put(box, completed(seq, session=session))
        elif (head := box.head()) is not None:
            piece = bytes(head[:size])
            box.advance(len(piece))
            sent += piece
    tail = b""
    while (head := box.head()) is not None:
        tail += bytes(head)
        box.advance(len(head))
    messages = [json.loads(line) for line in (sent + tail).splitlines()]
    assert box.unsent_bytes == 0
    heard = [
        (m["params"]["sessionId"], m["params"]["seq"])
        for m in messages
        if m["method"] == "item/completed"
    ]
    assert heard == order
    lost = {m["params"]["sessionId"] for m in messages if m["method"] == "session/resync"}
    reached: dict[tuple[str, str], int] = {}
    holes = set()
    for m in messages:
        if m["method"] == "item/delta":
            p = m["params"]
            key = (p["sessionId"], p["itemId"])
            if reached.get(key, 0) != p["offset"]:
                holes.add(p["sessionId"])
            reached[key] = p["offset"] + len(p["text"])
    holes |= {
        session
        for (session, item), size in written.items()
        if reached.get((session, item), 0) != size
    }
    assert holes <= lost
    assert bool(box.dropped_bytes) == bool(lost)
