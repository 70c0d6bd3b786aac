"""One span per generation, for those who trace."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.loop_records import GenerationDone, to_number

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class GenerationSpan(Protocol):
    """The trace of one generation while it lasts. `id` is 16 hex digits, or None."""

    id: str | None

    def failed(self, phase: str, error: Exception) -> None:
        """Note a failed attempt."""

    def done(self, event: GenerationDone) -> None:
        """Note what was recorded."""


class NoSpan:
    """The trace of somebody who does not trace."""

    id: str | None = None

    def failed(self, phase: str, error: Exception) -> None:
        """Note nothing."""

    def done(self, event: GenerationDone) -> None:
        """Note nothing."""


class RSITelemetry:
    """
    Emits one `rlm.loop.generation` span per generation through OpenTelemetry's API.

    Where the spans go is the SDK's matter: without one they go nowhere. Neither artifacts nor
    evidence are put into a span.

    Args:
        tracer: the tracer to use, else the global provider's.

    Raises:
        ConfigInvalid: `opentelemetry-api` is not installed.
    """

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as why:
            raise ConfigInvalid(
                "Tracing needs opentelemetry-api: install rlm-host[otel].", field="telemetry"
            ) from why
        self._trace = trace
        self._tracer = tracer or trace.get_tracer("rlm_host.loops")

    @contextlib.contextmanager
    def generation(self, run_id: str, generation: int, token: int) -> Iterator[GenerationSpan]:
        """Trace one generation of one worker; spans started inside the block are below it."""
        attributes: dict[str, Any] = {
            "rlm.loop.run_id": run_id,
            "rlm.loop.generation": generation,
            "rlm.loop.token": token,
        }
        with self._tracer.start_as_current_span(
            "rlm.loop.generation", attributes=attributes
        ) as span:
            context = span.get_span_context()
            span_id = self._trace.format_span_id(context.span_id) if context.is_valid else None
            yield _TracedSpan(span, span_id)


class _TracedSpan:
    def __init__(self, span: "Span", span_id: str | None) -> None:
        self._span = span
        self.id = span_id

    def failed(self, phase: str, error: Exception) -> None:
        self._span.add_event(
            "rlm.loop.attempt_failed", {"phase": phase, "error.type": type(error).__name__}
        )

    def done(self, event: GenerationDone) -> None:
        decision = event.decision
        attributes: dict[str, Any] = {
            "rlm.loop.action": decision.action,
            "rlm.loop.reason": decision.reason,
            "rlm.loop.reward": event.observation.reward,
            "rlm.loop.gain": decision.gain,
            "rlm.loop.cost": to_number(decision.cost + event.apply_cost),
            "rlm.loop.stop": decision.stop,
            "rlm.loop.applied": event.applied,
        }
        self._span.set_attributes({k: v for k, v in attributes.items() if v is not None})
