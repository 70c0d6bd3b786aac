"""Moving a run between stores: the history is the same, and damage is named by its line."""

import itertools
from pathlib import Path

import pytest

from rlm_host.loops.inputs import LoopConfig, LoopObservation
from rlm_host.loops.kernel import LoopKernel
from rlm_host.loops.moving import export_run, import_run
from rlm_host.loops.report import read_report
from rlm_host.loops.stores.open import open_store
from rlm_protocol.errors import Conflict, SchemaTooNew, StoreCorrupt

REWARDS = [0.2, 0.5, 0.4, 0.6]


def step(context) -> LoopObservation:
    return LoopObservation(reward=REWARDS[context.generation], cost=1.0, artifact_id="a")


@pytest.fixture
def stores(request: pytest.FixtureRequest, tmp_path: Path):
    postgres = request.getfixturevalue("postgres") if "pg" in request.node.name else None
    urls = (f"sqlite:{tmp_path}/{name}" for name in itertools.count())
    wanted = getattr(request, "param", "sqlite-sqlite").split("-")
    opened = [open_store(postgres.new_url() if kind == "pg" else next(urls)) for kind in wanted]
    yield opened
    for store in opened:
        store.close()


def half_a_run(store) -> None:
    loops = LoopKernel(store, LoopConfig("t", "w", max_generations=4, target=0.6))
    loops.submit("run")
    seen = []

    def pausing(context) -> LoopObservation:
        seen.append(context.generation)
        if len(seen) == 2:
            raise OSError("once")
        if len(seen) == 3:
            loops.pause("run", "to move it")
        return step(context)

    assert loops.run("run", "w", pausing).status == "paused"


@pytest.mark.parametrize("stores", ["sqlite-pg", "pg-sqlite", "sqlite-sqlite"], indirect=True)
def test_a_moved_run_has_the_same_history_and_ends_as_it_would_have(stores) -> None:
    source, target = stores
    half_a_run(source)
    lines = list(export_run(source, "run"))
    row = import_run(target, lines)
    assert target.events("run") == source.events("run")
    assert (row.head, row.status, row.reason) == (source.head("run").head, "paused", "to move it")
    assert list(export_run(target, "run")) == lines
    import_run(target, lines)
    for store in stores:
        loops = LoopKernel(store, None)
        loops.resume("run")
        assert loops.run("run", "w", step).stopped_reason == "target"
    here, there = (read_report(store, "run").generations for store in stores)
    assert [(g.generation, g.action, g.reward) for g in here] == [
        (g.generation, g.action, g.reward) for g in there
    ]
    with pytest.raises(Conflict):
        import_run(target, lines)


def test_every_damage_is_found_and_nothing_is_imported(stores) -> None:
    source, target = stores
    half_a_run(source)
    lines = list(export_run(source, "run"))
    damages = [lines[:n] for n in range(len(lines))]
    damages += [lines[:n] + lines[n + 1 :] for n in range(len(lines))]
    damages += [[*lines[:n], lines[n], *lines[n:]] for n in range(len(lines) - 1)]
    damages += [
        [*lines[:n], lines[n].replace(b"0", b"1", 1), *lines[n + 1 :]] for n in range(len(lines))
    ]
    for damaged in damages:
        if damaged == lines:
            continue
        with pytest.raises((StoreCorrupt, SchemaTooNew)):
            import_run(target, damaged)
    assert target.list().runs == ()


def test_an_export_of_a_newer_version_is_refused_by_name(stores) -> None:
    source, target = stores
    half_a_run(source)
    first, *rest = export_run(source, "run")
    with pytest.raises(SchemaTooNew) as refused:
        import_run(target, [first.replace(b'"version":1', b'"version":9'), *rest])
    assert refused.value.data == {"found": 9, "known": 1}
