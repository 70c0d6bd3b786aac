"""Which snapshot counts: signatures, and kills at every operation of a commit."""

import itertools
import os
from pathlib import Path

import pytest

from rlm_host import paths
from rlm_host.kernels import snapshots
from rlm_host.kernels.snapshots import SnapshotStore
from rlm_protocol import snapshot as file_format
from rlm_protocol.errors import SnapshotUntrusted


def payload(stream: bytes, raw: bytes = b"") -> bytes:
    manifest = file_format.Manifest(
        saved_names=("a",), bytes=1, python_version="3.11", timestamp="now"
    )
    body_end = file_format.HEADER_BYTES + len(stream)
    buffers = (file_format.Buffer(body_end, len(raw), 0),) if raw else ()
    head = file_format.header(stream_bytes=len(stream), table_at=body_end + len(raw))
    table = file_format.Table(names=("a",), ends=(len(stream),), buffers=buffers, manifest=manifest)
    return head + stream + raw + file_format.encode_table(table, head, stream)


class Place:
    def __init__(self, root: Path) -> None:
        self.home, self.dir = root / "home", root / "session"
        self.store = SnapshotStore(self.home, self.dir)

    def save(self, data: bytes) -> str:
        new, manifest = self.store.next_pair()
        new.write_bytes(data)
        manifest.write_bytes(b"manifest of " + data[:60])
        return self.store.commit()

    def loaded(self) -> bytes | None:
        path = self.store.check()
        return None if path is None else path.read_bytes()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_session_without_a_snapshot_has_none(place: Place) -> None:
    assert place.loaded() is None


def test_what_was_committed_is_given_back(place: Place) -> None:
    for data in (payload(b"one"), b"\x80an older format", payload(b"two")):
        place.save(data)
        assert place.loaded() == data
    names = {"kernel-state.dill", "kernel-state.json", "kernel-state.sig"}
    assert {name for name in os.listdir(place.dir) if len(name) < 30} == names
    assert (place.home / "keys" / "snapshot.key").stat().st_mode & 0o777 == 0o600
    assert (place.home / "keys").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("old", [payload(b"stream", b"raw bytes"), b"\x80older"])
def test_code_that_was_changed_is_refused(place: Place, old: bytes) -> None:
    place.save(old)
    path = place.dir / "kernel-state.dill"
    code = [*range(len(old))]
    if old[:1] != b"\x80":  # raw buffers are data, with checksums of their own
        raw = slice(file_format.HEADER_BYTES + 6, file_format.HEADER_BYTES + 15)
        assert old[raw] == b"raw bytes"
        code = [n for n in code if not raw.start <= n < raw.stop]
    for at in code:
        path.write_bytes(old[:at] + bytes([old[at] ^ 1]) + old[at + 1 :])
        with pytest.raises(SnapshotUntrusted):
            place.loaded()
    path.write_bytes(old + b"x")
    with pytest.raises(SnapshotUntrusted):
        place.loaded()
    path.write_bytes(old)
    assert place.loaded() == old


def test_another_hosts_snapshot_is_refused(place: Place, tmp_path: Path) -> None:
    place.save(payload(b"mine"))
    stranger = SnapshotStore(tmp_path / "other home", place.dir)
    with pytest.raises(SnapshotUntrusted):
        stranger.check()


@pytest.mark.parametrize("signatures", [None, b"", b"[]", b'{"macs":["00"]}', b"\xff"])
def test_without_good_signatures_it_is_refused(place: Place, signatures: bytes | None) -> None:
    place.save(payload(b"mine"))
    path = place.dir / "kernel-state.sig"
    path.unlink() if signatures is None else path.write_bytes(signatures)
    with pytest.raises(SnapshotUntrusted):
        place.loaded()
    assert (place.dir / "kernel-state.dill").exists()


def test_a_dropped_snapshot_is_gone(place: Place) -> None:
    place.save(payload(b"mine"))
    (place.dir / "kernel-state.next.dill").write_bytes(b"half")
    place.store.drop()
    assert os.listdir(place.dir) == []
    assert place.loaded() is None


def test_earlier_payloads_are_kept_for_forks_as_long_as_there_is_room(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [place.save(payload(b"%d" % n)) for n in range(snapshots.KEPT + 3)]
    fork = SnapshotStore(place.home, place.dir.parent / "fork")
    assert not fork.adopt(place.store, ids[1])
    for number in (2, 5, snapshots.KEPT + 2):
        assert fork.adopt(place.store, ids[number])
        path = fork.check()
        assert path is not None
        assert path.read_bytes() == payload(b"%d" % number)
    kept = place.dir / f"kernel-state.{ids[5]}.dill"
    kept.write_bytes(payload(b"code of somebody else"))
    assert not fork.adopt(place.store, ids[5])
    kept.unlink()
    monkeypatch.setattr(snapshots, "KEPT_BYTES", 2 * len(payload(b"10")))
    place.save(payload(b"x"))
    assert len([name for name in os.listdir(place.dir) if len(name) > 30]) == 2
    assert place.loaded() == payload(b"x")
    place.store.drop()
    assert os.listdir(place.dir) == []


def test_a_link_in_its_place_is_not_read(place: Place, tmp_path: Path) -> None:
    place.save(payload(b"mine"))
    path = place.dir / "kernel-state.dill"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        place.loaded()


class Crash(BaseException):
    pass


@pytest.mark.parametrize("then", ["a new host looks", "the same host tries again and is killed"])
def test_a_kill_at_any_operation_of_a_commit_leaves_the_old_one_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    old, new = payload(b"old"), payload(b"new")
    seen: set[bytes] = set()
    for nth in itertools.count(1):
        place = Place(tmp_path / str(nth))
        place.save(old)
        left = nth

        def point(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash(name)

        with monkeypatch.context() as patched:
            for name in ("write", "rename", "remove", "exists", "read"):
                original = getattr(paths.Directory, name)

                def counted(self, *args, original=original, name=name):
                    point(f"before {name}")
                    result = original(self, *args)
                    point(f"after {name}")
                    return result

                patched.setattr(paths.Directory, name, counted)
            try:
                place.save(new)
            except Crash:
                crashed = True
            else:
                crashed = False
        if then.startswith("the same"):
            place.store.next_pair()[0].write_bytes(b"half of another")
        found = place.loaded()
        assert found in (old, new)
        seen.add(found)
        assert place.loaded() == found
        manifest = place.dir / "kernel-state.json"
        assert not manifest.exists() or manifest.read_bytes() == b"manifest of " + found[:60]
        place.save(payload(b"later"))  # and it goes on from there
        assert place.loaded() == payload(b"later")
        if not crashed:
            break
    assert nth > 20
    assert seen == {old, new}


def test_two_hosts_that_need_a_key_at_once_agree(tmp_path: Path) -> None:
    home = tmp_path / "home"
    create = paths.Directory.create

    def beaten(self: paths.Directory, name: str, data: bytes) -> None:
        create(self, name, b"k" * 32)
        create(self, name, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paths.Directory, "create", beaten)
        assert snapshots._key(home) == b"k" * 32
    assert snapshots._key(home) == b"k" * 32
