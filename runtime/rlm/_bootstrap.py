"""What the host's first, silent cell does: `from rlm._bootstrap import bind; bind()`."""

import sys


def bind() -> None:
    """Bind `rlm`, `bash` and `asyncio` in the namespace of the cells, over whatever is there."""
    import asyncio

    import rlm

    namespace = sys.modules["__main__"].__dict__
    namespace.update(rlm=rlm, bash=rlm.bash, asyncio=asyncio)
    namespace.pop("bind", None)
