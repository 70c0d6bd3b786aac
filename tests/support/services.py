"""
Real servers for tests: PostgreSQL and Temporal's development server, on this machine alone.

`python -m support.services` (in tests/) starts both, prints their URLs and ends them on Ctrl-C.

PostgreSQL comes from the system (Debian: `postgresql`), Temporal from the dependency group
`services`. A test that needs a missing one is skipped and says so, unless RLM_TEST_SERVICES is
`required`: then it fails, as CI wants it.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

PATIENCE_S = 60.0
UNPRIVILEGED = ("postgres", "nobody")


class Missing(Exception):
    """A server's program is not installed; the text says how to get it."""


def _program(name: str, places: str, how: str) -> str:
    for folder in (*sorted(Path("/").glob(places), reverse=True), Path(sys.executable).parent):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed: {how}")
    return found


def _user() -> str | None:
    """Give who runs the servers: the caller, or somebody unprivileged for root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in UNPRIVILEGED if name in known)


@contextlib.contextmanager
def _folder(name: str) -> Iterator[Path]:
    """Own a folder of the servers' user, with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix=f"rlm-{name}-", dir="/tmp") as path:
        if (user := _user()) is not None:
            shutil.chown(path, user)
        yield Path(path)


class Server:
    """
    One server program that can be killed and started again on the same data.

    `pids` names those that run now, for tests that count what they left behind.
    """

    pids: ClassVar[set[int]] = set()

    def __init__(self, argv: list[str], folder: Path) -> None:
        self.argv, self.folder, self.user = argv, folder, _user()
        self._log = folder.parent / f"{folder.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self.user,
                extra_groups=None if self.user is None else [],
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C"},
                process_group=0,
            )
        Server.pids.add(self._process.pid)
        deadline = time.monotonic() + PATIENCE_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.argv[0]} does not start: {self._log.read_text()}")
            time.sleep(0.02)

    def end(self, how: signal.Signals) -> None:
        """Send a signal and wait until it is over."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            Server.pids.discard(self._process.pid)
            self._process = None
        self._log.unlink(missing_ok=True)

    def answers(self) -> bool:
        raise NotImplementedError


class Postgres(Server):
    """A cluster of its own, reached by a socket in its folder; every commit is synced."""

    def __init__(self, folder: Path) -> None:
        where = "usr/lib/postgresql/*/bin"
        how = "install the Debian package postgresql"
        super().__init__([_program("postgres", where, how)], folder)
        data = str(folder / "data")
        argv = [
            _program("initdb", where, how),
            "-D",
            data,
            "-U",
            "rlm",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        subprocess.run(
            [*argv, "--locale=C", "--no-sync"],
            check=True, capture_output=True, user=self.user, cwd=folder,
            extra_groups=None if self.user is None else [],
        )  # fmt: skip
        self.argv += ["-D", data, "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=on"]
        self.argv += ["-c", "shared_buffers=16MB", "-c", "max_connections=60"]
        self.schemas = 0

    @property
    def url(self) -> str:
        return f"postgresql://rlm@/postgres?host={self.folder}"

    def new_url(self) -> str:
        """Give the URL of an empty schema of its own."""
        self.schemas += 1
        name = f"test_{self.schemas}"
        self.sql(f"CREATE SCHEMA {name}")
        return f"{self.url}&application_name={name}&options=-csearch_path%3D{name}"

    def drop(self, url: str) -> None:
        self.sql(f"DROP SCHEMA {url.rpartition('%3D')[2]} CASCADE")

    def sql(self, statement: str, url: str | None = None) -> list[tuple]:
        import psycopg

        with psycopg.connect(url or self.url, autocommit=True) as db:
            done = db.execute(statement)
            return done.fetchall() if done.description else []

    def backends(self, url: str) -> list[int]:
        """Give the server processes that serve a schema."""
        schema = url.rpartition("%3D")[2]
        query = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{schema}'"
        return [pid for (pid,) in self.sql(query)]

    def restart_immediately(self) -> None:
        """End it as a crash does, without a checkpoint, and start it: it recovers from its log."""
        self.end(signal.SIGQUIT)
        self.start()

    def answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError):
            return self.sql("SELECT 1") == [(1,)]
        return False


class Temporal(Server):
    """
    Temporal's development server with its state in a file, so that it survives a kill.

    It is started with empty namespaces: making one later takes seconds.
    """

    NAMESPACES = 24

    def __init__(self, folder: Path) -> None:
        how = "uv sync --group services"
        self.port = _free_port()
        super().__init__(
            [_program("temporal", "nowhere", how), "server", "start-dev", "--headless",
             "--ip", "127.0.0.1", "--port", str(self.port), "--db-filename", str(folder / "state.db"),
             "--log-level", "error",
             *(f"--namespace=test-{n}" for n in range(self.NAMESPACES)),
             *(f"--search-attribute={name}=Keyword" for name in ("RlmLoopTenant", "RlmLoopWorkspace", "RlmLoopStatus"))],
            folder,
        )  # fmt: skip

        self.given = 0

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def new_url(self) -> str:
        """Give the URL of an empty namespace of its own."""
        assert self.given < self.NAMESPACES, "raise NAMESPACES"
        self.given += 1
        return f"temporal://{self.url}/test-{self.given - 1}"

    def answers(self) -> bool:
        asked = [self.argv[0], "operator", "cluster", "health", "--address", self.url]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(kind: type[Postgres] | type[Temporal]) -> Iterator[Postgres | Temporal]:
    """Own a server for the length of the block. Raises Missing."""
    with _folder(kind.__name__.lower()) as folder:
        server = kind(folder)
        try:
            server.start()
            yield server
        finally:
            server.end(signal.SIGQUIT if kind is Postgres else signal.SIGTERM)


def _fixture(kind: type[Postgres] | type[Temporal]):
    @pytest.fixture(scope="session", name=kind.__name__.lower())
    def server():
        with contextlib.ExitStack() as block:
            try:
                opened = block.enter_context(running(kind))
            except Missing as why:
                if os.environ.get("RLM_TEST_SERVICES") == "required":
                    pytest.fail(str(why))
                pytest.skip(str(why))
            yield opened

    return server


postgres = _fixture(Postgres)
temporal = _fixture(Temporal)


if __name__ == "__main__":
    with running(Postgres) as first, running(Temporal) as second:
        print(first.url, second.url, sep="\n", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
