"""Skills on disk, good ones and bad ones."""

from pathlib import Path

GOOD = '''"""Counts."""

from .words import split

LOADED = []


class Counter:
    def __init__(self, text: str) -> None:
        self.words = split(text)


def count(text: str) -> int:
    return len(split(text))
'''
DESCRIPTION = "Counts the words of a text."


def skill_md(name: str, description: str = DESCRIPTION) -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n\nCall `count(text)`.\n"


def make_skill(place: Path, name: str, code: str = GOOD, *, md: str | None = None) -> Path:
    """Write a skill below `place`; give its folder."""
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(skill_md(name) if md is None else md)
    (folder / "__init__.py").write_text(code)
    (folder / "words.py").write_text("def split(text):\n    return text.split()\n")
    return folder
