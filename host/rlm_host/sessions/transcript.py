"""
The model's context: the fold of a journal to the messages of the next request. Pure.

Two promises. Prompts only grow: the messages of each request begin with those of the one before,
whatever was said in between (except after a compaction or a change of the prompt). And they are
well-formed: every call of an answer has exactly one result before anything else follows.
"""

from typing import Any

from rlm_protocol import records as r
from rlm_protocol.errors import HostLost
from rlm_protocol.item import UserMessage as UserItem

from ..models.provider import AssistantMessage, Call, Message, ToolResult, UserMessage

NOT_RUN = "This call was not run: the turn ended before it."
UNCERTAIN = (
    "The host ended before a result of this call was recorded. It may have run; its effects are "
    "uncertain."
)
SUMMARY = "Earlier turns were replaced by this summary:\n\n"


class Transcript:
    """
    Fold entries with `apply`, in order, from the journal's beginning or its last compaction.

    What is said while an answer is awaited or its calls have no results yet waits until they have:
    it enters behind them.
    """

    def __init__(self) -> None:
        self._messages: list[tuple[int, Message]] = []
        self._parked: list[tuple[int, Message]] = []
        self._open_calls: dict[str, str] = {}
        self._asking = False

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the next request."""
        return tuple(message for _, message in self._messages)

    @property
    def unanswered(self) -> bool:
        """Whether something was said that no answer has followed yet."""
        return bool(self._messages) and not isinstance(self._messages[-1][1], AssistantMessage)

    def apply(self, entry: r.Entry) -> None:
        """Take in the next record."""
        match entry.record:
            case r.ProviderIntent():
                self._asking = True
            case r.ProviderFailed():
                self._asking = False
                self._unpark()
            case r.ProviderOutcome() as outcome:
                self._asking = False
                self._close_calls(entry.seq)  # their results can be missing after damage only
                self._messages.append((entry.seq, _answer(outcome)))
                self._open_calls = {call.id: call.name for call in outcome.calls}
                self._unpark()
            case r.ItemCompleted(item=item, shown=shown, call_id=call_id):
                if call_id is not None:
                    self._result(entry.seq, call_id, shown or "", item.status != "completed")
                elif shown is not None or isinstance(item, UserItem):
                    self._say(entry.seq, shown if shown is not None else _text_of(item))
            case r.TurnCompleted(error=error):
                self._asking = False
                host_lost = error is not None and error.kind == HostLost.kind
                self._close_calls(entry.seq, first=UNCERTAIN if host_lost else NOT_RUN)
                self._unpark()
            case r.ContextCompacted() as compacted:
                self._compact(entry.seq, compacted)

    def _say(self, seq: int, text: str) -> None:
        target = self._parked if self._asking or self._open_calls else self._messages
        target.append((seq, UserMessage(text=text)))

    def _result(self, seq: int, call_id: str, text: str, is_error: bool) -> None:
        name = self._open_calls.pop(call_id, None)
        if name is None:
            return  # the answer that asked for it is lost to damage, or was compacted away
        result = ToolResult(call_id=call_id, name=name, text=text, is_error=is_error)
        self._messages.append((seq, result))
        self._unpark()

    def _close_calls(self, seq: int, first: str = NOT_RUN) -> None:
        """Give every open call a result. Calls run one after the other: only the first can have."""
        for nth, call_id in enumerate(tuple(self._open_calls)):
            self._result(seq, call_id, NOT_RUN if nth else first, True)

    def _unpark(self) -> None:
        if not self._open_calls and not self._asking:
            self._messages += self._parked
            self._parked = []

    def _compact(self, seq: int, record: r.ContextCompacted) -> None:
        kept = [(at, message) for at, message in self._messages if at >= record.kept_from_seq]
        self._messages = [(seq, UserMessage(text=SUMMARY + record.summary)), *kept]


def _answer(outcome: r.ProviderOutcome) -> AssistantMessage:
    return AssistantMessage(
        text=outcome.text,
        thinking=outcome.thinking,
        calls=tuple(
            Call(id=call.id, name=call.name, arguments=call.arguments) for call in outcome.calls
        ),
        opaque=outcome.opaque or None,
        model=outcome.model,
    )


def _text_of(item: Any) -> str:
    return str(item.text)
