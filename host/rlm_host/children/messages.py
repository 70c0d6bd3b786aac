"""
What agents say to each other: who may be written to, how much, how often, and how it reads.

Pure but for the buckets it keeps; the time is an argument. Delivery is the session's
(`SessionActor.deliver`): a message waits there, durable, until a turn takes it up.
"""

import msgspec

from rlm_protocol import limits
from rlm_protocol.errors import InvalidParams, MessageLimit
from rlm_protocol.item import ChildMessage, Outcome

PAIRS_REMEMBERED = 10_000


class _Bucket(msgspec.Struct):
    tokens: float
    at_ms: int


class Buckets:
    """
    A token bucket for each pair of sender and target: three at once, then one each second.

    A pair that has been quiet long enough to be full again is forgotten.
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], _Bucket] = {}

    def take(self, pair: tuple[str, str], *, now_ms: int) -> None:
        """
        Take a token.

        Raises:
            MessageLimit: there is none; `retry_after_ms` says when there will be.
        """
        bucket = self._pairs.pop(pair, None) or _Bucket(limits.MESSAGE_BURST, now_ms)
        elapsed_ms = max(now_ms - bucket.at_ms, 0)
        bucket.tokens = min(
            bucket.tokens + elapsed_ms * limits.MESSAGE_PER_SECOND / 1000, limits.MESSAGE_BURST
        )
        bucket.at_ms = now_ms
        self._pairs[pair] = bucket
        while len(self._pairs) > PAIRS_REMEMBERED:
            del self._pairs[next(iter(self._pairs))]
        if bucket.tokens < 1:
            raise MessageLimit(
                "Too many messages to this agent in a short time; put them into one, or wait.",
                retry_after_ms=round((1 - bucket.tokens) / limits.MESSAGE_PER_SECOND * 1000),
            )
        bucket.tokens -= 1

    def refund(self, pair: tuple[str, str]) -> None:
        """Give back the token of a message that could not be delivered."""
        if (bucket := self._pairs.get(pair)) is not None:
            bucket.tokens = min(bucket.tokens + 1, limits.MESSAGE_BURST)


def read_message(given: str) -> str:
    """
    Give a message without space around it.

    Raises:
        InvalidParams: nothing is left.
        MessageLimit: it is longer than 16,384 characters.
    """
    message = given.strip()
    if not message:
        raise InvalidParams("A message says something; this one is empty.")
    if len(message) > limits.MESSAGE_CHARS:
        raise MessageLimit(
            f"The message has {len(message)} characters and {limits.MESSAGE_CHARS} are admitted; "
            "write a file and send its path.",
            limit_chars=limits.MESSAGE_CHARS,
        )
    return message


def check_pending(waiting: int) -> None:
    """Raises MessageLimit when a target has as many messages waiting as it may have."""
    if waiting >= limits.MESSAGES_PENDING:
        raise MessageLimit(
            f"{waiting} messages already wait for this agent; let it read them first.",
            pending=waiting,
        )


def shown_message(message: ChildMessage) -> str:
    """Give a message as its receiver's model reads it: whose it is, then what it says."""
    whose = {"parent": "your parent", "sibling": "your sibling", "child": "your child"}
    return f"[Message from {whose[message.relationship]} {message.sender_name}]\n{message.text}"


def shown_notice(message: ChildMessage) -> str:
    """Give an end notice as the parent's model reads it."""
    return f"[Your child {message.sender_name} ({message.sender_id})]\n{message.text}"


def notice_text(
    outcome: Outcome,
    *,
    name: str,
    generation: int,
    error: str | None,
    preview: str,
    contracted: bool,
) -> str:
    """Say in words how a task ended; `preview` is the start of the child's last message."""
    task = "Its task" if generation == 1 else f"Its task {generation}"
    said = f" It last said: {preview}" if preview else ""
    match outcome:
        case "submitted":
            return f"{task} ended with a result: await rlm.get_result({name!r})."
        case "replied":
            return f"{task} ended; it has written to you."
        case "endedWithoutReply":
            missing = "without a result or a message" if contracted else "without a message"
            return f"{task} ended {missing}.{said}"
        case "failed":
            return f"{task} failed: {error or 'for an unknown reason'}{said}"
        case "cancelled":
            return f"{task} was cancelled."
