"""
The profile `sandbox: workspace`: how much of this machine a kernel sees, by bubblewrap (bwrap(1)).

System folders and the interpreter can be read, the workspace and the artifacts of the session's
family written. The home folder and /tmp are private and empty, and so RLM_HOME with its keys is not
there. Processes have a pid namespace of their own and no capability; there is no network unless it
is asked for. The guard runs inside, beside the runtime, on the control socket that it inherits.

Rule 1: what is asked for is had or refused; nothing here falls back. Rule 2: nothing that lies in
the workspace is run, or decides what is shown, before the sandbox is around it.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from rlm_protocol.errors import KernelUnavailable

from .. import paths
from ..processes.command import run_command
from ..processes.spawn import Processes

PROGRAM = "bwrap"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix", "/gnu")
TEMPORARY = "/tmp"
PRIVATE = (TEMPORARY, "/var/tmp")
NAMESERVERS = Path("/etc/resolv.conf")
"""Often a link to a file that lies elsewhere."""
CONFINED = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL")
TRIAL_MS = 20_000
MISSING = (
    "This session's kernel must run in a sandbox, and bubblewrap is not installed: "
    "apt install bubblewrap (or dnf, pacman, apk). Nothing was run without it."
)
FORBIDDEN = (
    "This session's kernel must run in a sandbox, and this system lets bubblewrap make none: allow "
    "user namespaces (sysctl kernel.unprivileged_userns_clone=1, or "
    "kernel.apparmor_restrict_unprivileged_userns=0). Nothing was run without it."
)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox shows. Folders appear at their own paths."""

    home: Path
    """RLM_HOME. Nothing of it is visible but what is named below."""
    hidden: tuple[Path, ...] = ()
    """What else must not be seen: a cell that reaches a host's socket is outside."""
    user_home: Path | None
    """Private and empty inside."""
    workspace: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    network: bool = False


class Bubblewrap:
    """What is known of bubblewrap on this machine. One per host."""

    def __init__(self) -> None:
        self._works: set[str] = set()

    async def find(self, environ: Mapping[str, str], workspace: Path, processes: Processes) -> str:
        """
        Give its path, once it has made a sandbox here.

        Raises KernelUnavailable, which says how to get it.
        """
        search = os.pathsep.join(_trusted(environ.get("PATH", os.defpath), workspace))
        program = shutil.which(PROGRAM, path=search)
        if program is None:
            raise KernelUnavailable(MISSING, sandbox="workspace", program=PROGRAM)
        if program not in self._works:
            failed = await _try(program, search, processes)
            if failed is not None:
                raise KernelUnavailable(FORBIDDEN, sandbox="workspace", program=program, why=failed)
            self._works.add(program)
        return program


async def _try(program: str, search: str, processes: Processes) -> str | None:
    """Make a sandbox. Gives why that failed."""
    argv = [program, *CONFINED, "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        done = await run_command(
            processes, argv, env={"PATH": search}, cwd=Path("/"), timeout_ms=TRIAL_MS
        )
    except (OSError, TimeoutError) as why:
        return str(why) or "it did not answer in time"
    return (done.stderr_tail or f"exit code {done.exit_code}") if done.exit_code else None


def arguments(view: View) -> tuple[str, ...]:
    """
    Give bubblewrap's arguments. Looks at the file system, changes nothing.

    Raises KernelUnavailable when the workspace is no folder that can be shown alone.
    """
    _check(view)
    first = [("--bind", view.workspace)]
    first += [("--ro-bind", folder) for folder in view.readable if not _in_home(view, folder)]
    last = [("--ro-bind", folder) for folder in view.readable if _in_home(view, folder)]
    last += [("--bind", folder) for folder in view.writable]
    words = [*CONFINED, *(["--share-net"] if view.network else [])]
    for system in SYSTEM:
        words += ["--ro-bind-try", system, system]
    words += ["--proc", "/proc", "--dev", "/dev", *_nameservers()]
    for private in PRIVATE:
        words += ["--tmpfs", private]
    if view.user_home is not None and not _holds_system(view.user_home):
        words += ["--tmpfs", str(view.user_home)]
    words += _mounts(first)
    words += _covers(view, [*map(Path, SYSTEM), *(folder for _, folder in first)])
    words += _mounts(last)
    return (*words, "--remount-ro", "/", "--chdir", str(view.workspace))


def interpreter_folders(python: Path, workspace: Path, home: Path) -> tuple[Path, ...]:
    """
    Give the folders that `python` needs to start, besides the system's and the workspace's own.

    Nothing is run. A link or a pyvenv.cfg can only name what is an installation of Python. What
    lies in RLM_HOME is never seen with the workspace, also where that contains it.
    """
    found: dict[Path, None] = {}
    visible = (workspace, workspace.resolve(), *map(Path, SYSTEM))

    def is_visible(folder: Path) -> bool:
        if folder.resolve().is_relative_to(home.resolve()):
            return False
        return any(folder.is_relative_to(one) for one in visible)

    for program in _hops(python):
        for folder in (program.parent.parent, *_base_of(program.parent.parent)):
            real = folder.resolve()
            if not is_visible(real) and (_is_installation(real) or _is_venv(real)):
                # A link in a folder that is shown is there already; only its end is wanting.
                found[real if is_visible(folder) else folder] = None
    return tuple(found)


async def family_folder(session_dir: Path) -> Path:
    """
    Make the folder of a session's artifacts, and give the one that its whole family shares.

    A cell can replace any folder below the one it sees by a link; the family's own folder lies in
    one that no sandbox shows, so what is mounted is what was meant.

    Raises KernelUnavailable when a link or a file stands where the session's folder should be.
    """
    try:
        (await asyncio.to_thread(paths.Directory.open, session_dir)).close()
    except OSError as why:
        raise KernelUnavailable(
            "The folder of this session's artifacts cannot be opened.",
            folder=str(session_dir),
            why=str(why),
        ) from why
    return paths.family(session_dir)


def _check(view: View) -> None:
    real, home = view.workspace.resolve(), view.home.resolve()
    if real == home or _holds_system(real):
        raise KernelUnavailable(
            "A sandbox cannot be made around this folder: it holds what the sandbox must hide. "
            "Open a folder of its own.",
            sandbox="workspace",
            workspace=str(view.workspace),
        )


def _holds_system(folder: Path) -> bool:
    return any(Path(system).is_relative_to(folder) for system in SYSTEM)


def _trusted(path: str, workspace: Path) -> Iterator[str]:
    """Give the folders of a PATH from which a sandbox's own program may come."""
    inside = workspace.resolve()
    for folder in path.split(os.pathsep):
        if os.path.isabs(folder) and not Path(folder).resolve().is_relative_to(inside):
            yield folder


def _nameservers() -> list[str]:
    real = str(NAMESERVERS.resolve())
    return ["--ro-bind-try", real, real] if real != str(NAMESERVERS) else []


def _mounts(folders: list[tuple[str, Path]]) -> Iterator[str]:
    """Show folders at their paths, and where their links lead: inside there are no such links."""
    for option, folder in folders:
        real = folder.resolve()
        for place in dict.fromkeys((real, folder)):
            yield from (option, str(real), str(place))


def _in_home(view: View, folder: Path) -> bool:
    return folder.resolve().is_relative_to(view.home.resolve())


def _covers(view: View, shown: list[Path]) -> Iterator[str]:
    """Put something empty in the place of what is hidden, wherever a shown folder has it."""
    for secret in (one.resolve() for one in (view.home, *view.hidden) if one.exists()):
        for folder in shown:
            real = folder.resolve()
            if secret.is_relative_to(real):
                for place in dict.fromkeys((secret, folder / secret.relative_to(real))):
                    empty = ("--tmpfs",) if secret.is_dir() else ("--ro-bind", os.devnull)
                    yield from (*empty, str(place))


def _hops(program: Path) -> Iterator[Path]:
    """Follow the links of a program one by one: a virtual environment is known by its own."""
    for _ in range(40):
        yield program
        if not program.is_symlink():
            return
        program = Path(os.path.normpath(program.parent / os.readlink(program)))


def _base_of(folder: Path) -> Iterator[Path]:
    """Give the installation that a virtual environment says it was made from."""
    try:
        lines = (folder / "pyvenv.cfg").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "home" and os.path.isabs(value.strip()):
            yield Path(value.strip()).parent


def _is_venv(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file() and any(folder.glob("lib/python3*/site-packages"))


def _is_installation(folder: Path) -> bool:
    return any(folder.glob("lib/python3*/os.py"))
