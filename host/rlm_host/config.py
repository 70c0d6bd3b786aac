"""The user's settings: `config.toml`, read whole, every key known or refused by its name."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.limits import KERNEL_MEMORY_MIN_BYTES
from rlm_protocol.session import Thinking

from . import paths

Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table: an unknown key is an error, never ignored."""


class KernelConfig(_Table, frozen=True):
    """`[kernel]`: the Python in which cells run."""

    python: str | None = None
    """
    An interpreter for every session that names none, before the workspace's .venv: a program on the
    PATH, or a path, relative to this file.
    """
    packages: tuple[str, ...] = ()
    """Requirements of the managed environment besides the runtime."""
    sandbox: Literal["workspace"] | None = None
    """A sandbox for every session that names neither one nor a launcher."""
    network: bool | None = None
    """Whether a sandbox reaches the network."""
    memory_bytes: Annotated[int, msgspec.Meta(ge=KERNEL_MEMORY_MIN_BYTES)] | None = None
    """What the processes of one kernel may use together."""
    warm: bool = True
    """Fork kernels from a template process; false starts each one cold."""
    preload: tuple[str, ...] = ()
    """Modules that the template loads for its kernels."""


class Allowance(_Table, frozen=True):
    """How much all sessions of a home may use together; a missing key is no limit."""

    usd: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    spawns: Annotated[int, msgspec.Meta(ge=0)] | None = None


class BudgetConfig(_Table, frozen=True):
    """`[budget.host]` and `[budget.day]`: admitted before each request, as a session's budget."""

    host: Allowance | None = None
    """Ever, from the day the limit was set."""
    day: Allowance | None = None
    """On each day (UTC)."""


class SkillsConfig(_Table, frozen=True):
    """`[skills]`: which Python skills kernels and models are told of."""

    workspace: bool = True
    """Those of the workspace's `.rlm/skills`, too."""
    disabled: tuple[str, ...] = ()
    """Names of skills that are not offered, whoever brings them."""


class HostConfig(_Table, frozen=True):
    """`[host]`."""

    idle_exit_s: Positive = 30 * 60
    """
    A host that keeps sessions, or that `attach --start` has started, ends itself when nobody was
    attached and nothing ran for so long.
    """


class LogConfig(_Table, frozen=True):
    """`[log]`."""

    level: Literal["debug", "info", "warning", "error"] = "warning"


class SessionsConfig(_Table, frozen=True):
    """`[sessions]`."""

    unload_after_s: Annotated[int, msgspec.Meta(ge=0)] = 1800
    """A session that nobody is attached to and in which nothing goes on is let go; 0: never."""


class ChildrenConfig(_Table, frozen=True):
    """`[children]`."""

    max_depth: Annotated[int, msgspec.Meta(ge=0, le=16)] = 2
    max_running: Positive = 8
    """Children of one depth whose turns run at once; others wait, visibly queued."""
    max_living: Positive = 1000
    """Living children of one session."""


class Config(_Table, frozen=True):
    """Everything a user may set."""

    model: str | None = None
    """`provider/model` of a session that names none."""
    thinking: Thinking | None = None
    """Of a session that names none; the nearest level that its model accepts."""
    kernel: KernelConfig = KernelConfig()
    sessions: SessionsConfig = SessionsConfig()
    children: ChildrenConfig = ChildrenConfig()
    budget: BudgetConfig = BudgetConfig()
    skills: SkillsConfig = SkillsConfig()
    host: HostConfig = HostConfig()
    log: LogConfig = LogConfig()
    providers: dict[str, Any] = {}
    """`[providers.NAME]` tables; models/settings.py reads them."""
    source: Path = Path()
    """The file that was read, or that would have been; never in the file itself."""

    @property
    def base_dir(self) -> Path:
        """Where relative paths of the file start."""
        return self.source.parent

    @property
    def kernel_python(self) -> str | None:
        """`kernel.python`, a path in it absolute."""
        python = self.kernel.python
        if python is None or os.sep not in python:
            return python
        return str(self.base_dir / Path(python).expanduser())


_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>[^`]*)`")
_AT = re.compile(r" - at `\$(?P<path>[^`]*)`")


def load(home: Path, file: Path | None = None) -> Config:
    """
    Read `file`, else `config.toml` of the home, else give the defaults.

    Raises:
        ConfigInvalid: the file that was named does not exist, is not TOML, or has a key or value
            that is not one of ours; the message names file and key.
    """
    path = (file if file is not None else paths.config(home)).absolute()
    try:
        text = decoded(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if file is not None:
            raise ConfigInvalid(f"There is no configuration file {path}.") from None
        return Config(source=path)
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigInvalid(f"{path} cannot be read: {why}.") from why
    try:
        return parse(tomllib.loads(text), source=path)
    except tomllib.TOMLDecodeError as why:
        raise ConfigInvalid(f"{path} is not TOML: {why}.") from why


def decoded(content: bytes) -> str:
    """Give the text of a settings file, without the mark that some editors put before it."""
    return content.decode("utf-8-sig")


def parse(tables: Mapping[str, Any], *, source: Path) -> Config:
    """Give the settings in `tables`. Raises ConfigInvalid, which says which key of which file."""
    if "source" in tables:
        raise ConfigInvalid(f"{source}: unknown key source.")
    try:
        given = msgspec.convert(dict(tables), Config)
    except msgspec.ValidationError as why:
        raise ConfigInvalid(f"{source}: {_said(str(why))}.") from why
    return msgspec.structs.replace(given, source=source)


def _said(reason: str) -> str:
    at = _AT.search(reason)
    prefix = at["path"].lstrip(".") if at else ""
    field = _FIELD.search(reason)
    if field is not None:
        return f"unknown key {f'{prefix}.' if prefix else ''}{field['field']}"
    return f"{prefix}: {reason.split(' - at ')[0]}" if prefix else reason
