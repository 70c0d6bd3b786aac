"""A template and its forks, driven by their wire."""

import contextlib
import os
import select
import socket
import subprocess
import sys
from typing import Any

from rlm_protocol import warm
from support.runtime_driver import PATIENCE_S, Runtime


class Template:
    """A template and our end of it, not yet prepared. A context manager: leaving it retires it."""

    def __init__(self, **env: str) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlm.repl"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"HOME": os.environ["HOME"], **env, warm.TEMPLATE_FD: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def __enter__(self) -> "Template":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.tell(warm.encode(warm.Retire()))
        self.link.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            said = self.process.stdout.read()
            self.process.stdout.close()
        assert said == b"", "a template says nothing to a kernel's host"

    def tell(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.link, [data], fds)

    def told(self) -> warm.Told | None:
        """Give its next word; None when it has ended."""
        assert select.select([self.link], [], [], PATIENCE_S)[0], "the template says nothing"
        data, fds, _, _ = socket.recv_fds(self.link, 65536, 4)
        for fd in fds:
            os.close(fd)
        return warm.decode_told(data) if data else None

    def prepared(self) -> "Template":
        self.tell(warm.encode(warm.Prepare()))
        assert self.told() == warm.Ready()
        return self


class Attached(Runtime):
    """A kernel on channels that a test has made: no child of this process."""

    def __init__(self) -> None:
        self.strays: list[dict[str, Any]] = []
        self._buffer, self._count = bytearray(), 0
        self._link, self._control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, self._in = os.pipe()
        self._out, stdout = os.pipe()
        self.channels = (stdin, stdout, 2, self._control.fileno())
        self.ready: dict[str, Any] = {}

    def handed_over(self) -> None:
        """Close the other ends here."""
        os.close(self.channels[0])
        os.close(self.channels[1])
        self._control.close()

    def begin(self) -> None:
        """Wait until it is ready."""
        self.ready = self.event()
        assert self.ready["event"] == "ready"

    def at_its_end(self) -> bool:
        """Wait for the end of its output, which has begun with nothing else."""
        return os.read(self._out, 1) == b""

    def let_go(self) -> None:
        """Close the guard's control socket."""
        self._link.close()

    def end(self) -> None:
        """End it, wait for its guard's last word, close."""
        self._link.send(b"kill")
        while not self.told().startswith(b"exit"):
            continue
        self.close()

    def close(self) -> None:
        self._link.close()
        os.close(self._in)
        os.close(self._out)


class Fork(Attached):
    """A guard and a kernel of a template that wait for a birth."""

    def __init__(self, template: Template) -> None:
        super().__init__()
        self.birth, birth = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        template.tell(warm.encode(warm.Fork()), (*self.channels, birth.fileno()))
        birth.close()
        self.handed_over()
        born = template.told()
        assert isinstance(born, warm.Born)
        self.guard = born.pid

    def live(self, folder: str = "/", **variables: str) -> "Fork":
        """Give it a folder and an environment; wait until it is ready."""
        fd = os.open(folder, os.O_RDONLY)
        pairs = tuple((os.fsencode(k), os.fsencode(v)) for k, v in variables.items())
        socket.send_fds(self.birth, [warm.encode(warm.Birth(environment=pairs))], [fd])
        os.close(fd)
        self.begin()
        return self

    def close(self) -> None:
        self.birth.close()
        super().close()
