"""
What a cell puts out, kept in bounded memory: a head for clients, head and tail for the model.

Everything beyond what clients get inline goes to an artifact file as it comes.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from rlm_protocol import kernel
from rlm_protocol.item import CellError
from rlm_protocol.limits import (
    MIB,
    MODEL_RESULT_HEAD_CHARS,
    MODEL_RESULT_TAIL_CHARS,
    OUTPUT_INLINE_BYTES,
)

from ..kernels.cell import OutputEvent
from ..paths import Directory

log = logging.getLogger(__name__)

Channel = Literal["stdout", "stderr", "result"]
OnDelta = Callable[[Channel, int, str], None]
"""`(channel, offset, text)`; offsets count the characters of the item's own text."""

ARTIFACT_BYTES = 1024 * MIB
"""More of one cell's output is counted, not kept."""
DISPLAYS = 100
SHOWN_CHARS = MODEL_RESULT_HEAD_CHARS + MODEL_RESULT_TAIL_CHARS


class Output:
    """
    Collects the output of one cell.

    `artifact` is the id of the file that holds everything, once there is more than the model or
    the client gets; None before. `close` it in the end.
    """

    def __init__(self, item_id: str, folder: Callable[[], Directory], on_delta: OnDelta) -> None:
        self._item_id, self._folder, self._on_delta = item_id, folder, on_delta
        self._inline: dict[Channel, list[str]] = {"stdout": [], "stderr": [], "result": []}
        self._inline_chars: dict[Channel, int] = {"stdout": 0, "stderr": 0, "result": 0}
        self._head = self._tail = ""
        self._chars = 0
        self._early: list[str] = []
        self._inline_left = OUTPUT_INLINE_BYTES
        self._file: int | None = None
        self._file_bytes = 0
        self._path: Path | None = None
        self._broken = False
        self.artifact: str | None = None
        self.truncated = False
        self.displays_dropped = 0
        self.displays: list[dict[str, Any]] = []
        self.error: CellError | None = None

    def add(self, event: OutputEvent) -> None:
        """Take one event of the cell."""
        match event:
            case kernel.Stdout(text=text):
                self._text("stdout", text)
            case kernel.Stderr(text=text):
                self._text("stderr", text)
            case kernel.Result(text=text):
                self._text("result", text)
            case kernel.Display(data=data):
                if len(self.displays) < DISPLAYS and self._take_inline(
                    len(msgspec.json.encode(data))
                ):
                    self.displays.append(data)
                else:
                    self.displays_dropped += 1
            case kernel.Error():
                self.error = CellError(
                    ename=event.ename, evalue=event.evalue, traceback=tuple(event.traceback)
                )

    def text(self, channel: Channel) -> str:
        """Give what the item shows of a channel."""
        return "".join(self._inline[channel])

    def shown(self) -> str:
        """Give what the model sees: everything, or head and tail with the amount between them."""
        text = self._head + self._tail
        if dropped := self._chars - len(text):
            where = f"; all of it is in {self._path}" if self.artifact else ""
            text = f"{self._head}\n[{dropped} characters left out here{where}]\n{self._tail}"
        if self.error is not None:
            raised = "\n".join(self.error.traceback) or f"{self.error.ename}: {self.error.evalue}"
            text = f"{text}\n{raised[-MODEL_RESULT_TAIL_CHARS:]}".lstrip("\n")
        return text

    def close(self) -> None:
        """Close the artifact file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _text(self, channel: Channel, text: str) -> None:
        self._chars += len(text)
        room = MODEL_RESULT_HEAD_CHARS - len(self._head)
        self._head += text[:room]
        self._tail = (self._tail + text[room:])[-MODEL_RESULT_TAIL_CHARS:]
        self._keep(text)
        if not self.truncated and not self._take_inline(len(text.encode("utf-8", "replace"))):
            self.truncated = True
            text = text.encode("utf-8", "replace")[: self._inline_left].decode("utf-8", "ignore")
        elif self.truncated:
            return
        offset = self._inline_chars[channel]
        self._inline[channel].append(text)
        self._inline_chars[channel] += len(text)
        self._on_delta(channel, offset, text)

    def _take_inline(self, size: int) -> bool:
        if size > self._inline_left:
            return False
        self._inline_left -= size
        return True

    def _keep(self, text: str) -> None:
        """Write to the artifact, which begins with what came before it was needed."""
        if self._broken:
            return
        try:
            if self._file is not None:
                self._write(text)
                return
            self._early.append(text)
            if self._chars > SHOWN_CHARS:
                self._open()
        except OSError as why:
            # The cell's output is not worth failing the cell: the model is told of the cut.
            self._broken, self.artifact = True, None
            log.warning("the output of %s could not be kept: %s", self._item_id, why)
            self.close()

    def _open(self) -> None:
        with self._folder() as folder:
            name = f"{self._item_id}.txt"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._file = folder.open_file(name, flags)
            self._path = folder.path / name
        self._write("".join(self._early))
        self._early.clear()
        self.artifact = name

    def _write(self, text: str) -> None:
        assert self._file is not None
        data = text.encode("utf-8", "replace")[: max(0, ARTIFACT_BYTES - self._file_bytes)]
        self._file_bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
