"""
Typed helpers: `client.session.create(cwd=...)` asks `session/create` and gives a `SessionResult`.

A row here for each request of the registry, under its noun; arguments are the fields of the row's
params, the answer is the row's result. A test holds this table and the registry together.
"""

from collections.abc import Awaitable, Callable
from typing import Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from rlm_protocol import agent, config, host, loop, model, repl, session, turn, usage
from rlm_protocol.base import Empty, NoParams
from rlm_protocol.session import SessionMutateParams, SessionParams, SessionResult

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Caller(Protocol):
    """Whoever asks: a `HostClient`."""

    async def call(self, method: str, params: msgspec.Struct, result: type[T]) -> T:
        """Ask the host. Raises RlmError."""


class Noun:
    """The requests of one noun, bound to a client."""

    def __init__(self, client: Caller) -> None:
        self.client = client


class Verb(Generic[P, R]):
    """One request: `await noun.verb(field=...)`. Raises the method's errors, and HostLost."""

    def __init__(self, method: str, params: Callable[P, msgspec.Struct], result: type[R]) -> None:
        self.method, self.params, self.result = method, params, result

    @overload
    def __get__(self, noun: None, owner: type[Noun]) -> "Verb[P, R]": ...
    @overload
    def __get__(self, noun: Noun, owner: type[Noun]) -> Callable[P, Awaitable[R]]: ...
    def __get__(
        self, noun: Noun | None, owner: type[Noun]
    ) -> "Verb[P, R] | Callable[P, Awaitable[R]]":
        if noun is None:
            return self
        client = noun.client

        async def ask(*args: P.args, **fields: P.kwargs) -> R:
            return await client.call(self.method, self.params(*args, **fields), self.result)

        return ask


class HostNoun(Noun):
    status = Verb("host/status", NoParams, host.HostStatusResult)
    schema = Verb("host/schema", NoParams, host.SchemaResult)
    stop = Verb("host/stop", host.HostStopParams, host.HostStopResult)


class SessionNoun(Noun):
    create = Verb("session/create", session.SessionCreateParams, SessionResult)
    configure = Verb("session/configure", session.SessionConfigureParams, SessionResult)
    resume = Verb("session/resume", session.SessionResumeParams, session.SessionResumeResult)
    detach = Verb("session/detach", SessionParams, Empty)
    list = Verb("session/list", session.SessionListParams, session.SessionListResult)
    read = Verb("session/read", SessionParams, SessionResult)
    items = Verb("session/items", session.SessionItemsParams, session.SessionItemsResult)
    fork = Verb("session/fork", session.SessionForkParams, SessionResult)
    rename = Verb("session/rename", session.SessionRenameParams, SessionResult)
    archive = Verb("session/archive", SessionMutateParams, SessionResult)
    unarchive = Verb("session/unarchive", SessionMutateParams, SessionResult)
    delete = Verb("session/delete", SessionMutateParams, Empty)
    compact = Verb("session/compact", SessionMutateParams, Empty)
    tree = Verb("session/tree", session.SessionTreeParams, session.SessionTreeResult)


class TurnNoun(Noun):
    start = Verb("turn/start", turn.TurnStartParams, turn.TurnStartResult)
    steer = Verb("turn/steer", turn.TurnSteerParams, Empty)
    queue = Verb("turn/queue", turn.TurnQueueParams, turn.TurnQueueResult)
    queue_list = Verb("turn/queueList", turn.TurnQueueListParams, turn.TurnQueueListResult)
    queue_remove = Verb("turn/queueRemove", turn.TurnQueueRemoveParams, Empty)
    interrupt = Verb("turn/interrupt", turn.TurnInterruptParams, turn.TurnInterruptResult)


class ReplNoun(Noun):
    execute = Verb("repl/execute", repl.ReplExecuteParams, repl.ReplExecuteResult)
    interrupt = Verb("repl/interrupt", repl.ReplInterruptParams, repl.ReplInterruptResult)
    complete = Verb("repl/complete", repl.ReplCodeParams, repl.ReplCompleteResult)
    inspect = Verb("repl/inspect", repl.ReplCodeParams, repl.ReplInspectResult)
    names = Verb("repl/names", repl.ReplNamesParams, repl.ReplNamesResult)
    restart = Verb("repl/restart", repl.ReplRestartParams, repl.ReplRestoreResult)
    snapshot = Verb("repl/snapshot", SessionMutateParams, repl.ReplSnapshotResult)
    snapshots = Verb("repl/snapshots", SessionParams, repl.ReplSnapshotsResult)
    restore = Verb("repl/restore", repl.ReplRestoreParams, repl.ReplRestoreResult)


class AgentNoun(Noun):
    list = Verb("agent/list", agent.AgentListParams, agent.AgentListResult)
    spawn = Verb("agent/spawn", agent.AgentSpawnParams, agent.AgentResultOf)
    send = Verb("agent/send", agent.AgentSendParams, agent.AgentSendResult)
    observe = Verb("agent/observe", agent.AgentObserveParams, agent.AgentObserveResult)
    cancel = Verb("agent/cancel", agent.AgentCancelParams, agent.AgentResultOf)
    delete = Verb("agent/delete", agent.AgentTargetParams, agent.AgentResultOf)
    result = Verb("agent/result", agent.AgentResultParams, agent.AgentResultResult)


class UsageNoun(Noun):
    read = Verb("usage/read", usage.UsageReadParams, usage.UsageReadResult)


class ModelNoun(Noun):
    list = Verb("model/list", model.ModelListParams, model.ModelListResult)
    set = Verb("model/set", model.ModelSetParams, SessionResult)


class AuthNoun(Noun):
    state = Verb("auth/state", NoParams, model.AuthStateResult)


class ConfigNoun(Noun):
    read = Verb("config/read", NoParams, config.ConfigResult)
    write = Verb("config/write", config.ConfigWriteParams, config.ConfigResult)


class ArtifactNoun(Noun):
    read = Verb("artifact/read", host.ArtifactReadParams, host.ArtifactReadResult)


class LoopNoun(Noun):
    submit = Verb("loop/submit", loop.LoopSubmitParams, loop.RunResult)
    run = Verb("loop/run", loop.LoopRunParams, loop.RunResult)
    cancel = Verb("loop/cancel", loop.RunControlParams, loop.RunResult)
    pause = Verb("loop/pause", loop.RunControlParams, loop.RunResult)
    resume = Verb("loop/resume", loop.RunControlParams, loop.RunResult)
    report = Verb("loop/report", loop.LoopReportParams, loop.LoopReportResult)
    decisions = Verb("loop/decisions", loop.LoopDecisionsParams, loop.LoopDecisionsResult)
    snapshot = Verb("loop/snapshot", loop.RunParams, loop.LoopSnapshotResult)
    list = Verb("loop/list", loop.LoopListParams, loop.LoopListResult)
    fork = Verb("loop/fork", loop.LoopForkParams, loop.RunResult)


class Nouns:
    """Every noun of the protocol as an attribute of a client."""

    def __init__(self: Caller) -> None:
        self.host = HostNoun(self)
        self.session = SessionNoun(self)
        self.turn = TurnNoun(self)
        self.repl = ReplNoun(self)
        self.agent = AgentNoun(self)
        self.usage = UsageNoun(self)
        self.model = ModelNoun(self)
        self.auth = AuthNoun(self)
        self.config = ConfigNoun(self)
        self.artifact = ArtifactNoun(self)
        self.loop = LoopNoun(self)
