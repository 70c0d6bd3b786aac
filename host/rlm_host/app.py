"""The only place that builds concrete objects. Everything it builds ends with its block."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from .clock import Clock, SystemClock
from .config import Config
from .rpc.context import Handlers
from .rpc.services import Services


@contextlib.asynccontextmanager
async def build(
    config: Config,
    env: Mapping[str, str],
    *,
    home: Path,
    stop: Callable[[str], None],
    clock: Clock | None = None,
) -> AsyncIterator[Services]:
    """
    Own one host for the length of the block; leaving it ends every session, kernel and run.

    Args:
        config: the user's settings.
        env: the environment, of which kernels and providers get parts.
        home: RLM_HOME.
        stop: ends the whole host; the argument says why.
        clock: the machine's clock by default.
    """
    clock = clock or SystemClock()
    started_ms = clock.monotonic_ms()
    yield Services(
        home=home,
        now_ms=clock.now_ms,
        uptime_ms=lambda: clock.monotonic_ms() - started_ms,
        stop=stop,
    )


def handlers() -> Handlers:
    """Give every method that this host offers, with its handler."""
    from .rpc.handlers import host

    return {**host.HANDLERS}
