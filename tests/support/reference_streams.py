"""What leaves the reference runtime: frames, and all that cells write. See reference_runtime.py."""

import io
import json
import os
import signal
import tempfile
import threading
from codecs import getincrementaldecoder
from typing import Any

import msgspec
from mutant import broken

TEXT_CHARS = 10_000


class Wire:
    """Writes frames, whole ones: under a lock, and with interrupts held back."""

    def __init__(self, fd: int) -> None:
        self.fd, self.lock, self.pid = fd, threading.RLock(), os.getpid()

    def send(self, event: dict[str, Any]) -> None:
        if os.getpid() != self.pid:
            return  # a cell forked: its child is nobody's runtime
        if broken("nan"):
            frame = json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
        else:
            errors = "surrogatepass" if broken("surrogates-pass") else "replace"
            frame = msgspec.json.encode(scrubbed(event)) if errors == "replace" else raw(event)
        if not broken("separators-bare"):
            frame = frame.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
        if broken("frames-torn"):
            return self._write(frame + b"\n")
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with self.lock:
            self._write(frame + b"\n")
        signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view[:4096] if broken("frames-torn") else view) :]


def scrubbed(value: Any) -> Any:
    """Give JSON values without lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {scrubbed(k): scrubbed(v) for k, v in value.items()}
    return [scrubbed(v) for v in value] if isinstance(value, list) else value


def raw(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass")


class Capture:
    """What lands in fds 1 and 2, told as output of whatever runs when it is seen."""

    def __init__(self, runtime: Any) -> None:
        self.runtime, self.lock = runtime, threading.Lock()
        self.files = []
        for fd in (1, 2):
            with tempfile.NamedTemporaryFile() as file:
                write = os.open(file.name, os.O_WRONLY | os.O_APPEND)
                os.dup2(write, fd, inheritable=True)
                os.close(write)
                self.files.append(os.open(file.name, os.O_RDONLY))
        self.offsets, self.decoders = [0, 0], [self._decoder(), self._decoder()]
        threading.Thread(target=self._watch, daemon=True).start()

    def _decoder(self) -> Any:
        return getincrementaldecoder("utf-8")("replace")

    def _watch(self) -> None:
        tick = threading.Event()
        while not tick.wait(0.2 if broken("no-fence") else 0.005):
            with self.lock:
                self.drain(final=False)
            if self.runtime.hit is not None:
                self.runtime.knock()

    def drain(self, *, final: bool) -> None:
        """Tell what is new; at a cell's end half a character is told, too."""
        for n, stream in enumerate(("stdout", "stderr")):
            size = os.fstat(self.files[n]).st_size
            data = os.pread(self.files[n], size - self.offsets[n], self.offsets[n])
            self.offsets[n] = size
            if broken("native-cut"):
                data = data[:65536]
            text = self.decoders[n].decode(data, final or broken("decode-per-read"))
            self.runtime.tell(stream, self.runtime.raw_author(), text)


class Stream(io.TextIOBase):
    """`sys.stdout` and `sys.stderr` of cells."""

    def __init__(self, runtime: Any, name: str, fd: int) -> None:
        self.runtime, self._name, self.fd = runtime, name, fd

    def fileno(self) -> int:
        return self.fd

    def write(self, text: str) -> int:
        if broken("prints-by-fd"):
            return os.write(self.fd, text.encode("utf-8", "replace"))
        self.runtime.tell(self._name, self.runtime.author(), text)
        return len(text)
