"""
`python -P -m rlm.repl`: the entry. It forks its guard, says `ready`, loads the rest, serves.

Also what cells may import from here: `emit`, `host_request`, `is_active`.
"""

import os
import sys

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ._guard import Channels
    from ._runtime import Runtime

FEATURES = ("silent", "complete", "inspect", "detail", "length", "nonce")


def emit(data: "dict[str, Any]") -> None:
    """
    Show rich output: mime type -> payload, sent to the host as a `display` event.

    Raises:
        TypeError: not a non-empty dict with string keys.
        ValueError: no JSON value, or larger than a frame.
    """
    from ._names import own_imports

    with own_imports():
        from . import _display

    _display.emit(data)


async def host_request(type: str, payload: "dict[str, Any] | None" = None) -> "Any":  # noqa: A002
    """Ask the host; the same as `rlm.host_request`."""
    from . import _bridge

    return await _bridge.current().request(type, payload)


def is_active() -> bool:
    """Tell whether this process is a kernel."""
    from . import _bridge

    return _bridge.active()


def main() -> None:
    """Run a kernel on stdin and stdout, or a template of kernels. Never returns."""
    # Cells say `from rlm.repl import emit`; without this line they would load a second, deaf copy.
    sys.modules["rlm.repl"] = sys.modules["__main__"]
    vars(sys.modules["rlm"])["repl"] = sys.modules["__main__"]
    from . import _guard

    if "RLM_TEMPLATE_FD" in os.environ:
        from . import _codec

        _codec.load()
        from . import _template

        channels = _template.serve()
    else:
        control = _guard.control_from_environment()
        channels = _guard.split(control=control, owner_fd=_guard.watch_parent())
    start(channels)


def start(channels: "Channels", origin: "Runtime | None" = None) -> "NoReturn":
    """Say `ready` on the channels, load what is slow, serve; with the names of `origin`."""
    from . import _codec, _guard

    nonce = os.urandom(8).hex()
    _guard.capture(channels)
    os.write(channels.events, _ready(nonce))
    _codec.load()
    from ._boot import serve

    serve(channels, nonce, origin)


def _ready(nonce: str) -> bytes:
    """Give the first line, made by hand: it goes out before the codec is loaded."""
    try:
        from ._build import VERSION  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        VERSION = "dev"
    features = ",".join(f'"{name}"' for name in FEATURES)
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f'{{"event":"ready","protocol":{_protocol()},"python":"{python}","runtime":"{VERSION}",'
        f'"nonce":"{nonce}","features":[{features}],"pid":{os.getpid()}}}\n'
    ).encode()


def _protocol() -> int:
    asked = os.environ.get("RLM_REPL_PROTOCOL")
    if "--protocol" in sys.argv[:-1]:
        asked = sys.argv[sys.argv.index("--protocol") + 1]
    return 1 if asked == "1" else 3


if __name__ == "__main__":
    main()
