"""Which client hears which session, and that no notification overtakes the answer before it."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from rlm_protocol.base import Cursor, Params
from rlm_protocol.session import SessionResumeResult

from .detaching import is_attended, leave, root_of

if TYPE_CHECKING:
    from ..sessions.session import SessionActor
    from .context import Attachment, Context


class Feed:
    """One client's ear at one session: a `Listener`. While it is held, it keeps what it hears."""

    def __init__(self, attachment: "Attachment") -> None:
        self._attachment = attachment
        self._holds = 0
        self._kept: list[tuple[str, msgspec.Struct]] = []
        self._free = asyncio.Event()
        self._free.set()

    @property
    def client_id(self) -> str:
        """The attachment's id: a client has a feed for each session that it hears."""
        return self._attachment.id

    def __call__(self, method: str, payload: msgspec.Struct) -> None:
        """Hear one notification."""
        if self._holds:
            self._kept.append((method, payload))
        else:
            self._attachment.notify(method, payload)

    def hold(self, context: "Context") -> None:
        """Keep everything until the request is answered."""
        self._holds += 1
        self._free.clear()
        context.after_answer(self._release)

    def _release(self) -> None:
        self._holds -= 1
        if not self._holds:
            kept, self._kept = self._kept, []
            for method, payload in kept:
                self._attachment.notify(method, payload)
            self._free.set()

    async def ask(self, method: str, params: Params) -> msgspec.Raw:
        """Ask the client, not before it has its own answers. Raises HostLost, RlmError."""
        await self._free.wait()
        return await self._attachment.request(method, params)


class Feeds:
    """All feeds of the host, by client and session."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._leaving: set[asyncio.Future[None]] = set()

    async def attach(
        self, context: "Context", actor: "SessionActor", cursor: Cursor | None = None
    ) -> SessionResumeResult:
        """Let the client hear the session, from right after the answer on. Twice is once."""
        key = context.attachment.id, actor.id
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(context.attachment)
            context.attachment.on_close(lambda: self.detach(context.attachment.id, actor))
        feed.hold(context)
        return await actor.attach(feed, cursor)

    def hold(self, context: "Context", session_id: str) -> None:
        """Keep what the asking client hears of the session until it has its answer."""
        feed = self._feeds.get((context.attachment.id, session_id))
        if feed is not None:
            feed.hold(context)

    def detach(self, attachment_id: str, actor: "SessionActor") -> None:
        """Let the client hear no more; what becomes of a session without any, its options say."""
        feed = self._feeds.pop((attachment_id, actor.id), None)
        if feed is None:
            return
        actor.detach(feed)
        root = root_of(actor)
        wish = root.state.options.on_detach
        if wish in ("stop", "finish") and not is_attended(root):
            self.leave(root, at_once=wish == "stop")

    def leave(self, root: "SessionActor", *, at_once: bool) -> None:
        """Have a session end that nobody hears any more: now, or when nothing of it runs."""
        leaving = asyncio.ensure_future(leave(root, at_once=at_once))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
