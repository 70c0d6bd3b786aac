"""
P6: save and restore, against stdlib pickle 5 of the same values, saved as durably: a temporary file,
synced, renamed, its directory synced. What trying in a child whether it would come back costs is
shown apart; dill, all values at once, is the peer. Of the growth, what the pickler itself takes to
know objects again is shown apart: some 40 bytes for each, and a frame may hold a million strings.
"""

import os
import tempfile
from collections.abc import Callable

import runtime_bench as b

ROWS: dict[str, tuple[str, float]] = {
    "1,000 small names": ("for i in range(250):\n globals()[f'i{i}'] = i * 7919; globals()[f's{i}'] = 'value %d' % i * 3; globals()[f'l{i}'] = list(range(20)); globals()[f'd{i}'] = {'k': i, 'v': [i, str(i)]}\ndel i", 5.0),
    "1,000 names, one list": ("big = [str(i) for i in range(10000)]\nfor i in range(1000): globals()[f'a{i}'] = {'n': i, 'ref': big}\ndel i", 5.0),
    "100 MB array": ("import numpy as np; arr = np.arange(12_500_000, dtype='f8')", 1.5),
    "1e6 x 5 frame": ("import numpy as np, pandas as pd\nrng = np.random.default_rng(0)\ndf = pd.DataFrame({'a': rng.integers(0, 1000, 1_000_000), 'b': rng.random(1_000_000), 'c': rng.random(1_000_000), 'd': np.arange(1_000_000), 's': pd.Series(rng.integers(0, 100, 1_000_000)).astype(str)})", 1.2),
}  # fmt: skip
FUNCTIONS = "import math\n" + "\n".join(
    f"def f{i}(x, y={i}):\n return math.sqrt(x) + y\nl{i} = lambda x: x + {i}\nclass C{i}:\n def m(self, x): return f{i}(x)\no{i} = C{i}()"
    for i in range(50)
)
PICKLE = """
import os, pickle, time
def _values():
    values = {k: v for k, v in globals().items() if not k.startswith('_') and type(v).__name__ != 'module'}
    values.pop('rng', None)
    return values
def _save(path, dumps):
    values = _values()
    t = time.perf_counter()
    with open(path + '.tmp', 'wb') as f:
        f.write(dumps(values, protocol=5)); f.flush(); os.fsync(f.fileno())
    os.replace(path + '.tmp', path)
    d = os.open(os.path.dirname(path), os.O_RDONLY); os.fsync(d); os.close(d)
    return time.perf_counter() - t
def _load(path):
    t = time.perf_counter()
    with open(path, 'rb') as f: _v = pickle.loads(f.read())
    return time.perf_counter() - t
class _Nothing:
    write = staticmethod(len)
def _pickle_into_nothing():
    pickle.Pickler(_Nothing(), protocol=5, buffer_callback=lambda _: False).dump(_values())
def _verify(on, _kept=[]):
    from rlm import _verify
    _kept.append(_verify.verified)
    _verify.verified = _kept[0] if on else lambda saved, *_: (saved, True)
"""
CAPS = {"max_bytes": 1 << 31, "max_variable_bytes": 1 << 31}
GROWTH_MIB = 30


def number(runtime: b.Lines, code: str) -> float:
    return float(next(e["text"] for e in runtime.run(code) if e["event"] == "result"))


def save(runtime: b.Lines, path: str) -> float:
    began = b.now()
    saved = runtime.ask("snapshot", path=path, manifest_path=path + ".json", **CAPS)
    took = b.now() - began
    assert saved["status"] == "ok", saved
    return took


def restore(runtime: b.Lines, path: str) -> float:
    began = b.now()
    back = runtime.ask("restore", path=path)
    took = b.now() - began
    assert not back["failed"], back
    return took


def growth_mib(runtime: b.Lines, work: Callable[[], object]) -> float:
    """Give by how much the kernel's memory grew at most while it worked."""
    with open(f"/proc/{runtime.pid}/clear_refs", "w") as file:
        file.write("5")  # the peak starts again from here
    before = runtime.peak_bytes()
    work()
    return (runtime.peak_bytes() - before) / 2**20


def row(report: b.Report, name: str, goal: float, runtime: b.Lines, path: str, rounds: int) -> None:
    save(runtime, path)  # loads cloudpickle
    theirs = path + ".pickle"
    saves, loads, floors, floor_loads, verified, grown, known = ([] for _ in range(7))
    for _ in range(rounds):
        floors.append(number(runtime, f"_save({theirs!r}, pickle.dumps)"))
        floor_loads.append(number(runtime, f"_load({theirs!r})"))
        verified.append(save(runtime, path))
        runtime.run("_verify(False)")
        saves.append(save(runtime, path))
        grown.append(growth_mib(runtime, lambda: save(runtime, path)))
        known.append(growth_mib(runtime, lambda: runtime.run("_pickle_into_nothing()")))
        runtime.run("_verify(True)")
        loads.append(restore(runtime, path))
    report.ratio(f"{name}, save", saves, floors, goal)
    report.beside(f"{name}, with verification", verified, floors)
    report.value(f"{name}, growth", grown, GROWTH_MIB, " MiB")
    report.told(f"{name}, growth by pickle alone", known, " MiB")
    if "array" in name:
        report.ratio(f"{name}, load", loads, floor_loads, 0.6)
    else:
        report.beside(f"{name}, load", loads, floor_loads)
    dill = [number(runtime, f"_save({theirs!r}, __import__('dill').dumps)") for _ in range(2)]
    report.beside(f"{name}, dill", dill, floors[:2])


def measure(report: b.Report, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ours")
        for name, (code, goal) in ROWS.items():
            with b.Lines(b.RUNTIME) as runtime:
                if runtime.run(code)[-1]["status"] != "ok":
                    print(
                        f"P6   {name:34} not measured: `uv sync --group bench` installs numpy and pandas"
                    )
                    continue
                runtime.run(PICKLE)
                row(report, name, goal, runtime, path, rounds)
        with b.Lines(b.RUNTIME) as runtime:
            runtime.run(FUNCTIONS)
            save(runtime, path)
            took = [save(runtime, path) * 1000 for _ in range(rounds)]
            report.value("50 x (def, lambda, class, object)", took, 200, " ms")


if __name__ == "__main__":
    b.main("P6", measure, rounds=7, short=3)
