"""
Into one joint pickle stream: a shared memo, so that aliases, closures and classes survive.

cloudpickle's pickler with out-of-band buffers; functions of the namespace point back to the live
namespace, so that a restored function sees later assignments. A name that cannot be saved is left
out with its reason, all of them found in one pass. Imported only once `__main__` is the namespace.
"""

import functools
import io
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from ._interrupt import Interrupter
from ._names import is_users, user_names

_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())
_REASON_CHARS = 200


class Unsaved(pickle.PicklingError):
    """Why an object is left out, in words for people."""


_write = io.BytesIO.write


class _TooLarge(Exception):
    """The name has grown over its cap while it was written."""


class _LiveNamespace:
    """Stands for the dict of `__main__` in the stream."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return live_namespace, ()


def live_namespace() -> dict[str, Any]:
    """Give the namespace of the kernel that restores."""
    return sys.modules["__main__"].__dict__


class _Counted(io.BytesIO):
    """A stream that refuses to grow beyond a limit, so that no giant is built to be thrown away."""

    size = 0
    limit = sys.maxsize

    def write(self, data: Any) -> int:
        size = self.size + len(data)
        if size > self.limit:
            raise _TooLarge
        self.size = size
        return _write(self, data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dump = pickle.Pickler.dump  # cloudpickle's own only words a RecursionError differently

    def __init__(self, namespace: dict[str, Any], stream: io.BytesIO, keep: Callable[[Any], bool]):
        super().__init__(stream, protocol=5, buffer_callback=keep)
        self._namespace = namespace
        self._live = _LiveNamespace()
        self.needs_check = False  # something beyond plain builtins: loading it may fail

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.FunctionType and obj.__globals__ is self._namespace:
            self.needs_check = True
            return self._live_function(obj)
        special = _SPECIAL.get(kind)
        if special is not None:
            self.needs_check = True
            return special(obj)
        if issubclass(kind, io.IOBase) and kind not in (io.BytesIO, io.StringIO):
            raise Unsaved("an open file cannot be saved")
        if kind is not types.ModuleType:
            self.needs_check = True
        return super().reducer_override(obj)

    def _live_function(self, function: types.FunctionType) -> Any:
        make, args, state, *rest = self._dynamic_function_reduce(function)
        attributes, slots = state
        # Names of the user are in the stream themselves; private ones come along with their users.
        private = {k: v for k, v in slots["__globals__"].items() if not is_users(k)}
        private = {k: v for k, v in private.items() if k.startswith("_")}
        # cloudpickle gives each function cells of its own; what closures share, they go on sharing.
        slots = {**slots, "__globals__": private, "__closure__": None}
        args = (args[0], self._live, *args[2:-1], function.__closure__)
        return (make, args, (attributes, slots), *rest)


def _lock(obj: Any) -> Any:
    if obj.locked():
        raise Unsaved("a lock that is held cannot be saved")
    return threading.Lock, ()


def _rlock(obj: Any) -> Any:
    if "owner=0 " not in repr(obj):
        raise Unsaved("a lock that is held cannot be saved")
    return threading.RLock, ()


def _weakref(obj: Any) -> Any:
    target = obj()
    return (_dead_reference, ()) if target is None else (weakref.ref, (target,))


def _cell(obj: Any) -> Any:
    try:
        content = obj.cell_contents
    except ValueError:  # it is empty
        return types.CellType, ()
    return types.CellType, (), (content,), None, None, _fill_cell


def _fill_cell(cell: types.CellType, state: tuple[Any]) -> None:
    (cell.cell_contents,) = state


class _Gone:
    pass


def _dead_reference() -> Any:
    return weakref.ref(_Gone())


def _cached(obj: Any) -> Any:
    if obj.__module__ != "__main__":
        return NotImplemented
    return _cache_again, (obj.__wrapped__, obj.cache_parameters())


def _cache_again(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


_SPECIAL: dict[type, Callable[[Any], Any]] = {
    _LOCK: _lock,
    _RLOCK: _rlock,
    weakref.ReferenceType: _weakref,
    types.CellType: _cell,
    type(functools.lru_cache(len)): _cached,
}


class Stream(NamedTuple):
    """A joint stream: its bytes, its buffers, the names in it, where each one's pickle ends."""

    data: memoryview
    buffers: list[memoryview]
    names: list[str]
    ends: list[int]
    needs_check: bool


class Caps(NamedTuple):
    """Limits in bytes: of one name, of all together."""

    name_bytes: int
    total_bytes: int


class _Attempt:
    """One pass over names with one memo."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._stream = _Counted()
        self._buffers: list[memoryview] = []
        self._names: list[str] = []
        self._ends: list[int] = []
        self._buffer_counts: list[int] = []
        self._buffer_bytes = 0
        self._pickler = _Pickler(namespace, self._stream, self._keep)

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:
            return True  # not contiguous: in band
        self._buffers.append(raw)
        self._buffer_bytes += raw.nbytes
        self._stream.limit -= raw.nbytes  # what buffers take, the stream may no longer take
        if self._stream.size > self._stream.limit:
            raise _TooLarge
        return False

    def add(self, name: str, value: Any, caps: Caps) -> bool:
        """
        Add one name. False when the total cap is reached first: then add nothing more.

        Raises:
            _TooLarge: over the cap of one name.
            BaseException: whatever pickling it raises. After any error this attempt is spoilt.
        """
        stream = self._stream
        room = caps.total_bytes - stream.size - self._buffer_bytes
        only_name_bound = caps.name_bytes <= room
        stream.limit = stream.size + (caps.name_bytes if only_name_bound else room)
        try:
            self._pickler.dump(value)
        except _TooLarge:
            if only_name_bound:
                raise
            return False
        self._names.append(name)
        self._ends.append(stream.size)
        self._buffer_counts.append(len(self._buffers))
        return True

    def finish(self) -> "Stream":
        """Give what was added, without what a name over the total may have left."""
        end = self._ends[-1] if self._ends else 0
        count = self._buffer_counts[-1] if self._buffer_counts else 0
        return Stream(
            self._stream.getbuffer()[:end],
            self._buffers[:count],
            self._names,
            self._ends,
            self._pickler.needs_check,
        )


class Saved(NamedTuple):
    """What `dump` gives."""

    stream: Stream
    skipped: dict[str, str]
    oversized: list[str]


def dump(namespace: dict[str, Any], excluded: Mapping[str, str], caps: Caps) -> Saved:
    """
    Put every name of the user's that can be saved into one stream.

    A shared object is charged to the first name that reaches it. After a name has failed, the pass
    goes on with a fresh memo to find the other failures; then all is written once more without
    them. When the total is reached, the names that follow are left out.
    """
    skipped = dict(excluded)
    oversized: list[str] = []
    while True:
        attempt = _Attempt(namespace)
        clean = True
        names = [name for name in user_names(namespace) if name not in skipped]
        for at, name in enumerate(names):
            try:
                fits = attempt.add(name, namespace[name], caps)
                if not fits:  # of the total; is it over its own cap, too?
                    _Attempt(namespace).add(
                        name, namespace[name], Caps(caps.name_bytes, sys.maxsize)
                    )
            except _TooLarge:
                oversized.append(name)
                skipped[name] = f"larger than {caps.name_bytes} bytes"
            except BaseException as why:
                if from_host(why):
                    raise
                skipped[name] = reason_of(why)
            else:
                if fits:
                    continue
                if clean:
                    reason = f"the snapshot would be larger than {caps.total_bytes} bytes"
                    skipped.update(dict.fromkeys(names[at:], reason))
                    break
            clean = False
            attempt = _Attempt(namespace)
        if clean:
            return Saved(attempt.finish(), skipped, oversized)


def reason_of(why: BaseException) -> str:
    """Give a short reason for people."""
    try:
        text = str(why)
    except BaseException:
        text = ""
    name = "" if isinstance(why, Unsaved) else f"{type(why).__name__}: "
    return f"{name}{text}"[:_REASON_CHARS]


def from_host(why: BaseException) -> bool:
    """Tell an interrupt of the host from a KeyboardInterrupt that an object itself has raised."""
    at = why.__traceback__
    while isinstance(why, KeyboardInterrupt) and at is not None:
        if at.tb_frame.f_code is Interrupter.deliver.__code__:
            return True
        at = at.tb_next
    return False
