"""A child's life: stories, what is final, and one end for each task."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.children.lifecycle import LIVING, TERMINAL, TRANSITIONS, Do, On, Status, step


def live(*inputs: On) -> tuple[Status, list[Do]]:
    status, done = Status.QUEUED, list[Do]()
    for given_ in inputs:
        status, actions = step(status, given_)
        done += actions
    return status, done


@pytest.mark.parametrize(
    ("inputs", "status", "actions"),
    [
        ("start quiet", "completed", "run end"),
        ("start quiet follow_up start quiet", "completed", "run end admit run end"),
        ("start fail", "error", "run end stop"),
        ("fail", "error", "end stop"),
        ("lost", "error", "end"),
        ("start lost", "error", "run end"),
        ("start quiet lost", "completed", "run end"),
        ("cancel", "cancelled", "end stop"),
        ("start cancel quiet cancel", "cancelled", "run end stop"),
        ("start quiet cancel", "completed", "run end"),
        ("start delete quiet", "deleted", "run end bury stop"),
        ("delete start", "deleted", "end bury stop"),
        ("start quiet delete delete", "deleted", "run end bury stop"),
        ("start fail delete", "deleted", "run end stop bury"),
        ("start quiet quiet", "completed", "run end"),
        ("start fail follow_up start", "error", "run end stop"),
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
def test_each_task_ends_exactly_once_and_stops_only_after_it_was_given(inputs: list[On]) -> None:
    status, open_tasks, runs = Status.QUEUED, 1, 0
    for given_ in inputs:
        status, actions = step(status, given_)
        for action in actions:
            open_tasks += (action is Do.ADMIT) - (action is Do.END)
            runs += action is Do.RUN
        assert open_tasks in (0, 1)
        assert (open_tasks == 1) == (status in (Status.QUEUED, Status.RUNNING))
