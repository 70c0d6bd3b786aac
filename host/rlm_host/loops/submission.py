"""Making a run durable, in whatever engine: a new one, or one that begins as another."""

import re
import secrets
from pathlib import Path

import msgspec

from rlm_protocol import limits
from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.loop_records import LoopConfig, Steps, Submitted

from .inputs import check_config
from .provenance import provenance_of
from .report import submission
from .stores.base import RunReader


def submit_run(
    store: RunReader,
    config: LoopConfig | None,
    *,
    code: Path,
    run_id: str | None = None,
    steps: Steps | None = None,
) -> str:
    """
    Make a run durable and give its id. The same id again is a no-op.

    Args:
        code: the folder whose state in Git is recorded.
        run_id, steps: see `LoopKernel.submit`, also for what this raises.
    """
    run_id = _checked_id(run_id)
    checked = check_config(config)
    submitted = Submitted(
        config=checked, seed_root=run_id, steps=steps, provenance=provenance_of(code)
    )
    store.submit(run_id, submitted)
    return run_id


def fork_run(
    store: RunReader,
    run_id: str,
    generation: int,
    *,
    code: Path,
    new_run_id: str | None = None,
    config: LoopConfig | None = None,
    reseed: bool = False,
) -> str:
    """Submit a run that begins with another's generations. See `LoopKernel.fork`."""
    new_run_id = _checked_id(new_run_id)
    first = submission(store, run_id)
    submitted = msgspec.structs.replace(
        first,
        config=check_config(config or first.config),
        seed_root=new_run_id if reseed else first.seed_root,
        parent=run_id,
        forked_at=generation,
        provenance=provenance_of(code),
    )
    store.fork(run_id, generation, new_run_id, submitted)
    return new_run_id


def _checked_id(run_id: str | None) -> str:
    if run_id is None:
        return secrets.token_hex(16)
    if not isinstance(run_id, str) or not re.fullmatch(limits.ID_PATTERN, run_id):
        allowed = "1 to 64 letters, digits, dots, underscores and hyphens"
        raise ConfigInvalid(
            f"run_id must be {allowed}.", field="run_id", allowed=allowed, got=repr(run_id)
        )
    return run_id
