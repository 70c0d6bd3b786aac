"""What the host's silent cells do: `from rlm._bootstrap import bind; bind()`, and `stop`."""

import sys

from ._names import own_imports


def bind(tools: str = "", skills: str = "") -> None:
    """
    Bind `rlm`, `bash` and `asyncio` in the namespace of the cells, over whatever is there.

    `tools` are the client's, as a JSON array of `ClientTool`; `skills` an array of `{name, path,
    problem}`; "" for none.
    """
    import asyncio

    import rlm

    namespace = sys.modules["__main__"].__dict__
    namespace.update(rlm=rlm, bash=rlm.bash, asyncio=asyncio)
    namespace.pop("bind", None)
    if tools or "rlm._tools" in sys.modules:
        with own_imports():
            from rlm import _tools

        _tools.bind(namespace, tools or "[]")
    if skills:
        with own_imports():
            from rlm import _skills

        _skills.bind(namespace, skills)


def stop() -> None:
    """End what cells left running: their background commands are killed, their tasks cancelled."""
    from . import _bash, _runtime

    _bash.kill_all()
    _runtime.current().cancel_tasks()
    sys.modules["__main__"].__dict__.pop("stop", None)
