"""P3: output. Events per MB, the cost of flushing, bulk against the codec's own floor, memory."""

import tempfile

import runtime_bench as b
from jupyter_peer import jupyter

LINES = "for i in range(100_000): print('line', i)"
FLUSHED = "for i in range(100_000): print('line', i, flush=True)"
PRINTED = "for _ in range({n}): print('x' * 65535)"
CHILD = "import subprocess; subprocess.run(['cat', {path!r}]) and None"


def floor(size: int) -> float:
    with b.Lines((*b.FLOOR, "output", str(size)), ready=False) as peer:
        peer.event()  # it is under way: its start is not measured
        began = b.now()
        peer.until_done("c1")
        return b.now() - began


def bulk(code: str, size: int) -> tuple[float, int]:
    with b.Lines(b.RUNTIME) as ours:
        ours.run("import subprocess")
        before = ours.peak_bytes()
        began = b.now()
        got = ours.run(code)
        took = b.now() - began
        text = sum(len(e["text"]) for e in got if e["event"] == "stdout")
        assert text == size, (text, size)
        return took, ours.peak_bytes() - before


def measure(report: b.Report, rounds: int) -> None:
    size = 65536 * (1525 if rounds > 3 else 320)
    events, flushed, plain = [], [], []
    with b.Lines(b.RUNTIME) as ours:
        for _ in range(rounds):
            began = b.now()
            got = ours.run(LINES)
            plain.append(b.now() - began)
            total = sum(len(e.get("text", "")) for e in got)
            events.append(len(got) / (total / 1e6))
            flushed.append(ours.timed(FLUSHED))
    report.value("events per MB", events, 40, "")
    report.ratio("flush against none", flushed, plain, 1.3)
    with jupyter() as peer:
        if peer is not None:
            theirs = [peer.timed(LINES) for _ in range(2)]
            report.beside("1e5 lines, ipykernel against ours", theirs, plain[:2])
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * size)
        file.flush()
        cells = {"printed": PRINTED.format(n=size // 65536), "child": CHILD.format(path=file.name)}
        for name, code in cells.items():
            took, grown, least = [], [], []
            for _ in range(rounds):
                least.append(1 / floor(size))
                seconds, growth = bulk(code, size)
                took.append(1 / seconds)
                grown.append(growth / 2**20)
            what = f"{size >> 20} MB {name}"
            report.ratio(f"{what}, rate", took, least, 0.8, least=True)
            report.value(f"{what}, growth", grown, 2, " MiB")


if __name__ == "__main__":
    b.main("P3", measure, rounds=5, short=2)
