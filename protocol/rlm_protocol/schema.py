"""
Renders every generated file: `python -m rlm_protocol.schema [--check] ROOT`.

The rows of `methods`, `errors`, `kernel` and `bridge` are the source; schemas/ and the tables in
docs/protocol/ are never edited by hand. This module is a tool: hosts and kernels never import it,
and it does its file access in `main` alone.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec

from . import __version__, bridge, errors, kernel, limits, methods

REPAIR = "uv run python -m rlm_protocol.schema ."


def _components(types: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    refs, defs = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    return list(refs), dict(sorted(defs.items()))


def _document(title: str, body: dict[str, Any], defs: dict[str, Any]) -> str:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **body, "$defs": defs}, indent=1, ensure_ascii=False) + "\n"


def kernel_requests() -> str:
    """Render the JSON Schema of one request line to a runtime."""
    refs, defs = _components(list(get_args(kernel.Request)))
    return _document("A request, host to runtime", {"anyOf": refs}, defs)


def kernel_events() -> str:
    """Render the JSON Schema of one event line of a runtime."""
    refs, defs = _components(list(get_args(kernel.Event)))
    return _document("An event, runtime to host", {"anyOf": refs}, defs)


def kernel_bridge() -> str:
    """Render the JSON Schemas of the host requests of a cell."""
    rows = list(bridge.BRIDGE.values())
    refs, defs = _components([t for row in rows for t in (row.payload, row.reply)])
    types = {
        row.name: {"payload": refs[2 * n], "reply": refs[2 * n + 1]} for n, row in enumerate(rows)
    }
    return _document("Host requests of a cell", {"types": types}, defs)


def host_schema() -> str:
    """Render the JSON Schemas of all methods and notifications of the host."""
    _, defs = _components(_wire_types())
    by_type = dict(zip(_wire_types(), _components(_wire_types())[0], strict=True))
    body = {
        "methods": {
            m.name: {
                "direction": m.direction,
                "params": by_type[m.params],
                "result": {"type": "null"} if m.result is None else by_type[m.result],
                "errors": [error.kind for error in m.errors],
            }
            for m in methods.METHODS.values()
        },
        "notifications": {
            n.name: {"direction": n.direction, "params": by_type[n.params]}
            for n in methods.EVENTS.values()
        },
    }
    return _document("rlm-host, client and host", body, defs)


def openrpc_document() -> dict[str, Any]:
    """Give the OpenRPC 1.3 document; `host/schema` answers it."""
    types = _wire_types()
    refs, defs = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, refs, strict=True))
    return {
        "openrpc": "1.3.2",
        "info": {"title": "rlm-host", "version": __version__},
        "methods": [
            {
                "name": m.name,
                "summary": _first_line(m.params),
                "paramStructure": "by-name",
                "params": [
                    {"name": "params", "required": False, "schema": by_type[m.params]},
                ],
                "result": {
                    "name": "result",
                    "schema": {"type": "null"} if m.result is None else by_type[m.result],
                },
                "errors": [{"code": row.code, "message": row.meaning} for row in m.errors],
            }
            for m in methods.METHODS.values()
            if m.direction == "client"
        ],
        "components": {"schemas": dict(sorted(defs.items()))},
    }


def openrpc() -> str:
    """Render schemas/openrpc.json."""
    return json.dumps(openrpc_document(), indent=1, ensure_ascii=False) + "\n"


def methods_markdown() -> str:
    """Render docs/protocol/methods.md."""
    out = ["# Methods", "", "Generated from `rlm_protocol/methods.py`.", ""]
    for direction, title in (("client", "Client to host"), ("host", "Host to client")):
        out += [f"## {title}", "", "| method | mutates | meaning | errors |", "|---|---|---|---|"]
        for m in methods.METHODS.values():
            if m.direction == direction:
                kinds = " ".join(f"`{row.kind}`" for row in m.errors)
                mutates = "yes" if m.mutates else ""
                out.append(f"| `{m.name}` | {mutates} | {_first_line(m.params)} | {kinds} |")
        out.append("")
    out += ["## Notifications", "", "| name | from | droppable | meaning |", "|---|---|---|---|"]
    for n in methods.EVENTS.values():
        droppable = "yes" if n.droppable else ""
        out.append(f"| `{n.name}` | {n.direction} | {droppable} | {_first_line(n.params)} |")
    return "\n".join([*out, ""])


def runtime_markdown() -> str:
    """Render docs/protocol/runtime.md: every message of a kernel, and what its cells may ask."""
    out = [
        "# The runtime's protocol",
        "",
        "Generated from `rlm_protocol/kernel.py` and `rlm_protocol/bridge.py`. One JSON object per",
        "line, UTF-8, LF; a request carries its name in `type`, an event in `event`. Fields with a",
        "`?` may be left out. A line that is no request is answered by an `error` event with `id`",
        f"null and `ename` `ProtocolError`. Requests may be {limits.KERNEL_REQUEST_BYTES:,} bytes",
        f"long; no event is longer than {limits.KERNEL_FRAME_BYTES:,} bytes.",
        "",
    ]
    for title, union in (("Requests", kernel.Request), ("Events", kernel.Event)):
        out += [f"## {title}", "", "| name | fields | meaning |", "|---|---|---|"]
        for struct in get_args(union):
            name = struct.__struct_config__.tag
            out.append(f"| `{name}` | {_fields(struct)} | {_first_line(struct)} |")
        out.append("")
    out += ["## Host requests of a cell", "", "| type | payload | reply | meaning |"]
    out += ["|---|---|---|---|"]
    for row in bridge.BRIDGE.values():
        meaning = _first_line(row.payload).partition(": ")[2] or _first_line(row.payload)
        out.append(f"| `{row.name}` | {_fields(row.payload)} | {_fields(row.reply)} | {meaning} |")
    return "\n".join([*out, ""])


def promises_markdown() -> str:
    """Render docs/protocol/promises.md."""
    from .conformance import host, runtime

    out = ["# Promises", "", "Generated from `rlm_protocol/conformance/`; see conformance.md.", ""]
    for kind, rows in (("runtime", runtime.PROMISES), ("host", host.PROMISES)):
        for profile in dict.fromkeys(row.profile for row in rows):
            out += [f"## {kind}: {profile}", "", "| promise | what holds |", "|---|---|"]
            out += [f"| `{row.id}` | {row.text} |" for row in rows if row.profile == profile]
            out.append("")
    return "\n".join(out)


FILES: dict[str, Callable[[], str]] = {
    "schemas/kernel-requests.json": kernel_requests,
    "schemas/kernel-events.json": kernel_events,
    "schemas/kernel-bridge.json": kernel_bridge,
    "schemas/host.json": host_schema,
    "schemas/openrpc.json": openrpc,
    "docs/protocol/errors.md": errors.table_markdown,
    "docs/protocol/methods.md": methods_markdown,
    "docs/protocol/promises.md": promises_markdown,
    "docs/protocol/runtime.md": runtime_markdown,
}


def _wire_types() -> list[Any]:
    types: dict[Any, None] = {}
    for m in methods.METHODS.values():
        types[m.params] = None
        if m.result is not None:
            types[m.result] = None
    for n in methods.EVENTS.values():
        types[n.params] = None
    return list(types)


def _fields(struct: type[msgspec.Struct]) -> str:
    names = (
        f"`{field.encode_name}{'' if field.required else '?'}`"
        for field in msgspec.structs.fields(struct)
    )
    return " ".join(names)


def _first_line(payload: type) -> str:
    text = " ".join((payload.__doc__ or "").strip().split("\n\n")[0].split())
    return text.replace("|", "\\|")


def stale(root: Path) -> list[str]:
    """Give the names of generated files below `root` that differ from their source."""
    return [
        name
        for name, render in FILES.items()
        if not (root / name).exists() or (root / name).read_text(encoding="utf-8") != render()
    ]


def main(argv: list[str]) -> int:
    """Write the generated files below ROOT, or with --check say which are stale."""
    check = "--check" in argv
    root = Path(next((a for a in argv if not a.startswith("-")), "."))
    old = stale(root)
    for name in old:
        if not check:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(FILES[name](), encoding="utf-8")
        sys.stderr.write(f"{'stale' if check else 'wrote'} {name}\n")
    if check and old:
        sys.stderr.write(f"renew them with: {REPAIR}\n")
    return 1 if check and old else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
