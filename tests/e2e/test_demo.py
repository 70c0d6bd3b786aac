"""The demo on files that it has not seen; every number is computed again, by other means."""

import hashlib
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

TEXT = "".join(f"line {n}: {'word ' * (n % 17)}\n" for n in range(700)).encode() + b"no newline"
FILES = {
    "prose.txt": TEXT,
    "noise.bin": random.Random(7).randbytes(30_000),
    "one-line": b"x" * 5_000 + b" y" * 2_000,
}


def alive_in(home: Path) -> list[str]:
    """Command lines of processes that know this RLM_HOME."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                continue
            if str(home).encode() in known and not dead:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


def environment(home: Path) -> dict[str, str]:
    kept = {
        name: os.environ[name]
        for name in ("PATH", "LANG", "RLM_KERNEL_PYTHON")
        if name in os.environ
    }
    return {**kept, "HOME": str(home / "nobody"), "RLM_HOME": str(home)}


def demo(home: Path, *argv: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "rlm_host", "demo", *argv],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def usage_of(node: dict[str, Any]) -> dict[str, int]:
    total = dict(node["own"])
    for child in node["children"]:
        for name, amount in usage_of(child).items():
            total[name] += amount
    assert total == node["subtree"]
    return total


def encoded(pipeline: str, data: bytes) -> int:
    """Bytes of the packed data, from the pipelines' definitions rather than from their code."""
    before, codec = pipeline.split("+")
    if before == "delta":
        data = bytes((data[i] - (data[i - 1] if i else 0)) % 256 for i in range(len(data)))
    elif before == "halves":
        data = bytes(data[i] for i in [*range(0, len(data), 2), *range(1, len(data), 2)])
    elif before == "nibbles":
        data = bytes(b // 16 for b in data) + bytes(b % 16 for b in data)
    quick = zlib.compressobj(1, zlib.DEFLATED, 9)
    quick_size = len(quick.compress(data) + quick.flush())
    if codec == "quick":
        return quick_size
    if codec == "stored":
        return len(data) + 1
    if codec == "deflate":  # a zlib container is six bytes longer than what is in it
        return 1 + min(len(data), quick_size - 6, len(zlib.compress(data, 9)) - 6)
    if codec == "bzip2":
        import bz2

        return len(bz2.compress(data, 9))
    raw = lzma.compress(data, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
    return len(raw)


@pytest.mark.parametrize("name", FILES)
def test_every_number_of_the_demo_is_true(name: str, tmp_path: Path) -> None:
    data, home = FILES[name], tmp_path / "home"
    path = tmp_path / name
    path.write_bytes(data)
    done = demo(home, str(path), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    # The parts are the file, in order, and each child measured its own.
    start = 0
    assert len(told["parts"]) == 4
    for part in told["parts"]:
        piece = data[start : start + part["bytes"]]
        start += part["bytes"]
        assert part["sha256"] == hashlib.sha256(piece).hexdigest()
        assert part["lines"] == piece.count(b"\n")
        assert part["words"] == len(piece.split())
        assert part["longest_line_bytes"] == max(len(line) for line in piece.split(b"\n"))
    assert start == len(data) == told["measuredBytes"]
    longest = max(len(line) for line in data.split(b"\n"))
    for number in (len(data), data.count(b"\n"), len(data.split()), longest):
        assert f"{number:,}" in told["answer"]

    # The loop: every reward, and what follows from it.
    best, applied = float("-inf"), []
    assert [g["generation"] for g in told["generations"]] == list(range(8))
    for g in told["generations"]:
        assert g["reward"] == pytest.approx(1 - encoded(g["artifactId"], data) / len(data))
        assert g["action"] == ("accept" if g["reward"] > best else "reject")
        if g["action"] == "accept":
            best = g["reward"]
            applied.append(g["generation"])
    actions = [g["action"] for g in told["generations"]]
    assert {"accept", "reject"} <= set(actions)
    assert told["run"]["status"] == "completed"
    assert told["run"]["bestReward"] == best
    assert told["inEffect"] == applied
    assert told["current"]["generation"] == applied[-1]
    assert sorted(told["asked"]) == sorted([*applied, 4]), "only the killed apply was asked twice"

    # Usage adds up, the paths exist, nothing runs.
    usage_of(told["tree"])
    assert len(told["tree"]["children"]) == 4
    assert Path(told["session"]["journalPath"]).is_file()
    assert Path(told["session"]["artifactsPath"]).is_dir()
    assert alive_in(home) == []


def test_what_cannot_be_measured_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo")
    for name, word in [
        ("empty", "is empty"),
        ("missing", "does not exist"),
        (".", "is a directory"),
        ("fifo", "is not a regular file"),
    ]:
        done = demo(tmp_path / "home", str(tmp_path / name))
        assert done.returncode == 1
        assert word in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "home").exists(), "a refusal leaves nothing behind"


def test_a_huge_file_is_a_bounded_run(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.write(b"some text\n" * 1000)
        file.truncate(1 << 30)  # sparse: one gigabyte of nothing
    done = demo(tmp_path / "home", str(huge), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["measuredBytes"] < 1 << 25
    assert "only its first" in done.stderr


def test_one_ctrl_c_ends_it_and_leaves_nothing_running(tmp_path: Path) -> None:
    path, home = tmp_path / "file.txt", tmp_path / "home"
    path.write_bytes(TEXT)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rlm_host", "demo", str(path)],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "rlm-host runs" in line:
                break
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # `uv run` makes two of one Ctrl-C
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 130, stderr
        assert "Traceback" not in stderr
    assert alive_in(home) == []
