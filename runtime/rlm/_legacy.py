"""The payload of the published protocol 3: a dill pickle of `{name: dill bytes}`. Read only."""

import io
from typing import Any

from rlm_protocol.errors import SnapshotFailed
from rlm_protocol.kernel import SkippedName

from ._names import own_imports
from ._pickling import from_host, reason_of


def load(payload: memoryview) -> tuple[dict[str, Any], list[SkippedName]]:
    """
    Take the names out of an old payload, each by itself.

    Raises:
        SnapshotFailed: it is no such payload.
    """
    with own_imports():
        import dill  # type: ignore[import-untyped]
    try:
        names = dill.load(io.BytesIO(payload))
    except BaseException as why:
        if from_host(why):
            raise
        raise SnapshotFailed("The snapshot is damaged.", reason=reason_of(why)) from None
    if type(names) is not dict:
        raise SnapshotFailed("The snapshot holds no names.")
    values: dict[str, Any] = {}
    failed = []
    for name, data in names.items():
        try:
            values[name] = dill.loads(data)
        except BaseException as why:
            if from_host(why):
                raise
            failed.append(SkippedName(str(name), reason_of(why)))
    return values, failed
