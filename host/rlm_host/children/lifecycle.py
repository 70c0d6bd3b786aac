"""
The life of a child as a table: what may happen in each status, and what the host then does.

Pure. `step` is total over `On`: whatever the world sends in whatever order, a terminal status stays
terminal, and each task ends in exactly one END action.
"""

from enum import StrEnum


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    AWAKE = "awake"
    """Running, beyond its task: a sibling or a person said something to a completed child."""
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"
    DELETED = "deleted"


class On(StrEnum):
    START = "start"
    """A place to run is free."""
    QUIET = "quiet"
    """Its session has no turn, nothing queued, no living descendant and no background command."""
    FAIL = "fail"
    """It could not start, its turn failed, or a required result is missing."""
    LOST = "lost"
    """The host restarted while its task was open."""
    WAKE = "wake"
    """Its session runs a turn though it has no open task."""
    FOLLOW_UP = "follow_up"
    """Its parent gave it another task."""
    CANCEL = "cancel"
    DELETE = "delete"


class Do(StrEnum):
    END = "end"
    """Make the task's one end notice durable in the parent's journal."""
    STOP = "stop"
    """Interrupt the child's session and close it with its descendants."""
    ADMIT = "admit"
    """Make the next task durable and queue it."""
    BURY = "bury"
    """Write the tombstones of its whole subtree."""


S = Status
_NOTHING: tuple[Do, ...] = ()
TERMINAL = frozenset({S.ERROR, S.CANCELLED, S.DELETED})
LIVING = frozenset(Status) - TERMINAL
"""Listed, addressable, and holding its name."""
OPEN = frozenset({S.QUEUED, S.RUNNING})
"""A task is under way: its end is owed to the parent."""
BUSY = OPEN | {S.AWAKE}
"""Something is going on: the parent is not quiet."""

TRANSITIONS: dict[tuple[Status, On], tuple[Status, tuple[Do, ...]]] = {
    (S.QUEUED, On.START): (S.RUNNING, _NOTHING),
    (S.QUEUED, On.FAIL): (S.ERROR, (Do.END, Do.STOP)),
    (S.QUEUED, On.LOST): (S.ERROR, (Do.END,)),
    (S.QUEUED, On.CANCEL): (S.CANCELLED, (Do.END, Do.STOP)),
    (S.QUEUED, On.DELETE): (S.DELETED, (Do.END, Do.BURY, Do.STOP)),
    (S.RUNNING, On.QUIET): (S.COMPLETED, (Do.END,)),
    (S.RUNNING, On.FAIL): (S.ERROR, (Do.END, Do.STOP)),
    (S.RUNNING, On.LOST): (S.ERROR, (Do.END,)),
    (S.RUNNING, On.CANCEL): (S.CANCELLED, (Do.END, Do.STOP)),
    (S.RUNNING, On.DELETE): (S.DELETED, (Do.END, Do.BURY, Do.STOP)),
    (S.COMPLETED, On.WAKE): (S.AWAKE, _NOTHING),
    (S.COMPLETED, On.FOLLOW_UP): (S.QUEUED, (Do.ADMIT,)),
    (S.COMPLETED, On.CANCEL): (S.COMPLETED, _NOTHING),  # there is no task to cancel
    (S.COMPLETED, On.DELETE): (S.DELETED, (Do.BURY, Do.STOP)),
    (S.AWAKE, On.QUIET): (S.COMPLETED, _NOTHING),
    (S.AWAKE, On.FAIL): (S.COMPLETED, _NOTHING),  # its task had ended well
    (S.AWAKE, On.LOST): (S.COMPLETED, _NOTHING),
    (S.AWAKE, On.FOLLOW_UP): (S.QUEUED, (Do.ADMIT,)),
    (S.AWAKE, On.CANCEL): (S.COMPLETED, (Do.STOP,)),
    (S.AWAKE, On.DELETE): (S.DELETED, (Do.BURY, Do.STOP)),
    (S.ERROR, On.DELETE): (S.DELETED, (Do.BURY,)),
    (S.CANCELLED, On.DELETE): (S.DELETED, (Do.BURY,)),
}
"""Every pair that changes something, or that is expected and changes nothing."""


def step(status: Status, given: On) -> tuple[Status, tuple[Do, ...]]:
    """
    Give the next status and what the host must do, in order. Pure and total.

    A pair outside the table is news that came too late (a second end, a start after a cancel): it
    changes nothing.
    """
    return TRANSITIONS.get((status, given), (status, _NOTHING))
