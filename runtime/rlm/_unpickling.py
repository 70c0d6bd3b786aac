"""
Out of a joint pickle stream: every name that comes back, and of every other one why it does not.

Pickles of one stream share a memo whose places are counted, not written. When a name fails midway
the count is off, and what follows would be joined with the wrong objects. So from the first
failure on the places are counted by reading the opcodes, and a name that leans on a place that was
never filled fails too.
"""

import io
import pickle
import pickletools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlm_protocol.kernel import SkippedName

from ._names import is_users
from ._pickling import Unsaved, from_host, reason_of

Loaded = tuple[dict[str, Any], list[SkippedName]]
"""The values that came back, and the names that did not, with reasons."""
Buffers = Sequence[memoryview | None]
"""Out-of-band data in the order of its use; None where it is damaged."""


def load(
    data: Any,
    buffers: Buffers,
    names: list[str],
    ends: list[int],
    namespace: dict[str, Any],
    kept: list[Any],
    started: Callable[[int], None] = lambda _index: None,
) -> Loaded:
    """
    Take the names out of a stream; `started` is told the index of each before it is loaded.

    Each one is bound in `namespace` at once: what comes later may run code that needs it (a
    `__setstate__`, a `__hash__`). The caller owns the namespace and settles what stays bound.
    Every object that was made, of failed names too, is alive as long as what is put into `kept`.
    """
    view = memoryview(data)
    values = _Bound(namespace)
    unpickler = pickle.Unpickler(io.BytesIO(view), buffers=_in_turn(buffers))
    kept += values, unpickler
    for index, name in enumerate(names):
        started(index)
        try:
            values[name] = unpickler.load()
        except BaseException as why:
            if from_host(why):
                raise
            careful = _Careful(view, buffers, ends, index, unpickler, kept)
            failed = [SkippedName(name, reason_of(why))]
            for later in range(index + 1, len(names)):
                started(later)
                try:
                    values[names[later]] = careful.load(later)
                except BaseException as why_later:
                    if from_host(why_later):
                        raise
                    failed.append(SkippedName(names[later], reason_of(why_later)))
            return values, failed
    return values, []


class _Bound(dict[str, Any]):
    """What has been loaded; what is the user's is bound in a namespace too."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if is_users(name):
            self._namespace[name] = value


def _in_turn(buffers: Buffers) -> Iterator[memoryview]:
    for buffer in buffers:
        if buffer is None:
            raise Unsaved("its data in the file is damaged")
        yield buffer


class _Careful:
    """Loads the names after a failure, with a memo whose places are known."""

    def __init__(
        self,
        view: memoryview,
        buffers: Buffers,
        ends: list[int],
        failed: int,
        unpickler: pickle.Unpickler,
        kept: list[Any],
    ) -> None:
        self._kept = kept
        self._view = view
        self._buffers = buffers
        self._ends = [0, *ends]
        self._used_buffers = 0
        self._places = 0
        for index in range(failed):
            places, _, used = _uses(self._chunk(index))
            self._places += places
            self._used_buffers += used
        self._missing: set[int] = set()
        self._give_up(failed, unpickler)

    def load(self, index: int) -> Any:
        """Load one name. Raises what loading it raises."""
        places, leans_on, used = _uses(self._chunk(index))
        if leans_on & self._missing:
            self._give_up(index, self._unpickler)
            raise pickle.UnpicklingError("it shares a value with a name that failed")
        try:
            value = self._unpickler.load()
        except BaseException:
            self._give_up(index, self._unpickler)
            raise
        self._places += places
        self._used_buffers += used
        return value

    def _chunk(self, index: int) -> memoryview:
        return self._view[self._ends[index] : self._ends[index + 1]]

    def _give_up(self, index: int, unpickler: pickle.Unpickler) -> None:
        """Go on behind name `index` with what the memo holds, and know what it does not."""
        memo: dict[int, Any] = unpickler.memo.copy()
        places, _, used = _uses(self._chunk(index))
        after = self._places + places
        # What the failed name has filled in itself may be half made: nobody may lean on it.
        self._missing.update(range(self._places, after))
        self._missing -= {place for place in memo if place < self._places}
        self._places = after
        self._used_buffers += used
        self._unpickler = _preloaded(
            {place: memo.get(place) for place in range(after)},
            self._view[self._ends[index + 1] :],
            self._buffers[self._used_buffers :],
        )
        self._kept.append(self._unpickler)


def _uses(chunk: memoryview) -> tuple[int, set[int], int]:
    """Count the memo places a pickle fills, the places it takes from, the buffers it uses."""
    filled, taken, buffers = 0, set(), 0
    for opcode, argument, _ in pickletools.genops(bytes(chunk)):
        if opcode.name == "MEMOIZE":
            filled += 1
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            assert isinstance(argument, int)
            taken.add(argument)
        elif opcode.name == "NEXT_BUFFER":
            buffers += 1
    return filled, taken, buffers


class _Preloaded(pickle.Unpickler):
    def __init__(self, memo: dict[int, Any], file: Any, buffers: Iterator[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._memo = memo

    def persistent_load(self, place: Any) -> Any:
        return self._memo[place]


def _preloaded(memo: dict[int, Any], rest: memoryview, buffers: Buffers) -> pickle.Unpickler:
    """Give an unpickler of `rest` with a filled memo: it first loads a pickle that names it all."""
    fill = [b"\x80\x05"]
    for place in range(len(memo)):
        fill.append(b"J%bQ\x940" % place.to_bytes(4, "little"))  # BININT, BINPERSID, MEMOIZE, POP
    fill.append(b"N.")
    unpickler = _Preloaded(memo, _Joined(b"".join(fill), rest), _in_turn(buffers))
    unpickler.load()
    return unpickler


class _Joined:
    """Two files one after the other. A pickle never lies across both."""

    def __init__(self, first: bytes, second: memoryview) -> None:
        self._files = [io.BytesIO(first), io.BytesIO(second)]

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        data = self._files[0].read(size)
        if data or len(self._files) == 1:
            return data
        del self._files[0]
        return self._files[0].read(size)

    def readline(self) -> bytes:
        """Read a line."""
        return self._files[0].readline()
