"""Parts of the client that need no host."""

from typing import Any

import msgspec
import pytest

from rlm_host.client import HostNotification
from rlm_host.client.attachments import Attachments
from rlm_host.client.nouns import Noun, Nouns, Verb
from rlm_host.client.open_items import OpenItems
from rlm_protocol.base import Cursor, Empty
from rlm_protocol.methods import METHODS

ABOUT = {"sessionId": "s", "seq": 4, "gen": 1}


def event(method: str, **params: Any) -> HostNotification:
    return HostNotification(method, msgspec.Raw(msgspec.json.encode({**ABOUT, **params})))


def message(text: str, **more: Any) -> HostNotification:
    item = {"type": "agentMessage", "id": "i", "turnId": "t", "text": text, "status": "inProgress"}
    return event("item/started", item={**item, **more})


def delta(offset: int, text: str) -> HostNotification:
    return event("item/delta", itemId="i", channel="text", offset=offset, text=text)


class Asked:
    """A caller that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, msgspec.Struct]] = []

    async def call(self, method: str, params: msgspec.Struct, result: type[Any]) -> Any:
        self.asked.append((method, params))
        return result()


class Client(Nouns, Asked):
    def __init__(self) -> None:
        Asked.__init__(self)
        Nouns.__init__(self)


def test_every_request_of_the_registry_has_a_typed_helper() -> None:
    helpers = {
        verb.method: (verb.params, verb.result)
        for noun in vars(Client()).values()
        if isinstance(noun, Noun)
        for verb in vars(type(noun)).values()
        if isinstance(verb, Verb)
    }
    registry = {
        row.name: (row.params, row.result)
        for row in METHODS.values()
        if row.direction == "client" and "/" in row.name
    }
    assert helpers == registry, "add the row to rlm_host/client/nouns.py"


@pytest.mark.anyio
async def test_a_helper_asks_with_its_fields() -> None:
    client = Client()
    assert await client.session.delete(session_id="s") == Empty()
    [(method, params)] = client.asked
    assert (method, msgspec.to_builtins(params)) == ("session/delete", {"sessionId": "s"})
    with pytest.raises(TypeError):
        await client.session.delete(nobody="s")  # type: ignore[call-arg]


def test_an_open_item_that_comes_again_gives_only_what_was_missed() -> None:
    items = OpenItems()
    for heard in (message("ab"), delta(2, "cd")):
        assert list(items.hear(heard)) == [heard]
    [missed] = items.hear(message("abcdefg"))
    assert missed.method == "item/delta"
    assert missed.params == {**ABOUT, "itemId": "i", "channel": "text", "offset": 4, "text": "efg"}
    assert list(items.hear(message("abcdefg"))) == []
    assert list(items.hear(more := delta(7, "h"))) == [more]


@pytest.mark.parametrize(
    "end",
    [
        event("item/completed", item={"type": "agentMessage", "id": "i", "text": "ab"}),
        event("turn/completed", turnId="t", status="interrupted", usage={}),
    ],
    ids=lambda one: one.method,
)
def test_an_item_that_has_ended_is_forgotten(end: HostNotification) -> None:
    items = OpenItems()
    for heard in (message("ab"), end, message("ab")):
        assert list(items.hear(heard)) == [heard]


def test_cut_output_and_items_of_a_newer_host_are_not_guessed_at() -> None:
    items = OpenItems()
    cell = {"type": "replCell", "id": "i", "code": "x", "stdout": "ab"}
    assert len(list(items.hear(event("item/started", item=cell)))) == 1
    cut = {**cell, "stdout": "zz...zz", "truncated": True}
    assert list(items.hear(event("item/started", item=cut))) == []
    newer = event("item/started", item={"type": "hologram", "id": "i"})
    assert list(items.hear(newer)) == [newer]


def test_where_a_client_stands_in_each_session() -> None:
    here = Attachments()
    here.told(event("turn/started", turnId="t"))
    here.told(event("item/delta", seq=9, itemId="i", channel="text", offset=0, text=""))
    assert here.cursors == {"s": Cursor(gen=1, seq=4)}
    here.told(event("session/closed", seq=6, reason="shutdown"))
    assert here.sessions == {"s"}
    here.told(event("session/closed", seq=7, reason="deleted"))
    assert here.sessions == set()
    assert here.cursors == {"s": Cursor(gen=1, seq=7)}
