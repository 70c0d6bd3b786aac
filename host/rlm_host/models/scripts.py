"""The scripts that come with the host, and scripts that a user names in the configuration."""

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import msgspec

from rlm_protocol.errors import ConfigInvalid

from . import scripted_demo
from .provider import AssistantMessage, Request, ToolResult, UserMessage
from .scripted import Script, Step, answers, last_user_text, read_steps, this_turn

MARK = "[scripted] "
"""Begins everything that these scripts say: nobody shall take a script for a model."""

_FENCE = re.compile(r"^```(?:python|py)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_RUN = re.compile(r"\A\s*run:(.*)\Z", re.DOTALL)
_LIST = re.compile(r"\[\s*\{")


def echo(request: Request) -> list[Step]:
    """Give back what was said last."""
    return [Step(text=MARK + last_user_text(request))]


def python(request: Request) -> list[Step]:
    """
    Run what the user wrote, then answer with the results.

    Code is all after `run:` at the start of a message, else each fenced python block, one call
    after the other. Of one turn's messages the last with code counts, so steering replaces it.
    """
    return _next_answer(request, _cells, "Write `run: CODE`, or a fenced python block.")


def steps(request: Request) -> list[Step]:
    """
    Play the first JSON list of steps found in the message, an answer at a time.

    When the play ends with a call, the last answer is the results.
    """
    hint = 'Write a JSON list of steps, like [{"call": "1 + 1"}, {"text": "done"}].'
    return _next_answer(request, _play, hint)


SCRIPTS: dict[str, Script] = {
    "demo": scripted_demo.respond,
    "echo": echo,
    "python": python,
    "steps": steps,
}


def load_script(path: Path) -> Script:
    """
    Load a script that the user's own configuration names.

    A `.py` file defines `respond(request)`; it is run, with all rights of the host. A `.json` file
    is a list of steps for the whole conversation, an answer at a time.

    Raises:
        ConfigInvalid: the file cannot be read, or is neither.
    """
    try:
        if path.suffix == ".json":
            return _whole_conversation(read_steps(msgspec.json.decode(path.read_bytes())))
        respond = runpy.run_path(str(path), run_name="rlm_script").get("respond")
    except Exception as why:
        raise ConfigInvalid(f"The script cannot be loaded: {why}", path=str(path)) from why
    if not callable(respond):
        raise ConfigInvalid("The script defines no respond(request).", path=str(path))
    script: Script = respond
    return script


def _whole_conversation(play: list[Step]) -> Script:
    cut = answers(play)

    def respond(request: Request) -> list[Step]:
        done = sum(isinstance(message, AssistantMessage) for message in request.messages)
        return cut[done] if done < len(cut) else [Step(text=f"{MARK}The script is over.")]

    return respond


def _next_answer(
    request: Request, read: Callable[[str], list[list[Step]]], hint: str
) -> list[Step]:
    answered = 0
    for message in reversed(this_turn(request)):
        if isinstance(message, AssistantMessage):
            answered += 1
        elif isinstance(message, UserMessage) and (cut := read(message.text)):
            return cut[answered] if answered < len(cut) else [Step(text=MARK + _results(request))]
    return [Step(text=f"{MARK}Nothing to do. {hint} You said: {last_user_text(request)}")]


def _cells(text: str) -> list[list[Step]]:
    if text.startswith("["):  # the host tells of cells that ran; nobody asks for them again
        return []
    run = _RUN.match(text)
    cells = [run.group(1).strip()] if run else _FENCE.findall(text)
    return [[Step(call=cell)] for cell in cells if cell.strip()]


def _play(text: str) -> list[list[Step]]:
    for start in _LIST.finditer(text):
        try:
            found, _ = json.JSONDecoder().raw_decode(text, start.start())
        except json.JSONDecodeError:
            continue
        return answers(read_steps(found))
    return []


def _results(request: Request) -> str:
    results = (m.text for m in this_turn(request) if isinstance(m, ToolResult))
    return "\n".join(results)
