"""One span per generation, through OpenTelemetry's API alone."""

import builtins
import contextlib
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.stores.sqlite import SqliteRunStore
from rlm_host.loops.telemetry import RSITelemetry
from rlm_protocol.errors import ConfigInvalid


class Recorded(NonRecordingSpan):
    def __init__(self, number: int, attributes) -> None:
        super().__init__(SpanContext(1, number, is_remote=False, trace_flags=TraceFlags(1)))
        self.attributes = dict(attributes)
        self.events: list[str] = []
        self.ended = False

    def set_attributes(self, attributes) -> None:
        self.attributes |= attributes

    def add_event(self, name, attributes=None, timestamp=None) -> None:
        self.events.append(f"{name} {attributes['phase']} {attributes['error.type']}")


class RecordingTracer(trace.Tracer):
    def __init__(self) -> None:
        self.spans: list[Recorded] = []

    def start_span(self, name, **_):
        raise NotImplementedError

    @contextlib.contextmanager
    def start_as_current_span(self, name, *, attributes=None, **_):
        assert name == "rlm.loop.generation"
        span = Recorded(len(self.spans) + 1, attributes)
        self.spans.append(span)
        with trace.use_span(span):
            yield span
        span.ended = True


@pytest.fixture
def store(tmp_path: Path):
    opened = SqliteRunStore(tmp_path / "runs.sqlite3")
    yield opened
    opened.close()


def test_each_generation_has_one_span_that_its_row_names(store) -> None:
    tracer, inside = RecordingTracer(), []

    def step(context) -> LoopObservation:
        inside.append(trace.get_current_span())
        if context.generation == 1 and context.attempt == 1:
            raise OSError("once")
        return LoopObservation(reward=0.5, artifact_id="secret", evidence="secret")

    loops = LoopKernel(
        store, LoopConfig("t", "w", max_generations=3), telemetry=RSITelemetry(tracer)
    )
    report = loops.run(loops.submit(), "w", step)
    assert [g.span_id for g in report.generations] == [f"{n:016x}" for n in (1, 2, 3)]
    assert all(span.ended for span in tracer.spans)
    first, second, third = tracer.spans
    assert inside == [first, second, second, third]
    assert second.events == ["rlm.loop.attempt_failed step OSError"]
    assert first.attributes == {
        "rlm.loop.run_id": report.run_id,
        "rlm.loop.generation": 0,
        "rlm.loop.token": 1,
        "rlm.loop.action": "accept",
        "rlm.loop.reason": "improved",
        "rlm.loop.reward": 0.5,
        "rlm.loop.cost": 0.0,
        "rlm.loop.applied": False,
    }
    assert third.attributes["rlm.loop.stop"] == "max_generations"
    assert "secret" not in str([span.attributes for span in tracer.spans])


def test_without_an_sdk_there_is_no_span_id(store) -> None:
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=1), telemetry=RSITelemetry())
    report = loops.run(loops.submit(), "w", lambda c: LoopObservation(reward=1))
    assert report.generations[0].span_id is None


def test_a_missing_library_is_named(monkeypatch) -> None:
    original = builtins.__import__

    def without(name, *more, **named):
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return original(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigInvalid, match=r"rlm-host\[otel\]"):
        RSITelemetry()
