"""Rich output of cells: `emit`."""

from typing import Any

from rlm_protocol.kernel import Display
from rlm_protocol.limits import KERNEL_FRAME_BYTES

from . import _frames, _runtime
from ._bridge import check_json
from ._capture import author


def emit(data: dict[str, Any]) -> None:
    """Send a `display` event; see `rlm.repl.emit`."""
    if not isinstance(data, dict) or not data:
        raise TypeError("emit() takes a non-empty dict: mime type -> payload")
    if not all(isinstance(key, str) for key in data):
        raise TypeError("the keys of a display are mime types, so strings")
    check_json(data, "display")
    frame = _frames.encode(Display(id=author(), data=data))
    if len(frame) > KERNEL_FRAME_BYTES:
        raise ValueError(f"the display takes {len(frame)} bytes, over {KERNEL_FRAME_BYTES}")
    runtime = _runtime.current()
    runtime.outbox.ship()  # what was printed before is shown before
    runtime.wire.put(frame)
