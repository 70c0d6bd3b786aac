"""
What a kernel's cells see of their host. `rlm` is callable: `await rlm("task", model="p/m")`.

Importing it starts nothing and loads nothing; every name is loaded at its first use.
"""

import sys
from types import ModuleType

TYPE_CHECKING = False  # typing's own would load `typing`, and with it `re`, before `ready`
if TYPE_CHECKING:
    from typing import Any

    from . import harness
    from ._bash import BashHandle, BashResult, bash
    from ._bridge import ApprovalDenied, HostError, ToolError
    from .handles import (
        RLMModel,
        RLMSubagent,
        delete_subagent,
        family,
        find_models,
        get_result,
        host_request,
        info,
        list_subagents,
        observe,
        run,
        send_child,
        send_parent,
        send_sibling,
        submit_result,
    )

__all__ = [
    "ApprovalDenied",
    "BashHandle",
    "BashResult",
    "HostError",
    "RLMModel",
    "RLMSubagent",
    "ToolError",
    "bash",
    "delete_subagent",
    "family",
    "find_models",
    "get_result",
    "harness",
    "host_request",
    "info",
    "list_subagents",
    "observe",
    "run",
    "send_child",
    "send_parent",
    "send_sibling",
    "submit_result",
]

_MODULES = {
    **dict.fromkeys(("ApprovalDenied", "HostError", "ToolError"), "_bridge"),
    **dict.fromkeys(("BashHandle", "BashResult", "bash"), "_bash"),
}


class _Callable(ModuleType):
    """The type of the module `rlm`: calling it is `rlm.run`."""

    def __call__(self, prompt: str, **options: "Any") -> "Any":
        return self.run(prompt, **options)

    def __getattr__(self, name: str) -> "Any":
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        from ._names import own_imports

        with own_imports():
            if name == "harness":
                return import_module(".harness", __name__)
            module = import_module(f".{_MODULES.get(name, 'handles')}", __name__)
        value = self.__dict__[name] = getattr(module, name)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})

    def __reduce__(self) -> "tuple[Any, tuple[str]]":
        from importlib import import_module

        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Callable
