"""The command line. Without a command it is the server on stdio that editors start."""

import sys

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run:main", "give a model a prompt and watch it work"),
    "demo": ("demo:main", "see the whole product at work on a file, without a key"),
    "serve": ("cli_host:serve", "serve several clients on a unix socket"),
    "attach": ("cli_attach:attach", "join a running host with stdin and stdout"),
    "stop": ("cli_host:stop", "stop what sessions are doing"),
    "session": ("cli_sessions:session", "list and show sessions"),
    "models": ("cli_models:models", "list models"),
    "auth": ("cli_models:auth", "keep, check and remove provider keys"),
    "loop": ("cli_loop:main", "run and control durable loops"),
    "kernel": ("cli_kernel:main", "install and check the Python that cells run in"),
    "doctor": ("cli_kernel:doctor", "say what this machine gives and what is wrong"),
    "schema": ("cli_host:schema", "print the protocol's schemas"),
}
"""Name -> (module and function in `faces`, what it does). Imported when it is used."""
WITH_APP = {"serve", "kernel", "doctor"}
"""They need objects of a host in this process; the others are clients or work on files."""
ON_STDIO = {"attach"}
"""Their stdin and stdout belong to the protocol."""
USAGE, INTERRUPTED = 2, 130


def main(argv: list[str] | None = None) -> int:
    """Run a command; give its exit code: 0, 1 for failure, 2 for wrong usage, 128 + n by signal."""
    args = sys.argv[1:] if argv is None else argv
    name = args[0] if args else ""
    if name in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if name == "--version":
        from rlm_protocol import __version__

        sys.stdout.write(f"rlm-host {__version__}\n")
        return 0
    if not name or name.startswith("--"):
        return _stdio(args)
    if name not in COMMANDS:
        sys.stderr.write(f"rlm-host: there is no command {name!r}.\n{_help()}")
        return USAGE
    return _command(name, args[1:])


def _stdio(args: list[str]) -> int:
    # First of all, so that no import below can put a byte into the protocol.
    from .rpc.claim import claim_stdio

    fds = claim_stdio()
    from . import app
    from .faces.cli_stdio import run

    return run(fds, args, app)


def _command(name: str, args: list[str]) -> int:
    given: list[object] = []
    if name in ON_STDIO and not {"-h", "--help"} & set(args):
        from .rpc.claim import claim_stdio

        given.append(claim_stdio())
    import importlib
    import io
    import os
    import signal

    # While modules load, Ctrl-C ends the process at once: as an exception it can fall into a
    # finaliser of the import system, which swallows it. Nothing has been started yet.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    module, _, function = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(f".faces.{module}", __package__), function)
    if name in ON_STDIO and not given:
        given.append((0, 1))
    given.append(args)
    if name in WITH_APP:
        from . import app

        given.append(app)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a letter is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        code: int = command(*given)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:  # before the command had begun, or while it ended
        sys.stderr.write(f"\nrlm-host {name}: stopped.\n")
        return INTERRUPTED
    return code


def _help() -> str:
    lines = [
        "usage: rlm-host [--stdio] [--clientProcessId=PID] [--config FILE]",
        "       rlm-host COMMAND ...",
        "",
        "Without a command it serves one client on stdin and stdout.",
        "",
        *(f"  {name:<10} {meaning}" for name, (_, meaning) in COMMANDS.items()),
        "",
        "`rlm-host COMMAND --help` says more.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
