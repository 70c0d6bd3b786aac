"""
The host's log: JSON lines on stderr and in a rotated private file, free of secrets.

Nothing is configured at import. The stderr of a host is a pipe that its editor may never read: a
line that it does not take at once is dropped and counted, so that logging never stops the host.
"""

import json
import logging
import logging.handlers
import os
import select
from pathlib import Path

from . import paths

FILE_BYTES = 4 * 1024 * 1024
FILES_KEPT = 3
STDERR_FD = 2
MASK = "[redacted]"
SECRET_CHARS_MIN = 6
"""A shorter secret is not masked: it would turn ordinary words into masks."""


class Redactor:
    """The secrets that no line may show. Filled by whoever learns one, before it is used."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()

    def add(self, secret: str) -> None:
        """Mask this text in every later line."""
        if len(secret) >= SECRET_CHARS_MIN:
            self._secrets.add(secret)

    def clean(self, text: str) -> str:
        """Give the text with every known secret masked."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text


class JsonLines(logging.Formatter):
    """One record, one line of JSON, masked after it was rendered: tracebacks too."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Render a record."""
        line = {
            "at_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redactor.clean(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self._redactor.clean(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=True)


class StderrHandler(logging.Handler):
    """Write to a descriptor without ever waiting; count what it did not take."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, cut to what a ready pipe takes at once."""
        line = self.format(record).encode()[: select.PIPE_BUF - 1] + b"\n"
        try:
            ready = self._poll.poll(0)
            if ready and ready[0][1] & select.POLLOUT:
                os.write(self._fd, line)
                return
        except OSError:  # nobody reads it any more: there is nowhere to say so
            pass
        self.dropped += 1


def set_up(*, level: str, redactor: Redactor, home: Path | None = None) -> None:
    """
    Send the host's log to stderr and, with a home, to `logs/host.log` in it (0600, rotated).

    A home that cannot be written leaves stderr alone, with a warning there.
    """
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    formatter = JsonLines(redactor)
    stderr = StderrHandler(STDERR_FD)
    stderr.setFormatter(formatter)
    root.addHandler(stderr)
    root.setLevel(level.upper())
    logging.raiseExceptions = False
    for noisy in ("asyncio", "pygls", "httpx", "httpcore", "openai", "anthropic"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    if home is None:
        return
    try:
        file = _PrivateFile(home)
    except OSError as why:
        logging.getLogger(__name__).warning("no log file: %s", why)
        return
    file.setFormatter(formatter)
    root.addHandler(file)


class _PrivateFile(logging.handlers.RotatingFileHandler):
    def __init__(self, home: Path) -> None:
        folder = paths.logs(home)
        home.mkdir(mode=paths.DIRECTORY_MODE, parents=True, exist_ok=True)
        folder.mkdir(mode=paths.DIRECTORY_MODE, exist_ok=True)
        super().__init__(
            folder / "host.log", maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8"
        )

    def _open(self):  # type: ignore[no-untyped-def]
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, paths.FILE_MODE)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=opener)
