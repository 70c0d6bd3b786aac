"""The console of every command: rich's, but that a closed pipe is an exception, not an exit."""

from rich import console


class Console(console.Console):
    """Raises BrokenPipeError when nobody reads any more, so that blocks can end what they own."""

    def on_broken_pipe(self) -> None:
        """See rich: called while the BrokenPipeError is handled."""
        raise
