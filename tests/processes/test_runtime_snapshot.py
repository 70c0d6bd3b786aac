"""What comes back, what is left out and why, and that files are a whole pair or the old one."""

import json
import os
import select
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_protocol import snapshot as file_format
from support.runtime_driver import Exchange, Runtime


@pytest.fixture(scope="module")
def kernels() -> Iterator[tuple[Runtime, Runtime]]:
    with Runtime() as one, Runtime() as other:
        yield one, other


CLEAR = "for _n in [n for n in globals() if not str(n).startswith('_')]: del globals()[_n]"


class Trip:
    """Save in one kernel, restore in another."""

    def __init__(self, kernels: tuple[Runtime, Runtime], folder: Path) -> None:
        self.one, self.other = kernels
        self.payload, self.manifest = folder / "state", folder / "state.json"
        for runtime in kernels:
            runtime.run(CLEAR, silent=True)

    def save(self, runtime: Runtime | None = None, **options: Any) -> dict[str, Any]:
        paths = {"path": str(self.payload), "manifest_path": str(self.manifest)}
        return (runtime or self.one).ask("snapshot", **{**paths, **options}).done

    def restore(self, runtime: Runtime | None = None) -> dict[str, Any]:
        return (runtime or self.other).ask("restore", path=str(self.payload)).done

    def __call__(self, code: str, check: str) -> Exchange:
        got = self.one.run(code)
        assert got.status == "ok", got
        saved = self.save()
        assert saved["status"] == "ok", saved
        back = self.restore()
        assert back["failed"] == [], back
        assert back["restored"] == saved["saved"]
        return self.other.run(check)


@pytest.fixture
def trip(kernels: tuple[Runtime, Runtime], tmp_path: Path) -> Trip:
    return Trip(kernels, tmp_path)


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("a = [1]; b = {'a': a}", "b['a'] is a"),
        ("def mk():\n c = [0]\n def inc(): c[0] += 1\n def see(): return c[0]\n return inc, see\ninc, see = mk()", "inc(); see() == 1"),
        ("class C:\n def m(self): return self\no = C(); f = o.m", "f() is o and type(o) is C"),
        ("K = 1\ndef get(): return K", "K = 2; get() == 2"),
        ("K = 1\nl = [lambda: K]", "K = 3; l[0]() == 3"),
        ("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)", "even(10)"),
        ("_h = 5\ndef f(): return _h", "f() == 5"),
        ("import json as j\ndef f(): return j.dumps(1)", "f() == '1'"),
        ("import enum\nclass S(enum.Enum): OK = 1\nv = S.OK", "v is S.OK"),
        ("import typing\nT = typing.TypeVar('T')\nclass G(typing.Generic[T]): pass\ng = G()", "isinstance(g, G)"),
        ("class A:\n class B: pass\na = A(); a.b = A.B()", "isinstance(a.b, A.B)"),
        ("class A: pass\nclass B: a = A()\nb = B(); l = [B()]", "b.a is l[0].a is B.a"),
        ("from dataclasses import dataclass\n@dataclass\nclass D: x: int = 1\nd = D(2); l = [d]", "l[0] is d and d == D(2)"),
        ("class P:\n def __init_subclass__(c): c.made = 1\nclass Q(P): pass\nq = Q()", "isinstance(q, P)"),
        ("import threading; lock = threading.Lock(); r = threading.RLock()", "lock.acquire() and r.acquire()"),
        ("import weakref\nclass C: pass\no = C(); w = weakref.ref(o)", "w() is o"),
        ("import functools\n@functools.lru_cache\ndef f(x): return x + 1\nf(1)", "f(1) == 2"),
        ("async def f(): return 5", "await f() == 5"),
        ("def g():\n yield 1", "list(g()) == [1]"),
        ("import re, datetime, decimal, pathlib\np = re.compile('a+'); d = datetime.date(2020, 1, 1); x = decimal.Decimal('1.5'); q = pathlib.Path('/a')", "p.match('aa') and d.year == 2020 and x * 2 == 3 and q.name == 'a'"),
        ("x = []; x.append(x)", "x[0] is x"),
        ("def f(n=[]): n.append(1); return n\ng = f", "f is g and f() is f()"),
        ("class C:\n __slots__ = ('a',)\nc = C(); c.a = 1", "c.a == 1"),
        ("import asyncio, sys, os, math", "math.pi > 3 and os.name == 'posix'"),
        ("from collections import namedtuple, OrderedDict, Counter, deque\nN = namedtuple('N', 'a b'); n = N(1, 2); c = Counter('aab'); d = deque([1], maxlen=3)", "n == N(1, 2) and c['a'] == 2 and d.maxlen == 3"),
        ("class M(type): pass\nclass C(metaclass=M): pass\nc = C()", "type(C) is M and type(c) is C"),
        ("class C:\n @property\n def x(self): return 1\n @staticmethod\n def s(): return 2\n @classmethod\n def k(cls): return cls\nc = C()", "c.x == 1 and c.s() == 2 and c.k() is C"),
        ("globals()[1] = 2; y = 1", "y == 1"),
        ("class A:\n def f(self): return 1\nclass B(A):\n def f(self): return super().f() + 1\nb = B()", "b.f() == 2"),
        ("class V: pass\nold = V()\nclass V: pass\nnew = V()", "type(old) is not V and type(new) is V"),
        ("import functools\ndef deco(g):\n @functools.wraps(g)\n def w(*a): return g(*a) + K\n return w\nK = 1\n@deco\ndef f(x): return x", "K = 5; f(1) == 6"),
        ("def f(): pass\nf.me = f; f.n = 5", "f.me is f and f.n == 5"),
        ("def outer(x):\n class Inner:\n  def get(self): return x\n return Inner\nMade = outer(1); i = Made()", "i.get() == 1 and type(i) is Made"),
        ("class S:\n one = None\n def __new__(c):\n  if c.one is None: c.one = super().__new__(c)\n  return c.one\na = S(); b = S()", "a is b and S() is a"),
        ("import typing\nclass N(typing.NamedTuple): a: int = 1\nn = N(); U = int | str; L = list[int]", "n == N(1) and U == int | str and L == list[int]"),
        ("import itertools; c = itertools.count(5); next(c); it = iter([1, 2]); next(it) and None", "next(c) == 6 and next(it) == 2"),
        ("import asyncio; q = asyncio.Queue(); q.put_nowait(1); l = asyncio.Lock()", "q.get_nowait() == 1 and not l.locked()"),
        ("import io; b = io.BytesIO(b'abc'); b.read(1); s = io.StringIO('abc'); s.read(2) and None", "b.read() == b'bc' and s.read() == 'c'"),
        ("import collections; d = collections.defaultdict(lambda: K); K = 3", "K = 4; d['z'] == 4"),
        ("import __main__; mm = __main__; x = 1", "x = 2; mm.x == 2"),
        ("s = '\\ud800'; big = 10**5000; f = float('nan'); r = range(10**20)", "s == '\\ud800' and big == 10**5000 and f != f and r.stop == 10**20"),
        ("class C:\n def __eq__(self, o): raise RuntimeError\n def __hash__(self): raise RuntimeError\nc = C(); l = [c]", "l[0] is c"),
        ("d = {}; d['self'] = d; l = [d]; t = (l,); l.append(t)", "l[1] is t and d['self'] is d"),
        ("名前 = 1; list = 5", "名前 == 1 and list == 5"),
        ("import rlm; R = rlm.run", "R is __import__('rlm').run"),
        ("def mk():\n n = 0\n def inc():\n  nonlocal n; n += 1\n def see(): return n\n return inc, see\ninc, see = mk(); inc()", "inc(); see() == 2"),
        ("def mk():\n def f(n): return g(n - 1) if n else 'f'\n def g(n): return f(n - 1) if n else 'g'\n del_ = f\n return f, g\nf, g = mk()", "f(3) == 'g' and f.__closure__[0].cell_contents is g"),
        ("import math\nclass P:\n def __init__(self): self.x = 4\n def __setstate__(self, s): self.x = math.isqrt(s['x'])\np = P()", "p.x == 2"),
        ("SALT = 3\nclass K:\n def __hash__(self): return SALT\nkey = K(); d = {key: 1}", "d[key] == 1"),
        ("made = []\nclass P:\n def __init_subclass__(c): made.append(c.__name__)\nclass Q(P): pass", "'Q' in made and issubclass(Q, P)"),
        ("globals()['\\ud800'] = globals()['a b'] = 2; y = 1", "y == 1"),
    ],
)  # fmt: skip
def test_comes_back_as_it_was(trip: Trip, code: str, check: str) -> None:
    got = trip(code, f"bool(({check.rpartition(';')[2].strip()}))" if ";" not in check else check)
    assert got.result == "True", got


@pytest.mark.parametrize(
    ("code", "name", "reason"),
    [
        ("f = open(PRECIOUS, 'w'); f.write('precious'); f.flush() and None", "f", "open file"),
        ("f = open(PRECIOUS)\nf.readline() and None", "f", "open file"),
        ("f = open(PAYLOAD, 'wb')", "f", "open file"),
        ("import socket; s = socket.socket()", "s", "socket"),
        ("import threading; l = threading.Lock(); l.acquire() and None", "l", "held"),
        ("import threading; t = threading.Thread(target=print)", "t", ""),
        ("g = (i for i in [1])", "g", "generator"),
        ("import contextvars; c = contextvars.ContextVar('c')", "c", "ContextVar"),
        ("import asyncio; t = asyncio.ensure_future(asyncio.sleep(600))", "t", ""),
        ("class E:\n def __reduce__(self): raise RuntimeError('no')\ne = E()", "e", "RuntimeError: no"),
        ("class E:\n def __reduce__(self): raise KeyboardInterrupt\ne = E()", "e", "KeyboardInterrupt"),
        ("import sys\nclass E:\n def __reduce__(self): return (sys.exit, (7,))\ne = E()", "e", "SystemExit"),
        ("import os\nclass E:\n def __reduce__(self): return (os._exit, (7,))\ne = E()", "e", "ends the process"),
        ("class E:\n def __setstate__(self, s): raise ValueError('bad')\n def __getstate__(self): return 1\ne = E()", "e", "ValueError: bad"),
        ("big = bytearray(17 * 2**20)", "big", "larger than 16777216"),
        ("import re; m = re.match('a', 'a')", "m", "re.Match"),
        ("deep = []\nfor _ in range(100_000): deep = [deep]", "deep", "recursion"),
        ("class E(Exception):\n def __init__(self, a, b): super().__init__(a)\ne = E(1, 2)", "e", "TypeError"),
        ("import sqlite3; db = sqlite3.connect(':memory:')", "db", "sqlite3"),
        ("class L:\n @property\n def __class__(self): raise RuntimeError('lies')\nl = L()", "l", "RuntimeError: lies"),
        ("import sys; out = sys.stdout", "out", "open file"),
    ],
)  # fmt: skip
def test_what_would_not_come_back_is_left_out_with_its_reason_when_saving(
    trip: Trip, tmp_path: Path, code: str, name: str, reason: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("line one\nline two\n")
    code = code.replace("PRECIOUS", repr(str(precious))).replace("PAYLOAD", repr(str(trip.payload)))
    assert trip.one.run(f"{code}\nfine = 1\nshared = [fine]").status == "ok"
    content = precious.read_text()
    saved = trip.save()
    assert saved["status"] == "ok", saved
    skipped = {row["name"]: row["reason"] for row in saved["skipped"]}
    assert reason in skipped[name]
    assert {"fine", "shared"} <= set(saved["saved"])
    assert trip.restore()["failed"] == []
    assert precious.read_text() == content


def test_a_restore_that_is_interrupted_leaves_the_namespace_as_it_was(trip: Trip) -> None:
    trip.one.run(
        "x = new = 2\nimport time\n"
        "class Slow:\n def __getstate__(self): return 1\n"
        " def __setstate__(self, s): print('go', new); time.sleep(600)\n"
        "slow = Slow()"
    )
    assert trip.save()["unverified"]
    trip.other.run("x = 1")
    trip.other.send({"type": "restore", "id": "slow", "path": str(trip.payload)})
    seen = trip.other.until(lambda e: e["event"] == "stdout")
    assert seen.text() == "go 2\n", "what is loaded can use what was loaded before it"
    trip.other.interrupt("slow")
    assert trip.other.until_done("slow").ename == "KeyboardInterrupt"
    assert trip.other.run("x, 'new' in globals()").result == "(1, False)"


def test_trying_it_out_runs_no_finaliser(trip: Trip, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    trip.one.run(
        "import os\n"
        "class Temporary:\n"
        " def __init__(self, path): self.path = path\n"
        " def __del__(self): os.unlink(self.path)\n"
        "def fails(): raise ValueError('no')\n"
        "class Bad:\n"
        " def __reduce__(self): return fails, ()\n"
        f"t = Temporary({str(precious)!r}); both = [t, Bad()]; a_cycle = [t]; a_cycle.append(a_cycle)"
    )
    saved = trip.save()
    assert [row["name"] for row in saved["skipped"]] == ["both"]
    assert precious.read_text() == "mine"
    trip.one.run("Temporary.__del__ = lambda self: None")


def test_all_failures_are_found_at_once_through_shared_values(trip: Trip) -> None:
    trip.one.run(
        "import threading\nheld = threading.Lock(); held.acquire()\ninner = [held]\n"
        "for i in range(200): globals()[f'a{i}'] = {'i': inner}\ndel i\ngood = list(range(10))"
    )
    saved = trip.save()
    assert len(saved["skipped"]) == 202
    assert set(saved["saved"]) == {"good", "threading"}


def test_names_after_one_that_fails_to_load_are_not_joined_with_wrong_objects(trip: Trip) -> None:
    """A stream whose third name fails at restore only: the environment there is another."""
    trip.one.run(
        "a = ['a']; aa = a\n"
        "class Env:\n def __reduce__(self): return (__import__, ('made_up_module',))\n"
        "import sys, types; sys.modules['made_up_module'] = types.ModuleType('made_up_module')\n"
        "shared = ['s']\nbad = [shared, Env(), ['late']]\nb = ['b']; bb = b; lean = [shared]; c = {'b': b, 'a': a}"
    )
    saved = trip.save()
    assert "bad" in saved["saved"], saved
    back = trip.restore()
    assert [row["name"] for row in back["failed"]] == ["bad"]
    got = trip.other.run("(aa is a, bb is b, c['b'] is b, c['a'] is a, lean, b, shared is lean[0])")
    assert got.result == "(True, True, True, True, [['s']], ['b'], True)"


def test_caps_and_pruning(trip: Trip) -> None:
    trip.one.run("big = b'x' * 3_000_000; mid = b'y' * 800_000; mid2 = b'z' * 800_000; small = 1")
    saved = trip.save(max_variable_bytes=2_000_000, max_bytes=1_500_000, prune_oversized=True)
    assert saved["pruned"] == ["big"]
    assert "small" not in saved["saved"] or "mid2" not in saved["saved"]
    assert trip.one.ask("list_names").done["names"] == ["mid", "mid2", "small"]


@pytest.mark.parametrize(
    "options",
    [
        {"max_bytes": -1},
        {"max_variable_bytes": -5, "prune_oversized": True},
        {"max_variable_bytes": 0, "prune_oversized": True},
        {"manifest_path": "SAME"},
        {"manifest_path": "LINK"},
        {"manifest_path": "/nowhere/at/all", "prune_oversized": True, "max_variable_bytes": 10},
        {"path": "/nowhere/at/all", "prune_oversized": True, "max_variable_bytes": 10},
        {"path": "DIRECTORY"},
    ],
)
def test_a_refused_snapshot_changes_nothing(
    trip: Trip, tmp_path: Path, options: dict[str, Any]
) -> None:
    trip.one.run("x = 'x' * 1000")
    trip.save()
    before = (trip.payload.read_bytes(), trip.manifest.read_bytes())
    (tmp_path / "link").symlink_to(trip.payload)
    (tmp_path / "folder").mkdir()
    named = {
        "SAME": str(trip.payload),
        "LINK": str(tmp_path / "link"),
        "DIRECTORY": str(tmp_path / "folder"),
    }
    saved = trip.save(
        **{k: named.get(v, v) if isinstance(v, str) else v for k, v in options.items()}
    )
    assert saved["status"] == "error"
    assert saved["reason"]
    assert (trip.payload.read_bytes(), trip.manifest.read_bytes()) == before
    assert trip.one.run("len(x)").result == "1000"
    assert not list(tmp_path.glob(".*.tmp"))


def test_files_are_private_and_the_manifest_fits_the_payload(trip: Trip) -> None:
    trip.one.run("x = 1")
    saved = trip.save()
    for path in (trip.payload, trip.manifest):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    manifest = json.loads(trip.manifest.read_text())
    assert (manifest["version"], manifest["format"], manifest["savedNames"]) == (1, 2, ["x"])
    data = trip.payload.read_bytes()
    assert saved["bytes"] == manifest["bytes"] == len(data)
    layout, table = file_format.read(memoryview(data))
    import hashlib

    digest = hashlib.sha256(b"".join(data[span] for span in layout.signed_spans)).hexdigest()
    assert manifest["sha256"] == digest
    assert table.names == ("x",)


def test_a_missing_file_is_ok_with_a_reason(trip: Trip) -> None:
    back = trip.restore()
    assert (back["status"], back["restored"], back["failed"]) == ("ok", [], [])
    assert back["reason"]


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut", "header", "table", "link", "folder"])
def test_a_damaged_file_is_refused_kept_and_harms_nobody(
    trip: Trip, tmp_path: Path, damage: str
) -> None:
    trip.one.run("x = [1] * 1000")
    trip.save()
    data = trip.payload.read_bytes()
    layout = file_format.layout(data[:32], len(data))
    changed = {
        "empty": b"",
        "garbage": b"not a snapshot at all" * 10,
        "cut": data[: len(data) // 2],
        "header": data[:16] + b"\xff" * 16 + data[32:],
        "table": data[: layout.table_at] + b"\xff" * (len(data) - layout.table_at),
    }
    if damage in changed:
        trip.payload.write_bytes(changed[damage])
    else:
        trip.payload.unlink()
        if damage == "link":
            trip.payload.symlink_to(trip.manifest)
        else:
            trip.payload.mkdir()
    trip.other.run("x = 'mine'")
    back = trip.restore()
    assert back["status"] == "error"
    assert back["reason"]
    assert trip.other.run("x").result == "'mine'"
    assert trip.payload.exists()


BUFFERED = """
import pickle
class Blob(bytearray):
    def __reduce_ex__(self, _): return Blob, (pickle.PickleBuffer(self),)
first, second = Blob(b"1" * 6000), Blob(b"2" * 5000)
alias, small = [first], {"text": "kept", "numbers": list(range(50))}
"""


def test_no_damage_in_any_part_of_the_file_is_taken_for_data(trip: Trip) -> None:
    trip.one.run(BUFFERED)
    assert trip.save()["skipped"] == []
    data = trip.payload.read_bytes()
    where, table = file_format.read(memoryview(data))
    buffers = [range(b.at, b.at + b.size_bytes) for b in table.buffers]
    told = set()
    for at in sorted({*range(0, len(data), 97), *range(where.stream.stop), where.table_at}):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        trip.payload.write_bytes(changed)
        trip.other.run("second = 'mine'", silent=True)
        back = trip.restore()
        failed = sorted(row["name"] for row in back.get("failed", ()))
        if back["status"] == "error":
            assert at < where.stream.stop or at >= where.table_at, at
            assert "damaged" in back["reason"] or "no snapshot" in back["reason"]
            assert trip.other.run("second").result == "'mine'"
        elif at in buffers[0]:
            assert failed == ["alias", "first"], at  # and what shares it
        elif at in buffers[1]:
            assert failed == ["second"], at
            assert trip.other.run("second").result == "'mine'"
        else:
            assert failed == []  # padding between the parts
        told.add((back["status"], *failed))
    assert told == {("error",), ("ok", "alias", "first"), ("ok", "second"), ("ok",)}


def test_a_file_cut_anywhere_is_refused(trip: Trip) -> None:
    trip.one.run(BUFFERED)
    trip.save()
    data = trip.payload.read_bytes()
    trip.other.run("second = 'mine'", silent=True)
    for size in sorted({*range(0, len(data), 61), *range(len(data) - 40, len(data))}):
        trip.payload.write_bytes(data[:size])
        back = trip.restore()
        assert (back["status"], bool(back["reason"])) == ("error", True), size
    assert trip.other.run("second").result == "'mine'"


def test_names_of_the_runtime_are_never_saved_or_restored(trip: Trip) -> None:
    trip.one.run("rlm = bash = asyncio = get_ipython = In = 5; _x = 6; __builtins__; ok = 1")
    assert trip.save()["saved"] == ["ok"]
    trip.one.run("import pickle, dill")
    trip.one.run(f"dill.dump({{'rlm': dill.dumps(5), '_p': dill.dumps(5), 'old': dill.dumps([1])}}, open({str(trip.payload)!r}, 'wb'))")  # fmt: skip
    trip.other.run("rlm = 'kept'")
    assert trip.restore()["restored"] == ["old"]
    assert trip.other.run("(rlm, old)").result == "('kept', [1])"


def test_a_payload_of_protocol_three_is_readable_name_by_name(trip: Trip) -> None:
    trip.one.run("import dill, sys\nclass E:\n def __reduce__(self): return (sys.exit, (7,))")
    trip.one.run(f"dill.dump({{'a': dill.dumps(5), 'e': dill.dumps(E()), 'z': b'junk'}}, open({str(trip.payload)!r}, 'wb'))")  # fmt: skip
    back = trip.restore()
    assert back["restored"] == ["a"]
    assert {row["name"] for row in back["failed"]} == {"e", "z"}


def test_an_interrupt_while_pickling_leaves_the_old_pair(trip: Trip) -> None:
    trip.one.run("x = 1")
    trip.save()
    before = (trip.payload.read_bytes(), trip.manifest.read_bytes())
    trip.one.run(
        "class Slow:\n def __reduce__(self):\n  import time\n  print('go', flush=True)\n  time.sleep(60)\n  return (int, ())\ns = Slow()"
    )
    trip.one.send({"type": "snapshot", "id": "s", "path": str(trip.payload), "manifest_path": str(trip.manifest)})  # fmt: skip
    trip.one.until(lambda e: "go" in e.get("text", ""))
    trip.one.interrupt("s")
    got = trip.one.until_done("s")
    assert (got.status, got.ename) == ("error", "KeyboardInterrupt")
    assert (trip.payload.read_bytes(), trip.manifest.read_bytes()) == before


def test_interrupts_at_any_moment_leave_a_whole_pair_and_a_true_answer(trip: Trip) -> None:
    trip.one.run("data = [bytes([i % 256]) * 100_000 for i in range(100)]; n = 0")
    for n in range(25):
        trip.one.run(f"n = {n}; big = bytearray(2_000_000)")
        trip.one.send({"type": "snapshot", "id": "s", "path": str(trip.payload), "manifest_path": str(trip.manifest), "max_variable_bytes": 12_000_000 if n % 2 else 1_000_000, "prune_oversized": False})  # fmt: skip
        select.select([], [], [], 0.002 * n)  # any moment will do
        trip.one.interrupt("s")
        trip.one.until_done("s")
        if trip.payload.exists():
            data = trip.payload.read_bytes()
            assert file_format.read(memoryview(data))
        assert trip.one.alive()
    assert not list(trip.payload.parent.glob(".*.tmp"))


def test_kill_at_any_moment_leaves_a_restorable_payload(tmp_path: Path) -> None:
    first = tmp_path / "state"
    for n in range(4):
        with Runtime() as runtime:
            runtime.run(f"n = {n}; data = [bytes(100_000) for _ in range(60)]")
            runtime.send({"type": "snapshot", "id": "s", "path": str(first), "manifest_path": str(first) + ".json"})  # fmt: skip
            select.select([], [], [], 0.01 * n)  # any moment will do
            os.kill(runtime.pid, signal.SIGKILL)
            runtime.wait()
        with Runtime() as runtime:
            back = runtime.ask("restore", path=str(first)).done
            assert back["status"] == "ok"
            assert back["failed"] == []


def test_numpy_arrays_are_mapped_and_writable(trip: Trip) -> None:
    if trip.one.run("import numpy as np").status != "ok":
        pytest.skip("numpy is not installed")
    got = trip(
        "import numpy as np\na = np.arange(1_000_000.0); v = a[::2]",
        "a[0] = 7; (float(a.sum()), a.flags.writeable)",
    )
    assert got.result == "(499999500007.0, True)"


def test_while_threads_of_a_cell_run_nothing_is_forked_and_it_says_so(trip: Trip) -> None:
    trip.one.run(
        "import threading\ngo = threading.Event()\nclass C: pass\nc = C()\nthreading.Thread(target=go.wait).start()"
    )
    saved = trip.save()
    assert saved["unverified"] is True
    assert "c" in saved["saved"]
    trip.one.run("go.set()")
