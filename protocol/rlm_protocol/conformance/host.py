"""
`python -m rlm_protocol.conformance host [OPTIONS] -- COMMAND...`: does this host keep its promises?

Every exchange has an id and a sentence that must hold. A frame case is sent to a host that goes on
and must be served afterwards; an exchange gets a host of its own.
"""

import argparse
import sys
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from .host_driver import Broken, Host, fresh_home
from .host_exchanges import EXCHANGES
from .host_frames import FRAMES, NOTHING, REFUSED, RESULT, FrameCase

DEADLINE_S = 20.0


class Outcome(msgspec.Struct, frozen=True):
    """What came of one exchange. `broken` is None when the promise was kept."""

    id: str
    text: str
    broken: str | None
    took_s: float


def run(
    command: Sequence[str], *, deadline_s: float = DEADLINE_S, only: frozenset[str] = frozenset()
) -> Iterator[Outcome]:
    """Hold the host against every promise, or against those of `only`; give each as it is known."""
    yield from _frames(command, deadline_s, only)
    for id_, (text, procedure) in EXCHANGES.items():
        if not only or id_ in only:
            yield _alone(command, deadline_s, id_, text, procedure)


def _frames(command: Sequence[str], deadline_s: float, only: frozenset[str]) -> Iterator[Outcome]:
    cases = [case for case in FRAMES if not only or case.id in only]
    while cases:
        with fresh_home() as home, Host(command, deadline_s=deadline_s, home=home) as host:
            ready = False
            while cases:
                case = cases.pop(0)
                began = time.monotonic()
                broken = _caught(host, lambda h, c=case, r=ready: _one(h, c, r))  # type: ignore[misc]
                ready = True
                yield Outcome(case.id, case.text, broken, time.monotonic() - began)
                if broken is not None:
                    break  # the next case shall not suffer for it: it gets another host


def _one(host: Host, case: FrameCase, initialized: bool) -> None:
    if not initialized:
        host.initialize()
    host.forget(case.answers, None)
    host.expect_answer_to(case.answers)
    host.write(case.data)
    if case.code == NOTHING:
        host.alive()
        if host.has_answer(case.answers) or host.has_answer(None):
            raise Broken("it was answered")
    elif case.code == RESULT:
        answer = host.answer(case.answers)
        if "result" not in answer:
            raise Broken(f"refused: {answer['error']}")
    elif case.code == REFUSED:
        error = host.either(case.answers, None).get("error", {})
        if error.get("code") not in (-32700, -32600, -32602):
            raise Broken(f"answered with {error or 'a result'}")
    else:
        host.refusal(case.answers, case.code)
    host.alive()


def _alone(
    command: Sequence[str],
    deadline_s: float,
    id_: str,
    text: str,
    procedure: Callable[[Host], None],
) -> Outcome:
    began = time.monotonic()
    with fresh_home() as home, Host(command, deadline_s=deadline_s, home=home) as host:
        broken = _caught(host, procedure)
    return Outcome(id_, text, broken, time.monotonic() - began)


def _caught(host: Host, procedure: Callable[[Host], None]) -> str | None:
    try:
        procedure(host)
    except Broken as why:
        return str(why)
    except (KeyError, TypeError, AttributeError) as why:
        return f"an answer has not the shape it must have: {type(why).__name__}: {why}"
    return None


def junit(outcomes: Sequence[Outcome], command: Sequence[str]) -> bytes:
    """Render the outcomes as JUnit XML."""
    broken = [o for o in outcomes if o.broken is not None]
    suite = xml.Element(
        "testsuite",
        name=f"host conformance of {' '.join(command)}",
        tests=str(len(outcomes)),
        failures=str(len(broken)),
        errors="0",
        time=f"{sum(o.took_s for o in outcomes):.3f}",
    )
    for outcome in outcomes:
        case = xml.SubElement(
            suite, "testcase", classname="host", name=f"{outcome.id}: {outcome.text}"
        )
        case.set("time", f"{outcome.took_s:.3f}")
        if outcome.broken is not None:
            xml.SubElement(case, "failure", message=_printable(outcome.broken))
    rendered: bytes = xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    return rendered


def main(argv: Sequence[str]) -> int:
    """Run the kit; give 0 when every promise was kept, 1 when not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m rlm_protocol.conformance host", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML there")
    parser.add_argument("--only", default="", metavar="ID,ID", help="run these exchanges only")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS")
    parser.add_argument("--list", action="store_true", help="list the exchanges and do nothing")
    at = argv.index("--") if "--" in argv else len(argv)
    options, command = parser.parse_args(argv[:at]), argv[at + 1 :]
    if options.list:
        for id_, text in _all():
            sys.stdout.write(f"{id_:<5} {text}\n")
        return 0
    if not command:
        parser.error("name the host's command after `--`")
    only = frozenset(filter(None, options.only.split(",")))
    unknown = only - {id_ for id_, _ in _all()}
    if unknown:
        parser.error(f"no such exchange: {', '.join(sorted(unknown))}")
    outcomes = []
    for outcome in run(command, deadline_s=options.deadline, only=only):
        outcomes.append(outcome)
        mark = "ok    " if outcome.broken is None else "BROKEN"
        sys.stdout.write(f"{mark} {outcome.id:<5} {outcome.text} ({outcome.took_s:.2f} s)\n")
        if outcome.broken is not None:
            sys.stdout.write(f"       {_printable(outcome.broken)}\n")
        sys.stdout.flush()
    if options.junit is not None:
        options.junit.write_bytes(junit(outcomes, command))
    broken = sum(o.broken is not None for o in outcomes)
    sys.stdout.write(f"{len(outcomes) - broken} of {len(outcomes)} promises kept\n")
    return 1 if broken else 0


def _all() -> list[tuple[str, str]]:
    return [(c.id, c.text) for c in FRAMES] + [(k, text) for k, (text, _) in EXCHANGES.items()]


def _printable(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()
