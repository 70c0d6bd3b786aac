"""
Where things lie below RLM_HOME, and how files there are opened.

Everything is a function of an explicit `home`; nothing here remembers one. Rule 1: a file is opened
relative to a directory's fd and never through a link (the home itself may be one: a person may keep
it on another disk), nor through a folder below a session's artifacts that a cell has replaced by
one. Rule 2: directories are 0700, files 0600. Rule 3: a name that comes from outside is an id, or
it is replaced by its hash.
"""

import contextlib
import hashlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from rlm_protocol.errors import ConfigInvalid, InvalidParams
from rlm_protocol.limits import ID_PATTERN

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
ARTIFACTS = "session-artifacts"
HOME_BYTES = 400
"""The longest path of a home: SQLite opens paths of up to 512 bytes."""
_ID = re.compile(ID_PATTERN)


# --- where the home is ----------------------------------------------------------------------------


def rlm_home(env: Mapping[str, str]) -> Path:
    """
    Give the home: $RLM_HOME, else ~/.rlm, else rlm in the XDG data folder if ~ is not writable.

    Nothing is created. Raises ConfigInvalid when there is none, or when no files can lie there.
    """
    if named := env.get("RLM_HOME"):
        return _usable("RLM_HOME", Path(named))
    user = _usable("HOME", Path(env.get("HOME") or _account_home()))
    if _can_write(user / ".rlm"):
        return user / ".rlm"
    data = Path(env.get("XDG_DATA_HOME") or user / ".local" / "share")
    return _usable("XDG_DATA_HOME", data) / "rlm"


def _usable(variable: str, path: Path) -> Path:
    if not path.is_absolute():
        raise ConfigInvalid(f"{variable} must be an absolute path.", value=str(path))
    try:
        too_long = len(str(path).encode()) > HOME_BYTES
    except UnicodeEncodeError:
        why = f"{variable} must be UTF-8, and its letters ones of the locale."
        raise ConfigInvalid(why, value=ascii(str(path))) from None
    if too_long:
        raise ConfigInvalid(f"{variable} must be a path of at most {HOME_BYTES} bytes.")
    return path


def _account_home() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # as in a container that was given any uid
        why = "This user has no home folder: set RLM_HOME to where everything may be kept."
        raise ConfigInvalid(why) from None


def ephemeral_home(env: Mapping[str, str]) -> Path:
    """Give the folder of non-persistent sessions: below the OS temp folder, one per user."""
    return Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"rlm-{os.getuid()}"


def socket_folder(env: Mapping[str, str]) -> Path:
    """Give the user's folder of hosts' sockets."""
    base = env.get("XDG_RUNTIME_DIR") or env.get("TMPDIR") or tempfile.gettempdir()
    return Path(base) / f"rlm-{os.getuid()}"


def _can_write(path: Path) -> bool:
    while not os.path.exists(path):  # a folder that may not be searched has nothing in it for us
        path = path.parent
    return os.access(path, os.W_OK | os.X_OK)


# --- what lies where (seed: rlm-runtime, Session Artifacts) ---------------------------------------


def sessions(home: Path) -> Path:
    """Journals of root sessions."""
    return home / "sessions"


def journal(home: Path, session_id: str) -> Path:
    """Journal of a root session. Raises InvalidParams when `session_id` is not an id."""
    return sessions(home) / f"{check_id(session_id)}.jsonl"


def artifacts(home: Path, session_id: str) -> Path:
    """Artifact folder of a root session. Raises InvalidParams when `session_id` is not an id."""
    return home / ARTIFACTS / check_id(session_id)


def family(session_dir: Path) -> Path:
    """Give the artifact folder of the root session above `session_dir`, which may be its own."""
    for folder in (session_dir, *session_dir.parents):
        if folder.parent.name == ARTIFACTS:
            return folder
    return session_dir


def harness(home: Path) -> Path:
    """Global harness state."""
    return home / "harness"


def kernel_venvs(home: Path) -> Path:
    """Managed environments, one folder per digest."""
    return home / "kernel-venvs"


def overlays(home: Path) -> Path:
    """Runtime copies for foreign interpreters, one folder per ABI and digest."""
    return home / "overlays"


def run_store(home: Path, workspace: str) -> Path:
    """Store of a workspace's loops."""
    return home / "runs" / f"{stored_name(workspace)}.sqlite3"


def decision_log(home: Path) -> Path:
    """Decisions of all loops of this home's hosts."""
    return home / "runs" / "decisions.sqlite3"


def budget_store(home: Path) -> Path:
    """Spending of host and day."""
    return home / "budget.sqlite3"


def auth(home: Path) -> Path:
    """Provider credentials."""
    return home / "auth.json"


def config(home: Path) -> Path:
    """The user's settings."""
    return home / "config.toml"


def orphans(home: Path) -> Path:
    """Ledger of processes that hosts have started."""
    return home / "orphans.jsonl"


def keys(home: Path) -> Path:
    """Secrets of this host."""
    return home / "keys"


def logs(home: Path) -> Path:
    """Logs and crash reports."""
    return home / "logs"


def check_id(value: str) -> str:
    """Give `value` back when it is an id. Raises InvalidParams."""
    if not is_id(value):
        raise InvalidParams(
            "An id is 1 to 64 of A-Z a-z 0-9 . _ - and not only dots.", value=value[:80]
        )
    return value


def is_id(value: str) -> bool:
    """Tell whether `value` may name a file."""
    return _ID.fullmatch(value) is not None


def stored_name(value: str) -> str:
    """Give the name under which something with an outside name is stored: itself, or its hash."""
    return value if is_id(value) else hashlib.sha256(value.encode()).hexdigest()[:40]


# --- how files are opened -------------------------------------------------------------------------


class Directory:
    """
    Owns an open directory. Names are single path components; links are never followed.

    All methods raise OSError; ELOOP or ENOTDIR means that a link stood in the way.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path
        """For messages and for other programs; we ourselves go through the fd."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory `path`, and create it and its parents as needed."""
        top = family(path)  # below it cells write
        top.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        opened = cls(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), top)
        for name in path.relative_to(top).parts:
            with opened:
                opened = opened._sub(name)
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd != -1:
            os.close(self._fd)
            self._fd = -1

    def sub(self, name: str) -> "Directory":
        """Open the directory `name` in this one, and create it as needed."""
        return self._sub(name)

    def _sub(self, name: str) -> Self:
        with contextlib.suppress(FileExistsError):
            os.mkdir(_one(name), DIRECTORY_MODE, dir_fd=self._fd)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return type(self)(os.open(name, flags, dir_fd=self._fd), self.path / name)

    def open_file(self, name: str, flags: int) -> int:
        """Open a regular file; a new one gets mode 0600."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(_one(name), flags, FILE_MODE, dir_fd=self._fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(f"{self.path / name} is not a regular file")
        return fd

    @contextlib.contextmanager
    def opened(self, name: str, flags: int) -> Iterator[int]:
        """Open a regular file for the length of the block."""
        fd = self.open_file(name, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        with open(self.open_file(name, os.O_RDONLY), "rb") as file:
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file: after a kill or a power loss it holds the old bytes or the new ones."""
        with self._staged(name, data) as temporary:
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def create(self, name: str, data: bytes) -> None:
        """Write a whole file that must not exist. Raises FileExistsError; then nothing changed."""
        with self._staged(name, data) as temporary:
            os.link(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def rename(self, old: str, new: str) -> None:
        """Rename within the directory, durably."""
        os.rename(_one(old), _one(new), src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)

    def link(self, name: str, other: str) -> None:
        """Give a file another name, too; one that has it already is replaced."""
        self.remove(other)
        os.link(_one(name), _one(other), src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Delete a file; none there is fine."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_one(name), dir_fd=self._fd)

    def names(self) -> list[str]:
        """List what lies in the directory."""
        return os.listdir(self._fd)

    def exists(self, name: str) -> bool:
        """Tell whether there is a file, a directory or a link of that name."""
        try:
            os.stat(_one(name), dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _staged(self, name: str, data: bytes) -> Iterator[str]:
        temporary = f".{_one(name)[:100]}.{secrets.token_hex(6)}"
        try:
            fd = self.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            yield temporary
        finally:
            self.remove(temporary)
        os.fsync(self._fd)


def _one(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise OSError(f"{name!r} is not the name of a file")
    return name
