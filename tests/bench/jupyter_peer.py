"""The peer of the runtime's rows: ipykernel behind jupyter_client, as they come from PyPI."""

import contextlib
import os
import queue
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import runtime_bench as b

MISSING = (
    "peer: ipykernel and jupyter_client are not installed; `uv sync --group bench` installs them"
)
PATIENCE_S = 60
NEVER_S = 10
"""An interrupt that was not answered after this long never is."""


class Jupyter:
    """One ipykernel and its blocking client."""

    def __init__(self, folder: str) -> None:
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager(connection_file=os.path.join(folder, "kernel.json"))
        self._manager.start_kernel(
            env={**os.environ, "IPYTHONDIR": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._client: Any = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def start(self, code: str, **options: Any) -> str:
        return str(self._client.execute(code, store_history=False, **options))

    def messages(self, id_: str, patience_s: float = PATIENCE_S) -> Iterator[dict[str, Any]]:
        """Give what the kernel publishes about a cell, up to its end. Raises queue.Empty."""
        while True:
            message = self._client.get_iopub_msg(timeout=patience_s)
            if message["parent_header"].get("msg_id") == id_:
                yield message
                if message["content"].get("execution_state") == "idle":
                    self._client.get_shell_msg(timeout=PATIENCE_S)
                    return

    def run(self, code: str) -> list[dict[str, Any]]:
        return list(self.messages(self.start(code)))

    def timed(self, code: str) -> float:
        """Give the seconds from sending a cell to its end."""
        began = b.now()
        self.run(code)
        return b.now() - began

    def interrupted(self, code: str) -> float | None:
        """Give the seconds from an interrupt to the end of a cell that prints first; None: never."""
        shown = self.messages(self.start(code), NEVER_S)
        while next(shown)["header"]["msg_type"] != "stream":
            continue
        began = b.now()
        self._manager.interrupt_kernel()
        try:
            for _ in shown:
                continue
        except queue.Empty:
            return None
        return b.now() - began

    def inputs(self, count: int) -> float:
        """Give the seconds that the kernel's way of asking its client takes, per question."""
        began = b.now()
        id_ = self.start(f"for _ in range({count}): input()", allow_stdin=True)
        for _ in range(count):
            self._client.get_stdin_msg(timeout=PATIENCE_S)
            self._client.input("1")
        took = b.now() - began
        for _ in self.messages(id_):
            continue
        return took / count


@contextlib.contextmanager
def jupyter() -> Iterator[Jupyter | None]:
    """Own a peer for the block; None, and a line that says so, where it is not installed."""
    try:
        import ipykernel  # noqa: F401
        import jupyter_client  # noqa: F401
    except ImportError:
        print(MISSING, flush=True)
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        peer = Jupyter(folder)
        try:
            yield peer
        finally:
            peer.close()
