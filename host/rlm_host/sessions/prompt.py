"""
The system prompt: what every agent of this host is told before anything else. Pure.

It is composed once, when a session is created or configured, and lies in the journal from then on:
a newer host never changes the first bytes of an older session's requests.
"""

from collections.abc import Iterable

import msgspec

from rlm_protocol.session import ClientTool
from rlm_protocol.tool import documentation, signature

from ..kernels.skills import Skill
from ..models.provider import Tool

TOOL = "python"
INSTRUCTIONS_CHARS = 32_768
"""Of one instruction file or of the client's text; more is cut, and the cut is said."""

PYTHON = Tool(
    name=TOOL,
    description=(
        "Run Python code in this session's persistent REPL. Names stay defined between calls. "
        "Top-level await works. Returns what was printed and the value of the last expression."
    ),
    schema={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python source of one cell."}},
        "required": ["code"],
        "additionalProperties": False,
    },
)

BASE = f"""\
You are an agent with one tool, `{TOOL}`: a persistent Python REPL in its own process. You act by \
running code there, and you answer in plain text when you are done.

Working in the REPL
- Names, imports and functions stay defined between cells. Look at data in pieces: print what you \
need, keep the rest in variables. Long output is cut in the middle; the cut says where the whole \
is.
- Files and commands are reached from Python. `bash("command")` starts a shell command in the \
background and returns a handle at once: `h.poll()`, `h.tail()`, `h.output()`, `h.kill()`, or \
`await h` when you need its end now. For a slow command save the handle and end your turn: you are \
told when it has finished.
- An interrupted or failed cell leaves the names that were defined before. If the process was \
replaced, you are told which names came back.
- The person may run cells in the same REPL. You are told what they ran.

Delegating
- `handle = await rlm("task", name="short-name", model="provider/model", \
result={{"schema": {{...}}, "required": True}})` starts a sub-agent with its own REPL. It returns \
at once with a handle, never with the answer. Declare what comes back with `result`, or pass \
`unguarded=True`.
- Choose the model with `rlm.find_models("words")`; name it exactly. It is never inherited.
- The sub-agent sees nothing of this conversation: put everything it needs into the task, and \
large data into files.
- Start independent tasks one after the other and then end your turn; do not wait or poll in a \
cell. Each end is told to you, and then `await rlm.get_result(handle)` reads what was submitted.
- `await handle.send("text")` writes to a sub-agent, `await rlm.list_subagents()` lists them, \
`await handle.delete()` ends one.

Ending your turn
- Your turn ends with the first answer that calls no tool. End it as soon as there is nothing to \
do now; you are woken by messages, by finished commands and by people.
"""

AS_CHILD = """\

You are a sub-agent. Your task is the first message. When it asks for a result, hand it in with \
`await rlm.submit_result(value)`, once; write to the agent that started you with \
`await rlm.send_parent("text")`. Nobody reads your final answer unless you send it.
"""


SKILLS = """\
Skills
These Python modules are bound in the REPL already. `print(NAME.__doc__)` shows how one is used; \
read that before you use it."""

NO_TOOLS = "The client offers no tools any more: names of `tools` cannot be called."


class Instructions(msgspec.Struct, frozen=True):
    """A text for the model and where it comes from: a path, or None for the client's own."""

    text: str
    path: str | None = None


def compose(
    extra: Iterable[Instructions],
    *,
    is_child: bool,
    tools: tuple[ClientTool, ...] = (),
    skills: tuple[Skill, ...] = (),
) -> str:
    """Give the whole system prompt: the base, skills, tools, then each text under its origin."""
    parts = [BASE, AS_CHILD if is_child else ""]
    if usable := [skill for skill in skills if skill.problem is None]:
        parts.append(f"\n{SKILLS}\n")
        parts += [f"- `{skill.name}`: {skill.description}\n" for skill in usable]
    if tools:
        parts.append(f"\nTools of the client\n{tools_text(tools)}\n")
    for one in extra:
        if one.text.strip():
            title = f"Instructions from {one.path}" if one.path else "Instructions"
            parts.append(f"\n# {title}\n\n{_bounded(one.text.strip())}\n")
    return "".join(parts)


def tools_text(tools: tuple[ClientTool, ...]) -> str:
    """Tell the model which functions of the client its cells can await, and how."""
    if not tools:
        return NO_TOOLS
    head = (
        "These run in the client, not in the REPL. Await them in a cell, with keyword arguments; "
        "`help(tools.NAME)` shows one again. They give a JSON value, or raise `rlm.ToolError`; "
        "`rlm.ApprovalDenied` when a person says no."
    )
    return "\n".join([head, *map(_tool_text, tools)])


def _tool_text(tool: ClientTool) -> str:
    said = documentation(tool).replace("\n", "\n  ")
    return f"- `await tools.{tool.name}{signature(tool.input_schema)}`\n  {said}"


def with_schema(text: str, schema: str) -> str:
    """Give an input that also asks for a final answer of a certain shape."""
    return (
        f"{text}\n\nYour final answer must be one JSON value and nothing else, valid against this "
        f"JSON Schema:\n{schema}"
    )


def _bounded(text: str) -> str:
    if len(text) <= INSTRUCTIONS_CHARS:
        return text
    return f"{text[:INSTRUCTIONS_CHARS]}\n[{len(text) - INSTRUCTIONS_CHARS} characters were cut]"
