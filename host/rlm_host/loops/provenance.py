"""With what code a run is worked on: the Git commit, what differs from it, and the interpreter."""

import contextlib
import functools
import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlm_protocol.limits import MIB
from rlm_protocol.loop import Provenance

TIME_S = 2.0
"""How long the working tree may be looked at, all in all."""
FRESH_S = 5.0
"""How long what was seen of a working tree counts as what it is."""
CHANGED_BYTES = 64 * MIB
"""How much of the changed files is read."""
_CHUNK = 256 * 1024
_lock = threading.Lock()
_seen: dict[Path, tuple[float, Provenance]] = {}


class _Unknown(Exception):
    """Why the working tree could not be read."""


def provenance_of(folder: Path, *, time_s: float = TIME_S) -> Provenance:
    """
    Give what the code in a folder is, as it was at most FRESH_S ago.

    It never fails and takes little more than `time_s`: what Git does not tell by then is unknown.
    Nothing is written to the repository, and no hook of it is run.
    """
    with _lock:
        seen_s, seen = _seen.get(folder, (0.0, None))
        if seen is None or time.monotonic() - seen_s > FRESH_S:
            seen = _look(folder, time.monotonic() + time_s)
            _seen[folder] = time.monotonic(), seen
        return seen


def _look(folder: Path, deadline_s: float) -> Provenance:
    commit = dirty_digest = unknown = None
    try:
        root, commit = _commit(folder, deadline_s)
        dirty_digest = _dirty_digest(root, deadline_s)
    except (_Unknown, OSError) as why:
        unknown = str(why)
    return Provenance(
        commit=commit,
        dirty_digest=dirty_digest,
        unknown=unknown,
        interpreter=f"{platform.python_implementation()} {platform.python_version()} "
        f"{sys.platform} {platform.machine()}",
        packages_digest=packages_digest(tuple(sys.path)),
    )


@functools.cache
def packages_digest(path: tuple[str, ...]) -> str:
    """Give one digest of the names and versions of all distributions that can be imported."""
    names = set[str]()
    for folder in path:
        with contextlib.suppress(OSError):
            names |= {n for n in os.listdir(folder) if n.endswith((".dist-info", ".egg-info"))}
    return hashlib.blake2b("\0".join(sorted(names)).encode(), digest_size=16).hexdigest()


def _commit(folder: Path, deadline_s: float) -> tuple[Path, str]:
    """Give the root of the working tree and the commit that is checked out there."""
    with _git(folder, deadline_s, "rev-parse", "--show-toplevel", "HEAD") as said:
        root, _, commit = said.read().rstrip(b"\n").rpartition(b"\n")
    return Path(os.fsdecode(root)), commit.decode()


def _dirty_digest(root: Path, deadline_s: float) -> str | None:
    """Give one digest of every path that differs from the commit, and of what is there now."""
    status = ("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    with _git(root, deadline_s, *status) as said:
        entries = said.read().split(b"\0")[:-1]
    if not entries:
        return None
    digest, left = hashlib.blake2b(digest_size=16), CHANGED_BYTES
    for entry in entries:
        digest.update(entry + b"\0")
        for chunk in _content(root / os.fsdecode(entry[3:])):
            digest.update(chunk)
            left -= len(chunk)
            if left < 0 or time.monotonic() > deadline_s:
                raise _Unknown("more has changed in the working tree than is read")
    return digest.hexdigest()


def _content(path: Path) -> Iterator[bytes]:
    """Give what a changed path is now; nothing of one that is gone or is no file."""
    if path.is_symlink():
        yield os.fsencode(os.readlink(path))
    elif path.is_file():
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


@contextlib.contextmanager
def _git(folder: Path, deadline_s: float, *arguments: str) -> Iterator[IO[bytes]]:
    """
    Give what Git says, in a file: a pipe that one of its children holds open would not end.

    Raises:
        _Unknown: it is not installed, has failed, or was ended at the deadline with its children.
    """
    env = os.environ | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complaint:
        try:
            git = subprocess.Popen(
                ["git", "-c", "core.fsmonitor=false", *arguments],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complaint,
                start_new_session=True,
            )
        except FileNotFoundError as why:
            raise _Unknown("git or the folder is not there") from why
        try:
            code = git.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired as why:
            raise _Unknown(f"git {arguments[0]} took too long") from why
        finally:
            if git.returncode is None:
                os.killpg(git.pid, signal.SIGKILL)
                git.wait()
        if code != 0:
            complaint.seek(0)
            told = complaint.read(200).decode(errors="replace").partition("\n")[0]
            raise _Unknown(told or f"git {arguments[0]} failed with code {code}")
        said.seek(0)
        yield said
