"""
The one registry of JSON-RPC methods: routing, schemas/, openrpc.json and docs come from these rows.

Methods that mutate have an `idempotencyKey?` in their params: a test holds every row to it.
"""

from typing import Any, Literal

import msgspec

from . import agent, config, host, item, loop, model, repl, session, turn, usage
from . import errors as e
from .base import Empty, NoParams, Notification, Params, Result, SessionNotification

SCHEMA_REVISION = 1
"""Grows by one with every change of a row or a payload."""
PROTOCOL_MIN = PROTOCOL_MAX = 1

Direction = Literal["client", "host"]
"""Who sends it."""
Scope = Literal["connection", "host", "session", "kernel", "run"]
"""What the method touches; requests of one scope and id run in order of arrival."""

Payload = type[Params] | type[host.Loose]


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One request: everything that anything else needs to know of it."""

    name: str
    params: Payload
    result: type[Result] | type[Params] | None
    scope: Scope
    direction: Direction = "client"
    mutates: bool = False
    errors: tuple[type[e.RlmError], ...] = ()
    since: int = 1
    stability: Literal["stable", "experimental"] = "stable"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One notification."""

    name: str
    params: type[SessionNotification] | type[Notification] | Payload
    direction: Direction = "host"
    droppable: bool = False
    since: int = 1


_SESSION = (e.SessionNotFound, e.SessionLeased, e.SessionClosed)
_FILE = (e.StoreUnavailable,)
_STORE = (e.StoreFull, e.StoreUnavailable, e.StoreCorrupt)
_KERNEL = (*_SESSION, e.KernelDied, e.KernelBusy, e.KernelUnavailable)
_RUN = (e.RunNotFound, e.StoreFull, e.StoreBusy, e.StoreUnavailable, e.StoreCorrupt)
_AGENT = (*_SESSION, e.AgentNotFound, e.AgentAmbiguous)


def _m(name: str, params: Payload, result: Any, scope: Scope, *errors: Any, **more: Any) -> Method:
    return Method(name=name, params=params, result=result, scope=scope, errors=errors, **more)


def _w(name: str, params: Payload, result: Any, scope: Scope, *errors: Any) -> Method:
    return Method(name=name, params=params, result=result, scope=scope, errors=errors, mutates=True)


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        _m("initialize", host.InitializeParams, host.InitializeResult, "connection"),
        _m("shutdown", NoParams, None, "connection"),
        _m("host/status", NoParams, host.HostStatusResult, "host"),
        _m("host/schema", NoParams, host.SchemaResult, "host"),
        _w("host/stop", host.HostStopParams, host.HostStopResult, "host", e.SessionNotFound),
        # sessions
        _w(
            "session/create",
            session.SessionCreateParams,
            session.SessionResult,
            "host",
            e.ModelUnavailable,
            e.AuthRequired,
            e.ThinkingUnsupported,
            e.ConfigInvalid,
            *_STORE,
        ),
        _w(
            "session/configure",
            session.SessionConfigureParams,
            session.SessionResult,
            "session",
            *_SESSION,
        ),
        _m(
            "session/resume",
            session.SessionResumeParams,
            session.SessionResumeResult,
            "session",
            *_SESSION,
            e.StoreCorrupt,
            e.SchemaTooNew,
        ),
        _m("session/detach", session.SessionParams, Empty, "session", *_SESSION),
        _m("session/list", session.SessionListParams, session.SessionListResult, "host"),
        _m("session/read", session.SessionParams, session.SessionResult, "session", *_SESSION),
        _m(
            "session/items",
            session.SessionItemsParams,
            session.SessionItemsResult,
            "session",
            *_SESSION,
        ),
        _w("session/fork", session.SessionForkParams, session.SessionResult, "session", *_SESSION),
        _w(
            "session/rename",
            session.SessionRenameParams,
            session.SessionResult,
            "session",
            *_SESSION,
        ),
        _w(
            "session/archive",
            session.SessionMutateParams,
            session.SessionResult,
            "session",
            *_SESSION,
        ),
        _w(
            "session/unarchive",
            session.SessionMutateParams,
            session.SessionResult,
            "session",
            *_SESSION,
        ),
        _w("session/delete", session.SessionMutateParams, Empty, "session", *_SESSION),
        _w("session/compact", session.SessionMutateParams, Empty, "session", *_SESSION),
        _m(
            "session/tree",
            session.SessionTreeParams,
            session.SessionTreeResult,
            "session",
            *_SESSION,
        ),
        # turns
        _w(
            "turn/start",
            turn.TurnStartParams,
            turn.TurnStartResult,
            "session",
            *_SESSION,
            e.TurnBusy,
            e.ModelUnavailable,
            *_STORE,
        ),
        _w(
            "turn/steer",
            turn.TurnSteerParams,
            Empty,
            "session",
            *_SESSION,
            e.TurnMismatch,
            e.TurnNotActive,
        ),
        _w("turn/queue", turn.TurnQueueParams, turn.TurnQueueResult, "session", *_SESSION),
        _m(
            "turn/queueList",
            turn.TurnQueueListParams,
            turn.TurnQueueListResult,
            "session",
            *_SESSION,
        ),
        _w("turn/queueRemove", turn.TurnQueueRemoveParams, Empty, "session", *_SESSION),
        _w(
            "turn/interrupt",
            turn.TurnInterruptParams,
            turn.TurnInterruptResult,
            "session",
            *_SESSION,
            e.TurnMismatch,
        ),
        # the kernel
        _w("repl/execute", repl.ReplExecuteParams, repl.ReplExecuteResult, "kernel", *_KERNEL),
        _w(
            "repl/interrupt",
            repl.ReplInterruptParams,
            repl.ReplInterruptResult,
            "session",
            *_SESSION,
        ),
        _m("repl/complete", repl.ReplCodeParams, repl.ReplCompleteResult, "session", *_KERNEL),
        _m("repl/inspect", repl.ReplCodeParams, repl.ReplInspectResult, "session", *_KERNEL),
        _m("repl/names", repl.ReplNamesParams, repl.ReplNamesResult, "kernel", *_KERNEL),
        _w("repl/restart", repl.ReplRestartParams, repl.ReplRestoreResult, "kernel", *_KERNEL),
        _w(
            "repl/snapshot",
            session.SessionMutateParams,
            repl.ReplSnapshotResult,
            "kernel",
            *_KERNEL,
            e.SnapshotFailed,
        ),
        _m(
            "repl/snapshots",
            session.SessionParams,
            repl.ReplSnapshotsResult,
            "session",
            *_SESSION,
            *_FILE,
        ),
        _w(
            "repl/restore",
            repl.ReplRestoreParams,
            repl.ReplRestoreResult,
            "kernel",
            *_KERNEL,
            e.SnapshotFailed,
            e.SnapshotUntrusted,
        ),
        # children
        _m("agent/list", agent.AgentListParams, agent.AgentListResult, "session", *_SESSION),
        _w(
            "agent/spawn",
            agent.AgentSpawnParams,
            agent.AgentResultOf,
            "session",
            *_SESSION,
            e.UnknownOption,
            e.NameInvalid,
            e.ContractRequired,
            e.ContractInvalid,
            e.DepthLimit,
            e.ModelUnavailable,
            e.AuthRequired,
            e.NameTaken,
            e.ThinkingUnsupported,
            e.BudgetExhausted,
            e.ChildLimit,
            *_STORE,
        ),
        _w(
            "agent/send",
            agent.AgentSendParams,
            agent.AgentSendResult,
            "session",
            *_AGENT,
            e.MessageLimit,
            e.PolicyDenied,
        ),
        _m(
            "agent/observe",
            agent.AgentObserveParams,
            agent.AgentObserveResult,
            "session",
            *_AGENT,
            e.PolicyDenied,
        ),
        _w("agent/cancel", agent.AgentCancelParams, agent.AgentResultOf, "session", *_AGENT),
        _w("agent/delete", agent.AgentTargetParams, agent.AgentResultOf, "session", *_AGENT),
        _m(
            "agent/result",
            agent.AgentResultParams,
            agent.AgentResultResult,
            "session",
            *_AGENT,
            e.ResultMissing,
            e.ContractRequired,
            e.FieldNotAdmitted,
        ),
        # usage, models, artifacts
        _m("usage/read", usage.UsageReadParams, usage.UsageReadResult, "session", *_SESSION),
        _m("model/list", model.ModelListParams, model.ModelListResult, "host"),
        _w(
            "model/set",
            model.ModelSetParams,
            session.SessionResult,
            "session",
            *_SESSION,
            e.ModelUnavailable,
            e.AuthRequired,
            e.ThinkingUnsupported,
        ),
        _m("auth/state", NoParams, model.AuthStateResult, "host"),
        _m("config/read", NoParams, config.ConfigResult, "host", e.ConfigInvalid, *_FILE),
        _w(
            "config/write",
            config.ConfigWriteParams,
            config.ConfigResult,
            "host",
            e.ConfigInvalid,
            e.Conflict,
            *_FILE,
        ),
        _m(
            "artifact/read",
            host.ArtifactReadParams,
            host.ArtifactReadResult,
            "session",
            *_SESSION,
            e.ArtifactNotFound,
        ),
        # loops
        _w(
            "loop/submit",
            loop.LoopSubmitParams,
            loop.RunResult,
            "host",
            e.ConfigInvalid,
            e.Conflict,
            *_RUN[1:],
        ),
        _w("loop/run", loop.LoopRunParams, loop.RunResult, "run", *_RUN, e.LeaseHeld),
        _w("loop/cancel", loop.RunControlParams, loop.RunResult, "run", *_RUN),
        _w("loop/pause", loop.RunControlParams, loop.RunResult, "run", *_RUN),
        _w("loop/resume", loop.RunControlParams, loop.RunResult, "run", *_RUN),
        _m("loop/report", loop.LoopReportParams, loop.LoopReportResult, "run", *_RUN),
        _m("loop/decisions", loop.LoopDecisionsParams, loop.LoopDecisionsResult, "run", *_RUN[1:]),
        _m("loop/snapshot", loop.RunParams, loop.LoopSnapshotResult, "run", *_RUN),
        _m("loop/list", loop.LoopListParams, loop.LoopListResult, "host", *_RUN[1:]),
        _w("loop/fork", loop.LoopForkParams, loop.RunResult, "run", *_RUN, e.Conflict),
        # host -> client
        _m(
            "approval/request",
            host.ApprovalRequest,
            host.ApprovalAnswer,
            "session",
            direction="host",
        ),
        _m("tool/call", host.ToolCallRequest, host.ToolCallAnswer, "session", direction="host"),
        _m("loop/step", loop.LoopStepRequest, loop.StepObservation, "run", direction="host"),
        _m("loop/apply", loop.LoopApplyRequest, Empty, "run", direction="host"),
    )
}

RESERVED = frozenset(
    f"{noun}/{verb}"
    for noun, verbs in {
        "goal": ("set", "get", "clear", "complete", "pause", "resume"),
        "schedule": ("add", "list", "cancel", "pause", "resume"),
        "harness": ("list", "apply", "rollback"),
    }.items()
    for verb in verbs
)
"""Names that later revisions give a meaning to: `unsupported` until then, never `unknown`."""

EVENTS: dict[str, Event] = {
    row.name: row
    for row in (
        Event(name="initialized", params=NoParams, direction="client"),
        Event(name="exit", params=NoParams, direction="client"),
        Event(name="$/cancelRequest", params=host.CancelParams, direction="client"),
        Event(name="$/setTrace", params=host.SetTraceParams, direction="client"),
        Event(name="session/created", params=session.SessionCreated),
        Event(name="session/updated", params=session.SessionUpdated),
        Event(name="session/statusChanged", params=session.SessionStatusChanged),
        Event(name="session/closed", params=session.SessionClosed),
        Event(name="session/resync", params=session.SessionResync),
        Event(name="session/quiet", params=session.SessionQuiet),
        Event(name="turn/started", params=turn.TurnStarted),
        Event(name="turn/completed", params=turn.TurnCompleted),
        Event(name="item/started", params=item.ItemStarted),
        Event(name="item/delta", params=item.ItemDelta, droppable=True),
        Event(name="item/completed", params=item.ItemCompleted),
        Event(name="repl/output", params=repl.ReplOutput, droppable=True),
        Event(name="repl/status", params=repl.ReplStatusChanged),
        Event(name="agent/changed", params=agent.AgentChanged),
        Event(name="usage/updated", params=usage.UsageUpdated, droppable=True),
        Event(name="approval/resolved", params=host.ApprovalResolved),
        Event(name="loop/generation", params=loop.LoopGenerationNotice),
        Event(name="loop/completed", params=loop.LoopCompletedNotice),
    )
}
