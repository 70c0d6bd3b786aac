"""
Starts a kernel on an interpreter in which nothing of ours is installed.

Copied into an overlay folder as `boot.py` and run as `python -P OVERLAY/boot.py [NAME…]`, where the
names are the requirements that the interpreter lacks. `rlm`, `rlm_protocol` and these come from the
overlay, whatever the user's folders hold; sys.path, and so every subprocess, stays the user's.
Standard library only; the host does not import this.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder


class Overlay:
    """Finds what the overlay gives, before anything else is asked."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a top-level module of the overlay."""
        place = self._places.get(name)
        return None if place is None else PathFinder.find_spec(name, [place])


def main() -> None:
    """Become the kernel. Does not return."""
    here = os.path.dirname(os.path.abspath(__file__))
    runtime, packages = os.path.join(here, "runtime"), os.path.join(here, "packages")
    places = dict.fromkeys(sys.argv[1:], packages)
    places.update(rlm=runtime, rlm_protocol=runtime)
    sys.meta_path.insert(0, Overlay(places))
    sys.argv[1:] = []
    import runpy

    runpy.run_module("rlm.repl", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
