"""
The loop step of the demo: which preprocessing and which codec store a file in the fewest bytes?

Runs as a loop's external command: `python -P -m rlm_host.faces.demo_step FILE LIMIT_BYTES` reads
the step's context as JSON from stdin and writes one observation as JSON to stdout. The search goes
from coarse to fine. Generations 0 to 3 screen a preprocessing each with a quick codec of a small
window. From generation 4 on the best preprocessing so far is kept and its codec is searched.
The last one is a control: no codec at all, which must not win.
"""

import bz2
import json
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any

Transform = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]
Codec = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]
GENERATIONS = 8


def _delta(data: bytes) -> bytes:
    return bytes((b - a) & 255 for a, b in zip(b"\0" + data, data, strict=False))


def _undelta(data: bytes) -> bytes:
    out, last = bytearray(len(data)), 0
    for i, step in enumerate(data):
        last = out[i] = (last + step) & 255
    return bytes(out)


def _halves(data: bytes) -> bytes:
    return data[0::2] + data[1::2]


def _unhalves(data: bytes) -> bytes:
    out, middle = bytearray(len(data)), (len(data) + 1) // 2
    out[0::2], out[1::2] = data[:middle], data[middle:]
    return bytes(out)


_HIGH = bytes(b >> 4 for b in range(256))
_LOW = bytes(b & 15 for b in range(256))


def _nibbles(data: bytes) -> bytes:
    return data.translate(_HIGH) + data.translate(_LOW)


def _unnibbles(data: bytes) -> bytes:
    middle = len(data) // 2
    pairs = zip(data[:middle], data[middle:], strict=True)
    return bytes(high << 4 | low for high, low in pairs)


def _same(data: bytes) -> bytes:
    return data


TRANSFORMS: dict[str, Transform] = {
    "plain": (_same, _same),
    "delta": (_delta, _undelta),
    "halves": (_halves, _unhalves),
    "nibbles": (_nibbles, _unnibbles),
}


def _quick(data: bytes) -> bytes:
    """Deflate in a zlib container, level 1, window of 512 bytes: cheap enough to screen with."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 9)
    return packer.compress(data) + packer.flush()


def _raw_deflate(data: bytes, level: int, window_bits: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -window_bits)
    return packer.compress(data) + packer.flush()


_STORED, _DEFLATED = b"\0", b"\1"


def _store(data: bytes) -> bytes:
    return _STORED + data


def _deflate(data: bytes) -> bytes:
    """A mark and the shortest of: deepest search, the screening's own stream, the data itself."""
    streams = (_raw_deflate(data, 9, 15), _raw_deflate(data, 1, 9))
    return min(_DEFLATED + min(streams, key=len), _store(data), key=len)


def _unmark(data: bytes) -> bytes:
    rest = data[1:]
    return rest if data[:1] == _STORED else zlib.decompressobj(-15).decompress(rest)


_LZMA: list[dict[str, int]] = [{"id": lzma.FILTER_LZMA2, "preset": 6}]


def _lzma(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=_LZMA)


def _unlzma(data: bytes) -> bytes:
    return lzma.decompress(data, format=lzma.FORMAT_RAW, filters=_LZMA)


CODECS: dict[str, Codec] = {
    "quick": (_quick, zlib.decompress),
    "deflate": (_deflate, _unmark),
    "bzip2": (bz2.compress, bz2.decompress),
    "lzma": (_lzma, _unlzma),
    "stored": (_store, _unmark),
}
_SCREENED = tuple(TRANSFORMS)
_SEARCHED = ("deflate", "bzip2", "lzma", "stored")


def candidate(generation: int, best_artifact_id: str | None) -> str:
    """Give the pipeline that this generation tries, as `PREPROCESSING+CODEC`."""
    if generation < len(_SCREENED):
        return f"{_SCREENED[generation]}+quick"
    kept = (best_artifact_id or "plain+quick").partition("+")[0]
    return f"{kept}+{_SEARCHED[(generation - len(_SCREENED)) % len(_SEARCHED)]}"


def measure(pipeline: str, data: bytes) -> dict[str, Any]:
    """
    Pack `data` and give the observation: the reward is the share of bytes that is saved.

    Raises:
        ValueError: the pipeline does not give the data back; nothing was measured.
    """
    before, codec = pipeline.split("+")
    prepare, restore = TRANSFORMS[before]
    pack, unpack = CODECS[codec]
    packed = pack(prepare(data))
    if restore(unpack(packed)) != data:
        raise ValueError(f"{pipeline} does not give the data back")
    return {
        "reward": 1 - len(packed) / len(data),
        "artifactId": pipeline,
        "evidence": {"packedBytes": len(packed), "bytes": len(data)},
    }


def main(argv: list[str]) -> int:
    """Run one step; usage errors are the caller's and raise."""
    path, limit_bytes = argv[0], int(argv[1])
    context = json.load(sys.stdin)
    with open(path, "rb") as file:
        data = file.read(limit_bytes)
    pipeline = candidate(context["generation"], context.get("bestArtifactId"))
    sys.stdout.write(json.dumps(measure(pipeline, data)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
