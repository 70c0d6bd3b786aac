"""
An async client of the host, for programs that embed it, for our own commands and for the tests.

    async with HostClient.spawn() as client:
        made = await client.session.create(cwd="/some/folder", model="scripted/echo")
        ended = await client.run_turn(made.session.id, "hello")

Works on asyncio. Everything it starts belongs to its `async with` block.
"""

from .connection import RequestHandler
from .events import HostNotification, Subscription
from .host import HostClient

__all__ = ["HostClient", "HostNotification", "RequestHandler", "Subscription"]
