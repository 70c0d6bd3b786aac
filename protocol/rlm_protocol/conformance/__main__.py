"""The command line: `python -m rlm_protocol.conformance runtime|host [options] -- COMMAND...`."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import report, runner
from .child import no_orphans
from .host import PROMISES as HOST_PROMISES
from .host.kit import HostKit
from .language import PYTHON, Language
from .promise import Outcome, Promise
from .runtime import PROMISES as RUNTIME_PROMISES
from .runtime.kit import RuntimeKit

CATALOGS: dict[str, tuple[Promise[Any], ...]] = {
    "runtime": RUNTIME_PROMISES,
    "host": HOST_PROMISES,
}
KITS: dict[str, tuple[type[RuntimeKit] | type[HostKit], float]] = {
    "runtime": (RuntimeKit, 10.0),
    "host": (HostKit, 20.0),
}
"""Each kind's kit, and how many seconds it waits for one thing."""


def parser() -> argparse.ArgumentParser:
    """Give the parser of the command line without its `-- COMMAND...`."""
    out = argparse.ArgumentParser(
        prog="python -m rlm_protocol.conformance",
        description="Say for every promise of the protocol whether a command keeps it.",
        epilog="Exit code: 0 when no promise is broken, 1 when one is, 2 for wrong usage.",
        usage="%(prog)s {runtime,host} [options] -- COMMAND...",
    )
    out.add_argument("kind", choices=tuple(CATALOGS), help="what the command is")
    out.add_argument("--profile", action="append", default=[], help="check this profile only")
    out.add_argument("--only", action="append", default=[], metavar="ID", help="`a.*` for a prefix")
    out.add_argument("--language", type=Path, default=PYTHON, metavar="FILE", help="cells (TOML)")
    out.add_argument(
        "--timeout", type=float, metavar="S", help="of a single wait (10; for a host 20)"
    )
    out.add_argument("--budget", type=float, default=600.0, metavar="S", help="of the whole run")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    out.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    out.add_argument("--list", action="store_true", help="list the promises and check nothing")
    return out


def main(argv: Sequence[str]) -> int:
    """Run the kit and print its report; give the exit code."""
    cut = argv.index("--") if "--" in argv else len(argv)
    usage = parser()
    options = usage.parse_args(argv[:cut])
    command = list(argv[cut + 1 :])
    try:
        promises = runner.select(
            CATALOGS[options.kind], profiles=options.profile, only=options.only
        )
        language = Language(options.language)
    except (OSError, ValueError) as why:
        usage.error(str(why))
    if options.list:
        sys.stdout.write("".join(f"{p.id:<28} {p.text}\n" for p in promises))
        return 0
    if not command:
        usage.error("no command: give it after `--`")
    outcomes = _run(promises, command, language, options)
    if options.json:
        options.json.write_bytes(report.to_json(outcomes, kind=options.kind, command=command))
    if options.junit:
        options.junit.write_bytes(report.to_junit(outcomes, kind=options.kind))
    return 1 if any(outcome.verdict == "failed" for outcome in outcomes) else 0


def _run(
    promises: Sequence[Promise[Any]],
    command: list[str],
    language: Language,
    options: argparse.Namespace,
) -> list[Outcome]:
    told: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        told.append(outcome)
        sys.stdout.write(report.line(outcome) + "\n")
        sys.stdout.flush()

    make, usual_s = KITS[options.kind]
    timeout_s = usual_s if options.timeout is None else options.timeout
    with tempfile.TemporaryDirectory(prefix="rlm-conformance-") as folder, no_orphans() as adopts:
        kit = make(command, language, Path(folder), timeout_s=timeout_s, adopts=adopts)
        with kit:
            outcomes = runner.run(kit, promises, budget_s=options.budget, tell=tell)
    for before, after in zip(told, outcomes, strict=True):
        if before.verdict != after.verdict:  # seen in passing, while something else was checked
            sys.stdout.write(report.line(after) + "\n")
    sys.stdout.write("\n" + report.summary(outcomes) + "\n")
    return outcomes


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130  # everything that was started has ended with its block
    except BrokenPipeError:
        code = 1  # nobody reads the report any more
        sys.stdout = None
    raise SystemExit(code)
