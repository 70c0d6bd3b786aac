"""A child's life: stories, what is final, and one end for each task."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.children.lifecycle import LIVING, OPEN, TERMINAL, TRANSITIONS, Do, On, Status, step


def live(*inputs: On) -> tuple[Status, list[Do]]:
    status, done = Status.QUEUED, list[Do]()
    for given_ in inputs:
        status, actions = step(status, given_)
        done += actions
    return status, done


@pytest.mark.parametrize(
    ("inputs", "status", "actions"),
    [
        ("start quiet", "completed", "end"),
        ("start quiet follow_up start quiet", "completed", "end admit end"),
        ("start fail", "error", "end stop"),
        ("fail", "error", "end stop"),
        ("lost", "error", "end"),
        ("start lost", "error", "end"),
        ("start quiet lost", "completed", "end"),
        ("cancel", "cancelled", "end stop"),
        ("start cancel quiet cancel", "cancelled", "end stop"),
        ("start quiet cancel", "completed", "end"),
        ("start delete quiet", "deleted", "end bury stop"),
        ("delete start", "deleted", "end bury stop"),
        ("start quiet delete delete", "deleted", "end bury stop"),
        ("start fail delete", "deleted", "end stop bury"),
        ("start quiet quiet", "completed", "end"),
        ("start quiet wake quiet wake fail wake lost", "completed", "end"),
        ("start quiet wake follow_up start quiet", "completed", "end admit end"),
        ("start quiet wake cancel", "completed", "end stop"),
        ("start quiet wake delete", "deleted", "end bury stop"),
        ("wake", "queued", ""),
        ("start wake", "running", ""),
        ("start fail follow_up start", "error", "end stop"),
    ],
)
def test_stories(inputs: str, status: str, actions: str) -> None:
    assert live(*map(On, inputs.split())) == (
        Status(status),
        [Do(action) for action in actions.split()],
    )


def test_deleted_is_final_and_a_terminal_child_never_lives_again() -> None:
    for status, given_ in itertools.product(TERMINAL, On):
        after, _ = step(status, given_)
        assert after in TERMINAL
        assert status is not Status.DELETED or (after, _) == (Status.DELETED, ())


def test_every_row_of_the_table_can_be_reached() -> None:
    reached, frontier = {Status.QUEUED}, [Status.QUEUED]
    while frontier:
        status = frontier.pop()
        for given_ in On:
            after, _ = step(status, given_)
            if after not in reached:
                reached.add(after)
                frontier.append(after)
    assert reached == set(Status) == {status for status, _ in TRANSITIONS} | {Status.DELETED}
    assert reached == LIVING | TERMINAL


@given(st.lists(st.sampled_from(On), max_size=30))
def test_each_task_ends_exactly_once(inputs: list[On]) -> None:
    status, open_tasks = Status.QUEUED, 1
    for given_ in inputs:
        status, actions = step(status, given_)
        for action in actions:
            open_tasks += (action is Do.ADMIT) - (action is Do.END)
        assert open_tasks in (0, 1)
        assert (open_tasks == 1) == (status in OPEN)
