"""A block that is entered by its first use."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Lazily(Generic[T]):
    """
    Owns a block that `make` gives, from the first `get` to its own end.

    It is entered and left in a task of its own: a task group must be left where it was entered, and
    whoever comes first has gone by then.
    """

    def __init__(
        self, make: Callable[[], Awaitable[contextlib.AbstractAsyncContextManager[T]]]
    ) -> None:
        self._make = make
        self._owner: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[T] | None = None
        self._leave = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave.set()
        if self._owner is not None:
            await self._owner

    @property
    def known(self) -> T | None:
        """What the block gave, if it has been entered."""
        entered = self._entered is not None and self._entered.done()
        return self._entered.result() if entered and self._entered is not None else None

    async def get(self) -> T:
        """Enter the block if need be. Raises what `make` or entering it raises; then try again."""
        if self._entered is None:
            self._entered = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._own(self._entered))
        return await asyncio.shield(self._entered)

    async def _own(self, entered: "asyncio.Future[T]") -> None:
        try:
            async with await self._make() as value:
                entered.set_result(value)
                await self._leave.wait()
        except BaseException as why:
            if entered.done():
                raise
            self._entered = None
            entered.set_exception(why)
