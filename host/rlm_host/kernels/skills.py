"""
Python skills: package folders with a `SKILL.md`, importable in every kernel by the folder's name.

Three places are looked through: what comes with the runtime, `$RLM_HOME/skills`, and `.rlm/skills`
of the workspace; of two skills with one name the first place's counts. Nothing of a skill is run
here: a kernel loads it when a cell uses it. A folder that is broken is offered with its problem,
so that using it explains; one whose name would hide something else is left out.
"""

import builtins
import functools
import importlib.util
import json
import keyword
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

FILE, PACKAGE = "SKILL.md", "__init__.py"
FILE_BYTES = 64 * 1024
DESCRIPTION_CHARS = 1024
SKILLS_MAX = 100
"""Skills of one place; more are left out, in order of their names."""
TAKEN = frozenset(
    ("rlm", "rlm_protocol", "bash", "tools", "mcp", "msgspec", "dill", "cloudpickle", "In", "Out")
)
_KEY = re.compile(r"([A-Za-z][\w-]*):(?:\s+(.*))?$")


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """
    A skill that kernels are told of. `path` is its folder; None for one of the kernel's own.

    With a `problem` it cannot be used, and the model is not told of it.
    """

    name: str
    description: str = ""
    path: str | None = None
    problem: str | None = None


class Skills(msgspec.Struct, frozen=True, kw_only=True):
    """Where skills come from. `disabled` are names that are not offered, whoever brings them."""

    bundled: Path | None = None
    home: Path | None = None
    workspace: bool = False
    disabled: frozenset[str] = frozenset()

    def offered(self, cwd: Path) -> tuple[Skill, ...]:
        """Give the skills of a session in `cwd`, in order of their names. Blocks; never raises."""
        found: dict[str, Skill] = {}
        for skill in self._all(cwd):
            if skill.name not in self.disabled:
                found.setdefault(skill.name, skill)
        return tuple(found[name] for name in sorted(found))

    def _all(self, cwd: Path) -> Iterator[Skill]:
        if self.bundled is not None:
            for skill in _skills_of(self.bundled):
                yield msgspec.structs.replace(skill, path=None)
        if self.home is not None:
            yield from _skills_of(skills_folder(self.home))
        if self.workspace:
            yield from _skills_of(cwd / ".rlm" / "skills")


def skills_folder(home: Path) -> Path:
    """Give the user's own skills of a home."""
    return home / "skills"


def bundled() -> Path | None:
    """Give the folder of the skills that come with the runtime, as far as this host has it."""
    spec = importlib.util.find_spec("rlm")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) / "skills" if folders else None


def skills_code(skills: tuple[Skill, ...]) -> str:
    """Give what the kernel's bootstrap is told of them: a JSON array."""
    return json.dumps(
        [{"name": s.name, "path": s.path, "problem": s.problem} for s in skills], ensure_ascii=True
    )


def _skills_of(place: Path) -> Iterator[Skill]:
    try:
        root = place.resolve(strict=True)
        with os.scandir(root) as entries:
            folders = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return  # there is no such place, or none that can be read
    for folder in folders[:SKILLS_MAX]:
        name = folder.replace("-", "_")
        if (why := _hides(name)) is not None:
            _say_once(f"the skill {place / folder} is left out: its name {why}")
            continue
        try:
            yield Skill(name=name, description=_description(root, folder), path=str(root / folder))
        except (OSError, ValueError) as why:
            _say_once(f"the skill {place / folder} cannot be used: {why}")
            yield Skill(name=name, path=str(root / folder), problem=str(why))


@functools.lru_cache(maxsize=1000)
def _say_once(text: str) -> None:
    """Log it, but not again for each session that meets it."""
    log.warning("%s", text)


def _hides(name: str) -> str | None:
    """Say why a name must not be bound in a kernel."""
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        return "is no name in Python"
    if name in sys.stdlib_module_names or name in TAKEN or hasattr(builtins, name):
        return "is Python's or the host's own"
    return None


def _description(root: Path, folder: str) -> str:
    """Hold a folder to the form of a skill; give its description. Raises OSError, ValueError."""
    for part in (Path(folder), Path(folder, FILE), Path(folder, PACKAGE)):
        target = (root / part).resolve()
        if not target.is_relative_to(root):
            raise ValueError(f"{part} is a link that leads out of {root}")
    if not (root / folder / PACKAGE).is_file():
        raise ValueError(f"it is no package: there is no {PACKAGE}")
    fields = front_matter(_read(root / folder / FILE))
    if fields.get("name", "").replace("-", "_") != folder.replace("-", "_"):
        raise ValueError(f"{FILE} does not name it {folder!r}")
    description = " ".join(fields.get("description", "").split())
    if not 1 <= len(description) <= DESCRIPTION_CHARS:
        raise ValueError(f"{FILE} has no description of 1 to {DESCRIPTION_CHARS} characters")
    return description


def _read(path: Path) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_BYTES:
            raise ValueError(f"{FILE} is no file of at most {FILE_BYTES} bytes")
        return file.read(FILE_BYTES).decode("utf-8")  # UnicodeDecodeError is a ValueError


def front_matter(text: str) -> dict[str, str]:
    """
    Give the top-level texts between the two `---` lines at the beginning of a `SKILL.md`.

    Of YAML this reads what such files use: plain, quoted, folded and literal texts; a value of
    another kind gives its first line. Raises ValueError when there are no such lines.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        raise ValueError(f"{FILE} does not begin with a line ---")
    fields: dict[str, list[str]] = {}
    key = ""
    for line in lines[1:]:
        if line.rstrip() == "---":
            return {name: _text(parts) for name, parts in fields.items()}
        found = _KEY.match(line)
        if found is not None:
            key = found[1]
            fields[key] = [found[2] or ""]
        elif line[:1].isspace() and key:
            fields[key].append(line.strip())
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{FILE} has a line in its front matter that is no `key: value`")
    raise ValueError(f"the front matter of {FILE} does not end with a line ---")


def _text(parts: list[str]) -> str:
    first, *rest = parts
    first = first.strip()
    if first in ("", ">", ">-", ">+", "|", "|-", "|+"):
        first = ""
    whole = " ".join([first, *rest] if first else rest).strip()
    if len(whole) >= 2 and whole[0] == whole[-1] == '"':
        try:
            return str(json.loads(whole))
        except ValueError:
            return whole[1:-1]
    if len(whole) >= 2 and whole[0] == whole[-1] == "'":
        return whole[1:-1].replace("''", "'")
    return whole
