"""
Keys of providers: auth.json first, then the environment. Secrets stay in here and in models/.

What leaves is `CredentialState`: whether a provider can be used, from where, and why not. A key
that the vendor answered with 401 is dead until its value changes, whichever place it came from.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from rlm_protocol.errors import ConfigInvalid, StoreUnavailable

from .settings import ProviderSetting

FILE_BYTES = 1 << 20
LEEWAY_MS = 60_000
"""A key that expires within this time is expired: the request would outlive it."""

Status = Literal["active", "none_needed", "missing", "expired", "rejected", "unreadable"]
Source = Literal["auth.json", "environment"]


class CredentialState(msgspec.Struct, frozen=True, kw_only=True):
    """What may be known of a credential; `reason` says what to do when it is not usable."""

    provider: str
    status: Status
    source: Source | None = None
    expires_at_ms: int | None = None
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether a request may be sent with it."""
        return self.status in ("active", "none_needed")


class _Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: Annotated[str, msgspec.Meta(min_length=1)]
    expires_at_ms: int | None = None


class Credentials:
    """
    The keys that this host may use.

    `path` is auth.json; it is read again when it changes, by any process. `now_ms` is wall-clock
    time in milliseconds since the epoch. Nothing is read before it is asked for. `on_secret` is
    told each secret before it is given out, so that no log shows it.
    """

    def __init__(
        self,
        path: Path,
        providers: Mapping[str, ProviderSetting],
        *,
        env: Mapping[str, str],
        now_ms: Callable[[], int],
        on_secret: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._on_secret = on_secret
        self._providers = providers
        self._env = env
        self._now_ms = now_ms
        self._rejected: set[bytes] = set()
        self._cached: tuple[tuple[int, int, int], dict[str, _Key]] | None = None

    def state(self, provider: str) -> CredentialState:
        """Give the state, without the secret. Local and fast: it asks nobody outside."""
        return self._resolve(provider)[0]

    def states(self) -> list[CredentialState]:
        """Give the state of every provider, by name."""
        return [self.state(provider) for provider in sorted(self._providers)]

    def secret(self, provider: str) -> str | None:
        """Give the key to send, "" when none is needed, None when there is no usable one."""
        secret = self._resolve(provider)[1]
        if secret:
            self._on_secret(secret)
        return secret

    def reject(self, provider: str, secret: str) -> None:
        """Remember that the vendor refused this exact value: it is not used again."""
        self._rejected.add(_fingerprint(provider, secret))

    def set(self, provider: str, key: str, *, expires_at_ms: int | None = None) -> None:
        """
        Store a key in auth.json, readable by the owner only, durably and as a whole.

        A lock file stays behind beside it.

        Raises:
            ConfigInvalid: there is no such provider, the key cannot be one, or the file is damaged
                or not private; it is unchanged.
            StoreUnavailable: the file cannot be written; it is unchanged.
        """
        if provider not in self._providers:
            raise ConfigInvalid(f"There is no provider {provider!r}; nothing was stored.")
        key = key.strip()
        if not (key and key.isascii() and key.isprintable()):
            raise ConfigInvalid("A key is printable ASCII; nothing was stored.", provider=provider)
        self._change(provider, _Key(key=key, expires_at_ms=expires_at_ms))

    def remove(self, provider: str) -> bool:
        """Remove a provider's key from auth.json; give whether there was one. Raises as `set`."""
        return self._change(provider, None)

    def _resolve(self, provider: str) -> tuple[CredentialState, str | None]:
        setting = self._providers.get(provider)
        if setting is None:
            reason = f"There is no provider {provider!r}."
            return CredentialState(provider=provider, status="missing", reason=reason), None
        if setting.kind == "scripted":
            return CredentialState(provider=provider, status="none_needed"), ""
        refused: CredentialState | None = None
        try:
            stored = self._read().get(provider)
        except ConfigInvalid as why:
            stored = None
            refused = CredentialState(provider=provider, status="unreadable", reason=why.message)
        variable = setting.api_key_env
        from_env = self._env.get(variable, "").strip() if variable else ""
        candidates: list[tuple[Source, _Key]] = [("auth.json", stored)] if stored else []
        candidates += [("environment", _Key(key=from_env))] if from_env else []
        for source, key in candidates:
            state = self._judge(provider, source, key)
            if state.usable:
                return state, key.key
            refused = refused or state
        if refused is not None:
            return refused, None
        if variable is None:
            return CredentialState(provider=provider, status="none_needed"), ""
        hint = f"Set {variable}, or run `rlm-host auth set {provider}`."
        return CredentialState(provider=provider, status="missing", reason=hint), None

    def _judge(self, provider: str, source: Source, key: _Key) -> CredentialState:
        status: Status = "active"
        reason = ""
        if _fingerprint(provider, key.key) in self._rejected:
            status, reason = "rejected", f"The provider refused the key from {source}; change it."
        elif key.expires_at_ms is not None and key.expires_at_ms - LEEWAY_MS <= self._now_ms():
            status, reason = "expired", f"The key from {source} has expired; renew it."
        return CredentialState(
            provider=provider,
            status=status,
            source=source,
            expires_at_ms=key.expires_at_ms,
            reason=reason,
        )

    def _read(self) -> dict[str, _Key]:
        """Give what auth.json holds. Raises ConfigInvalid, naming the cure."""
        try:
            opened = open(self._path, "rb", opener=_open_no_follow)  # noqa: SIM115
        except FileNotFoundError:
            return {}
        except OSError as why:
            raise ConfigInvalid(f"{self._path} cannot be read: {why.strerror}.") from why
        with opened as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise ConfigInvalid(f"{self._path} is not a file of yours; it was not read.")
            if found.st_mode & 0o077:
                raise ConfigInvalid(
                    f"{self._path} can be used by others; it was not read. "
                    f"Run `chmod 600 {self._path}`, and renew the keys in it."
                )
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._cached is None or self._cached[0] != version:
                self._cached = version, self._decode(file.read(FILE_BYTES + 1))
            return self._cached[1]

    def _decode(self, data: bytes) -> dict[str, _Key]:
        try:
            if len(data) > FILE_BYTES:
                raise msgspec.DecodeError("too long")
            return msgspec.json.decode(data, type=dict[str, _Key])
        except msgspec.DecodeError:
            # The decoder's own words may quote the content, and with it a key.
            raise ConfigInvalid(
                f"{self._path} is damaged; it was left as it is. Mend or remove it."
            ) from None

    def _change(self, provider: str, key: _Key | None) -> bool:
        new = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                keys = dict(self._read())
                existed = keys.pop(provider, None) is not None
                if key is not None:
                    keys[provider] = key
                elif not existed:
                    return False
                new.unlink(missing_ok=True)  # under the lock: what is there is a dead writer's
                _write_private(new, msgspec.json.encode(keys, order="sorted"))
                new.replace(self._path)
                _sync_folder(self._path.parent)
                return existed
        except OSError as why:
            raise StoreUnavailable(
                f"{self._path} cannot be written ({why.strerror}); the keys are unchanged."
            ) from why

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock that keeps two writers, in any process, from losing each other's key."""
        lock = self._path.with_name(self._path.name + ".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(lock, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _open_no_follow(path: str, flags: int) -> int:
    # O_NONBLOCK: a pipe in the file's place must not hang the host.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def _write_private(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fingerprint(provider: str, secret: str) -> bytes:
    return hashlib.sha256(f"{provider}\0{secret}".encode()).digest()
