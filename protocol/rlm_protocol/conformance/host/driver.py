"""A host under test: what it was sent, what it said, and what it may never say."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...errors import RESERVED
from ...framing import UNDECODABLE, encode_headers
from ..peer import Peer
from ..promise import Broken, Violations, expect, short
from .frames import Stray, StrictReader

Message = dict[str, Any]
NOTHING: Message = {"jsonrpc": "2.0"}
INITIALIZE: Message = {"processId": None, "rootUri": None, "capabilities": {}}
ALIVE_METHOD = "conformance/alive"
"""No host has it: that it is refused shows that the connection works."""
_FIRST_ID = 1_000_000
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|File \\\\?\"[^\"]+, line \d")
_encode = msgspec.json.Encoder().encode


def request(id_: object, method: str, params: object = msgspec.UNSET) -> Message:
    """Give a request; without `params` it has none."""
    message = {"jsonrpc": "2.0", "id": id_, "method": method}
    return message if params is msgspec.UNSET else {**message, "params": params}


def notification(method: str, params: object = msgspec.UNSET) -> Message:
    """Give a notification."""
    message = request(None, method, params)
    del message["id"]
    return message


def frame(message: object) -> bytes:
    """Frame a message as a client does."""
    return encode_headers(_encode(message))


class Host(Peer):
    """
    One process of the host, for the length of a `with` block of its `child`.

    `messages` holds everything that it said, in order; `reply` answers the host's requests.
    """

    def __init__(
        self,
        command: Sequence[str],
        violations: Violations,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(command, violations, timeout_s=timeout_s, env=env)
        self.messages: list[Message] = []
        self.offered: frozenset[str] = frozenset()
        self.capabilities: Message = {}
        self._reader = StrictReader()
        self._next_id = _FIRST_ID
        self._open: dict[str, int] = {}
        self._answers: dict[str, list[Message]] = {}
        self.reply: Callable[[Message], object] = _refuse_everything

    # --- saying -----------------------------------------------------------------------------------

    def new_id(self) -> int:
        """Give an id that was not used before."""
        self._next_id += 1
        return self._next_id - 1

    def write(self, data: bytes) -> None:
        """Send bytes as they are; waits for nothing."""
        self.child.write(data)
        self.child.pump(lambda: True, 0)

    def say(self, *messages: Message) -> None:
        """Send messages in one write; waits for nothing."""
        for message in messages:
            if "method" in message and "id" in message:
                self.owes(message["id"])
        self.write(b"".join(map(frame, messages)))

    def owes(self, *ids: object) -> None:
        """Note that one more answer to each of these ids is due, for requests sent as bytes."""
        for id_ in ids:
            self._open[_key(id_)] = self._open.get(_key(id_), 0) + 1

    def settle(self, *ids: object) -> None:
        """Note that no answer to these ids is due any more."""
        for id_ in ids:
            self._open.pop(_key(id_), None)

    @property
    def own_ids(self) -> range:
        """Ids that `new_id` has given."""
        return range(_FIRST_ID, self._next_id)

    def ask(self, method: str, params: object = msgspec.UNSET) -> Message:
        """Send a request, wait, give its answer."""
        id_ = self.new_id()
        self.say(request(id_, method, params))
        return self.answer(id_)

    def result(self, method: str, params: object = msgspec.UNSET) -> Any:
        """Send a request that must succeed; give its result."""
        answer = self.ask(method, params)
        if "result" not in answer:
            raise Broken(f"{method} was refused: {short(answer.get('error'))}")
        return answer["result"]

    def refusal(self, method: str, params: object, kind: str) -> Message:
        """Send a request that must be refused as `kind`; give the error."""
        answer = self.ask(method, params)
        error: Message = answer.get("error") or {}
        said = (error.get("data") or {}).get("kind")
        expect(said == kind, f"{method} is not refused as {kind}", answer=answer)
        return error

    def tell(self, method: str, params: object = msgspec.UNSET) -> None:
        """Send a notification."""
        self.say(notification(method, params))

    def initialize(self, params: object = INITIALIZE) -> Message:
        """Shake hands; give the result."""
        result: Message = self.result("initialize", params)
        expect(isinstance(result, dict), "the result of initialize is no object", result=result)
        ours = ((result.get("capabilities") or {}).get("experimental") or {}).get("rlm") or {}
        self.capabilities, self.offered = ours, frozenset(ours.get("methods") or ())
        self.tell("initialized", {})
        return result

    def alive(self) -> None:
        """Hold the connection to working, by a round trip that any JSON-RPC server can do."""
        answer = self.ask(ALIVE_METHOD, {})
        code = (answer.get("error") or {}).get("code")
        expect(code == -32601, "an unknown method is not refused", answer=answer)

    # --- hearing ----------------------------------------------------------------------------------

    def answers(self, id_: object) -> list[Message]:
        """Give the answers to an id so far."""
        return self._answers.get(_key(id_), [])

    def answer(self, id_: object, nth: int = 0) -> Message:
        """Wait for an answer to an id: the first, or the n-th one when the id was used again."""
        self.wait(lambda: len(self.answers(id_)) > nth, f"answer to id {short(id_, 60)!r}")
        return self.answers(id_)[nth]

    def notes(self, *methods: str, since: int = 0) -> list[Message]:
        """Give the notifications of these names among the messages from number `since` on."""
        return [m for m in self.messages[since:] if "id" not in m and m.get("method") in methods]

    def note(self, method: str, since: int = 0) -> Message:
        """Wait for a notification; give its params."""
        self.wait(lambda: bool(self.notes(method, since=since)), method)
        params: Message = self.notes(method, since=since)[0]["params"]
        return params

    def requests(self, method: str) -> list[Message]:
        """Give the host's requests of a name."""
        return [m for m in self.messages if "id" in m and m.get("method") == method]

    # --- judging ----------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        for body in self._reader.receive(data):
            if isinstance(body, Stray):
                self.violations.add("base.frames", f"bytes that are no frame: {short(body)}")
            else:
                self._body(body)

    def _body(self, body: bytes) -> None:
        try:
            message = msgspec.json.decode(body)
        except UNDECODABLE as why:
            self.violations.add("base.strict-json", f"no JSON: {short(body)} ({why})")
            message = _forgiving(body)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self.violations.add("base.shape", f"no JSON-RPC 2.0 message: {short(body)}")
            return
        self.messages.append(message)
        for broken, what in self._judge(message):
            self.violations.add(broken, what)
        if "method" not in message:
            self._answers.setdefault(_key(message.get("id")), []).append(message)
        elif "id" in message:
            answer = self.reply(message)
            if answer is not None:
                self.child.write(frame({**NOTHING, "id": message["id"], **_as_answer(answer)}))

    def _judge(self, message: Message) -> Iterator[tuple[str, str]]:
        """Hold one message to the promises that every message must keep."""
        if "method" in message:
            if message["method"] == "window/showMessage":
                yield "base.no-popup", f"a popup: {short(message.get('params'))}"
            return
        if ("result" in message) == ("error" in message):
            yield "base.shape", f"an answer needs either result or error: {short(message)}"
        key = _key(message.get("id"))
        due = self._open.get(key, 0)
        if due:
            self._open[key] = due - 1
        elif key != "null":
            what = "a second answer" if key in self._answers else "an answer that nobody asked"
            yield "base.one-answer", f"{what}, to id {short(message.get('id'), 60)}"
        if "error" in message:
            yield from _judge_error(message["error"])


def _judge_error(error: Any) -> Iterator[tuple[str, str]]:
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(code, int) or not isinstance(error.get("message"), str):
        yield "base.shape", f"an error needs code and message: {short(error)}"
        return
    if -32768 <= code <= -32000 and code not in RESERVED:
        yield "base.error-codes", f"the reserved code {code} is used: {short(error['message'])}"
    if _TRACEBACK.search(json.dumps(error)):
        yield "base.no-traceback", f"a traceback is sent with code {code}"
    data = error.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    retryable = data.get("retryable") if isinstance(data, dict) else None
    if not isinstance(kind, str) or not isinstance(retryable, bool):
        yield "base.error-data", f"error {code} has no data.kind and data.retryable"


def _refuse_everything(_: Message) -> object:
    return {"error": {"code": -32601, "message": "this client has no such method"}}


def _as_answer(answer: object) -> Message:
    if isinstance(answer, dict) and answer.keys() == {"error"}:
        return answer
    return {"result": answer}


def _forgiving(body: bytes) -> Any:
    """Read what is no strict JSON as Python would, so that its answer is not missed as well."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _key(id_: object) -> str:
    return json.dumps(id_, sort_keys=True)
