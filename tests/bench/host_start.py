"""P7: spawn to the answer to `initialize`, against importing pygls; and what was loaded by then."""

import os
import subprocess

import host_bench as h
import runtime_bench as b

LATER = (
    "rlm_host.models",
    "rlm_host.kernels.session_kernel",
    "rlm_host.sessions.session",
    "rlm_host.children.service",
    "rlm_host.loops.temporal",
    "rlm_host.loops.stores.sqlite",
    "rlm_host.rpc.server",
    "rlm_host.faces",
    "pygls",
    "lsprotocol",
    "pydantic_ai",
    "httpx",
    "temporalio",
    "opentelemetry",
)
"""Packages that wait for their first use."""
AT_ONCE = {"rlm_host.faces", "rlm_host.faces.cli_stdio", "rlm_host.faces.launch"}
"""The face that is in use: serving stdio."""


def start(folder) -> float:
    began = b.now()
    with h.Framed(h.HOST, folder) as host:
        host.ask("initialize", h.INITIALIZE)
        return b.now() - began


def loaded_early(folder) -> set[str]:
    """Give what of LATER a host has imported before it is asked anything but `initialize`."""
    command = (b.PYTHON, "-X", "importtime", *h.HOST[1:])
    body = b.encode({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": h.INITIALIZE})
    done = subprocess.run(
        command,
        input=b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
        capture_output=True,
        env={**os.environ, "RLM_HOME": str(folder)},
    )
    assert b'"serverInfo"' in done.stdout, done.stderr[-2000:]
    rows = done.stderr.decode().splitlines()
    modules = {row.rpartition("|")[2].strip() for row in rows if row.startswith("import time:")}
    assert "rlm_host.app" in modules
    early = {m for m in modules if any(m == one or m.startswith(one + ".") for one in LATER)}
    return early - AT_ONCE


def measure(report: b.Report, rounds: int) -> None:
    took, pygls = [], []
    with h.home() as folder:
        early = loaded_early(folder)
        for _ in range(rounds):
            took.append(start(folder))
            pygls.append(b.run_once(b.PYTHON, "-c", "import pygls.lsp.server"))
    report.ratio("initialize, to import pygls", took, pygls, 1.3)
    report.value(f"loaded early {' '.join(sorted(early))}".strip(), [len(early)], 0, "")


if __name__ == "__main__":
    b.main("P7", measure, rounds=20, short=6)
