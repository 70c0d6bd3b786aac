"""A block that is entered by its first use, and left in the task that entered it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import anyio
import pytest

from rlm_host.lazily import Lazily

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def group(story: list[str]) -> AsyncIterator[str]:
    async with anyio.create_task_group():
        story.append("entered")
        try:
            yield "value"
        finally:
            story.append("left")


async def test_it_is_entered_once_by_its_first_use_and_left_at_the_end() -> None:
    story: list[str] = []

    async def make() -> contextlib.AbstractAsyncContextManager[str]:
        await asyncio.sleep(0)
        return group(story)

    async with Lazily(make) as block:
        assert (block.known, story) == (None, [])
        got = await asyncio.gather(*(asyncio.create_task(block.get()) for _ in range(3)))
        assert (got, block.known, story) == (["value"] * 3, "value", ["entered"])
    assert story == ["entered", "left"]


async def test_what_is_never_used_is_never_made() -> None:
    async def make() -> contextlib.AbstractAsyncContextManager[str]:
        raise AssertionError

    async with Lazily(make):
        pass


async def test_what_could_not_be_made_is_made_by_the_next_use() -> None:
    story: list[str] = []
    failures = [OSError("no"), None]

    async def make() -> contextlib.AbstractAsyncContextManager[str]:
        if (failure := failures.pop(0)) is not None:
            raise failure
        return group(story)

    async with Lazily(make) as block:
        with pytest.raises(OSError, match="no"):
            await block.get()
        assert block.known is None
        assert await block.get() == "value"
    assert story == ["entered", "left"]


async def test_a_user_that_is_cancelled_takes_it_from_nobody() -> None:
    story: list[str] = []
    go = asyncio.Event()

    async def make() -> contextlib.AbstractAsyncContextManager[str]:
        await go.wait()
        return group(story)

    async with Lazily(make) as block:
        first, second = (asyncio.create_task(block.get()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        go.set()
        assert await asyncio.wait_for(second, 20) == "value"
        assert first.cancelled()
