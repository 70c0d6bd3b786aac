"""The last messages of a session, as its parent may observe them: a bounded fold. Pure."""

from typing import Any

import msgspec

from rlm_protocol import records as r
from rlm_protocol.bridge import ObservedMessage
from rlm_protocol.errors import InvalidParams
from rlm_protocol.item import ChildMessage, ReplCell, UserMessage
from rlm_protocol.limits import OBSERVE_CHARS_MAX, OBSERVE_CHARS_MIN, OBSERVE_LIMIT_MAX


class Recent(msgspec.Struct, kw_only=True):
    """The last 50 messages, each cut to 2,000 characters; `count` is how many there have been."""

    count: int = 0
    messages: list[ObservedMessage] = []

    def apply(self, entry: r.Entry) -> None:
        """Take in the next record of the session's journal."""
        match entry.record:
            case r.ProviderOutcome(text=text, calls=calls):
                self._add("assistant", text, tuple(call.name for call in calls))
            case r.ItemCompleted(item=UserMessage(text=text) | ChildMessage(text=text)):
                self._add("user", text)
            case r.ItemCompleted(item=ReplCell(), shown=str(shown)):
                self._add("tool", shown)
            case _:
                pass

    def last(self, limit: int, max_chars: int) -> tuple[ObservedMessage, ...]:
        """
        Give the last `limit` messages, oldest first, each cut to `max_chars` code points.

        Raises:
            InvalidParams: a number is out of its range; nothing is clamped.
        """
        if not 1 <= limit <= OBSERVE_LIMIT_MAX:
            raise InvalidParams(f"limit is a number from 1 to {OBSERVE_LIMIT_MAX}.", limit=limit)
        if not OBSERVE_CHARS_MIN <= max_chars <= OBSERVE_CHARS_MAX:
            raise InvalidParams(
                f"max_chars is a number from {OBSERVE_CHARS_MIN} to {OBSERVE_CHARS_MAX}.",
                max_chars=max_chars,
            )
        return tuple(_cut(message, max_chars) for message in self.messages[-limit:])

    def preview(self, max_chars: int) -> str:
        """Give the beginning of what the session's model said last; empty when it said nothing."""
        said = (m for m in reversed(self.messages) if m.role == "assistant" and m.text)
        message = next(said, None)
        return "" if message is None else _cut(message, max_chars).text

    def dump(self) -> Any:
        """Give the state as JSON builtins."""
        return msgspec.to_builtins(self)

    def load(self, state: Any) -> None:
        """Take a dumped state. Raises ValueError (msgspec.ValidationError) when it is none."""
        loaded = msgspec.convert(state, Recent)
        self.count, self.messages = loaded.count, loaded.messages

    def _add(self, role: str, text: str, tools: tuple[str, ...] = ()) -> None:
        message = ObservedMessage(index=self.count, role=role, text=text, tools=tools)
        self.count += 1
        self.messages.append(_cut(message, OBSERVE_CHARS_MAX))
        del self.messages[:-OBSERVE_LIMIT_MAX]


def _cut(message: ObservedMessage, max_chars: int) -> ObservedMessage:
    if len(message.text) <= max_chars:
        return message
    return msgspec.structs.replace(message, text=message.text[:max_chars], truncated=True)
