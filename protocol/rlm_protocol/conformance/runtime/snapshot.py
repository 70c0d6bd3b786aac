"""Promises about snapshots: what is saved comes back, and no failure costs anything."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from ..promise import Promise, expect
from .driver import Event, Runtime
from .kit import RuntimeKit, probe

MIB = 1024 * 1024


class Pair:
    """A snapshot's two files."""

    def __init__(self, kit: RuntimeKit) -> None:
        self.path = kit.path(".state")
        self.manifest = kit.path(".json")

    def save(self, runtime: Runtime, **options: Any) -> Event:
        """Ask for a snapshot; give its `done`."""
        return runtime.ask(
            "snapshot", path=str(self.path), manifest_path=str(self.manifest), **options
        )

    def bytes(self) -> tuple[bytes, bytes]:
        """Give what lies in both files."""
        return self.path.read_bytes(), self.manifest.read_bytes()


def _saved(kit: RuntimeKit, *names: str) -> tuple[Pair, Event]:
    """Save a fresh runtime that has run these cells; hold the snapshot to having succeeded."""
    pair = Pair(kit)
    with kit.fresh() as runtime:
        for name in names:
            cell = runtime.run(kit.code(name, path=kit.path()))
            expect(cell.ename is None, f"the cell `{name}` failed", error=cell.one("error"))
        done = pair.save(runtime)
    expect(done["status"] == "ok", "the snapshot failed", done=done)
    return pair, done


def _restored(runtime: Runtime, pair: Pair) -> Event:
    return runtime.ask("restore", path=str(pair.path))


def _pair(kit: RuntimeKit) -> None:
    pair, done = _saved(kit, "state_bind")
    names = kit.language.field("state_bind", "names").split()
    expect(set(names) <= set(done["saved"]), "names are missing from `saved`", done=done)
    manifest = json.loads(pair.manifest.read_text("utf-8"))
    expect(manifest.get("version") == 1, "the manifest's version is not 1", manifest=manifest)
    expect(manifest.get("savedNames") == sorted(done["saved"]), "`savedNames` is not `saved`")
    expect({"pythonVersion", "timestamp"} <= manifest.keys(), "the manifest lacks fields")
    size = pair.path.stat().st_size
    for said in (done, manifest):
        expect(said.get("bytes") == size, "`bytes` is not the payload's size", said=said, size=size)


def _roundtrip(kit: RuntimeKit) -> None:
    pair, saved = _saved(kit, "state_bind")
    with kit.fresh() as runtime:
        done = _restored(runtime, pair)
        expect(done["status"] == "ok", "the restore failed", done=done)
        missing = set(saved["saved"]) - set(done["restored"])
        expect(not missing, "saved names did not come back", missing=missing, done=done)
        cell = runtime.run(kit.code("state_read"))
        wanted = kit.language.field("state_read", "result")
        expect(cell.result == wanted, "values changed", result=cell.result, error=cell.ename)


def _comes_back_as(kit: RuntimeKit, name: str) -> None:
    pair, _ = _saved(kit, "state_bind")
    with kit.fresh() as runtime:
        _restored(runtime, pair)
        cell = runtime.run(kit.code(name))
        wanted = kit.language.field(name, "result")
        expect(cell.result == wanted, "values came back unconnected", result=cell.result)


def _shared(kit: RuntimeKit) -> None:
    _comes_back_as(kit, "state_share")


def _rebound(kit: RuntimeKit) -> None:
    _comes_back_as(kit, "state_rebind")


def _skipped(kit: RuntimeKit) -> None:
    """What cannot be saved is said at once, and what is said to be saved comes back."""
    pair, saved = _saved(kit, "state_bind", "state_unsavable")
    hopeless = set(kit.language.field("state_unsavable", "names").split())
    skipped = {row["name"]: row["reason"] for row in saved["skipped"]}
    expect(hopeless <= skipped.keys(), "names are skipped without a word", skipped=skipped)
    expect(all(skipped[name] for name in hopeless), "a name is skipped without a reason")
    both = skipped.keys() & set(saved["saved"])
    expect(not both, "names are both saved and skipped", both=both)
    with kit.fresh() as runtime:
        done = _restored(runtime, pair)
        missing = set(saved["saved"]) - set(done["restored"])
        expect(not missing, "saved names did not come back", missing=missing, done=done)
        probe(kit, runtime)


def _handles(kit: RuntimeKit) -> None:
    precious, pair = kit.path(), Pair(kit)
    with kit.fresh() as runtime:
        runtime.run(kit.code("state_open_file", path=precious))
        pair.save(runtime)
    before = precious.read_bytes()
    with kit.fresh() as runtime:
        _restored(runtime, pair)
        probe(kit, runtime)
    expect(before and precious.read_bytes() == before, "a restore changed an open file")


def _missing(kit: RuntimeKit) -> None:
    runtime = kit.shared()
    done = runtime.ask("restore", path=str(kit.path()))
    expect(done["status"] == "ok", "no snapshot is not an error", done=done)
    expect(done.get("restored") == [] and done.get("reason"), "it is not told", done=done)


def _corrupt(kit: RuntimeKit) -> None:
    pair, _ = _saved(kit, "state_bind")
    good = pair.path.read_bytes()
    runtime = kit.shared()
    runtime.run(kit.code("assign"))
    for name, bad in (
        ("garbage", b"garbage" * 100),
        ("empty", b""),
        ("cut", good[: len(good) // 2]),
    ):
        pair.path.write_bytes(bad)
        done = _restored(runtime, pair)
        expect(done["status"] == "error", f"a corrupt file ({name}) is not refused", done=done)
        expect(done.get("reason"), f"a corrupt file ({name}) is refused without a reason")
        expect(pair.path.read_bytes() == bad, f"a corrupt file ({name}) was not kept")
    cell = runtime.run(kit.code("read_assigned"))
    wanted = kit.language.field("read_assigned", "result")
    expect(cell.result == wanted, "a failed restore changed the namespace", result=cell.result)


def _caps(kit: RuntimeKit) -> None:
    pair = Pair(kit)
    large = set(kit.language.field("state_large", "names").split())
    with kit.fresh() as runtime:
        runtime.run(kit.code("state_bind"))
        runtime.run(kit.code("state_large"))
        for pruned in (False, True):
            done = pair.save(runtime, max_variable_bytes=MIB, prune_oversized=pruned)
            expect(done["status"] == "ok", "a snapshot with caps failed", done=done)
            skipped = {row["name"] for row in done["skipped"]}
            expect(large <= skipped, "a name over its cap is not skipped", done=done)
            expect(not large & set(done["saved"]), "a name over its cap is saved", done=done)
            expect(
                (large <= set(done.get("pruned", ()))) == pruned, "wrong names pruned", done=done
            )
            left = large <= set(runtime.ask("list_names")["names"])
            expect(left != pruned, "names are pruned without being asked, or kept", left=left)


def _total(kit: RuntimeKit) -> None:
    pair = Pair(kit)
    large = set(kit.language.field("state_large", "names").split())
    with kit.fresh() as runtime:
        runtime.run(kit.code("state_large"))
        done = pair.save(runtime, max_bytes=MIB, prune_oversized=True)
        expect(not large & set(done.get("saved", ())), "a snapshot is over its cap", done=done)
        left = large <= set(runtime.ask("list_names")["names"])
        expect(left, "names skipped for the total were pruned")


def _nonsense(kit: RuntimeKit) -> None:
    """Caps that make no sense are refused before anything is touched."""
    runtime, pair = kit.shared(), Pair(kit)
    runtime.run(kit.code("state_bind"))
    pair.save(runtime)
    before = pair.bytes()
    same = {"path": str(pair.path), "manifest_path": str(pair.path)}
    for bad in (
        {"max_bytes": -1},
        {"max_variable_bytes": -1, "prune_oversized": True},
        {"max_bytes": "many"},
        {"max_variable_bytes": True},
        {"max_bytes": None},
        same,
    ):
        _refused(runtime, pair, bad)
        expect(pair.bytes() == before, "a refused snapshot changed the old one", options=bad)
    names = set(kit.language.field("state_bind", "names").split())
    left = set(runtime.ask("list_names")["names"])
    expect(names <= left, "a refused snapshot pruned names", left=left)


def _refused(runtime: Runtime, pair: Pair, options: dict[str, Any]) -> None:
    """Hold a snapshot to being refused, by a ProtocolError or by its own `done`."""
    heard, id_ = len(runtime.events), runtime.new_id()
    paths = {"path": str(pair.path), "manifest_path": str(pair.manifest)}
    runtime.send({"type": "snapshot", "id": id_, **paths, **options})
    cell = runtime.cell(id_)
    runtime.wait(lambda: cell.done is not None or bool(runtime.refusals(heard)), "refusal")
    status = "error" if cell.done is None else cell.done["status"]
    expect(status == "error", "options that make no sense are taken", options=options)


def _failed(kit: RuntimeKit) -> None:
    """A snapshot that cannot be written prunes nothing and leaves the old pair."""
    pair = Pair(kit)
    large = set(kit.language.field("state_large", "names").split())
    with kit.fresh() as runtime:
        runtime.run(kit.code("state_bind"))
        pair.save(runtime)
        before = pair.bytes()
        runtime.run(kit.code("state_large"))
        good, pair.manifest = pair.manifest, kit.directory / "missing" / "m.json"
        done = pair.save(runtime, max_variable_bytes=MIB, prune_oversized=True)
        pair.manifest = good
        expect(done["status"] == "error", "an unwritable manifest is no failure", done=done)
        expect(done.get("reason"), "a failed snapshot gives no reason")
        expect(pair.bytes() == before, "a failed snapshot changed the old pair")
        left = large <= set(runtime.ask("list_names")["names"])
        expect(left, "a failed snapshot pruned names")
    strays = [p.name for p in pair.path.parent.iterdir() if pair.path.name in p.name]
    expect(strays == [pair.path.name], "a failed snapshot left files behind", files=strays)


def _hostile_payload(kit: RuntimeKit) -> None:
    """A value whose restoring would end the process is skipped, or fails alone."""
    pair, _ = _saved(kit, "state_bind", "state_exits")
    with kit.fresh() as runtime:
        done = _restored(runtime, pair)
        probe(kit, runtime, "the cell behind the restore")
        names = set(kit.language.field("state_bind", "names").split())
        expect(names <= set(done["restored"]), "one bad value cost the others", done=done)
        bad = set(kit.language.field("state_exits", "names").split())
        expect(not bad & set(done["restored"]), "a value that cannot be had is restored")


def _odd_names(kit: RuntimeKit) -> None:
    _, saved = _saved(kit, "state_bind", "state_odd_key")
    names = set(kit.language.field("state_bind", "names").split())
    expect(names <= set(saved["saved"]), "an odd key cost the whole snapshot", done=saved)


def _private(kit: RuntimeKit) -> None:
    pair, _ = _saved(kit, "state_bind")
    for path in (pair.path, pair.manifest):
        mode = stat.S_IMODE(path.stat().st_mode)
        expect(mode & 0o077 == 0, "a file of a snapshot is open to others", mode=oct(mode))


def _links(kit: RuntimeKit) -> None:
    """A link that lies where a snapshot goes is replaced or refused, never written through."""
    runtime, pair = kit.shared(), Pair(kit)
    target = Path(kit.path())
    target.write_bytes(b"precious")
    os.symlink(target, pair.path)
    runtime.run(kit.code("state_bind"))
    pair.save(runtime)
    expect(target.read_bytes() == b"precious", "a snapshot wrote through a link")


PROMISES: tuple[Promise[RuntimeKit], ...] = (
    Promise(
        id="snapshot.pair",
        text="A snapshot is two files: payload, and a manifest that names what is in it.",
        checks=(_pair,),
    ),
    Promise(
        id="snapshot.roundtrip",
        text="Every name that is listed as saved comes back, with its value.",
        checks=(_roundtrip,),
    ),
    Promise(
        id="snapshot.sharing",
        text="Two names of one object come back as two names of one object.",
        checks=(_shared,),
        since=3,
    ),
    Promise(
        id="snapshot.globals",
        text="A function that came back sees the names of its new namespace.",
        checks=(_rebound,),
        since=3,
    ),
    Promise(
        id="snapshot.skipped",
        text="What cannot be saved is skipped with a reason, never listed as saved and lost.",
        checks=(_skipped,),
        since=3,
    ),
    Promise(
        id="snapshot.files-safe",
        text="A restore never opens or changes a file that a saved cell had open.",
        checks=(_handles,),
        since=3,
    ),
    Promise(
        id="snapshot.missing",
        text="Restoring what is not there is ok, with a reason.",
        checks=(_missing,),
        since=3,
    ),
    Promise(
        id="snapshot.corrupt",
        text="A corrupt file is refused with a reason, kept, and changes nothing.",
        checks=(_corrupt,),
    ),
    Promise(
        id="snapshot.caps",
        text="A name over its cap is skipped, and pruned only if that was asked.",
        checks=(_caps,),
    ),
    Promise(
        id="snapshot.total",
        text="A snapshot keeps its total cap; names skipped for it are never pruned.",
        checks=(_total,),
    ),
    Promise(
        id="snapshot.nonsense",
        text="Options that make no sense are refused before anything is touched.",
        checks=(_nonsense,),
        since=3,
    ),
    Promise(
        id="snapshot.failed",
        text="A snapshot that cannot be written prunes nothing and leaves the old pair.",
        checks=(_failed,),
        since=3,
    ),
    Promise(
        id="snapshot.hostile-payload",
        text="A value whose restoring would end the process ends nothing.",
        checks=(_hostile_payload,),
        since=3,
    ),
    Promise(
        id="snapshot.odd-names",
        text="A namespace with odd keys is saved all the same.",
        checks=(_odd_names,),
        since=3,
    ),
    Promise(
        id="snapshot.private",
        text="The files are readable by their owner alone.",
        checks=(_private,),
        since=3,
    ),
    Promise(
        id="snapshot.links",
        text="A snapshot never writes through a link.",
        checks=(_links,),
        since=3,
    ),
)
