"""The registry is a fold of the parent's journal: who is listed, named, found, told and gone."""

from typing import Any

import pytest

from rlm_host.children.lifecycle import Status
from rlm_host.children.registry import Registry, notice_id, select
from rlm_protocol import records as r
from rlm_protocol.child import ContextPolicy
from rlm_protocol.errors import AgentAmbiguous, AgentNotFound
from rlm_protocol.item import ChildMessage


def admitted(number: int, **more: Any) -> r.ChildAdmitted:
    return r.ChildAdmitted(
        **{
            "child_id": f"sub-{number}",
            "parent_id": "root",
            "session_id": f"s-{number}",
            "directory": f"sub-{number}",
            "name": f"child {number}",
            "model": "a/b",
            "prompt": "p",
            "depth": 1,
            "max_depth": 2,
            **more,
        }
    )


def status(number: int, state: Any, generation: int = 1, **more: Any) -> r.ChildStatusChanged:
    return r.ChildStatusChanged(
        child_id=f"sub-{number}", status=state, generation=generation, **more
    )


def said(number: int, text: str = "hi") -> r.InputQueued:
    item = ChildMessage(
        id="m", sender_id=f"sub-{number}", sender_name="n", relationship="child", text=text
    )
    return r.InputQueued(item=item, origin="message", mode="steer")


def noticed(number: int, generation: int) -> r.InputQueued:
    item = ChildMessage(
        id=notice_id(f"sub-{number}", generation),
        sender_id=f"sub-{number}",
        sender_name="n",
        relationship="child",
        text="",
        notice="submitted",
    )
    return r.InputQueued(item=item, origin="notice", mode="steer")


def fold(*records: r.Record, session_id: str = "root") -> Registry:
    registry = Registry()
    head = r.SessionOpened(
        session_id=session_id, name="", cwd="/", model="a/b", prompt="", max_depth=2
    )
    for seq, record in enumerate((head, *records), 1):
        registry.apply(r.Entry(seq, 1, 1000 + seq, record))
    return registry


DONE = status(1, "completed", outcome="submitted")


def test_a_child_is_queued_when_it_is_admitted_and_listed_until_it_failed() -> None:
    assert [c.status for c in fold(admitted(1)).living()] == [Status.QUEUED]
    assert [c.status for c in fold(admitted(1), status(1, "running")).living()] == [Status.RUNNING]
    assert [c.status for c in fold(admitted(1), DONE).living()] == [Status.COMPLETED]
    for end in ("error", "cancelled"):
        registry = fold(admitted(1), status(1, end, outcome="failed"))
        assert registry.living() == []
        assert [c.id for c in registry.known()] == ["sub-1"]
        assert registry.taken() == frozenset()


def test_a_tombstone_is_the_last_word() -> None:
    late = (status(1, "running"), DONE, status(1, "queued", 2), said(1), noticed(1, 1))
    registry = fold(admitted(1), r.ChildDeleted(child_id="sub-1"), *late)
    assert registry.known() == registry.living() == registry.busy() == []
    assert registry.children["sub-1"].status is Status.DELETED
    assert not registry.children["sub-1"].owes_notice
    assert registry.taken() == frozenset()


def test_records_of_children_that_nobody_admitted_change_nothing() -> None:
    registry = fold(DONE, said(1), r.ChildDeleted(child_id="sub-1"))
    assert registry.children == {}


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("sub-1", "sub-1"),
        (" s-2 ", "sub-2"),
        ("child 2", "sub-2"),
        ("child 3", AgentNotFound),  # it failed: its name is free
        ("sub-3", "sub-3"),  # and its id still is its own
        ("child 4", AgentNotFound),
        ("sub-4", AgentNotFound),
        ("CHILD 1", AgentNotFound),
        ("", AgentNotFound),
        ("twin", AgentAmbiguous),
    ],
)
def test_selectors(target: str, found: Any) -> None:
    registry = fold(
        admitted(1),
        admitted(2),
        admitted(3),
        status(3, "error", outcome="failed"),
        admitted(4),
        r.ChildDeleted(child_id="sub-4"),
        admitted(5, name="twin"),
        admitted(6, name="twin"),
    )
    if isinstance(found, str):
        assert select(registry.known(), target).id == found
    else:
        with pytest.raises(found):
            select(registry.known(), target)


def test_each_generation_owes_one_notice() -> None:
    done_2 = status(1, "completed", 2, outcome="replied")
    story: list[tuple[r.Record, bool]] = [
        (admitted(1), False),
        (status(1, "running"), False),
        (DONE, True),
        (noticed(1, 1), False),
        (noticed(1, 1), False),
        (status(1, "queued", 2, item_id="i2", turn_id="t2"), False),
        (noticed(1, 1), False),
        (done_2, True),
        (noticed(1, 2), False),
    ]
    for length in range(1, len(story) + 1):
        registry = fold(*(record for record, _ in story[:length]))
        assert registry.children["sub-1"].owes_notice == story[length - 1][1], length


def test_a_child_without_the_terminal_notice_owes_none() -> None:
    quiet = admitted(1, context=ContextPolicy(terminal=False))
    assert not fold(quiet, DONE).children["sub-1"].owes_notice


def test_a_reply_counts_for_the_task_that_is_open() -> None:
    assert fold(admitted(1), said(1)).children["sub-1"].replied
    again = fold(admitted(1), said(1), DONE, status(1, "queued", 2))
    assert not again.children["sub-1"].replied
    late = fold(admitted(1), DONE, said(1), status(1, "queued", 2), status(1, "running", 2))
    assert not late.children["sub-1"].replied


def test_only_the_child_itself_can_reply_for_it() -> None:
    """A sibling of this session may have the same id below another parent."""
    item = ChildMessage(
        id="m", sender_id="sub-1", sender_name="n", relationship="sibling", text="hi"
    )
    heard = r.InputQueued(item=item, origin="message", mode="steer")
    assert not fold(admitted(1), heard).children["sub-1"].replied


def test_a_follow_up_names_the_item_that_gave_it() -> None:
    registry = fold(
        admitted(1, item_id="i1", turn_id="t1"),
        status(1, "error", outcome="failed", error="x"),
        status(1, "queued", 2, item_id="i2", turn_id="t2"),
    )
    child = registry.children["sub-1"]
    assert (child.generation, child.item_id, child.turn_id) == (2, "i2", "t2")
    assert (child.outcome, child.error) == (None, None)


def test_a_completed_child_that_somebody_talks_to_is_awake_and_owes_nothing() -> None:
    registry = fold(admitted(1), status(1, "running"), DONE, noticed(1, 1), status(1, "running"))
    child = registry.children["sub-1"]
    assert (child.status, child.told) == (Status.AWAKE, "running")
    assert registry.busy() == [child]
    assert not child.owes_notice
    again = fold(admitted(1), DONE, status(1, "running"), status(1, "completed")).children["sub-1"]
    assert (again.status, again.outcome, again.owes_notice) == (
        Status.COMPLETED,
        "submitted",
        True,
    )


def test_a_fork_reads_the_children_of_its_origin_and_owns_none() -> None:
    registry = fold(admitted(1), DONE, admitted(2), status(2, "running"), session_id="fork")
    first, second = registry.children.values()
    assert (first.foreign, first.status, first.owes_notice) == (True, Status.COMPLETED, False)
    assert (second.foreign, second.status, second.owes_notice) == (True, Status.CANCELLED, False)
    assert registry.busy() == []
    assert [child.id for child in registry.living()] == ["sub-1"]


def test_a_name_is_taken_by_living_children_with_their_ids() -> None:
    assert fold(admitted(1)).taken() == {"child 1", "sub-1", "s-1"}
