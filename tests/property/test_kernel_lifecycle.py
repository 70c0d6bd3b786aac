from hypothesis import given
from hypothesis import strategies as st

from rlm_host.kernels.lifecycle import TRANSITIONS, Action, Input, State, step

stories = st.lists(st.sampled_from(Input), max_size=40)


@given(stories)
def test_a_request_is_never_abandoned_silently(inputs: list[Input]) -> None:
    state, pending = State.STARTING, 0
    for given_ in inputs:
        if (state, given_) not in TRANSITIONS:
            continue
        before = state
        state, actions = step(state, given_)
        pending += Action.SEND_REQUEST in actions
        pending -= given_ is Input.DONE and pending > 0 and before is not State.IDLE
        pending = 0 if Action.FAIL_PENDING in actions else pending
        assert pending in (0, 1)
        assert pending == 1 or state not in (State.BUSY, State.INTERRUPTING, State.ESCALATING)
    assert state is not State.EXITED or pending == 0


@given(stories)
def test_the_process_is_killed_before_anything_waits_for_ever(inputs: list[Input]) -> None:
    """In every state but idle, busy, killing and exited a timer runs."""
    state, timer = State.STARTING, True  # the shell starts it with the process
    stops = {Action.STOP_TIMER, Action.KILL}
    for given_ in inputs:
        if (state, given_) not in TRANSITIONS or (given_ is Input.TIMER and not timer):
            continue
        timer = timer and given_ is not Input.TIMER
        state, actions = step(state, given_)
        for action in actions:
            timer = action.startswith("start_") or (timer and action not in stops)
        resting = state in (State.IDLE, State.BUSY, State.KILLING, State.EXITED)
        assert timer is not resting
