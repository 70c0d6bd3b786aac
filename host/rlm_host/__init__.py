"""
The host: owns sessions, children and loops.

The names of the loop kernel (seed: loop-kernel) are importable from here; each is loaded when it is
first used, so that starting the host does not pay for it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_protocol import __version__
    from rlm_protocol.loop_records import LoopConfig

    from .loops.audit import DecisionLog
    from .loops.compute import ComputeController
    from .loops.context import LoopContext
    from .loops.controller import RSIController
    from .loops.inputs import LoopObservation, Verdict
    from .loops.kernel import LoopKernel
    from .loops.report import LoopGeneration, LoopReport
    from .loops.session_steps import run_guarded
    from .loops.stores.sqlite import SqliteRunStore
    from .loops.telemetry import RSITelemetry

_HOME = {
    "ComputeController": "rlm_host.loops.compute",
    "DecisionLog": "rlm_host.loops.audit",
    "LoopConfig": "rlm_protocol.loop_records",
    "LoopContext": "rlm_host.loops.context",
    "LoopGeneration": "rlm_host.loops.report",
    "LoopKernel": "rlm_host.loops.kernel",
    "LoopObservation": "rlm_host.loops.inputs",
    "LoopReport": "rlm_host.loops.report",
    "RSIController": "rlm_host.loops.controller",
    "RSITelemetry": "rlm_host.loops.telemetry",
    "SqliteRunStore": "rlm_host.loops.stores.sqlite",
    "__version__": "rlm_protocol",
    "Verdict": "rlm_host.loops.inputs",
    "run_guarded": "rlm_host.loops.session_steps",
}

__all__ = [
    "ComputeController",
    "DecisionLog",
    "LoopConfig",
    "LoopContext",
    "LoopGeneration",
    "LoopKernel",
    "LoopObservation",
    "LoopReport",
    "RSIController",
    "RSITelemetry",
    "SqliteRunStore",
    "Verdict",
    "__version__",
    "run_guarded",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
