"""The console of every command: rich's, but that a closed pipe is an exception, not an exit."""

from collections.abc import Iterable

from rich import console
from rich.segment import Segment

from .visible import visible


class Console(console.Console):
    """
    Raises BrokenPipeError when nobody reads any more, so that blocks can end what they own.

    Nothing that is printed acts on the terminal, but for what rich itself says to it.
    """

    def on_broken_pipe(self) -> None:
        """See rich: called while the BrokenPipeError is handled."""
        raise

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See rich: give what goes out, in pieces."""
        for piece in super().render(renderable, options):
            if not piece.control and (text := visible(piece.text)) is not piece.text:
                piece = Segment(text, piece.style)
            yield piece
