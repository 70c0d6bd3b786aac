"""What people import by name (seed: loop kernel), and what it costs to start without it."""

import subprocess
import sys

import rlm_host

SLOW = (
    "pydantic_ai",
    "openai",
    "anthropic",
    "pygls",
    "lsprotocol",
    "rich",
    "temporalio",
    "psycopg",
    "rlm_host.models",
    "rlm_host.sessions.session",
    "rlm_host.loops",
    "rlm_host.faces",
)


def test_every_public_name_is_there_and_is_loaded_when_used() -> None:
    for name in rlm_host.__all__:
        assert getattr(rlm_host, name) is not None
    code = (
        "import rlm_host, sys; assert not any(m.startswith('rlm_host.loops') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(rlm_host, "LoopColonel")


def test_the_host_starts_without_what_it_may_never_need() -> None:
    code = f"import rlm_host.app, sys; print([m for m in {SLOW!r} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True)
    assert told.stdout.strip() == b"[]"


def test_a_kernel_is_ready_without_what_is_slow() -> None:
    """What is loaded before its guard is loaded before `ready`; `typing` alone brings ten modules."""
    told = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-m", "rlm.repl"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = [line.rpartition("|")[2].strip() for line in told.stderr.splitlines()]
    early = set(loaded[: loaded.index("rlm._guard")])
    assert not early & {"typing", "re", "enum", "inspect", "asyncio", "msgspec"}
