"""Reading artifacts piece by piece. Blocks; run it in a thread."""

import os
from collections.abc import Callable

from rlm_protocol.errors import ArtifactNotFound
from rlm_protocol.host import ArtifactReadResult
from rlm_protocol.limits import MIB

from ..paths import Directory, is_id

PIECE_BYTES = MIB
"""No piece is longer, whatever was asked for."""


def read_piece(
    folder: Callable[[], Directory], artifact_id: str, offset: int, limit: int
) -> ArtifactReadResult:
    """
    Give a piece of an artifact. UTF-8 is cut at a character and given as text, else as bytes.

    Raises:
        ArtifactNotFound: there is none of this id.
    """
    if not is_id(artifact_id):
        raise ArtifactNotFound(id=artifact_id[:64])
    try:
        with folder() as directory, directory.opened(artifact_id, os.O_RDONLY) as fd:
            size = os.fstat(fd).st_size
            data = os.pread(fd, min(limit, PIECE_BYTES), min(offset, size))
    except OSError:
        raise ArtifactNotFound(id=artifact_id) from None
    text, used = _text_of(data, at_end=offset + len(data) >= size)
    end = min(offset, size) + used
    return ArtifactReadResult(
        size_bytes=size,
        offset=offset,
        next_offset=end if end < size and used else None,
        text=text,
        data=data if text is None else None,
    )


def _text_of(data: bytes, *, at_end: bool) -> tuple[str | None, int]:
    """Give the text and how many bytes it is; None when the bytes are no text."""
    for cut in range(0 if at_end else 4):
        try:
            return data[: len(data) - cut].decode(), len(data) - cut
        except UnicodeDecodeError as why:
            if why.start < len(data) - 4:
                break
    try:
        return data.decode(), len(data)
    except UnicodeDecodeError:
        return None, len(data)
