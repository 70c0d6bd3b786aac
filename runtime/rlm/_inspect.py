"""
Names, completion and inspection for editors. Never runs user code.

No property, no `__getattr__`, no `__repr__`, no metaclass: types and dicts are read through the
slots of `type` and `object` themselves; values of builtin types are shown, of others the type.
"""

import builtins
import itertools
import keyword
import re
import sys
import types
from typing import Any

from rlm_protocol import kernel as k

from ._names import is_users

MATCHES = 1000
_NAMES_LOOKED_AT = 20_000
_DOC_CHARS = 4000
_PATH = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_KEY = re.compile(rf"({_PATH})\[\s*(['\"])([^'\"\n]*)$")
_ATTRIBUTE = re.compile(rf"({_PATH})\.(\w*)$")
_IMPORT = re.compile(r"^\s*(?:import|from)\s+([\w.]*)$", re.MULTILINE)
_NAME = re.compile(r"(\w*)$")
_MISSING = object()
_mro = type.__dict__["__mro__"].__get__
_class_dict = type.__dict__["__dict__"].__get__
_module_dict: Any = vars(types.ModuleType)["__dict__"].__get__
_class_flags = type.__dict__["__flags__"].__get__
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, mostly
_class_name = type.__dict__["__name__"].__get__


def answer(request: k.Complete | k.Inspect, namespace: dict[str, Any]) -> k.Done:
    """Answer one request of an editor."""
    if not 0 <= request.cursor <= len(request.code):
        return k.Done(id=request.id, status="error", reason="the cursor lies outside of the code")
    if isinstance(request, k.Complete):
        start, matches = complete(request.code[: request.cursor], namespace)
        return k.Done(
            id=request.id,
            status="ok",
            matches=matches[:MATCHES],
            cursor_start=start,
            cursor_end=request.cursor,
            truncated=True if len(matches) > MATCHES else k.UNSET,
        )
    text = describe_at(request.code, request.cursor, namespace)
    return k.Done(id=request.id, status="ok", found=text is not None, text=text or "")


def complete(before: str, namespace: dict[str, Any]) -> tuple[int, list[str]]:
    """Give where the word at the end of `before` starts, and what it may become, sorted."""
    line = before[before.rfind("\n") + 1 :]
    if found := _KEY.search(line):
        return len(before) - len(found[3]), _keys(resolve(found[1], namespace), found[3])
    if found := _IMPORT.search(line):
        return len(before) - len(found[1]), _fitting(_module_names(), found[1])
    if found := _ATTRIBUTE.search(line):
        names = attributes(resolve(found[1], namespace))
        return len(before) - len(found[2]), _fitting(names, found[2])
    found = _NAME.search(line)
    assert found is not None
    if line[: found.start()].endswith("."):
        return len(before) - len(found[1]), []  # an attribute of something that is no plain name
    names = {*filter(_is_name, list(namespace)), *vars(builtins), *keyword.kwlist}
    return len(before) - len(found[1]), _fitting(names, found[1])


def _fitting(names: Any, prefix: str) -> list[str]:
    hide = not prefix.startswith("_")
    return sorted(
        name for name in names if name.startswith(prefix) and not (hide and name[:1] == "_")
    )


def _is_name(name: object) -> bool:
    return type(name) is str


def _module_names() -> set[str]:
    return {name for name in list(sys.modules) if type(name) is str and "._" not in name}


def _keys(value: Any, prefix: str) -> list[str]:
    if type(value) is not dict:
        return []
    keys = (key for key in list(value)[:_NAMES_LOOKED_AT] if type(key) is str)
    return sorted(key for key in keys if key.startswith(prefix) and repr(key)[1:-1] == key)


def resolve(path: str, namespace: dict[str, Any]) -> Any:
    """Give what a dotted name stands for, or `_MISSING`, by looking only."""
    first, *rest = path.split(".")
    value = namespace.get(first, _MISSING)
    if value is _MISSING:
        value = vars(builtins).get(first, _MISSING)
    for name in rest:
        if value is _MISSING:
            return _MISSING
        value = _attribute(value, name)
    return value


def _attribute(value: Any, name: str) -> Any:
    own = instance_dict(value).get(name, _MISSING)
    if own is not _MISSING:
        return own
    classes = _mro(value) if _is_class(value) else ()
    for owner in (*classes, *_mro(type(value))):
        entry = _class_dict(owner).get(name, _MISSING)
        if entry is _MISSING:
            continue
        kind = type(entry)
        if kind in (staticmethod, classmethod):
            return entry.__func__
        if kind is types.MemberDescriptorType and owner in _mro(type(value)):
            try:
                return entry.__get__(value)  # a slot: read in C
            except AttributeError:
                return _MISSING
        return _MISSING if kind is property else entry
    return _MISSING


def _is_class(value: Any) -> bool:
    return type in _mro(type(value))


def instance_dict(value: Any) -> dict[str, Any]:
    """Give the `__dict__` of a value, {} when it has none or its class has put something there."""
    if types.ModuleType in _mro(type(value)):
        found = _module_dict(value)
        return found if type(found) is dict else {}
    if _is_class(value):
        return {}
    for owner in _mro(type(value)):
        entry = _class_dict(owner).get("__dict__")
        if entry is not None:
            if type(entry) is not types.GetSetDescriptorType:
                return {}
            found = entry.__get__(value)
            return found if type(found) is dict else {}
    return {}


def attributes(value: Any) -> set[str]:
    """Give the names that follow a dot."""
    if value is _MISSING:
        return set()
    names: set[str] = set()
    own = instance_dict(value)
    names.update(filter(_is_name, list(own)[:_NAMES_LOOKED_AT]))
    exported = own.get("__all__")
    if type(exported) is list or type(exported) is tuple:
        names.update(name for name in exported if type(name) is str)
    for owner in (*(_mro(value) if _is_class(value) else ()), *_mro(type(value))):
        names.update(filter(_is_name, list(_class_dict(owner))))
    return names


# --- inspection -----------------------------------------------------------------------------------


def describe_at(code: str, cursor: int, namespace: dict[str, Any]) -> str | None:
    """Describe what the dotted name at `cursor` stands for; None when it stands for nothing."""
    start, end = cursor, cursor
    while start > 0 and (code[start - 1].isalnum() or code[start - 1] in "_."):
        start -= 1
    while end < len(code) and (code[end].isalnum() or code[end] == "_"):
        end += 1
    path = code[start:end].strip(".")
    if not re.fullmatch(_PATH, path):
        return None
    value = resolve(path, namespace)
    return None if value is _MISSING else _describe(path, value)


def _describe(path: str, value: Any) -> str:
    name = path.rpartition(".")[2]
    if type(value) is types.MethodType:
        value = value.__func__
    kind = type(value)
    if kind is types.FunctionType:
        head = f"{_def(value)} {name}{_declared(value) or signature(value)}"
    elif kind in (
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
    ):
        head = f"{name}{value.__text_signature__ or '(...)'}"
    elif _is_class(value):
        init = _attribute(value, "__init__")
        head = f"class {name}{signature(init) if type(init) is types.FunctionType else ''}"
    else:
        head = f"{name}: {_class_name(kind)} = {preview(value)}"
    doc = _doc(value)
    return head if doc is None else f"{head}\n\n{_dedent(doc)[:_DOC_CHARS]}"


def _def(function: types.FunctionType) -> str:
    return "async def" if function.__code__.co_flags & 0x80 else "def"


def _declared(function: types.FunctionType) -> str | None:
    """Give the signature that a function says it has; only the tools of a client say so."""
    text = function.__dict__.get("__text_signature__")
    return text if type(text) is str else None


def signature(function: types.FunctionType) -> str:
    """Write a function's parameters; defaults are shown as `preview` shows them."""
    code = function.__code__
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    defaults = function.__defaults__ or ()
    keyword_defaults = function.__kwdefaults__ or {}
    parts = []
    for index, name in enumerate(names[:positional]):
        at = index - (positional - len(defaults))
        parts.append(name if at < 0 else f"{name}={preview(defaults[at])}")
        if index + 1 == code.co_posonlyargcount:
            parts.append("/")
    stars = positional + keyword_only
    if code.co_flags & 0x04:
        parts.append(f"*{names[stars]}")
        stars += 1
    elif keyword_only:
        parts.append("*")
    for name in names[positional : positional + keyword_only]:
        has = type(keyword_defaults) is dict and name in keyword_defaults
        parts.append(f"{name}={preview(keyword_defaults[name])}" if has else name)
    if code.co_flags & 0x08:
        parts.append(f"**{names[stars]}")
    return f"({', '.join(parts)})"


def _doc(value: Any) -> str | None:
    kind = type(value)
    if kind is types.FunctionType or kind is types.BuiltinFunctionType:
        doc = value.__doc__
    elif types.ModuleType in _mro(kind):
        doc = instance_dict(value).get("__doc__")
    else:
        owner = value if _is_class(value) else kind
        if not _is_class(value) and not _class_flags(owner) & _HEAP_TYPE:
            return None  # nobody asks what a list is
        doc = _class_dict(owner).get("__doc__")
    return doc if type(doc) is str else None


def _dedent(doc: str) -> str:
    first, *rest = doc.expandtabs().splitlines() or [""]
    margin = min((len(row) - len(row.lstrip()) for row in rest if row.strip()), default=0)
    return "\n".join([first.lstrip(), *(row[margin:] for row in rest)]).strip()


# --- values ---------------------------------------------------------------------------------------

_SHOWN = 6
_TEXT = 80
_SCALARS = (int, float, complex, bool, type(None), type(...))
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}"}


def preview(value: Any, depth: int = 2) -> str:
    """Show a value in a few words without running anything of its class."""
    kind = type(value)
    if kind is int and value.bit_length() > 256:
        return f"<int of {value.bit_length()} bits>"
    if kind in _SCALARS:
        return repr(value)
    if kind is str or kind is bytes:
        return repr(value) if len(value) <= _TEXT else f"{value[:_TEXT]!r}… ({len(value)})"
    if kind in _BRACKETS or kind is dict:
        return _contents(value, depth)
    if types.ModuleType in _mro(kind):
        return f"<module {instance_dict(value).get('__name__', '?')!s:.60}>"
    return f"<{_class_name(kind)}{_shape(value)}>"


def _contents(value: Any, depth: int) -> str:
    kind = type(value)
    brackets = _BRACKETS.get(kind, "{}")
    left, right = brackets[0], brackets[1]
    if not value:
        return "set()" if kind in (set, frozenset) else left + right
    if depth == 0:
        return f"{left}… ({len(value)}){right}"
    try:
        if kind is dict:  # by items: looking a key up may run its `__eq__`
            pairs = itertools.islice(value.items(), _SHOWN)
            shown = [f"{preview(a, depth - 1)}: {preview(b, depth - 1)}" for a, b in pairs]
        else:
            shown = [preview(item, depth - 1) for item in itertools.islice(value, _SHOWN)]
    except RuntimeError:  # a thread of the cells changed it meanwhile
        return f"{left}… ({len(value)}){right}"
    more = f", … ({len(value)})" if len(value) > _SHOWN else ""
    return f"{left}{', '.join(shown)}{more}{right}"


def _shape(value: Any) -> str:
    module = sys.modules.get("numpy")
    if module is not None and type(value) is instance_dict(module).get("ndarray"):
        return f" {value.dtype} {value.shape}"
    return ""


def _size_bytes(value: Any) -> int | None:
    module = sys.modules.get("numpy")
    if module is not None and type(value) is instance_dict(module).get("ndarray"):
        return int(value.nbytes)
    known = (*_SCALARS, str, bytes, bytearray, list, tuple, dict, set, frozenset)
    return sys.getsizeof(value) if type(value) in known else None


def details(namespace: dict[str, Any], names: list[str]) -> list[k.NameDetail]:
    """Give the rows of a variable view; `size` in bytes, shallow, None where it is not known."""
    rows = []
    for name in names:
        value = namespace.get(name, _MISSING)
        if value is _MISSING or not is_users(name):
            continue
        kind = _class_name(type(value))
        rows.append(
            k.NameDetail(name=name, type=kind, preview=preview(value), size=_size_bytes(value))
        )
    return rows
