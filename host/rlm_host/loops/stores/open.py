"""Opening a run store by its URL; a store's library is imported only when it is wanted."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from rlm_protocol.errors import ConfigInvalid, Unsupported

from .base import RunReader, RunStore

if TYPE_CHECKING:
    from ..temporal.runs import TemporalRuns

SQLITE = "sqlite:"
POSTGRES = ("postgresql://", "postgres://")
TEMPORAL = "temporal://"
FORMS = "sqlite:PATH, postgresql://USER@HOST/DATABASE or temporal://HOST:PORT/NAMESPACE?queue=NAME"


def open_runs(url: str) -> RunReader:
    """
    Open whatever keeps runs: a store, or a Temporal cluster (`temporal://HOST:PORT`).

    A cluster's namespace is `default` and its queue that of `TemporalRuns`, unless the URL names
    others.

    Raises:
        ConfigInvalid, Unsupported, StoreUnavailable: as `open_store` says.
    """
    return open_cluster(url) if url.startswith(TEMPORAL) else open_store(url)


def open_store(url: str) -> RunStore:
    """
    Open the run store of `sqlite:PATH` or `postgresql://…`, making it if it is not there.

    Raises:
        ConfigInvalid: the URL is none of these.
        Unsupported: the store's extra is not installed, or its engine claims its runs itself.
        StoreCorrupt, SchemaTooNew, StoreUnavailable, StoreBusy, StoreFull: as the store says.
    """
    if url.startswith(SQLITE) and url != SQLITE:
        from .sqlite import SqliteRunStore

        return SqliteRunStore(Path(url.removeprefix(SQLITE)))
    if url.startswith(POSTGRES):
        try:
            from .postgres import PostgresRunStore
        except ImportError as why:
            raise _missing("PostgreSQL", "postgres") from why
        return PostgresRunStore(url)
    if url.startswith(TEMPORAL):
        raise Unsupported(
            "Temporal keeps and deletes its runs by itself: they are submitted there, and can be "
            "exported, but neither imported nor pruned.",
            store="temporal",
        )
    raise ConfigInvalid(
        f"That is no run store's URL: {FORMS} is.",
        field="store",
        allowed=FORMS,
        got=url.partition("://")[0],
    )


def open_cluster(url: str, *, queue: str | None = None) -> "TemporalRuns":
    """
    Reach the cluster of a `temporal://` URL. `queue` is for a URL that names none.

    Raises:
        ConfigInvalid: the URL cannot be read.
        Unsupported: the extra is not installed.
        StoreUnavailable: nobody answers there.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    namespace = parts.path.strip("/") or "default"
    if not parts.netloc or "/" in namespace or options.keys() - {"queue"}:
        raise ConfigInvalid(
            "That is no Temporal cluster's URL.",
            field="store",
            allowed="temporal://HOST:PORT/NAMESPACE?queue=NAME",
            got=url,
        )
    try:
        from ..temporal.runs import QUEUE, TemporalRuns
    except ImportError as why:
        raise _missing("Temporal", "temporal") from why
    return TemporalRuns(
        parts.netloc, namespace=namespace, queue=options.get("queue") or queue or QUEUE
    )


def _missing(engine: str, extra: str) -> Unsupported:
    return Unsupported(
        f"Runs in {engine} need more packages: install rlm-host[{extra}].", extra=extra
    )
