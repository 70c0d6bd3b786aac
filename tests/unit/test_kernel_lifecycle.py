import itertools
from pathlib import Path

import pytest

from rlm_host.kernels.lifecycle import (
    FROM_PEER,
    RENEW,
    TRANSITIONS,
    Action,
    Input,
    InvalidTransition,
    State,
    page,
    step,
)


def run(*inputs: Input) -> tuple[State, list[Action]]:
    state, actions = State.STARTING, []
    for given in inputs:
        state, more = step(state, given)
        actions += more
    return state, actions


@pytest.mark.parametrize(
    ("inputs", "state", "actions"),
    [
        (
            "ready begin done stop exit",
            State.EXITED,
            "stop_timer send_request send_shutdown start_grace_timer stop_timer fail_pending",
        ),
        (
            "ready begin interrupt done",
            State.IDLE,
            "stop_timer send_request send_interrupt start_again_timer stop_timer",
        ),
        (
            "ready begin interrupt timer timer exit",
            State.EXITED,
            "stop_timer send_request send_interrupt start_again_timer send_interrupt "
            "start_kill_timer kill stop_timer fail_pending",
        ),
        (
            "ready begin stop timer timer exit",
            State.EXITED,
            "stop_timer send_request send_interrupt send_shutdown start_grace_timer terminate "
            "start_term_timer kill stop_timer fail_pending",
        ),
        ("timer", State.KILLING, "kill"),
        ("stop", State.KILLING, "kill"),
        ("exit", State.EXITED, "stop_timer fail_pending"),
        ("ready interrupt", State.IDLE, "stop_timer"),
        ("ready begin violation", State.KILLING, "stop_timer send_request report_violation kill"),
        ("ready ready", State.KILLING, "stop_timer report_violation kill"),
        ("ready kill done stop", State.KILLING, "stop_timer kill"),
    ],
)
def test_stories(inputs: str, state: State, actions: str) -> None:
    expected = [Action(name) for name in actions.split()]
    assert run(*map(Input, inputs.split())) == (state, expected)


def test_whatever_the_peer_sends_is_declared_and_exited_is_final() -> None:
    living = set(State) - {State.EXITED}
    assert set(itertools.product(living, FROM_PEER)) <= TRANSITIONS.keys()
    assert not any(state is State.EXITED for state, _ in TRANSITIONS)


@pytest.mark.parametrize("always", [Input.STOP, Input.KILL, Input.INTERRUPT])
def test_a_living_kernel_can_always_be_asked_to_end(always: Input) -> None:
    living = set(State) - {State.EXITED}
    assert {(state, always) for state in living} <= TRANSITIONS.keys()


def test_a_timer_that_is_started_has_an_answer_in_the_state_that_waits_for_it() -> None:
    starts = {a for a in Action if a.startswith("start_")}
    waiting = {after for after, actions in TRANSITIONS.values() if starts & set(actions)}
    assert {(state, Input.TIMER) for state in waiting} <= TRANSITIONS.keys()


def test_an_input_that_a_state_cannot_have_is_our_bug() -> None:
    with pytest.raises(InvalidTransition):
        step(State.BUSY, Input.BEGIN)


def test_every_state_can_be_reached_and_left() -> None:
    reached = {after for after, _ in TRANSITIONS.values()} | {State.STARTING}
    assert reached == set(State)
    for state in set(State) - {State.EXITED}:
        assert any(s is state and a is not state for (s, _), (a, _) in TRANSITIONS.items())


def test_the_diagram_in_the_documents_is_the_table() -> None:
    path = Path(__file__).parents[2] / "docs/states/kernel.md"
    assert path.read_text() == page(), f"renew it with: {RENEW}"
    assert page().count(" --> ") == len(TRANSITIONS) + 2
