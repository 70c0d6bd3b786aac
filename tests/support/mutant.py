"""The switch of the reference runtime and the reference host: their first argument."""

import sys

MUTANT = sys.argv[1] if len(sys.argv) > 1 else ""


def broken(name: str) -> bool:
    """Tell whether this process is the mutant of this name."""
    return name == MUTANT
