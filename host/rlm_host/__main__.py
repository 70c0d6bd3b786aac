"""The command line. Without a command it is the server on stdio that editors start."""

import sys

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("rlm_host.faces.demo", "measure a file with agents and a loop; needs no key"),
    "serve": ("rlm_host.faces.cli_host", "serve on a unix socket until it is stopped"),
    "schema": ("rlm_host.faces.cli_host", "write the JSON Schemas and the OpenRPC document"),
}
"""Name -> (module with `main(command, argv) -> int`, what it does). Imported when it is used."""

USAGE = 2


def main(argv: list[str] | None = None) -> int:
    """Run a command; give its exit code: 0, 1 for failure, 2 for wrong usage, 128 + n by signal."""
    args = sys.argv[1:] if argv is None else argv
    if not args or (args[0].startswith("--") and args[0] not in ("--help", "--version")):
        return _stdio(args)
    if args[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if args[0] == "--version":
        from rlm_protocol import __version__

        sys.stdout.write(f"rlm-host {__version__}\n")
        return 0
    command = COMMANDS.get(args[0])
    if command is None:
        sys.stderr.write(f"rlm-host: there is no command {args[0]!r}.\n{_help()}")
        return USAGE
    import importlib

    code: int = importlib.import_module(command[0]).main(args[0], args[1:])
    return code


def _stdio(args: list[str]) -> int:
    # First of all, so that no import below can put a byte into the protocol.
    from .rpc.claim import claim_stdio

    fds = claim_stdio()
    from . import app
    from .faces.cli_stdio import run

    return run(fds, args, app)


def _help() -> str:
    lines = [
        "usage: rlm-host [--stdio] [--clientProcessId=PID] [--config FILE]",
        "       rlm-host COMMAND ...",
        "",
        *(f"  {name:<10} {meaning}" for name, (_, meaning) in COMMANDS.items()),
        "",
        "`rlm-host COMMAND --help` says more.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
