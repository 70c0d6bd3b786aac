"""config/*: the user's configuration file."""

import anyio.to_thread

from rlm_protocol.base import NoParams
from rlm_protocol.config import ConfigResult, ConfigWriteParams

from ..context import Context, Handlers


async def read(context: Context, params: NoParams) -> ConfigResult:
    """config/read."""
    return await anyio.to_thread.run_sync(context.services.config_file.read)


async def write(context: Context, params: ConfigWriteParams) -> ConfigResult:
    """config/write: by its nature idempotent, so that no result has to be recorded."""
    return await anyio.to_thread.run_sync(
        context.services.config_file.write, params.changes, params.expected_digest
    )


HANDLERS: Handlers = {"config/read": read, "config/write": write}
