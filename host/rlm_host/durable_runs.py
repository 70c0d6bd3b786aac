"""Where the seed's example imports its store from (seed: loop kernel)."""

from .loops.stores.sqlite import SqliteRunStore

__all__ = ["SqliteRunStore"]
