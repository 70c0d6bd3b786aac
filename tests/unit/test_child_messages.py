"""Messages between agents: form, rate, number waiting, and how they read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.children import messages
from rlm_host.children.messages import Buckets
from rlm_protocol.errors import InvalidParams, MessageLimit
from rlm_protocol.item import ChildMessage

PAIR = ("a", "b")


def test_three_at_once_then_one_each_second() -> None:
    buckets = Buckets()
    for _ in range(3):
        buckets.take(PAIR, now_ms=0)
    with pytest.raises(MessageLimit) as caught:
        buckets.take(PAIR, now_ms=400)
    assert caught.value.data["retry_after_ms"] == 600
    buckets.take(PAIR, now_ms=1000)
    with pytest.raises(MessageLimit):
        buckets.take(PAIR, now_ms=1999)
    buckets.take(("b", "a"), now_ms=1999)
    buckets.take(("a", "c"), now_ms=1999)


def test_a_failed_delivery_gives_its_token_back_and_never_more() -> None:
    buckets = Buckets()
    buckets.take(PAIR, now_ms=0)
    for _ in range(5):
        buckets.refund(PAIR)
    buckets.refund(("x", "y"))
    for _ in range(3):
        buckets.take(PAIR, now_ms=0)
    with pytest.raises(MessageLimit):
        buckets.take(PAIR, now_ms=0)


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_no_second_sees_more_than_the_burst_and_its_own(gaps: list[int]) -> None:
    buckets, now, taken = Buckets(), 0, []
    for gap in gaps:
        now += gap
        try:
            buckets.take(PAIR, now_ms=now)
        except MessageLimit:
            continue
        taken.append(now)
    for start in taken:
        within = [at for at in taken if start <= at <= start + 1000]
        assert len(within) <= 4


def test_a_clock_that_jumps_back_gives_nothing_away() -> None:
    buckets = Buckets()
    for _ in range(3):
        buckets.take(PAIR, now_ms=10_000)
    with pytest.raises(MessageLimit):
        buckets.take(PAIR, now_ms=0)


@pytest.mark.parametrize(
    ("given_", "want"),
    [
        ("  hi\n", "hi"),
        ("x" * 16_384, "x" * 16_384),
        (" " + "x" * 16_384 + " ", "x" * 16_384),
        ("", InvalidParams),
        (" \n", InvalidParams),
        ("x" * 16_385, MessageLimit),
    ],
)
def test_the_form_of_a_message(given_: str, want: str | type[Exception]) -> None:
    if isinstance(want, str):
        assert messages.read_message(given_) == want
    else:
        with pytest.raises(want):
            messages.read_message(given_)


def test_twenty_may_wait() -> None:
    messages.check_pending(19)
    with pytest.raises(MessageLimit):
        messages.check_pending(20)


def test_a_receiver_reads_whose_message_it_is() -> None:
    message = ChildMessage(
        id="m", sender_id="sub-1", sender_name="api", relationship="sibling", text="look at a.py"
    )
    assert messages.shown_message(message) == "[Message from your sibling api]\nlook at a.py"


@pytest.mark.parametrize(
    ("outcome", "generation", "contracted", "want"),
    [
        ("submitted", 1, True, "Its task ended with a result: await rlm.get_result('api')."),
        ("replied", 2, False, "Its task 2 ended; it has written to you."),
        (
            "endedWithoutReply",
            1,
            True,
            "Its task ended without a result or a message. It last said: done",
        ),
        ("endedWithoutReply", 1, False, "Its task ended without a message. It last said: done"),
        ("failed", 1, True, "Its task failed: no disk It last said: done"),
        ("cancelled", 3, False, "Its task 3 was cancelled."),
    ],
)
def test_a_parent_reads_how_a_task_ended(
    outcome: messages.Outcome, generation: int, contracted: bool, want: str
) -> None:
    text = messages.notice_text(
        outcome,
        name="api",
        generation=generation,
        error="no disk",
        preview="done",
        contracted=contracted,
    )
    assert text == want
