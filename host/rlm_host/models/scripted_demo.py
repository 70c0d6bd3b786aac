"""
`scripted/demo`: plays the model in `rlm-host demo`, and says so.

Only the decisions are scripted. The cells run in real kernels, the children are real sessions, and
every number comes out of the file. The script is a function of the conversation alone.
"""

import re
from typing import Any

from .provider import AssistantMessage, Request, ToolResult, UserMessage

PARTS = 4
_ROOT = re.compile(r"Measure the first (\d+) bytes of the file (.+)\.$", re.MULTILINE)
_PART = re.compile(r"Measure bytes (\d+) to (\d+) of the file (.+)\.$", re.MULTILINE)


def root_prompt(path: str, size_bytes: int) -> str:
    """Give the prompt that starts the demo's turn."""
    return f"Measure the first {size_bytes} bytes of the file {path}."


_LOAD = """\
from pathlib import Path

path, size = Path({path!r}), {size}
with path.open("rb") as file:
    data = file.read(size)

# Cut at line ends, so that no line and no word belongs to two parts.
cuts = [0]
for n in range(1, {parts}):
    end = data.find(b"\\n", max(cuts[-1], size * n // {parts}) - 1)
    cuts.append(size if end < 0 else max(cuts[-1], end + 1))
spans = list(zip(cuts, [*cuts[1:], size]))
spans"""

_SPAWN = """\
contract = {{
    "schema": {{
        "type": "object",
        "properties": {{
            "bytes": {{"type": "integer"}},
            "lines": {{"type": "integer"}},
            "words": {{"type": "integer"}},
            "longest_line_bytes": {{"type": "integer"}},
            "sha256": {{"type": "string"}},
        }},
        "required": ["bytes", "lines", "words", "longest_line_bytes", "sha256"],
        "additionalProperties": False,
    }},
    "required": True,
}}
handles = [
    await rlm(
        f"Measure bytes {{start}} to {{end}} of the file {{path}}.",
        name=f"part-{{n}}",
        model={model!r},
        result=contract,
    )
    for n, (start, end) in enumerate(spans, 1)
]
[handle.name for handle in handles]"""

_COLLECT = """\
results = {}
for handle in handles:
    try:
        results[handle.name] = await rlm.get_result(handle)
    except rlm.HostError as missing:
        if missing.data.get("kind") != "resultMissing":
            raise
merged = None
if len(results) == len(handles):
    parts = list(results.values())
    merged = {
        "bytes": sum(p["bytes"] for p in parts),
        "lines": sum(p["lines"] for p in parts),
        "words": sum(p["words"] for p in parts),
        "longest_line_bytes": max(p["longest_line_bytes"] for p in parts),
    }
merged or f"{len(results)} of {len(handles)} results are in" """

_MEASURE = """\
import hashlib

with open({path!r}, "rb") as file:
    file.seek({start})
    part = file.read({end} - {start})
measured = {{
    "bytes": len(part),
    "lines": part.count(b"\\n"),
    "words": len(part.split()),
    "longest_line_bytes": max(map(len, part.split(b"\\n"))),
    "sha256": hashlib.sha256(part).hexdigest(),
}}
await rlm.submit_result(measured)
measured"""

_SAID = "(This is the scripted demo model: no key, no network; cells and children are real.) "


def respond(request: Request) -> list[dict[str, Any]]:
    """Give the steps of the next answer."""
    first = next((m.text for m in request.messages if isinstance(m, UserMessage)), "")
    if part := _PART.search(first):
        return _child(request, int(part[1]), int(part[2]), part[3])
    if root := _ROOT.search(first):
        return _root(request, int(root[1]), root[2])
    return [{"text": _SAID + "I only know how to measure a file: try `rlm-host demo FILE`."}]


def _root(request: Request, size: int, path: str) -> list[dict[str, Any]]:
    load = _LOAD.format(path=path, size=size, parts=PARTS)
    spawn = _SPAWN.format(model=request.model)
    call, result = _last_call(request), request.messages[-1]
    if call is None:
        return [{"text": _SAID + "I load the file and cut it in four.\n"}, {"call": load}]
    if isinstance(result, UserMessage) and call in (spawn, _COLLECT):
        return [{"call": _COLLECT}]
    if isinstance(result, ToolResult) and result.is_error:
        return [{"text": f"The cell failed, and so does this demo:\n{result.text}"}]
    if call == load:
        return [{"text": "One child a part, each with a contract.\n"}, {"call": spawn}]
    if call == spawn:
        return [{"text": "The children measure. I end my turn; their notices will wake me."}]
    if isinstance(result, ToolResult) and "longest_line_bytes" in result.text:
        return [{"text": f"All four parts are measured and merged: {_answer(result.text)}"}]
    return [{"text": "Not all results are in; I wait for the next notice."}]


def _child(request: Request, start: int, end: int, path: str) -> list[dict[str, Any]]:
    result = request.messages[-1]
    if _last_call(request) is None:
        return [{"call": _MEASURE.format(path=path, start=start, end=end)}]
    if isinstance(result, ToolResult) and result.is_error:
        return [{"text": f"The cell failed:\n{result.text}"}]
    return [{"text": "Measured and submitted."}]


def _answer(text: str) -> str:
    numbers = dict(re.findall(r"'(\w+)': (\d+)", text))
    return (
        f"{int(numbers['bytes']):,} bytes, {int(numbers['lines']):,} lines, "
        f"{int(numbers['words']):,} words; the longest line has "
        f"{int(numbers['longest_line_bytes']):,} bytes."
    )


def _last_call(request: Request) -> str | None:
    """Give the code of the last call, or None before the first."""
    for message in reversed(request.messages):
        if isinstance(message, AssistantMessage) and message.calls:
            return str(message.calls[-1].arguments.get("code"))
    return None
