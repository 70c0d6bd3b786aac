"""The requests beside `execute` that wait their turn: list_names, snapshot, restore."""

from typing import Any

from rlm_protocol import kernel as k

from ._names import own_imports, user_names


def serve(request: k.Snapshot | k.Restore | k.ListNames, namespace: dict[str, Any]) -> k.Done:
    """Serve one; what goes wrong in it is a `done` with a reason, never an exception."""
    if isinstance(request, k.ListNames):
        return _list(request, namespace)
    with own_imports():
        from . import _snapshot

    if isinstance(request, k.Snapshot):
        return _snapshot.save(request, namespace)
    return _snapshot.restore(request, namespace)


def _list(request: k.ListNames, namespace: dict[str, Any]) -> k.Done:
    names = sorted(user_names(namespace))
    if not request.detail:
        return k.Done(id=request.id, status="ok", names=names)
    with own_imports():
        from . import _inspect

    details = _inspect.details(namespace, names)
    return k.Done(id=request.id, status="ok", names=names, details=details)
