"""`python -m rlm_protocol.conformance host|runtime [OPTIONS] -- COMMAND...`."""

import importlib
import sys

KITS = ("host", "runtime")


def main(argv: list[str]) -> int:
    """Run one of the kits; give its exit code: 0 conforms, 1 does not, 2 for wrong usage."""
    if not argv or argv[0] not in KITS:
        sys.stderr.write(
            f"usage: python -m rlm_protocol.conformance {'|'.join(KITS)} [OPTIONS] -- COMMAND...\n"
        )
        return 2
    code: int = importlib.import_module(f".{argv[0]}", __package__).main(argv[1:])
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
