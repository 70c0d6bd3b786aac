"""One answer of a model as it streams in: items for clients, one whole outcome for the journal."""

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlm_protocol import records as r
from rlm_protocol.item import AgentMessage, ItemDelta, ItemStarted, Reasoning
from rlm_protocol.usage import Usage

from ..models.provider import Call, Done, Provider, ProviderError, Request, Text, Think
from ..models.provider import Usage as Measured

if TYPE_CHECKING:
    from .session import SessionActor

VOID = Usage(responses=1, unmeasured=1)
"""Of an answer that broke off: the vendor may bill it, and did not say how much it was."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer."""

    text: str
    thinking: str
    calls: tuple[Call, ...]
    done: Done


class _Streamed:
    """The text of one item that grows."""

    def __init__(self, kind: type[AgentMessage] | type[Reasoning], item_id: str) -> None:
        self.kind, self.item_id = kind, item_id
        self.parts: list[str] = []
        self.chars = 0
        self.seq = 0
        self.started_at_ms = 0


class Answering:
    """Collects one attempt's answer and tells clients of it as it comes."""

    def __init__(self, session: "SessionActor", turn_id: str) -> None:
        self._session, self._turn_id = session, turn_id
        self._streamed: dict[type[Any], _Streamed] = {}
        self._began = False

    async def collect(self, provider: Provider, request: Request) -> Answer:
        """
        Read the stream to its end.

        Raises:
            ProviderError: it failed, or ended without saying that it was complete. Nothing of it
                counts then, and no call of it may run.
        """
        calls: list[Call] = []
        done: Done | None = None
        async with aclosing(provider.stream(request)) as events:
            async for event in events:
                self._began = True
                match event:
                    case Text(delta=delta):
                        self._add(AgentMessage, delta)
                    case Think(delta=delta):
                        self._add(Reasoning, delta)
                    case Call():
                        calls.append(event)
                    case Done():
                        done = event
        if done is None:
            raise ProviderError(
                "bad_output",
                "The provider's stream ended without saying that the answer is complete.",
                partial=self._began,
            )
        return Answer(
            text=self._text(AgentMessage),
            thinking=self._text(Reasoning),
            calls=tuple(calls),
            done=done,
        )

    def completed(
        self, answer: Answer, attempt: int, model: str
    ) -> tuple[r.ProviderOutcome, list[r.Record]]:
        """Give the outcome of a complete answer and the records of its items."""
        outcome = r.ProviderOutcome(
            turn_id=self._turn_id,
            attempt=attempt,
            model=model,
            stop=answer.done.stop,
            usage=usage_of(answer.done.usage),
            text=answer.text,
            thinking=answer.thinking,
            calls=tuple(
                r.ToolUse(id=call.id, name=call.name, arguments=call.arguments)
                for call in answer.calls
            ),
            opaque=answer.done.opaque,
        )
        return outcome, self._items("completed")

    def failed(self, why: Exception, attempt: int) -> list[r.Record]:
        """Give the records of an attempt that has no answer: its failure and its broken items."""
        if isinstance(why, ProviderError):
            kind, message, retryable = str(why.kind), why.message, why.retryable
        else:
            kind, message, retryable = "interrupted", "The turn was interrupted.", False
        failure = r.ProviderFailed(
            turn_id=self._turn_id,
            attempt=attempt,
            kind=kind,
            message=message,
            retryable=retryable,
            usage=self.void_usage() or Usage(),
        )
        return [failure, *self._items("interrupted" if kind == "interrupted" else "failed")]

    def void_usage(self) -> Usage | None:
        """Give the usage of an attempt without an answer; None when none of it had come."""
        return VOID if self._began else None

    def _add(self, kind: type[AgentMessage] | type[Reasoning], delta: str) -> None:
        session = self._session
        streamed = self._streamed.get(kind)
        if streamed is None:
            streamed = self._start(kind)
        offset = streamed.chars
        streamed.parts.append(delta)
        streamed.chars += len(delta)
        session.emit(
            "item/delta",
            ItemDelta(
                **session.where(streamed.seq),
                item_id=streamed.item_id,
                channel="text",
                offset=offset,
                text=delta,
            ),
        )

    def _start(self, kind: type[AgentMessage] | type[Reasoning]) -> _Streamed:
        session = self._session
        prefix = "msg" if kind is AgentMessage else "think"
        streamed = self._streamed[kind] = _Streamed(kind, session.new_id(prefix))
        streamed.seq, streamed.started_at_ms = session.last_seq, session.clock.now_ms()
        item = self._item(streamed, "inProgress")
        session.subscriptions.open_item(
            streamed.item_id, streamed.seq, lambda: self._item(streamed, "inProgress")
        )
        started = ItemStarted(**session.where(streamed.seq), item=item)
        session.emit("item/started", started)
        return streamed

    def _item(
        self,
        streamed: _Streamed,
        status: Literal["inProgress", "completed", "failed", "interrupted"],
        completed_at_ms: int | None = None,
    ) -> AgentMessage | Reasoning:
        return streamed.kind(
            id=streamed.item_id,
            turn_id=self._turn_id,
            status=status,
            text="".join(streamed.parts),
            started_at_ms=streamed.started_at_ms,
            completed_at_ms=completed_at_ms,
        )

    def _items(self, status: Literal["completed", "failed", "interrupted"]) -> list[r.Record]:
        now_ms = self._session.clock.now_ms()
        records: list[r.Record] = []
        for streamed in self._streamed.values():
            self._session.subscriptions.close_item(streamed.item_id)
            records.append(r.ItemCompleted(item=self._item(streamed, status, now_ms)))
        return records

    def _text(self, kind: type[Any]) -> str:
        streamed = self._streamed.get(kind)
        return "".join(streamed.parts) if streamed else ""


def usage_of(measured: Measured) -> Usage:
    """Give the usage of one response; what is not known is counted, never taken as 0."""
    cost = measured.cost_nano_usd
    return Usage(
        input_tokens=measured.input_tokens,
        output_tokens=measured.output_tokens,
        cache_read_tokens=measured.cache_read_tokens,
        cache_write_tokens=measured.cache_write_tokens,
        cost_nano_usd=cost or 0,
        responses=1,
        unknown_cost=int(measured.measured and cost is None),
        unmeasured=int(not measured.measured),
    )
