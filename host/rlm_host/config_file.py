"""The user's configuration file as clients see and change it; comments and order stay."""

import contextlib
import fcntl
import hashlib
import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlm_protocol.config import ConfigChange, ConfigResult
from rlm_protocol.errors import ConfigInvalid, Conflict, StoreUnavailable

from . import config, paths

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


class ConfigFile:
    """
    One configuration file; it need not exist. All methods block (files): call them in a thread.

    Args:
        path: the file; a link is followed, for a person may keep it elsewhere.
        check: raises ConfigInvalid for settings that `config.parse` cannot judge.
    """

    def __init__(self, path: Path, check: Callable[[config.Config], object]) -> None:
        self.path = path
        self._check = check
        self._at_start: str | None = None

    def remember(self) -> None:
        """Take the file's content as the one that this host runs with."""
        with contextlib.suppress(StoreUnavailable):
            self._at_start = _digest(self._bytes())

    def read(self) -> ConfigResult:
        """Give what the file says. Raises ConfigInvalid, StoreUnavailable."""
        return self._view(self._bytes())

    def write(
        self, changes: Sequence[ConfigChange], expected_digest: str | None = None
    ) -> ConfigResult:
        """
        Change the file, all changes or none. Repeating a write changes nothing.

        Raises:
            Conflict: the file is not the expected one, nor what these changes would make of it.
            ConfigInvalid: the result would be wrong, or the file is; it stays as it is.
            StoreUnavailable: the file cannot be read or written.
        """
        with self._locked():
            before = self._bytes()
            after = self._changed(before or b"", changes)
            if after != before:
                if expected_digest not in (None, _digest(before)):
                    raise Conflict(
                        "The file was changed by somebody else: read it again.",
                        path=str(self.path),
                        digest=_digest(before),
                    )
                self._replace(after)
            return self._view(after)

    def _changed(self, before: bytes, changes: Sequence[ConfigChange]) -> bytes:
        import tomlkit  # 80 ms, and hardly ever needed

        self._parsed(before)
        document = tomlkit.parse(config.decoded(before))
        for change in changes:
            _apply(document, change)
        after = tomlkit.dumps(document).encode()
        self._parsed(after)
        return after

    def _parsed(self, content: bytes) -> dict[str, Any]:
        try:
            tables = tomllib.loads(config.decoded(content))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
            raise ConfigInvalid(f"{self.path} is not TOML: {why}.") from why
        self._check(config.parse(tables, source=self.path))
        return tables

    def _view(self, content: bytes | None) -> ConfigResult:
        digest = _digest(content)
        return ConfigResult(
            path=str(self.path),
            exists=content is not None,
            digest=digest,
            config=self._parsed(content or b""),
            restart_needed=self._at_start is not None and digest != self._at_start,
        )

    def _bytes(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as why:
            raise self._unavailable(why) from why

    def _replace(self, content: bytes) -> None:
        target = self.path.resolve()
        try:
            with paths.Directory.open(target.parent) as folder:
                folder.write(target.name, content)
        except OSError as why:
            raise self._unavailable(why) from why

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep two hosts from losing each other's changes; the lock file stays behind."""
        try:
            with paths.Directory.open(self.path.parent) as folder:
                fd = folder.open_file(f".{self.path.name}.lock", os.O_WRONLY | os.O_CREAT)
        except OSError as why:
            raise self._unavailable(why) from why
        with open(fd, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _unavailable(self, why: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"{self.path}: {why.strerror or why}.", path=str(self.path))


def _apply(document: "TOMLDocument", change: ConfigChange) -> None:
    import tomlkit

    *tables, key = change.path
    inner: Any = document
    for name in tables:
        if name not in inner and change.value is None:
            return
        if name not in inner:
            inner[name] = tomlkit.table(is_super_table=True)
        inner = inner[name]
        if not isinstance(inner, dict):
            raise ConfigInvalid(f"{'.'.join(change.path)}: {name} is not a table.")
    if change.value is None:
        inner.pop(key, None)
        return
    try:
        inner[key] = change.value
    except ValueError as why:  # a null deep inside: TOML has none
        raise ConfigInvalid(f"{'.'.join(change.path)}: {why}") from why


def _digest(content: bytes | None) -> str:
    return hashlib.sha256(content or b"").hexdigest()[:32]
