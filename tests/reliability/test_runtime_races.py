"""Interrupt races: the aimed cell is followed by another at once; exactly one answer, nobody else hit."""

import random
import time
from collections import Counter

import pytest

from support.runtime_driver import Runtime

CELLS = {
    "python": ("for _ in range(20000): pass", "for _ in range(20000): pass"),
    "await": ("import asyncio; await asyncio.sleep(0.0005)", "await asyncio.sleep(0.0005)"),
    "print": ("for _ in range(300): print('x')", "for _ in range(300): print('y')"),
    "error": ("for _ in range(5000): pass\n1/0", "1 + 1"),
    "repr": ("class R:\n def __repr__(self): return str(sum(range(9000)))\nR()", "1"),
}


@pytest.mark.parametrize("ring", [True, False], ids=["doorbell", "in-band"])
@pytest.mark.parametrize("kind", CELLS)
def test_an_interrupt_never_hits_the_next_cell(kind: str, ring: bool) -> None:
    first, second = CELLS[kind]
    rng = random.Random(3)
    seen: Counter[str] = Counter()
    with Runtime(doorbell=ring, control=True) as runtime:
        runtime.run("import asyncio")
        for i in range(150):
            a, b = f"a{i}", f"b{i}"
            runtime.send(
                {"type": "execute", "id": a, "code": first},
                {"type": "execute", "id": b, "code": second},
            )
            until = time.perf_counter() + rng.random() * 0.0015
            while time.perf_counter() < until:
                pass
            runtime.interrupt(a, ring=ring)
            got = runtime.until_done(b)
            done = [(e["id"], e["status"]) for e in got if e["event"] == "done"]
            assert [id_ for id_, _ in done] == [a, b], done
            assert done[1][1] == "ok", got
            hit = any(e["event"] == "error" and e["ename"] == "KeyboardInterrupt" for e in got)
            seen["hit" if hit else "missed"] += 1
        assert runtime.alive()
    print(kind, dict(seen))
    assert seen["hit"] > 0


def test_a_storm_of_interrupts_leaves_a_runtime_that_serves() -> None:
    rng = random.Random(5)
    with Runtime() as runtime:
        ids = []
        for _i in range(200):
            ids.append(
                runtime.start(
                    rng.choice(
                        ["1", "for _ in range(9999): pass", "await __import__('asyncio').sleep(0)"]
                    )
                )
            )
            for _ in range(rng.randrange(3)):
                runtime.interrupt(
                    rng.choice([None, rng.choice(ids), ids[-1]]), ring=rng.random() < 0.7
                )
        got = runtime.until_done(ids[-1])
        assert [e["id"] for e in got if e["event"] == "done"] == ids
        runtime.silence(0.1)
        assert runtime.alive()


@pytest.mark.parametrize("cells", [2000])
def test_a_long_session_stays_flat(cells: int) -> None:
    """Memory per trivial cell: a slope over many cells, after a warm-up; fds and threads flat."""
    measure = (
        "(__import__('resource').getpagesize() * int(open('/proc/self/statm').read().split()[1]),"
        " len(__import__('os').listdir('/proc/self/fd')), __import__('threading').active_count())"
    )
    with Runtime() as runtime:

        def burst(count: int) -> None:
            for _ in range(count // 100):
                ids = [runtime.start("x = 1 + 1\nx") for _ in range(100)]
                runtime.until_done(ids[-1])

        burst(cells // 2)
        before = runtime.value(measure)
        burst(cells)
        after = runtime.value(measure)
        slope = (after[0] - before[0]) / cells
        print(f"{slope:.0f} bytes per cell")
        assert after[1:] == before[1:]
        assert slope < 100
