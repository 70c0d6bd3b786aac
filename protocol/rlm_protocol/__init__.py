"""What is said on a wire: messages, error table, limits and sans-IO framing. No IO in here."""

from ._version import __version__

__all__ = ["__version__"]
