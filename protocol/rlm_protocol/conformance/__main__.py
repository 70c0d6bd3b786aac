"""Command line of the conformance kit."""

import argparse
import sys

from . import runner, vectors


def main(argv: list[str] | None = None) -> int:
    """Run the kit. Returns 0 when no promise was broken, 1 when one was, 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        prog="python -m rlm_protocol.conformance",
        description="Does a runtime keep the promises of the protocol?",
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    runtime = kinds.add_parser("runtime", help="a process that executes cells on stdio")
    runtime.add_argument("--language", default="python", help="whose snippets to send")
    runtime.add_argument(
        "--profile", action="append", choices=vectors.PROFILES, help="default: all of them"
    )
    runtime.add_argument("--only", help="promises whose id contains this")
    runtime.add_argument("--patience-s", type=float, default=20.0, help="for one event")
    runtime.add_argument("command", nargs="+", help="after `--`: how to start the runtime")
    options = parser.parse_args(argv)
    try:
        words = vectors.language(options.language)
    except FileNotFoundError:
        parser.error(f"there are no snippets for the language {options.language!r}")
    counts = {"passed": 0, "failed": 0, "not supported": 0}
    for promise in vectors.promises(tuple(options.profile or vectors.PROFILES)):
        if options.only and options.only not in promise.id:
            continue
        outcome = runner.run(promise, options.command, words, patience_s=options.patience_s)
        counts[outcome.verdict] += 1
        line = f"{outcome.verdict:13} {promise.id:34} {promise.title}"
        sys.stdout.write(
            line + (f"\n              {outcome.reason}" if outcome.reason else "") + "\n"
        )
        sys.stdout.flush()
    sys.stdout.write(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "\n")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
