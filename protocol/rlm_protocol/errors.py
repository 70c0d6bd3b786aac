"""
The one error table. Exceptions, JSON-RPC codes, schemas and docs/protocol/errors.md come from it.

Three kinds, never mixed: declared errors (rows of this table), a peer's violation (a value, see
`rpc.Violation`), and our own bugs (logged with a token, answered as `InternalError`).
"""

from typing import Any, ClassVar

TABLE: dict[int, type["RlmError"]] = {}

# Codes that JSON-RPC 2.0 and LSP 3.17 reserve keep their meaning; every other code lies in
# -31999..-31001, outside all reserved ranges. Blocks of a hundred, by noun.
RESERVED = frozenset({-32700, -32600, -32601, -32602, -32603, -32002, -32800, -32801, -32803})


def camel(name: str) -> str:
    """Give `snake_case` as `camelCase`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


class RlmError(RuntimeError):
    """
    Base of every error that crosses a wire.

    A subclass is one row of the table. `code` is its JSON-RPC code and is never reused; `kind` is
    what clients switch on; `meaning` is the text for people and for the docs; `retryable` says
    whether the same request can succeed later unchanged. Keyword arguments of the constructor
    become the `data` object (`message`, if given, replaces `meaning` in this instance).

    `RuntimeError` is the base because a lost host makes pending calls of a cell fail with
    RuntimeError (seed: rlm-runtime, Failure Modes).
    """

    code: ClassVar[int]
    kind: ClassVar[str]
    meaning: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.code in TABLE:
            raise TypeError(f"{cls.__name__} reuses code {cls.code} of {TABLE[cls.code].__name__}")
        cls.kind = cls.__name__[0].lower() + cls.__name__[1:]
        TABLE[cls.code] = cls

    def __init__(self, message: str | None = None, **data: Any) -> None:
        super().__init__(message or self.meaning)
        self.message = message or self.meaning
        self.data = data

    def __str__(self) -> str:
        details = ", ".join(f"{k}={v!r}" for k, v in self.data.items())
        return f"{self.message} ({details})" if details else self.message


# --- reserved by JSON-RPC and LSP ---------------------------------------------------------------


class MalformedFrame(RlmError):
    code = -32700
    meaning = "The peer's bytes are not a message."


class InvalidRequest(RlmError):
    code = -32600
    meaning = "The message is JSON, but not a valid JSON-RPC 2.0 request."


class MethodNotFound(RlmError):
    code = -32601
    meaning = "There is no such method."


class InvalidParams(RlmError):
    code = -32602
    meaning = "The parameters do not fit the method."


class InternalError(RlmError):
    code = -32603
    meaning = "The host has a bug. The token finds the traceback in its log."


class NotInitialized(RlmError):
    code = -32002
    meaning = "The first request must be `initialize`."


class RequestCancelled(RlmError):
    code = -32800
    meaning = "The request was cancelled by its sender."


class ContentModified(RlmError):
    code = -32801
    meaning = "The document changed while the answer was computed."
    retryable = True


class RequestFailed(RlmError):
    code = -32803
    meaning = "The request was valid and failed."


# --- the connection and the host: -310xx --------------------------------------------------------


class TooLarge(RlmError):
    code = -31001
    meaning = "A message is longer than the agreed limit."


class TruncatedFrame(RlmError):
    code = -31002
    meaning = "The stream ended inside a message."


class Overloaded(RlmError):
    code = -31003
    meaning = "Too many requests are in flight."
    retryable = True


class Unsupported(RlmError):
    code = -31004
    meaning = "The method is declared, but this host does not offer it."


class Uncertain(RlmError):
    code = -31005
    meaning = (
        "The request was received before a crash and its outcome is unknown; it was not repeated."
    )


class Conflict(RlmError):
    code = -31006
    meaning = "The same key was used before with other content."


class ConfigInvalid(RlmError):
    code = -31007
    meaning = "A configuration value is missing or out of range."


class HostLost(RlmError):
    code = -31008
    meaning = "The connection to the host is gone."


class ArtifactNotFound(RlmError):
    code = -31009
    meaning = "There is no artifact with this id."


# --- sessions and turns: -311xx -----------------------------------------------------------------


class SessionNotFound(RlmError):
    code = -31101
    meaning = "There is no session with this id."


class SessionLeased(RlmError):
    code = -31102
    meaning = "Another host owns this session."
    retryable = True


class SessionClosed(RlmError):
    code = -31103
    meaning = "The session is being closed or deleted."


class TurnMismatch(RlmError):
    code = -31111
    meaning = "Another turn is running than the one that was expected."


class TurnNotActive(RlmError):
    code = -31112
    meaning = "No turn is running."


class TurnBusy(RlmError):
    code = -31113
    meaning = "A turn is already running in this session."
    retryable = True


# --- kernels: -312xx ----------------------------------------------------------------------------


class KernelDied(RlmError):
    code = -31201
    meaning = "The kernel process ended while it was needed."
    retryable = True


class KernelBusy(RlmError):
    code = -31202
    meaning = "The kernel has too much to do."
    retryable = True


class KernelUnavailable(RlmError):
    code = -31203
    meaning = "No kernel can be started from this recipe."


class SnapshotFailed(RlmError):
    code = -31211
    meaning = "The snapshot could not be written or read."


class SnapshotUntrusted(RlmError):
    code = -31212
    meaning = "The snapshot is not signed by this host; a pickle is code, so it was not loaded."


# --- children: -313xx ---------------------------------------------------------------------------


class UnknownOption(RlmError):
    code = -31301
    meaning = "The spawn names options that do not exist."


class NameInvalid(RlmError):
    code = -31302
    meaning = (
        "A child's name is 1 to 64 characters without space at the ends, and not a reserved word."
    )


class ContractRequired(RlmError):
    code = -31303
    meaning = (
        "A spawn must declare what comes back: pass result={...}, or unguarded=True to go without."
    )


class ContractInvalid(RlmError):
    code = -31304
    meaning = "The result or context contract is not valid."


class DepthLimit(RlmError):
    code = -31305
    meaning = "A session at the maximum depth may not spawn children."


class NameTaken(RlmError):
    code = -31306
    meaning = "A living member of the family has this name."


class ChildLimit(RlmError):
    code = -31307
    meaning = "The session has as many living children as it may have."
    retryable = True


class AgentNotFound(RlmError):
    code = -31311
    meaning = "No child fits the selector."


class AgentAmbiguous(RlmError):
    code = -31312
    meaning = "Several children fit the selector."


class ResultMissing(RlmError):
    code = -31321
    meaning = "The child has not submitted a result."


class ResultInvalid(RlmError):
    code = -31322
    meaning = "The submitted value does not fit the result contract; nothing was stored."


class ResultConflict(RlmError):
    code = -31323
    meaning = "A different result was already submitted for this generation."


class FieldNotAdmitted(RlmError):
    code = -31324
    meaning = "The contract does not admit every field that was asked for."


class NotAChild(RlmError):
    code = -31325
    meaning = "This session has no parent."


class MessageLimit(RlmError):
    code = -31331
    meaning = "The message is too long, too frequent, or its target has too many waiting."
    retryable = True


class PolicyDenied(RlmError):
    code = -31332
    meaning = "The spawn contract, or a person's stop, does not allow this."


# --- models and budgets: -314xx -----------------------------------------------------------------


class ModelUnavailable(RlmError):
    code = -31401
    meaning = "The model cannot be used; none was substituted."


class AuthRequired(RlmError):
    code = -31402
    meaning = "The provider has no active credential."


class ThinkingUnsupported(RlmError):
    code = -31403
    meaning = "The model does not accept this thinking level."


class BudgetExhausted(RlmError):
    code = -31411
    meaning = "The budget has no room for the request."


class ProviderFailed(RlmError):
    code = -31421
    meaning = "The model's provider failed."
    retryable = True


class ToolUnavailable(RlmError):
    code = -31431
    meaning = "The client that offers this tool is not attached, or did not answer in time."
    retryable = True


class ToolFailed(RlmError):
    code = -31432
    meaning = "The client ran the tool, and it failed."


class ApprovalDenied(RlmError):
    code = -31433
    meaning = "A person did not allow this, or nobody decided in time; it was not done."


# --- stores and loops: -315xx -------------------------------------------------------------------


class StoreCorrupt(RlmError):
    code = -31501
    meaning = "A stored record is damaged. Nothing was overwritten."


class StoreFull(RlmError):
    code = -31502
    meaning = "The disk is full. What was acknowledged before is kept."
    retryable = True


class StoreBusy(RlmError):
    code = -31503
    meaning = "The store is locked by another process."
    retryable = True


class StoreUnavailable(RlmError):
    code = -31504
    meaning = "The store cannot be read or written."
    retryable = True


class SchemaTooNew(RlmError):
    code = -31505
    meaning = "The store was written by a newer version."


class RunNotFound(RlmError):
    code = -31511
    meaning = "There is no run with this id."


class LeaseHeld(RlmError):
    code = -31512
    meaning = "Another worker holds the run's lease."
    retryable = True


class LeaseLost(RlmError):
    code = -31513
    meaning = "The run's lease went to another worker; nothing more was written."
    retryable = True


class StepFailed(RlmError):
    code = -31514
    meaning = "A step of the loop failed."
    retryable = True


def to_jsonrpc(error: RlmError) -> dict[str, Any]:
    """Give the JSON-RPC error object; kind and retryability ride in `data`, never in `message`."""
    data = {camel(key): value for key, value in error.data.items()}
    return {
        "code": error.code,
        "message": error.message,
        "data": {"kind": error.kind, "retryable": error.retryable, **data},
    }


def from_jsonrpc(error: dict[str, Any]) -> RlmError:
    """
    Give the exception for a JSON-RPC error object of a peer.

    An unknown code becomes `RequestFailed` with the code in its data, so that a newer peer's errors
    stay errors. The data keys stay as the peer sent them.
    """
    code = error.get("code")
    data = error.get("data")
    extra = (
        {k: v for k, v in data.items() if k not in ("kind", "retryable", "message")}
        if isinstance(data, dict)
        else {}
    )
    row = TABLE.get(code) if isinstance(code, int) else None
    if row is None:
        return RequestFailed(str(error.get("message")), peer_code=code, **extra)
    return row(str(error.get("message") or row.meaning), **extra)


def table_markdown() -> str:
    """Render docs/protocol/errors.md."""
    rows = [
        f"| {e.code} | `{e.kind}` | {'yes' if e.retryable else 'no'} | {e.meaning} |"
        for _, e in sorted(TABLE.items(), reverse=True)
    ]
    head = ["| code | kind | retryable | meaning |", "|---|---|---|---|"]
    return "\n".join(["# Errors", "", *head, *rows, ""])
