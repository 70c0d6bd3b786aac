"""Opening a run store by its URL; a store's library is imported only when it is wanted."""

from pathlib import Path

from rlm_protocol.errors import ConfigInvalid, Unsupported

from .base import RunStore

POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str) -> RunStore:
    """
    Open the run store of `sqlite:PATH` or `postgresql://…`, making it if it is not there.

    Raises:
        ConfigInvalid: the URL is none of these.
        Unsupported: the store's extra is not installed.
        StoreCorrupt, SchemaTooNew, StoreUnavailable, StoreBusy, StoreFull: as the store says.
    """
    if url.startswith("sqlite:") and url != "sqlite:":
        from .sqlite import SqliteRunStore

        return SqliteRunStore(Path(url.removeprefix("sqlite:")))
    if url.startswith(POSTGRES):
        try:
            from .postgres import PostgresRunStore
        except ImportError as why:
            raise Unsupported(
                "Runs in PostgreSQL need more packages: install rlm-host[postgres].",
                extra="postgres",
            ) from why
        return PostgresRunStore(url)
    raise ConfigInvalid(
        "That is no run store's URL.",
        field="store",
        allowed="sqlite:PATH or postgresql://USER@HOST/DATABASE",
        got=url.partition("://")[0],
    )
