"""
The few file operations that a journal's durability rests on, as one object that tests can fail.

Everything else about files (folders, modes, links) is `paths.Directory`'s.
"""

import os

from ..paths import Directory

_SYNC = getattr(os, "fdatasync", os.fsync)


class Files:
    """The machine's files. All methods raise OSError."""

    def open(self, directory: Directory, name: str, flags: int) -> int:
        """Open a regular file in `directory`, never through a link."""
        return directory.open_file(name, flags)

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of `data` at the end of the file; give how many bytes."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """Return when what was written to `fd` survives a power loss."""
        _SYNC(fd)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cut the file."""
        os.ftruncate(fd, size_bytes)

    def create(self, directory: Directory, name: str, data: bytes) -> None:
        """Write a whole new file durably, or none. Raises FileExistsError."""
        directory.create(name, data)

    def close(self, fd: int) -> None:
        """Close. Never fails in a way that matters: what matters was synced."""
        os.close(fd)
