"""Promises about what a host asks of its client for a cell: tools to run, and approvals."""

from typing import Any

from ..promise import Promise, expect
from .driver import Message, request
from .kit import HostKit
from .repl import PROMPT_S, Repl

DOUBLE = {"name": "double", "description": "doubles", "inputSchema": {"type": "object"}}
ASKED = ("tool/call", "approval/request")


class Asking:
    """A session with one tool and one cell that calls it; the client answers by hand."""

    def __init__(self, kit: HostKit, **options: Any) -> None:
        self.host = kit.shared()
        self.repl = Repl(kit, self.host, options={"tools": [DOUBLE], **options})
        self.host.reply = _by_hand
        self.call()

    def call(self) -> None:
        """Run the cell; waits for nothing."""
        self._since = len(self.host.messages)
        self.cell = self.repl.send(self.repl.kit.language.code("call_tool"))

    def requests(self, method: str) -> list[Message]:
        """Give what the cell has made the host ask."""
        asked = self.host.requests(method)
        return [one for one in asked if one in self.host.messages[self._since :]]

    def asked(self, method: str) -> Message:
        """Wait until the host asks; give its request."""
        host = self.host
        host.wait(lambda: bool(self.requests(method) or host.answers(self.cell)), method)
        found = self.requests(method)
        expect(found, f"the cell ended without {method}", answer=host.answers(self.cell))
        return found[0]

    def answer(self, asked: Message, result: Message) -> None:
        """Answer a request of the host."""
        self.host.say({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def outcome(self) -> Message:
        """Wait for the end of the cell; give its result."""
        outcome: Message = self.host.answer(self.cell).get("result") or {}
        return outcome

    def interrupt(self, asked: Message) -> None:
        """Interrupt the cell, and hold the host to taking its request back."""
        self.host.result("repl/interrupt", {"sessionId": self.repl.id})
        self.host.wait(lambda: bool(self.host.answers(self.cell)), "answer", PROMPT_S)
        self.host.wait(lambda: asked["id"] in self._taken_back(), "$/cancelRequest", PROMPT_S)

    def resolved(self) -> Message:
        """Wait for the end of the approval; give it."""
        return self.host.note("approval/resolved", self._since)

    def _taken_back(self) -> list[Any]:
        notes = self.host.notes("$/cancelRequest", since=self._since)
        return [note["params"].get("id") for note in notes]


def _by_hand(message: Message) -> object:
    if message["method"] in ASKED:
        return None
    return {"error": {"code": -32601, "message": "this client has no such method"}}


def _tools(kit: HostKit) -> None:
    """A request of the host and one of the client may have the same id, and never meet."""
    asking = Asking(kit)
    host, asked = asking.host, asking.asked("tool/call")
    expect(asked["params"]["arguments"] == {"n": 21}, "the arguments changed", asked=asked)
    host.say(request(asked["id"], "conformance/alive", {}))
    host.tell("$/cancelRequest", {"id": asked["id"]})
    host.answer(asked["id"])
    asking.answer(asked, {"result": 42})
    wanted = asking.repl.wanted("call_tool", "result")
    expect(asking.outcome().get("result") == wanted, "the answer is lost", o=asking.outcome())


def _tool_fails(kit: HostKit) -> None:
    asking = Asking(kit)
    asking.answer(asking.asked("tool/call"), {"error": "it is raining"})
    outcome = asking.outcome()
    said = (outcome.get("error") or {}).get("evalue") or ""
    expect("it is raining" in said, "the tool's error is not raised in the cell", outcome=outcome)
    asking.repl.works("a cell after a tool's error")


def _tool_stops(kit: HostKit) -> None:
    asking = Asking(kit)
    asked = asking.asked("tool/call")
    asking.interrupt(asked)
    asking.answer(asked, {"result": 42})
    status = asking.outcome().get("status")
    expect(status == "interrupted", "the cell is not interrupted", outcome=asking.outcome())
    asking.repl.works("a cell after a late answer")


def _approvals(kit: HostKit) -> None:
    """Denied, nothing reaches the client; allowed, it is asked once."""
    asking = Asking(kit, approvals={"tools": "ask"})
    for decision in ("deny", "allow"):
        asked = asking.asked("approval/request")
        params = asked["params"]
        expect(params["what"] == "tool", "it is no tool that is asked for", asked=asked)
        wanted = {"name": "double", "arguments": {"n": 21}}
        expect(params["detail"] == wanted, "it is not said what would be done", asked=asked)
        expect(not asking.requests("tool/call"), "it was done before anybody decided")
        asking.answer(asked, {"decision": decision})
        if decision == "allow":
            asking.answer(asking.asked("tool/call"), {"result": 42})
        outcome, resolved = asking.outcome(), asking.resolved()
        status = "ok" if decision == "allow" else "error"
        expect(outcome.get("status") == status, f"after {decision}: no {status}", outcome=outcome)
        expect(resolved["approvalId"] == params["approvalId"], "another approval is resolved")
        expect(resolved["decision"] == decision, "another decision is told", resolved=resolved)
        calls = len(asking.requests("tool/call"))
        expect(calls == (decision == "allow"), f"after {decision}: {calls} calls")
        asking.call()
    asking.interrupt(asking.asked("approval/request"))


def _approval_ends(kit: HostKit) -> None:
    asking = Asking(kit, approvals={"tools": "ask"})
    asked = asking.asked("approval/request")
    asking.interrupt(asked)
    resolved = asking.resolved()
    expect(resolved["decision"] == "cancelled", "it is not told as cancelled", resolved=resolved)
    asking.answer(asked, {"decision": "allow"})
    asking.repl.works("a cell after a late decision")
    expect(not asking.requests("tool/call"), "a late decision was obeyed")


PROMISES: tuple[Promise[HostKit], ...] = (
    Promise(
        id="repl.tools",
        text="A cell calls a client's tool; ids of the two directions never meet.",
        checks=(_tools,),
    ),
    Promise(
        id="repl.tools-error",
        text="A tool's error raises in the cell, and the next cell runs.",
        checks=(_tool_fails,),
    ),
    Promise(
        id="repl.tools-cancel",
        text="Interrupting a cell takes its tool call back; a late answer does nothing.",
        checks=(_tool_stops,),
    ),
    Promise(
        id="repl.approvals",
        text="What is denied is not done, what is allowed is done once, and both are told.",
        checks=(_approvals,),
    ),
    Promise(
        id="repl.approvals-cancel",
        text="An interrupt takes an approval back and says so; a late decision does nothing.",
        checks=(_approval_ends,),
    ),
)
