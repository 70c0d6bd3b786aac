"""Idempotency: a mutating request with a key runs once, and its repeats get what it gave."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from rlm_protocol import records as r
from rlm_protocol.errors import (
    Conflict,
    KernelDied,
    RlmError,
    Uncertain,
    from_jsonrpc,
    to_jsonrpc,
)

if TYPE_CHECKING:
    from .session import SessionActor

T = TypeVar("T")
_encoder = msgspec.json.Encoder(order="deterministic")


def digest_of(method: str, params: msgspec.Struct) -> str:
    """Give the SHA-256 of a request, by which a repeat is told from another one."""
    return hashlib.sha256(method.encode() + b"\0" + _encoder.encode(params)).hexdigest()


class Requests:
    """The keyed requests of one session that are running, and the rules of its recorded ones."""

    def __init__(self, session: "SessionActor") -> None:
        self._session = session
        self._running: dict[str, tuple[str, asyncio.Future[Any]]] = {}

    async def once(
        self,
        key: str | None,
        method: str,
        params: msgspec.Struct,
        run: Callable[[], Awaitable[T]],
    ) -> T:
        """
        Give what `run` gives, or what it gave for this key: then as JSON builtins.

        Raises:
            Uncertain: received before a crash and without a result: it is not run again.
            Conflict: the key came before with another method or other parameters.
            RlmError: `run` refused. The key is free again.
        """
        if key is None:
            return await run()
        request = digest_of(method, params)
        if key in self._running:
            return cast(T, await self._join(key, request))
        known = self._session.state.requests.get(key)
        if known is not None:
            if known.request != request:
                raise _conflict(key)
            if known.error is not None:
                raise from_jsonrpc(known.error)
            if known.done:
                return cast(T, known.result)
            raise Uncertain(key=key, method=known.method)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._running[key] = (request, future)
        try:
            result = await self._run(key, method, request, run)
        except BaseException as why:
            # A repeat that waits meanwhile shares the refusal; after a cancel nobody knows.
            future.set_exception(why if isinstance(why, RlmError) else Uncertain(key=key))
            raise
        else:
            future.set_result(result)
            return result
        finally:
            del self._running[key]

    async def _join(self, key: str, request: str) -> Any:
        running, future = self._running[key]
        if running != request:
            raise _conflict(key)
        return await asyncio.shield(future)

    async def _run(self, key: str, method: str, request: str, run: Callable[[], Awaitable[T]]) -> T:
        await self._session.append(r.RequestReceived(key=key, method=method, request=request))
        try:
            result = await run()
        except KernelDied as why:  # the cell has run: a repeat must not run it again
            error = to_jsonrpc(why)
            await self._session.append(r.RequestRecorded(key=key, done=True, error=error))
            raise
        except RlmError:
            await self._session.append(r.RequestRecorded(key=key, done=False))
            raise
        await self._session.append(
            r.RequestRecorded(key=key, done=True, result=msgspec.to_builtins(result))
        )
        return result


def _conflict(key: str) -> Conflict:
    return Conflict("This key was used before with another request.", key=key)
