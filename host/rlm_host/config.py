"""The user's settings: `config.toml`, read whole, every key known or refused by its name."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.limits import KERNEL_MEMORY_MIN_BYTES

from . import paths


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table: an unknown key is an error, never ignored."""


class KernelConfig(_Table, frozen=True):
    """`[kernel]`: the Python in which cells run."""

    python: str | None = None
    """An interpreter for every session that names none."""
    packages: tuple[str, ...] = ()
    """Requirements of the managed environment besides the runtime."""
    sandbox: Literal["workspace"] | None = None
    """A sandbox for every session that names neither one nor a launcher."""
    network: bool | None = None
    """Whether a sandbox reaches the network."""
    memory_bytes: Annotated[int, msgspec.Meta(ge=KERNEL_MEMORY_MIN_BYTES)] | None = None
    """What the processes of one kernel may use together."""


class LogConfig(_Table, frozen=True):
    """`[log]`."""

    level: Literal["debug", "info", "warning", "error"] = "warning"


class ChildrenConfig(_Table, frozen=True):
    """`[children]`."""

    max_depth: int = 2
    max_running: int = 8
    """Children of one depth whose turns run at once; others wait, visibly queued."""
    max_living: int = 1000
    """Living children of one session."""


class Config(_Table, frozen=True):
    """Everything a user may set."""

    model: str | None = None
    """`provider/model` of a session that names none."""
    thinking: str | None = None
    kernel: KernelConfig = KernelConfig()
    children: ChildrenConfig = ChildrenConfig()
    log: LogConfig = LogConfig()
    providers: dict[str, Any] = {}
    """`[providers.NAME]` tables; models/settings.py reads them."""
    base_dir: Path = Path()
    """Where relative paths of this file start; never in the file itself."""


_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>[^`]*)`")
_AT = re.compile(r" - at `\$(?P<path>[^`]*)`")


def load(home: Path, file: Path | None = None) -> Config:
    """
    Read `file`, else `config.toml` of the home, else give the defaults.

    Raises:
        ConfigInvalid: the file that was named does not exist, is not TOML, or has a key or value
            that is not one of ours; the message names file and key.
    """
    path = file if file is not None else paths.config(home)
    try:
        text = path.read_bytes().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if file is not None:
            raise ConfigInvalid(f"There is no configuration file {path}.") from None
        return Config(base_dir=home)
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigInvalid(f"{path} cannot be read: {why}.") from why
    try:
        return parse(tomllib.loads(text), base_dir=path.absolute().parent, name=str(path))
    except tomllib.TOMLDecodeError as why:
        raise ConfigInvalid(f"{path} is not TOML: {why}.") from why


def parse(tables: Mapping[str, Any], *, base_dir: Path, name: str = "configuration") -> Config:
    """Give the settings in `tables`. Raises ConfigInvalid, which says which key of which file."""
    if "base_dir" in tables:
        raise ConfigInvalid(f"{name}: unknown key base_dir.")
    try:
        given = msgspec.convert(dict(tables), Config)
    except msgspec.ValidationError as why:
        raise ConfigInvalid(f"{name}: {_said(str(why))}.") from why
    return msgspec.structs.replace(given, base_dir=base_dir)


def _said(reason: str) -> str:
    at = _AT.search(reason)
    prefix = at["path"].lstrip(".") if at else ""
    field = _FIELD.search(reason)
    if field is not None:
        return f"unknown key {f'{prefix}.' if prefix else ''}{field['field']}"
    return f"{prefix}: {reason.split(' - at ')[0]}" if prefix else reason
