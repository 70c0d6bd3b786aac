"""The requests beside `execute` that wait their turn: list_names, snapshot, restore."""

from typing import TYPE_CHECKING

from rlm_protocol import kernel as k

from ._names import user_names

if TYPE_CHECKING:
    from ._runtime import Runtime


def serve(request: k.Snapshot | k.Restore | k.ListNames, runtime: "Runtime") -> k.Done:
    """Serve one; what goes wrong in it is a `done` with a reason, never an exception."""
    if isinstance(request, k.ListNames):
        return _list(request, runtime)
    from . import _snapshot

    if isinstance(request, k.Snapshot):
        return _snapshot.save(request, runtime.namespace)
    return _snapshot.restore(request, runtime.namespace)


def _list(request: k.ListNames, runtime: "Runtime") -> k.Done:
    names = sorted(user_names(runtime.namespace))
    if not request.detail:
        return k.Done(id=request.id, status="ok", names=names)
    from . import _inspect

    details = _inspect.details(runtime.namespace, names)
    return k.Done(id=request.id, status="ok", names=names, details=details)
