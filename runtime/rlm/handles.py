"""
Children, models and messages, as cells see them (seed: rlm-runtime, Python API).

Every function is one host request; the host owns all state. One `RLMSubagent` exists per child and
kernel, and every answer about a child updates it in place.
"""

import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rlm_protocol import bridge as wire

from ._bridge import current

_living: "weakref.WeakValueDictionary[str, RLMSubagent]" = weakref.WeakValueDictionary()


async def host_request(request_type: str, payload: dict[str, Any] | None = None) -> Any:
    """
    Ask the host and give the result of its answer.

    Raises:
        HostError: the host refused; `code`, `kind` and `data` say why.
        RuntimeError: there is no host, or it is gone.
        TypeError, ValueError: the arguments are no request.
    """
    return await current().request(request_type, payload)


async def run(prompt: str, **options: Any) -> "RLMSubagent":
    """
    Admit a child session for `prompt` and give its handle at once, never its answer.

    Options: name, model ("provider/model", required), thinking, result, context, unguarded. The
    host refuses unknown ones, and a spawn without `result` unless `unguarded=True`.
    """
    _text(prompt, "prompt")
    return _handle(await host_request("rlm.run", {"prompt": prompt, "options": options}))


async def find_models(query: str = "", limit: int = 8) -> "list[RLMModel]":
    """Give usable models whose selector or name fits `query`, at most `limit` (1 to 20)."""
    if not isinstance(query, str):
        raise TypeError("query must be a string")
    reply = await host_request(
        "rlm.find_models", {"query": query, "limit": _integer(limit, "limit")}
    )
    return msgspec.convert(_field(reply, "models"), list[RLMModel])


async def list_subagents() -> "list[RLMSubagent]":
    """Give the handles of all direct children."""
    reply = await host_request("rlm.list_subagents")
    return [_handle(row) for row in _field(reply, "subagents")]


async def family() -> wire.Family:
    """Give who can be written to: `current`, and `entries` for parent, siblings and children."""
    return msgspec.convert(await host_request("rlm.family"), wire.Family)


async def send_parent(message: str) -> wire.Receipt:
    """Send a message to the parent session."""
    return await _send("rlm.send_parent", message=_text(message, "message"))


async def send_sibling(name: str, message: str) -> wire.Receipt:
    """Send a message to the sibling with this name or id."""
    return await _send(
        "rlm.send_sibling", name=_text(name, "name"), message=_text(message, "message")
    )


async def send_child(name: "str | RLMSubagent", message: str) -> wire.Receipt:
    """Send a message to the child with this name or id; it becomes the child's next task."""
    return await _send("rlm.send_child", name=_target(name), message=_text(message, "message"))


async def observe(
    target: "str | RLMSubagent", limit: int = 8, max_chars: int = 800
) -> wire.Observation:
    """Give a summary of a child and its last messages (1 to 50, each cut to 80 to 2,000)."""
    payload = {
        "target": _target(target),
        "limit": _integer(limit, "limit"),
        "max_chars": _integer(max_chars, "max_chars"),
    }
    reply = await host_request("rlm.observe", payload)
    _handle(_field(reply, "agent"))
    return msgspec.convert(reply, wire.Observation)


async def info(target: "str | RLMSubagent") -> "RLMSubagent":
    """Give the handle of one child, up to date."""
    return _handle(await host_request("rlm.info", {"target": _target(target)}))


async def delete_subagent(target: "str | RLMSubagent") -> "RLMSubagent":
    """Cancel or close a child and take it out of the registry; its transcript stays on disk."""
    return _handle(await host_request("rlm.delete_subagent", {"target": _target(target)}))


async def submit_result(value: Any) -> wire.Submitted:
    """Hand in this session's result for the running task, checked against its contract; once."""
    return msgspec.convert(
        await host_request("rlm.submit_result", {"value": value}), wire.Submitted
    )


async def get_result(
    target: "str | RLMSubagent",
    fields: Iterable[str] | None = None,
    generation: int | None = None,
) -> Any:
    """Give a child's submitted value, or the admitted `fields` of it; the newest by default."""
    payload: dict[str, Any] = {"target": _target(target)}
    if fields is not None:
        if isinstance(fields, str):
            raise TypeError("fields must be a list of names, not one string")
        payload["fields"] = [_text(field, "a field") for field in fields]
    if generation is not None:
        payload["generation"] = _integer(generation, "generation")
    return _field(await host_request("rlm.get_result", payload), "value")


class RLMModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a spawn may name by `selector`; prices in nano-USD per token."""

    selector: str
    name: str
    provider: str
    context_window: int | None = None
    thinking_levels: tuple[str, ...] = ()
    input_nano_usd_per_token: int | None = None
    output_nano_usd_per_token: int | None = None


class RLMSubagent:
    """
    A child session. Confirms admission; never holds the child's answer.

    Attributes: rlm_child_id, name, session_dir (a Path), model, status, active_session_id,
    session_id, result_path (a Path, or None without a contract). A snapshot keeps what identifies
    the child; `refresh` brings the rest up to date.
    """

    rlm_child_id: str
    name: str
    session_dir: Path
    model: str
    status: str
    active_session_id: str | None
    session_id: str | None
    result_path: Path | None

    def _merge(self, row: wire.Handle) -> None:
        self.rlm_child_id = row.rlm_child_id
        self.name = row.name
        self.session_dir = Path(row.session_dir)
        self.model = row.model
        self.status = row.status
        self.active_session_id = row.active_session_id
        self.session_id = row.session_id
        self.result_path = None if row.result_path is None else Path(row.result_path)

    async def refresh(self) -> "RLMSubagent":
        """Bring this handle up to date."""
        return await info(self)

    async def send(self, message: str) -> wire.Receipt:
        """Send the child a message."""
        return await send_child(self, message)

    async def observe(self, limit: int = 8, max_chars: int = 800) -> wire.Observation:
        """Look at the child's last messages."""
        return await observe(self, limit, max_chars)

    async def info(self) -> "RLMSubagent":
        """Bring this handle up to date."""
        return await info(self)

    async def result(
        self, fields: Iterable[str] | None = None, generation: int | None = None
    ) -> Any:
        """Give the child's submitted value."""
        return await get_result(self, fields, generation)

    async def delete(self) -> "RLMSubagent":
        """Close the child and take it out of the registry."""
        return await delete_subagent(self)

    def __repr__(self) -> str:
        return (
            f"RLMSubagent(rlm_child_id={self.rlm_child_id!r}, name={self.name!r}, "
            f"model={self.model!r}, status={self.status!r})"
        )

    def __reduce__(self) -> Any:
        row = wire.Handle(
            rlm_child_id=self.rlm_child_id,
            name=self.name,
            session_dir=str(self.session_dir),
            model=self.model,
            status="running",
            session_id=self.session_id,
            result_path=None if self.result_path is None else str(self.result_path),
        )
        return _revive, (msgspec.to_builtins(row),)


def _revive(row: dict[str, Any]) -> RLMSubagent:
    """Give the handle of a snapshot; the living one, unchanged, where this kernel has it."""
    return _living.get(row["rlm_child_id"]) or _handle(row)


def _handle(reply: Any) -> RLMSubagent:
    try:
        row = msgspec.convert(reply, wire.Handle)
    except msgspec.ValidationError as why:
        raise RuntimeError(f"the host's answer is no handle of a child: {why}") from None
    handle = _living.get(row.rlm_child_id)
    if handle is None:
        handle = _living[row.rlm_child_id] = RLMSubagent()
    handle._merge(row)
    return handle


async def _send(type_: str, **payload: str) -> wire.Receipt:
    return msgspec.convert(await host_request(type_, payload), wire.Receipt)


def _field(reply: Any, name: str) -> Any:
    if not isinstance(reply, dict) or name not in reply:
        raise RuntimeError(f"the host's answer has no {name!r}")
    return reply[name]


def _target(target: "str | RLMSubagent") -> str:
    return target.rlm_child_id if isinstance(target, RLMSubagent) else _text(target, "target")


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{what} must not be empty")
    return value


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an integer")
    return value
