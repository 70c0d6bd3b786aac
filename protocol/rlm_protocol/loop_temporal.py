"""What a durable loop says in a Temporal history: inputs and results of its workflow's parts."""

import msgspec

from .loop import RunStatus
from .loop_records import Event, GateVerdict, Head, Intent, ObservationRecord, Submitted

WORKFLOW = "rlm_loop"
STEP, GATES, APPLY, ROLLBACK, RECORD = (
    "rlm_loop_step",
    "rlm_loop_gates",
    "rlm_loop_apply",
    "rlm_loop_rollback",
    "rlm_loop_record",
)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of inputs and results."""


class Settings(_Part, frozen=True):
    """
    How long things may take. `generations` is how many one execution runs before it continues as a
    new one; `pause_ms` passes before a step that has failed too often is tried again; `task_ms` is
    how long a worker may replay and decide before another one does.
    """

    step_timeout_ms: int = 24 * 3_600_000
    heartbeat_ms: int = 30_000
    pause_ms: int = 60_000
    task_ms: int = 10_000
    generations: int = 500
    deaths: int = 5


class Begin(_Part, frozen=True):
    """
    What an execution begins with: the run as its predecessor left it. `seq` counts events;
    `created_at_ms` is None in the first one, whose own start it is.
    """

    run_id: str
    submitted: Submitted
    head: Head
    seq: int
    token: int
    status: RunStatus
    cancel: str | None
    pause: str | None
    settings: Settings
    created_at_ms: int | None = None


class Told(_Part, frozen=True):
    """What an activity is told. `token` counts activities; its attempts are counted by Temporal."""

    run_id: str
    submitted: Submitted
    head: Head
    token: int
    observation: ObservationRecord | None = None
    intent: Intent | None = None


class Seen(_Part, frozen=True):
    """How one attempt of a step, apply or rollback went; `error` is the type of what it raised."""

    observation: ObservationRecord | None = None
    applied: bool = False
    charged: float = 0.0
    elapsed_ms: float = 0.0
    error: str | None = None
    message: str = ""


class Said(_Part, frozen=True):
    """What the gates said."""

    verdicts: tuple[GateVerdict, ...]


class Recorded(_Part, frozen=True):
    """Events that are durable because they are the input of a scheduled activity."""

    run_id: str
    token: int
    events: tuple[Event, ...]
