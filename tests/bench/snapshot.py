"""P6: save and restore, against stdlib pickle 5 of the same values written and synced to the same disk."""

import os
import tempfile
from typing import Any

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
def _save(path):
    values = {k: v for k, v in globals().items() if not k.startswith('_') and type(v).__name__ != 'module'}
    values.pop('os', None); values.pop('rng', None)
    t = time.perf_counter()
    with open(path, 'wb') as f:
        f.write(pickle.dumps(values, protocol=5)); f.flush(); os.fsync(f.fileno())
    return time.perf_counter() - t
def _load(path):
    t = time.perf_counter()
    with open(path, 'rb') as f: _v = pickle.loads(f.read())
    return time.perf_counter() - t
"""
CAPS = {"max_bytes": 1 << 31, "max_variable_bytes": 1 << 31}


def number(got: list[dict[str, Any]]) -> float:
    return float(next(e["text"] for e in got if e["event"] == "result"))


def ours(runtime: b.Lines, folder: str) -> tuple[float, float]:
    path = os.path.join(folder, "ours")
    began = b.now()
    saved = runtime.ask("snapshot", path=path, manifest_path=path + ".json", **CAPS)
    took = b.now() - began
    assert saved["status"] == "ok", saved
    began = b.now()
    back = runtime.ask("restore", path=path)
    assert not back["failed"], back
    return took, b.now() - began


def measure(report: b.Report, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, (code, goal) in ROWS.items():
            with b.Lines(b.RUNTIME) as runtime:
                if runtime.run(code)[-1]["status"] != "ok":
                    print(f"P6   {name:34} not measured: its packages are not installed")
                    continue
                runtime.run(PICKLE)
                ours(runtime, folder)  # loads cloudpickle
                rows = []
                for _ in range(rounds):
                    path = repr(os.path.join(folder, "pickle"))
                    save, load = (
                        number(runtime.run(f"_save({path})")),
                        number(runtime.run(f"_load({path})")),
                    )
                    rows.append((save, load, *ours(runtime, folder)))
                report.ratio(f"{name}, save", [r[2] for r in rows], [r[0] for r in rows], goal)
                if "array" in name:
                    report.ratio(f"{name}, load", [r[3] for r in rows], [r[1] for r in rows], 0.6)
        with b.Lines(b.RUNTIME) as runtime:
            runtime.run(FUNCTIONS)
            ours(runtime, folder)
            report.value(
                "50 x (def, lambda, class, object)",
                [ours(runtime, folder)[0] * 1000 for _ in range(rounds)],
                200,
                " ms",
            )


if __name__ == "__main__":
    b.main("P6", measure, rounds=7, short=3)
