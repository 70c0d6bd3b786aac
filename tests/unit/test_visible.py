"""What others say is shown in a terminal and does not act on it."""

import io

import pytest
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from rlm_host.faces.console import Console
from rlm_host.faces.terminal import TerminalView
from rlm_host.faces.visible import visible

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("50%\r100%\r\n", "50%100%\n"),
        (CLIPBOARD, "\ufffd]52;c;cm0gLXJmIH4=\ufffd"),
        ("\x1b[2J\x9b2J\x00\x08", "\ufffd[2J\ufffd2J\ufffd\ufffd"),
        ("user\u202etxt.exe", "user\ufffdtxt.exe"),
        ("שלום \u200f 👩‍👩‍👧", "שלום \u200f 👩‍👩‍👧"),
    ],
)
def test_what_acts_is_shown_instead(said: str, shown: str) -> None:
    assert visible(said) == shown


def test_no_way_to_the_terminal_lets_anything_act() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    table = Table()
    table.add_column(CLIPBOARD)
    table.add_row(Text(CLIPBOARD))
    for what in (CLIPBOARD, Text(CLIPBOARD), Syntax(f"'{CLIPBOARD}'", "python"), table):
        console.print(what)
    view = TerminalView(console)
    delta = {"channel": "text", "itemId": "a", "text": CLIPBOARD, "offset": 0}
    view.notification("item/delta", delta)
    view.notification("repl/output", {"text": CLIPBOARD})
    view.close()
    assert file.getvalue().count("cm0gLXJmIH4") == 7
    assert "\x1b]" not in file.getvalue()
    assert "\x07" not in file.getvalue()
