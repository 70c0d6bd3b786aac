"""Several things at once, one failing hindering no other."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def all_of(*works: Awaitable[Any]) -> None:
    """Do everything side by side; when all is done, the first failure is raised."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
