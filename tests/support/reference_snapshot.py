"""Snapshots of the reference runtime: names that load again alone, then all of them together."""

import io
import json
import os
import pickle
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlm_protocol import kernel
from rlm_protocol.limits import SNAPSHOT_BYTES, SNAPSHOT_NAME_BYTES

Broken = Callable[[str], bool]
Answer = tuple[str, dict[str, Any]]
OURS = frozenset({"rlm", "bash", "asyncio"})


def save(request: kernel.Snapshot, namespace: dict[Any, Any], broken: Broken) -> Answer:
    limits = _limits(request, broken)
    if limits is None:
        return "error", {"reason": "the options make no sense"}
    total, each = limits
    names = sorted(namespace) if broken("odd-key-breaks") else list(namespace)
    saved: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    large: list[str] = []
    left = total
    for name in names:
        if not isinstance(name, str) or name.startswith("_") or name in OURS:
            continue
        data = _dump(namespace[name], broken)
        if isinstance(data, str):
            skipped[name] = data
        elif len(data) > each and not broken("caps-ignored"):
            skipped[name] = f"larger than {each} bytes"
            large.append(name)
        elif len(data) > left:
            skipped[name] = "the snapshot is full"
            large += [name] if broken("total-prunes") else []
        else:
            saved[name], left = namespace[name], left - len(data)
    payload = _payload(saved, broken)
    manifest = {
        "version": 1,
        "savedNames": sorted(saved),
        "skipped": [{"name": n, "reason": r} for n, r in skipped.items()],
        "bytes": len(payload),
        "pythonVersion": sys.version.split()[0],
        "timestamp": int(time.time()),
    }
    if broken("manifest-bare"):
        manifest = {"version": 1}
    try:
        _commit(request, payload, json.dumps(manifest).encode(), broken)
    except OSError as why:
        return "error", {"reason": str(why)}
    pruned = large if request.prune_oversized else []
    for name in pruned:
        del namespace[name]
    rows = [{"name": n, "reason": r} for n, r in skipped.items()]
    return "ok", {
        "saved": list(saved),
        "skipped": [] if broken("skips-silently") else rows,
        "pruned": pruned,
        "bytes": len(payload),
    }


def _limits(request: kernel.Snapshot, broken: Broken) -> tuple[int, int] | None:
    total = request.max_bytes if isinstance(request.max_bytes, int) else SNAPSHOT_BYTES
    each = request.max_variable_bytes
    each = each if isinstance(each, int) else SNAPSHOT_NAME_BYTES
    if broken("nonsense-taken"):
        return max(total, 0), max(each, 0)
    same = os.path.realpath(request.path) == os.path.realpath(request.manifest_path)
    return None if total < 0 or each < 0 or same else (total, each)


def _dump(value: Any, broken: Broken) -> bytes | str:
    """Give a value's bytes if it comes back from them, else why not."""
    import cloudpickle

    if broken("files-reopened") and hasattr(value, "mode"):
        return pickle.dumps((value.name, value.mode))
    if hasattr(value, "fileno"):
        return "it has a file open"
    try:
        data = cloudpickle.dumps(value)
        if not broken("exits-at-restore"):
            pickle.loads(data)
    except BaseException as why:
        return f"{type(why).__name__}: {why}"[:200] or "it cannot be pickled"
    return data


def _payload(saved: dict[str, Any], broken: Broken) -> bytes:
    import cloudpickle

    files = {n: (v.name, v.mode) for n, v in saved.items() if hasattr(v, "mode")}
    rest = {n: v for n, v in saved.items() if n not in files}
    if broken("per-name"):
        rest = {n: cloudpickle.dumps(v) for n, v in rest.items()}
    return cloudpickle.dumps((rest, files))


def _commit(request: kernel.Snapshot, payload: bytes, manifest: bytes, broken: Broken) -> None:
    if broken("manifest-optional") and not Path(request.manifest_path).parent.exists():
        return Path(request.path).write_bytes(payload) and None
    pairs = ((request.path, payload), (request.manifest_path, manifest))
    mode = 0o644 if broken("world-readable") else 0o600
    staged = []
    try:
        for path, data in pairs:
            at = path if broken("writes-through") else f"{path}.{os.getpid()}"
            fd = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            staged.append((at, path))
            with open(fd, "wb") as file:
                file.write(data)
    except OSError:
        for at, _ in staged:
            os.unlink(at)
        raise
    for at, path in staged:
        os.replace(at, path)


def restore(request: kernel.Restore, namespace: dict[Any, Any], broken: Broken) -> Answer:
    path = Path(request.path)
    if not path.exists():
        status = "error" if broken("missing-fails") else "ok"
        return status, {"restored": [], "failed": [], "reason": "there is no snapshot"}
    try:
        rest, files = pickle.loads(path.read_bytes())
    except BaseException as why:
        if broken("exits-at-restore") and isinstance(why, SystemExit):
            os._exit(7)
        status = "ok" if broken("corrupt-passes") else "error"
        return status, {"restored": [], "failed": [], "reason": f"it cannot be read: {why}"}
    if broken("per-name"):
        rest = {n: pickle.loads(v) for n, v in rest.items()}
    rest |= {n: io.FileIO(path, mode[0]) for n, (path, mode) in files.items()}
    if broken("restore-loses"):
        rest.pop(next(iter(rest)))
    for name, value in rest.items():
        if isinstance(value, types.FunctionType) and not broken("own-globals"):
            code, defaults, cells = value.__code__, value.__defaults__, value.__closure__
            value = types.FunctionType(code, namespace, value.__name__, defaults, cells)
        namespace[name] = value
    return "ok", {"restored": sorted(rest), "failed": []}
