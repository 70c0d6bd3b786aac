"""Loading msgspec without what it does not need here."""

import sys


def load() -> None:
    """Import msgspec without typing_extensions: half of its import, of no use on our Pythons."""
    name = "typing_extensions"
    if name in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules[name]
