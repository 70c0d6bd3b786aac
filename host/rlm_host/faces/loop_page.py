"""A run as one HTML page that needs nothing else: no script, no font, no network."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any

from .loop_plot import LiveReward, finite

WIDTH, HEIGHT, MARGIN = 900, 260, 46
POINTS_MAX = 5_000
"""Above this the single rewards are not drawn, only the best so far."""
COLOURS = {
    "accept": "#1a7f37",
    "reject": "#8c959f",
    "defer": "#9a6700",
    "rollback": "#cf222e",
    "stop": "#8250df",
}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#1f2328}svg{width:100%;height:auto}td.n{font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%;font-size:13px}tr{border-bottom:1px solid #d0d7de}
th,td{text-align:left;padding:2px 10px 2px 0;vertical-align:top;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 1rem}dt{color:#656d76}dd{margin:0}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}tr{border-color:#30363d}}
"""
_COLUMNS = (
    "generation",
    "action",
    "reason",
    "reward",
    "gain",
    "cost",
    "artifactId",
    "applied",
    "stop",
)


def page_of(report: dict[str, Any]) -> str:
    """Give a whole report as a page. `report` has the parts of a `LoopReportResult` on the wire."""
    run, generations = report["run"], report["generations"]
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>Loop {_text(run['runId'])}</title><style>{_STYLE}</style>"
    )
    body = (
        f"<h1>Loop {_text(run['runId'])}</h1>",
        _facts(_run_facts(run)),
        _plot(generations),
        "<h2>Generations</h2>",
        _table(_COLUMNS, ([one[name] for name in _COLUMNS] for one in generations)),
        "<h2>Code</h2>",
        _code(report),
    )
    return head + "\n".join(body) + "\n</html>\n"


def _run_facts(run: dict[str, Any]) -> dict[str, Any]:
    most = "" if run["maxGenerations"] is None else f" of at most {run['maxGenerations']}"
    return {
        "tenant, workspace": f"{run['tenant']}, {run['workspace']}",
        "status": run["status"],
        "stopped": run["stoppedReason"],
        "generations": f"{run['generation']}{most}",
        "best reward": run["bestReward"],
        "live artifact": run["bestArtifactId"],
        "cost": run["cost"],
    }


def _code(report: dict[str, Any]) -> str:
    columns = ("token", "worker", "commit", "changed", "interpreter", "packages")
    rows = [] if report["provenance"] is None else [(0, "(submitted)", report["provenance"])]
    rows += [(claim["token"], claim["worker"], claim["provenance"]) for claim in report["claims"]]
    return _table(
        columns,
        (
            (
                token,
                worker,
                code["commit"] or code["unknown"],
                code["dirtyDigest"],
                code["interpreter"],
                code["packagesDigest"],
            )
            for token, worker, code in rows
        ),
    )


def _facts(facts: dict[str, Any]) -> str:
    pairs = (f"<dt>{_text(k)}<dd>{_text(v)}" for k, v in facts.items() if v is not None)
    return f"<dl>{''.join(pairs)}</dl>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_text(heading)}" for heading in headings)
    body = "\n".join("<tr>" + "".join(map(_table_cell, row)) for row in rows)
    return f"<table><tr>{head}\n{body}</table>"


def _table_cell(value: Any) -> str:
    kind = ' class="n"' if isinstance(value, float) else ""
    return f"<td{kind}>{_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def _plot(generations: Sequence[dict[str, Any]]) -> str:
    """Draw every reward as a dot in its decision's colour, and the best so far as a line."""
    measured = [
        (one, number) for one in generations if (number := finite(one["reward"])) is not None
    ]
    if not measured:
        return ""
    low, high = min(n for _, n in measured), max(n for _, n in measured)
    last = max(1, generations[-1]["generation"])

    def at(generation: int, reward: float) -> tuple[float, float]:
        share = 0.5 if high == low else (high - reward) / (high - low)
        x = MARGIN + generation / last * (WIDTH - 2 * MARGIN)
        return x, MARGIN / 2 + share * (HEIGHT - MARGIN)

    dots = []
    if len(measured) <= POINTS_MAX:
        for one, reward in measured:
            x, y = at(one["generation"], reward)
            dots.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[one["action"]]}">'
                f"<title>{one['generation']}: {_text(one['reward'])} {_text(one['reason'])}</title>"
                "</circle>"
            )
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in _best_line(generations, at))
    labels = "".join(
        f'<text x="{MARGIN - 6}" y="{at(0, value)[1] + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        for value in dict.fromkeys((high, low))
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Reward by generation" '
        f'font-size="12" fill="currentColor"><polyline fill="none" stroke="{COLOURS["accept"]}" '
        f'points="{steps}"/>{"".join(dots)}{labels}</svg>'
    )


def _best_line(
    generations: Sequence[dict[str, Any]], at: Callable[[int, float], tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Give the corners of the live artifact's reward over the generations."""
    before, live = None, LiveReward()
    for one in generations:
        best = live.after(one)
        if best != before or one is generations[-1]:
            yield from (at(one["generation"], v) for v in (before, best) if v is not None)
        before = best
