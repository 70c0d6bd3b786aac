"""
Programs of a user without rights, for tests that run as root: permissions count again.

The interpreter and the checkout may lie in root's own folder, which such a user cannot enter; the
program then runs in a mount namespace in which it is there (bubblewrap).
"""

import contextlib
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.sandboxes import PROGRAM, ROOT, need_sandbox

USER = "nobody"


def as_somebody() -> tuple[str, ...]:
    """Give the argv before a program that makes it run unprivileged; nothing for one that is so."""
    if os.geteuid() != 0:
        return ()
    need_sandbox()
    found = pwd.getpwnam(USER)
    become = ("setpriv", f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups")
    mounts = [word for path in _needed() for word in _reachable(path)]
    return (PROGRAM, "--cap-add", "ALL", "--dev-bind", "/", "/", *mounts, *become)


@contextlib.contextmanager
def somebodys_folder() -> Iterator[Path]:
    """Own a folder that belongs to the user of `as_somebody`."""
    with tempfile.TemporaryDirectory(prefix="rlm-", dir="/tmp") as path:
        if os.geteuid() == 0:
            shutil.chown(path, USER)
        yield Path(path)


def _needed() -> list[Path]:
    return [*dict.fromkeys(Path(path) for path in (sys.base_prefix, sys.prefix, ROOT))]


def _reachable(path: Path) -> list[str]:
    """Show `path` although a folder above it is closed to others: that one is shown empty but for it."""
    above = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
    if not above:
        return []
    words = ["--perms", "0755", "--tmpfs", str(above[0])]
    for folder in reversed(path.parents):
        if folder.is_relative_to(above[0]) and folder != above[0]:
            words += ["--perms", "0755", "--dir", str(folder)]
    return [*words, "--ro-bind", str(path), str(path)]
