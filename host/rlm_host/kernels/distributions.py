"""Installed distributions: which are there, and copies of them by their RECORD. No network."""

import csv
import importlib.metadata
import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in some folder of packages. `name` is normalised (PEP 503)."""

    name: str
    version: str
    pure: bool
    """Runs on any interpreter: its wheel was for `any` platform."""


def installed(site: Path | None = None) -> dict[str, Installed]:
    """List what lies in `site`, or what this host can import."""
    found: dict[str, Installed] = {}
    for dist in _all(site):
        name = normalised(dist.metadata["Name"] or "")
        tags = re.findall(r"^Tag: *(\S+)", dist.read_text("WHEEL") or "", re.MULTILINE)
        pure = bool(tags) and all(tag.endswith("-none-any") for tag in tags)
        found.setdefault(name, Installed(name=name, version=dist.version, pure=pure))
    return found


def copy(name: str, target: Path, *, site: Path | None = None) -> bool:
    """
    Copy a distribution's files into the folder of packages `target`.

    Scripts are left out: they name the environment that they were installed into.

    Returns:
        False when the distribution keeps no RECORD of its files, or misses one of them: nothing
        can be promised of such a copy.
    """
    dist = next((d for d in _all(site) if normalised(d.metadata["Name"] or "") == name), None)
    # Read by ourselves: `dist.files` leaves out what is missing, from Python 3.12 on.
    record = dist.read_text("RECORD") if dist is not None else None
    if dist is None or record is None:
        return False
    for file in (PurePosixPath(row[0]) for row in csv.reader(record.splitlines()) if row):
        source = Path(str(dist.locate_file(file)))
        inside = not file.is_absolute() and ".." not in file.parts
        if not inside or "__pycache__" in file.parts:
            continue
        if not source.is_file():
            return False
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
    return True


def own_abi() -> str:
    """Name the ABI of this host's interpreter, as `Interpreter.abi` does."""
    return sysconfig.get_config_var("SOABI") or ""


def normalised(name: str) -> str:
    """Give the name under which PEP 503 compares distributions."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> tuple[int, ...]:
    """Give the release numbers of a version, for comparing; what is no version counts as none."""
    match = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _all(site: Path | None) -> Iterator[importlib.metadata.Distribution]:
    if site is None:
        yield from importlib.metadata.distributions()
    else:
        yield from importlib.metadata.distributions(path=[str(site)])
