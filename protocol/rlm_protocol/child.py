"""
Children in the journal of their parent: what a spawn agreed on, and what became of it since.

The registry of a session's children, their usage and the budgets of a tree are folds of these.
"""

from typing import Any, Literal

import msgspec

from .item import Outcome
from .record import Record
from .session import Thinking
from .usage import Budget, Usage


class ResultContract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What the child may submit (seed: rlm-runtime, Python API).

    `schema` is JSON Schema draft 2020-12 without remote references; None admits any JSON value.
    `sink` is a relative path inside the child's directory that always holds the newest result.
    With `required`, a task that ends without a result has failed.
    """

    schema: dict[str, Any] | bool | None = None
    sink: str | None = None
    required: bool = False


class ContextPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Four independent switches: the notice at a task's end, direct messages, observation, fields.

    `fields` names the top-level fields of a result that the parent may read; None admits all.
    """

    terminal: bool = True
    messages: bool = True
    observe: bool = True
    fields: tuple[str, ...] | None = None


# --- `.rlm-contract.json`: the child's life-cycle journal ----------------------------------------


class StoredResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A submitted result: the file that holds its bytes, in the child's directory."""

    file: str
    sha256: str
    size_bytes: int
    stored_at_ms: int


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task of a child, from its admission to the notice that its parent got of its end."""

    generation: int
    given_at_ms: int
    prompt_durable_at_ms: int | None = None
    result: StoredResult | None = None
    replied: bool = False
    ended_at_ms: int | None = None
    outcome: Outcome | None = None
    notice_admitted: bool = False


class ContractDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every task of one child. Written by the host only, replaced as a whole, never shown."""

    version: int = 1
    child_id: str
    session_id: str
    parent_id: str
    contract: ResultContract | None = None
    context: ContextPolicy = ContextPolicy()
    tasks: tuple[Task, ...] = ()


# --- in the parent's journal ----------------------------------------------------------------------


class ChildAdmitted(Record, frozen=True, tag="child_admitted"):
    """
    A child and its first task were admitted: durable before the handle returns.

    `parent_id` is the session that admitted it: in a fork of that session the child is somebody
    else's. `turn_id` and `item_id` are the parent's that launched it, None when a client did.
    """

    child_id: str
    parent_id: str
    session_id: str
    directory: str
    name: str
    model: str
    prompt: str
    depth: int
    max_depth: int
    thinking: Thinking | None = None
    contract: ResultContract | None = None
    context: ContextPolicy = ContextPolicy()
    budget: Budget | None = None
    tools: tuple[str, ...] = ()
    turn_id: str | None = None
    item_id: str | None = None


class ChildStatusChanged(Record, frozen=True, tag="child_status_changed"):
    """
    A child's status, and the generation of the task it belongs to.

    `queued` opens the next task; `turn_id` and `item_id` are then the parent's that gave it.
    `completed`, `error` and `cancelled` close it with its `outcome`, once for each generation;
    `phase` says how far a task had come that a crash cut short. `children` is how many the child
    itself has had by then. `running` after a closed task: somebody else talks to the child.
    """

    child_id: str
    status: Literal["queued", "running", "completed", "error", "cancelled"]
    generation: int
    outcome: Outcome | None = None
    error: str | None = None
    phase: Literal["beforePrompt", "afterPrompt"] | None = None
    children: int = 0
    turn_id: str | None = None
    item_id: str | None = None


class ChildDeleted(Record, frozen=True, tag="child_deleted"):
    """A tombstone for a child and its whole subtree."""

    child_id: str


class ChildUsageAttributed(Record, frozen=True, tag="child_usage_attributed"):
    """
    Usage of a child's subtree was folded into this session (seed: Usage and Cost Attribution).

    `target_item_id` is the parent's item that launched the task, None before there was one (the
    session's own bucket). `aggregate` is the target's sum of children after this record.
    """

    child_id: str
    child_usage: Usage
    aggregate: Usage
    target_item_id: str | None = None


class BudgetReserved(Record, frozen=True, tag="budget_reserved"):
    """
    The worst case of a provider request, or one spawn, was set aside on every scope of `scopes`.

    In the journal of the tree's root, durable before the request goes out.
    """

    reservation_id: str
    session_id: str
    scopes: tuple[str, ...]
    cost_nano_usd: int = 0
    tokens: int = 0
    spawns: int = 0


class BudgetSettled(Record, frozen=True, tag="budget_settled"):
    """What a reservation really took; everything else of it is free again."""

    reservation_id: str
    cost_nano_usd: int = 0
    tokens: int = 0
    spawns: int = 0


class BudgetWarned(Record, frozen=True, tag="budget_warned"):
    """A scope passed 80 % of a limit and its session was told. Once for each scope."""

    scope: str


ChildRecord = (
    ChildAdmitted
    | ChildStatusChanged
    | ChildDeleted
    | ChildUsageAttributed
    | BudgetReserved
    | BudgetSettled
    | BudgetWarned
)
