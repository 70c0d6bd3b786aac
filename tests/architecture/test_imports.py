"""The dependency rules of docs/architecture.md that a machine can hold."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOCOL, RUNTIME, HOST = "protocol/rlm_protocol", "runtime/rlm", "host/rlm_host"
PACKAGES = (PROTOCOL, RUNTIME, HOST)
THIRD_PARTY = {
    PROTOCOL: {"rlm_protocol", "msgspec"},
    RUNTIME: {"rlm", "rlm_protocol", "msgspec", "dill", "cloudpickle"},
    HOST: {
        "anyio",
        "apsw",
        "genai_prices",
        "google",  # protobuf, which temporalio brings
        "jsonschema",
        "lsprotocol",
        "msgspec",
        "opentelemetry",
        "platformdirs",
        "psycopg",
        "psycopg_pool",
        "pydantic",
        "pydantic_ai",
        "pygls",
        "referencing",
        "rich",
        "rlm_host",
        "rlm_protocol",
        "temporalio",
        "tomlkit",
    },
}
ONLY_IN = {
    "tomlkit": "config_file.py",
    "pygls": "rpc",
    "lsprotocol": "rpc",
    "pydantic": "models",
    "pydantic_ai": "models",
    "genai_prices": "models",
    "apsw": ("loops", "sessions", "children", "continuity", "sqlite_file.py"),
    "psycopg": "loops",
    "psycopg_pool": "loops",
    "temporalio": "loops",
    "google": "loops",
    "rich": "faces",
}
"""A heavy library is known in one folder of the host only."""

MAY_IMPORT_FOLDER = {
    "faces": {"client", "rpc", "children", "continuity", "loops", "sessions", "kernels", "models"},
    "client": {"rpc"},
    "rpc": {"children", "continuity", "loops", "sessions", "kernels", "models", "processes"},
    "children": {"sessions", "kernels", "models", "processes"},
    "continuity": {"sessions", "kernels", "models", "processes"},
    "loops": {"sessions", "kernels", "models", "processes"},
    "sessions": {"kernels", "models", "processes"},
    "kernels": {"processes"},
    "models": {"processes"},
    "processes": set(),
}
"""Arrows of the host; modules directly in rlm_host/ (paths, clock, config, log) are known to all."""

PURE = (
    "protocol/rlm_protocol/*.py",
    "host/rlm_host/sessions/json_schema.py",
    "host/rlm_host/client/attachments.py",
    "host/rlm_host/client/open_items.py",
    "host/rlm_host/sessions/state.py",
    "host/rlm_host/kernels/lifecycle.py",
    "host/rlm_host/children/admission.py",
    "host/rlm_host/children/contract.py",
    "host/rlm_host/children/lifecycle.py",
    "host/rlm_host/children/messages.py",
    "host/rlm_host/children/recent.py",
    "host/rlm_host/children/registry.py",
    "host/rlm_host/children/usage.py",
    "host/rlm_host/children/budget.py",
    "host/rlm_host/loops/controller.py",
    "host/rlm_host/loops/head.py",
    "host/rlm_host/loops/seed.py",
)
IO = {"anyio", "asyncio", "os", "random", "select", "signal", "socket", "subprocess", "threading"}
IO |= {"time", "apsw", "sqlite3", "datetime"}
MAX_LINES = 500


def modules(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Absolute dotted names that a module imports, relative ones resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[1:]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else ()
            stem = base + tuple((node.module or "").split(".") if node.module else ())
            yield stem
            yield from ((*stem, alias.name) for alias in node.names)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    for path in modules(package):
        roots = {name[0] for name in imports(path) if name}
        foreign = roots - sys.stdlib_module_names - THIRD_PARTY[package]
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_runtime_and_host_never_meet() -> None:
    for path in modules(HOST):
        assert "rlm" not in {name[0] for name in imports(path) if name}, path


def test_heavy_libraries_are_known_in_one_folder() -> None:
    for path in modules(HOST):
        folder = path.relative_to(ROOT / HOST).parts[0]
        for name in imports(path):
            allowed = ONLY_IN.get(name[0] if name else "")
            if allowed is None:
                continue
            allowed = (allowed,) if isinstance(allowed, str) else allowed
            assert folder in allowed, f"{path.relative_to(ROOT)} imports {name[0]}"


def test_the_host_imports_downwards_only() -> None:
    for path in modules(HOST):
        relative = path.relative_to(ROOT / HOST)
        folder = relative.parts[0]
        for name in imports(path):
            if name[:1] != ("rlm_host",) or len(name) < 2:
                continue
            target = name[1]
            assert target != "app" or folder == "__main__.py", f"{relative} knows app.py"
            if folder in MAY_IMPORT_FOLDER and target in MAY_IMPORT_FOLDER and target != folder:
                assert target in MAY_IMPORT_FOLDER[folder], f"{relative} imports {target}"


@pytest.mark.parametrize("pattern", PURE)
def test_pure_modules_touch_nothing_outside(pattern: str) -> None:
    for path in ROOT.glob(pattern):
        touched = {name[0] for name in imports(path) if name} & IO
        assert not touched, f"{path.relative_to(ROOT)} imports {touched}"


def test_modules_stay_small() -> None:
    for package in PACKAGES:
        for path in modules(package):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines"


def test_roots_are_not_packages() -> None:
    for root in ("protocol", "runtime", "host", "tests"):
        assert not (ROOT / root / "__init__.py").exists(), root
