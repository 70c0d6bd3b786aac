"""Build the runtime and serve: everything that may be loaded after `ready` has gone out."""

import os
import sys
from typing import NoReturn

from ._guard import Channels
from ._runtime import Runtime


def serve(channels: Channels, nonce: str, origin: Runtime | None = None) -> NoReturn:
    """Serve the channels until the end of the process; with the names of `origin`."""
    doorbell = os.environ.get("RLM_SIGINT") == "doorbell"
    runtime = Runtime(channels, doorbell=doorbell, nonce=nonce)
    if origin is not None:
        runtime.execution.inherit(origin.execution)
    sys.argv = [""]
    if "" not in sys.path:
        sys.path.insert(0, "")  # cells import from the working directory; we have what we need
    runtime.serve()
