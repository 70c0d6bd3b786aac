"""
A kernel process's life as a table. Everything that moves it from state to state is here.

Rule 1: this module starts no process, reads no clock, sends nothing. The shell (`client.py`) feeds
        it inputs and carries out the actions it returns.
Rule 2: what the peer may send is declared in every living state: a peer's mistake is a transition.
        Any other pair (state, input) missing from TRANSITIONS is our bug: `step` raises.
Rule 3: EXITED has no way out. A restart is another process with a life of its own.
Rule 4: there is one timer. Whoever starts it sets it anew; KILL and EXIT stop it.
"""

from enum import StrEnum, auto


class State(StrEnum):
    """Where the process is in its life."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    INTERRUPTING = auto()
    ESCALATING = auto()
    STOPPING = auto()
    TERMINATING = auto()
    KILLING = auto()
    EXITED = auto()


class Input(StrEnum):
    """What happened to it."""

    READY = auto()
    BEGIN = auto()
    DONE = auto()
    INTERRUPT = auto()
    TIMER = auto()
    STOP = auto()
    KILL = auto()
    VIOLATION = auto()
    EXIT = auto()


class Action(StrEnum):
    """What the shell must now do."""

    SEND_REQUEST = auto()
    SEND_INTERRUPT = auto()
    SEND_SHUTDOWN = auto()
    TERMINATE = auto()
    KILL = auto()
    START_AGAIN_TIMER = auto()
    START_KILL_TIMER = auto()
    START_GRACE_TIMER = auto()
    START_TERM_TIMER = auto()
    STOP_TIMER = auto()
    FAIL_PENDING = auto()
    REPORT_VIOLATION = auto()


S, On, Do = State, Input, Action
FROM_PEER = {On.READY, On.DONE, On.VIOLATION, On.EXIT}

_BROKEN = (S.KILLING, (Do.REPORT_VIOLATION, Do.KILL))
_KILLED = (S.KILLING, (Do.KILL,))
_GONE = (S.EXITED, (Do.STOP_TIMER, Do.FAIL_PENDING))
_ASKED_TO_END = (S.STOPPING, (Do.SEND_INTERRUPT, Do.SEND_SHUTDOWN, Do.START_GRACE_TIMER))

TRANSITIONS: dict[tuple[State, Input], tuple[State, tuple[Action, ...]]] = {
    (S.STARTING, On.READY): (S.IDLE, (Do.STOP_TIMER,)),
    (S.STARTING, On.INTERRUPT): (S.STARTING, ()),  # nothing runs that could be interrupted
    (S.STARTING, On.TIMER): _KILLED,
    (S.STARTING, On.STOP): _KILLED,
    (S.IDLE, On.BEGIN): (S.BUSY, (Do.SEND_REQUEST,)),
    (S.IDLE, On.INTERRUPT): (S.IDLE, ()),  # its cell has just ended
    (S.IDLE, On.STOP): (S.STOPPING, (Do.SEND_SHUTDOWN, Do.START_GRACE_TIMER)),
    (S.BUSY, On.DONE): (S.IDLE, ()),
    (S.BUSY, On.INTERRUPT): (S.INTERRUPTING, (Do.SEND_INTERRUPT, Do.START_AGAIN_TIMER)),
    (S.BUSY, On.STOP): _ASKED_TO_END,
    (S.INTERRUPTING, On.DONE): (S.IDLE, (Do.STOP_TIMER,)),
    (S.INTERRUPTING, On.INTERRUPT): (S.INTERRUPTING, (Do.SEND_INTERRUPT,)),
    (S.INTERRUPTING, On.TIMER): (S.ESCALATING, (Do.SEND_INTERRUPT, Do.START_KILL_TIMER)),
    (S.INTERRUPTING, On.STOP): _ASKED_TO_END,
    (S.ESCALATING, On.DONE): (S.IDLE, (Do.STOP_TIMER,)),
    (S.ESCALATING, On.INTERRUPT): (S.ESCALATING, (Do.SEND_INTERRUPT,)),
    (S.ESCALATING, On.TIMER): _KILLED,
    (S.ESCALATING, On.STOP): _ASKED_TO_END,
    (S.STOPPING, On.DONE): (S.STOPPING, ()),  # the last cell may still finish
    (S.STOPPING, On.INTERRUPT): (S.STOPPING, ()),
    (S.STOPPING, On.STOP): (S.STOPPING, ()),  # stopping twice is not an error
    (S.STOPPING, On.TIMER): (S.TERMINATING, (Do.TERMINATE, Do.START_TERM_TIMER)),
    (S.TERMINATING, On.DONE): (S.TERMINATING, ()),
    (S.TERMINATING, On.INTERRUPT): (S.TERMINATING, ()),
    (S.TERMINATING, On.STOP): (S.TERMINATING, ()),
    (S.TERMINATING, On.TIMER): _KILLED,
    # What a dying process still said is read, and changes nothing.
    (S.KILLING, On.READY): (S.KILLING, ()),
    (S.KILLING, On.DONE): (S.KILLING, ()),
    (S.KILLING, On.VIOLATION): (S.KILLING, ()),
    (S.KILLING, On.INTERRUPT): (S.KILLING, ()),
    (S.KILLING, On.STOP): (S.KILLING, ()),
    (S.KILLING, On.KILL): (S.KILLING, ()),
    # The peer broke the protocol: it cannot be trusted with another cell.
    (S.STARTING, On.DONE): _BROKEN,
    (S.IDLE, On.DONE): _BROKEN,
}
for _state in State:
    if _state is not S.EXITED:
        TRANSITIONS[_state, On.EXIT] = _GONE
        TRANSITIONS.setdefault((_state, On.KILL), _KILLED)
        TRANSITIONS.setdefault((_state, On.READY), _BROKEN)  # it said so before
        TRANSITIONS.setdefault((_state, On.VIOLATION), _BROKEN)


class InvalidTransition(AssertionError):
    """The caller fed an input that this state cannot have. A bug, never a peer's fault."""


def step(state: State, given: Input) -> tuple[State, tuple[Action, ...]]:
    """Give the next state and what to do. Pure: same arguments, same answer."""
    try:
        return TRANSITIONS[state, given]
    except KeyError:
        raise InvalidTransition(f"{given} in state {state}") from None


RENEW = (
    "uv run python -c 'from rlm_host.kernels.lifecycle import page; print(page(), end=str())' "
    "> docs/states/kernel.md"
)


def page() -> str:
    """Render docs/states/kernel.md."""
    lines = ["stateDiagram-v2", "    [*] --> starting"]
    for (state, given), (after, actions) in TRANSITIONS.items():
        label = f"{given} / {', '.join(actions)}" if actions else str(given)
        lines.append(f"    {state} --> {after}: {label}")
    head = ["# The life of a kernel process", "", "Generated; renew it with", f"`{RENEW}`", ""]
    return "\n".join([*head, "```mermaid", *lines, "    exited --> [*]", "```", ""])
