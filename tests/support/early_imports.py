"""What a host has imported by the time it has answered `initialize` and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

LATER = (
    "rlm_host.models",
    "rlm_host.kernels.session_kernel",
    "rlm_host.sessions.session",
    "rlm_host.children.service",
    "rlm_host.loops",
    "rlm_host.rpc.server",
    "rlm_host.faces",
    "pygls",
    "lsprotocol",
    "pydantic_ai",
    "httpx",
    "temporalio",
    "opentelemetry",
)
"""Packages and modules that wait for their first use."""
AT_ONCE = {"rlm_host.faces", "rlm_host.faces.cli_stdio", "rlm_host.faces.launch"}
"""The face that is in use: serving stdio."""


def loaded_early(home: Path) -> set[str]:
    """Give what of LATER was imported although nobody has used it."""
    params = {"processId": None, "rootUri": None, "capabilities": {}}
    ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    body = json.dumps(ask).encode()
    done = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", "-m", "rlm_host"],
        input=b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
        capture_output=True,
        env={**os.environ, "RLM_HOME": str(home)},
        timeout=60,
        check=True,
    )
    assert b'"serverInfo"' in done.stdout
    rows = done.stderr.decode().splitlines()
    modules = {row.rpartition("|")[2].strip() for row in rows if row.startswith("import time:")}
    assert "rlm_host.app" in modules
    early = {m for m in modules if any(m == one or m.startswith(f"{one}.") for one in LATER)}
    return early - AT_ONCE
