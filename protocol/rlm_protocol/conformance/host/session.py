"""Promises about sessions and turns, played with the host's scripted models."""

import json
import signal
from typing import Any

from ..promise import Promise, expect
from .driver import Host, Message, request
from .kit import HostKit

ECHO, STEPS = "scripted/echo", "scripted/steps"
SLOW = json.dumps([{"text": "begun"}, {"wait_ms": 600_000}, {"text": "never"}])
INTERRUPTED_S = 1.0
ALLOWANCE_S = 4.0
"""A loaded machine may need this much longer than what is promised."""


def create(kit: HostKit, host: Host, model: str = ECHO, **more: Any) -> Message:
    """Create a session, give it."""
    kit.needs(host, "session/create")
    params = {"cwd": str(kit.workspace), "model": model, **more}
    session: Message = host.result("session/create", params)["session"]
    return session


def start(host: Host, session_id: str, text: str, **more: Any) -> str:
    """Start a turn, give its id."""
    turn: str = host.result("turn/start", _input(session_id, text, **more))["turnId"]
    return turn


def _input(session_id: str, text: str, **more: Any) -> Message:
    return {"sessionId": session_id, "input": [{"type": "text", "text": text}], **more}


def _ended(host: Host, turn_id: str) -> Message:
    """Wait for the end of a turn; give the params of its `turn/completed`."""
    host.wait(lambda: bool(_ends(host, turn_id)), "turn/completed")
    return _ends(host, turn_id)[0]


def _ends(host: Host, turn_id: str) -> list[Message]:
    notes = host.notes("turn/completed")
    return [m["params"] for m in notes if m["params"]["turnId"] == turn_id]


def _about(host: Host, session_id: str, since: int = 0) -> list[Message]:
    """Give the notifications about one session."""
    return [
        m
        for m in host.messages[since:]
        if "id" not in m and m.get("params", {}).get("sessionId") == session_id
    ]


def _items(host: Host, session_id: str, **more: Any) -> list[Message]:
    items: list[Message] = host.result("session/items", {"sessionId": session_id, **more})["items"]
    return items


def _ids(kit: HostKit, host: Host, **more: Any) -> list[str]:
    return [session["id"] for session in host.result("session/list", more)["sessions"]]


# --- sessions -------------------------------------------------------------------------------------


def _status(kit: HostKit) -> None:
    host = kit.shared()
    kit.needs(host, "host/status")
    status = host.result("host/status")
    for field in ("uptimeMs", "sessions", "kernels", "rssBytes", "pid"):
        expect(isinstance(status.get(field), int), f"no number in {field}", status=status)
    queues = status.get("queues") or {}
    expect({"bytes", "dropped"} <= queues.keys(), "the queues are not told", status=status)


def _create(kit: HostKit) -> None:
    host = kit.shared()
    session = create(kit, host, name="a name")
    expect(session["model"] == ECHO, "it has another model", session=session)
    expect(session["name"] == "a name", "it has another name", session=session)
    expect(session["cwd"] == str(kit.workspace), "it has another cwd", session=session)
    read = host.result("session/read", {"sessionId": session["id"]})["session"]
    expect(read == session, "session/read gives something else", read=read)
    expect(session["id"] in _ids(kit, host), "session/list does not have it")
    twin = create(kit, host)
    expect(twin["id"] != session["id"], "two sessions share an id")


def _model(kit: HostKit) -> None:
    host = kit.shared()
    kit.needs(host, "session/create", "session/list")
    before = _ids(kit, host)
    for model in ("scripted/nobody", "nobody/nothing", "nonsense", ""):
        params = {"cwd": str(kit.workspace), "model": model}
        host.refusal("session/create", params, "modelUnavailable")
    expect(_ids(kit, host) == before, "a refused session is left behind")


def _unknown(kit: HostKit) -> None:
    host = kit.shared()
    kit.needs(host, "session/read", "turn/start")
    for method, more in (
        ("session/read", {}),
        ("session/items", {}),
        ("session/resume", {}),
        ("turn/start", {"input": [{"type": "text", "text": "x"}]}),
        ("turn/interrupt", {}),
        ("repl/execute", {"code": "1"}),
    ):
        if method in host.offered:
            host.refusal(method, {"sessionId": "nobody", **more}, "sessionNotFound")


def _params(kit: HostKit) -> None:
    host = kit.shared()
    kit.needs(host, "session/create", "session/read")
    cwd = str(kit.workspace)
    for method, params, path in (
        ("session/create", {}, "$.cwd"),
        ("session/create", {"cwd": 5}, "$.cwd"),
        ("session/create", {"cwd": cwd, "model": ECHO, "colour": 1}, "$.colour"),
        ("session/create", {"cwd": cwd, "options": {"colour": 1}}, "$.options.colour"),
        ("session/read", {"sessionId": "../x"}, "$.sessionId"),
        ("session/read", {"sessionId": ".."}, "$.sessionId"),
        ("session/read", {"session_id": "x"}, None),
        ("turn/start", {"sessionId": "s", "input": [{"type": "hologram"}]}, None),
    ):
        error = host.refusal(method, params, "invalidParams")
        said = (error.get("data") or {}).get("path")
        expect(isinstance(said, str), "data.path is missing", params=params, error=error)
        expect(path in (None, said), "data.path names another place", path=said, params=params)


def _lifecycle(kit: HostKit) -> None:
    host = kit.shared()
    id_ = create(kit, host)["id"]
    kit.needs(host, "session/rename", "session/archive", "session/unarchive", "session/delete")
    this = {"sessionId": id_}
    renamed = host.result("session/rename", {**this, "name": "renamed"})["session"]
    expect(renamed["name"] == "renamed", "the name did not change", session=renamed)
    host.result("session/archive", this)
    expect(id_ not in _ids(kit, host), "an archived session is listed")
    expect(id_ in _ids(kit, host, archived=True), "it is not listed among the archived")
    host.result("session/unarchive", this)
    expect(id_ in _ids(kit, host), "a session that was taken back is not listed")
    host.result("session/delete", this)
    host.refusal("session/read", this, "sessionNotFound")
    expect(id_ not in _ids(kit, host), "a deleted session is listed")


def _idempotency(kit: HostKit) -> None:
    host = kit.shared()
    first = create(kit, host, idempotencyKey="key-1")
    again = create(kit, host, idempotencyKey="key-1")
    expect(again["id"] == first["id"], "a repeated create made a second session")
    params = {"cwd": str(kit.workspace), "model": ECHO, "name": "x", "idempotencyKey": "key-1"}
    host.refusal("session/create", params, "conflict")
    turn = start(host, first["id"], "once", idempotencyKey="key-2")
    same = start(host, first["id"], "once", idempotencyKey="key-2")
    expect(turn == same, "a repeated turn/start made a second turn")
    _ended(host, turn)
    asked = [item for item in _items(host, first["id"]) if item["type"] == "userMessage"]
    expect(len(asked) == 1, "a repeated turn/start was heard twice", asked=asked)


def _durable(kit: HostKit) -> None:
    """What was acknowledged before SIGKILL is there for the next host."""
    with kit.fresh() as host:
        id_ = create(kit, host)["id"]
        _ended(host, start(host, id_, "remember this"))
        before = _items(host, id_)
        late = start(host, id_, "acknowledged last")
        host.child.signal(signal.SIGKILL)
        host.child.wait(ALLOWANCE_S)
    with kit.fresh() as host:
        expect(id_ in _ids(kit, host), "the session is lost")
        after = _items(host, id_)
        expect(after[: len(before)] == before, "its items changed", before=before, after=after)
        asked = [item.get("text") for item in after if item["type"] == "userMessage"]
        ended = [item for item in after if item.get("turnId") == late]
        expect("acknowledged last" in asked or ended, "an acknowledged input is lost", asked=asked)


def _leased(kit: HostKit) -> None:
    with kit.fresh() as owner:
        id_ = create(kit, owner)["id"]
        _ended(owner, start(owner, id_, "mine"))
        with kit.fresh() as other:
            error = other.refusal("session/resume", {"sessionId": id_}, "sessionLeased")
            told = (error.get("data") or {}).get("owner") or {}
            expect(told.get("pid"), "the owner is not told", error=error)
        owner.alive()


# --- turns ----------------------------------------------------------------------------------------


def _turn(kit: HostKit) -> None:
    host = kit.shared()
    id_ = create(kit, host)["id"]
    heard = len(host.messages)
    turn = start(host, id_, "hello €")
    end = _ended(host, turn)
    expect(end["status"] == "completed", "the turn did not complete", end=end)
    said = [m["params"]["item"] for m in host.notes("item/completed", since=heard)]
    texts = {item["type"]: item["text"] for item in said if item.get("turnId") == turn}
    expect(texts.get("userMessage") == "hello €", "the input is no item", items=said)
    expect("hello €" in texts.get("agentMessage", ""), "the answer is not the echo", items=said)
    expect({"inputTokens", "costNanoUsd"} <= end["usage"].keys(), "the turn has no usage", end=end)


def _answer_first(kit: HostKit) -> None:
    host = kit.shared()
    for _ in range(10):
        heard = len(host.messages)
        id_ = create(kit, host)["id"]
        asked = host.new_id()
        host.say(request(asked, "turn/start", _input(id_, "x")))
        turn = host.answer(asked)["result"]["turnId"]
        _ended(host, turn)
        order = [m.get("id", m.get("method")) for m in host.messages[heard:]]
        first = next(n for n, one in enumerate(order) if str(one).startswith(("turn/", "item/")))
        expect(order.index(asked) < first, "a notification overtook its answer", order=order)


def _once(kit: HostKit) -> None:
    """`turn/completed` comes once a turn, behind everything else about it."""
    host = kit.shared()
    id_ = create(kit, host)["id"]
    heard = len(host.messages)
    turns = []
    for n in range(5):
        turns.append(start(host, id_, f"input {n}"))
        _ended(host, turns[-1])
    host.alive()
    for turn in turns:
        expect(len(_ends(host, turn)) == 1, "a turn ended several times")
        about = [
            m["method"]
            for m in _about(host, id_, heard)
            if turn in (m["params"].get("turnId"), m["params"].get("item", {}).get("turnId"))
        ]
        expect(about[0] == "turn/started", "a turn begins without turn/started", about=about)
        expect(about[-1] == "turn/completed", "an item came after its turn's end", about=about)


def _deltas(kit: HostKit) -> None:
    host = kit.shared()
    id_ = create(kit, host)["id"]
    heard = len(host.messages)
    text = "€𝄞 long enough for several pieces " * 20
    _ended(host, start(host, id_, text))
    joined: dict[str, str] = {}
    for message in host.notes("item/delta", "item/completed", since=heard):
        params = message["params"]
        if message["method"] == "item/delta" and params["channel"] == "text":
            so_far = joined.get(params["itemId"], "")
            expect(params["offset"] == len(so_far), "a delta is no increment", params=params)
            joined[params["itemId"]] = so_far + params["text"]
        elif message["method"] == "item/completed" and params["item"]["id"] in joined:
            item = params["item"]
            expect(item["text"] == joined[item["id"]], "the deltas are not the text", item=item)
    expect(joined, "no text came in deltas")


def _seq(kit: HostKit) -> None:
    host = kit.shared()
    id_ = create(kit, host)["id"]
    for n in range(3):
        _ended(host, start(host, id_, f"input {n}"))
    host.alive()
    last = 0
    for message in _about(host, id_):
        params = message["params"]
        expect({"seq", "gen"} <= params.keys(), "a notification has no seq and gen", said=message)
        if message["method"] not in ("item/delta", "usage/updated"):
            expect(params["seq"] >= last, "seq went back", seq=params["seq"], last=last)
            last = params["seq"]


def _pages(kit: HostKit) -> None:
    host = kit.shared()
    id_ = create(kit, host)["id"]
    heard = len(host.messages)
    for n in range(3):
        _ended(host, start(host, id_, f"input {n}"))
    told = [m["params"]["item"] for m in host.notes("item/completed", since=heard)]
    whole = _items(host, id_)
    expect(whole == told, "session/items gives other items than were told", items=whole)
    paged: list[Message] = []
    cursor = None
    while len(paged) <= len(whole):
        page = host.result("session/items", {"sessionId": id_, "limit": 2, "cursor": cursor})
        expect(len(page["items"]) <= 2, "a page is longer than asked", page=page)
        paged += page["items"]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    expect(paged == whole, "the pages are not the whole", paged=paged)


def _interrupt(kit: HostKit) -> None:
    host = kit.shared()
    id_ = create(kit, host, STEPS)["id"]
    this = {"sessionId": id_}
    idle = host.result("turn/interrupt", this)
    expect(idle["turnId"] is None, "an idle session has a turn to interrupt", said=idle)
    heard = len(host.messages)
    turn = start(host, id_, SLOW)
    host.note("item/delta", since=heard)
    host.refusal("turn/interrupt", {**this, "turnId": "turn-of-nobody"}, "turnMismatch")
    host.refusal("turn/start", _input(id_, "another"), "turnBusy")
    said = host.result("turn/interrupt", {**this, "turnId": turn})
    expect(said["turnId"] == turn, "another turn is interrupted", said=said)
    host.wait(lambda: bool(_ends(host, turn)), "turn/completed", INTERRUPTED_S + ALLOWANCE_S)
    expect(_ends(host, turn)[0]["status"] == "interrupted", "it did not end as interrupted")
    heard = len(host.messages)
    asked = [host.new_id(), host.new_id()]
    host.say(
        request(asked[0], "turn/start", _input(id_, SLOW)),
        request(asked[1], "turn/interrupt", this),
    )
    turn = host.answer(asked[0])["result"]["turnId"]
    expect(host.answer(asked[1])["result"]["turnId"] == turn, "it came too early to be heard")
    expect(_ended(host, turn)["status"] == "interrupted", "an interrupt before the start is lost")


def _replay(kit: HostKit) -> None:
    """A client that was away gets exactly the records that it missed."""
    host = kit.shared()
    id_ = create(kit, host)["id"]
    kit.needs(host, "session/resume", "session/detach")
    heard = len(host.messages)
    _ended(host, start(host, id_, "before"))
    cut = _ended(host, start(host, id_, "missed"))
    host.wait(lambda: bool(_about(host, id_)), "notification")
    records = ("turn/started", "item/completed", "turn/completed")
    told = [m for m in _about(host, id_, heard) if m["method"] in records]
    host.result("session/detach", {"sessionId": id_})
    for known in (told[0], told[len(told) // 2], told[-1]):
        cursor = {"gen": known["params"]["gen"], "seq": known["params"]["seq"]}
        heard = len(host.messages)
        said = host.result("session/resume", {"sessionId": id_, "cursor": cursor})
        expect(said["replay"] == "complete", "the replay is not complete", said=said["replay"])
        host.alive()
        again = [m for m in _about(host, id_, heard) if m["method"] in records]
        missed = [m for m in told if m["params"]["seq"] > cursor["seq"]]
        expect(again == missed, "not exactly the missed records", wanted=missed, seen=again)
        host.result("session/detach", {"sessionId": id_})
    expect(cut["seq"] > 0, "records have no number")


def _detached(kit: HostKit) -> None:
    host = kit.shared()
    id_ = create(kit, host)["id"]
    kit.needs(host, "session/detach", "session/resume")
    host.result("session/detach", {"sessionId": id_})
    host.alive()
    heard = len(host.messages)
    turn = start(host, id_, "quietly")

    def over() -> bool:
        read = host.result("session/read", {"sessionId": id_})["session"]
        return bool(read["turns"] == 1 and read["activeTurnId"] is None)

    host.wait(over, "end of the turn")
    told = _about(host, id_, heard)
    expect(not told, "a detached client is told of the session", told=told)
    host.result("session/resume", {"sessionId": id_})
    expect(any(i.get("turnId") == turn for i in _items(host, id_)), "the turn left no item")


PROMISES: tuple[Promise[HostKit], ...] = (
    Promise(
        id="session.status",
        text="`host/status` tells uptime, sessions, kernels, queues and memory.",
        checks=(_status,),
    ),
    Promise(
        id="session.create",
        text="A created session is read and listed as it was answered.",
        checks=(_create,),
    ),
    Promise(
        id="session.model",
        text="A model that there is not is refused; none is substituted, nothing is left behind.",
        checks=(_model,),
    ),
    Promise(
        id="session.unknown",
        text="A session that nobody knows is sessionNotFound for every method.",
        checks=(_unknown,),
    ),
    Promise(
        id="session.params",
        text="Unknown fields and bad ids are invalidParams, and data.path names the place.",
        checks=(_params,),
    ),
    Promise(
        id="session.lifecycle",
        text="A session can be renamed, archived, taken back and deleted.",
        checks=(_lifecycle,),
    ),
    Promise(
        id="session.idempotency",
        text="A repeat with the same key does nothing twice; with other content it is a conflict.",
        checks=(_idempotency,),
    ),
    Promise(
        id="session.turn",
        text="A turn's input and answer become items, and `turn/completed` tells its usage.",
        checks=(_turn,),
    ),
    Promise(
        id="session.answer-first",
        text="No notification overtakes the answer that introduces what it is about.",
        checks=(_answer_first,),
    ),
    Promise(
        id="session.completed-once",
        text="`turn/completed` comes once, behind all items of its turn.",
        checks=(_once,),
    ),
    Promise(
        id="session.deltas",
        text="Deltas are increments, and together they are the item's text.",
        checks=(_deltas,),
    ),
    Promise(
        id="session.seq",
        text="Notifications of a session carry seq and gen, and seq never goes back.",
        checks=(_seq,),
    ),
    Promise(
        id="session.items",
        text="`session/items` gives what was told, whole or in pages.",
        checks=(_pages,),
    ),
    Promise(
        id="session.interrupt",
        text="An interrupted turn ends so within 1 s, even before it runs.",
        checks=(_interrupt,),
    ),
    Promise(
        id="session.replay",
        text="Resuming with a cursor gives exactly the missed records.",
        checks=(_replay,),
    ),
    Promise(
        id="session.detached",
        text="A detached client hears nothing more, and the session works on.",
        checks=(_detached,),
    ),
    Promise(
        id="session.durable",
        text="What was acknowledged is there after SIGKILL.",
        checks=(_durable,),
    ),
    Promise(
        id="session.leased",
        text="A session has one owner; a second host is told who that is.",
        checks=(_leased,),
    ),
)
