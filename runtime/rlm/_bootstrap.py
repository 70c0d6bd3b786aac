"""What the host's first, silent cell does: `from rlm._bootstrap import bind; bind(...)`."""

import sys


def bind(tools: str = "") -> None:
    """
    Bind `rlm`, `bash` and `asyncio` in the namespace of the cells, over whatever is there.

    `tools` are the client's, as a JSON array of `ClientTool`; "" for none.
    """
    import asyncio

    import rlm

    namespace = sys.modules["__main__"].__dict__
    namespace.update(rlm=rlm, bash=rlm.bash, asyncio=asyncio)
    namespace.pop("bind", None)
    if tools or "rlm._tools" in sys.modules:
        from rlm import _tools

        _tools.bind(namespace, tools or "[]")
