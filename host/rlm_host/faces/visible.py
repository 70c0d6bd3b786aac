"""
Text of others for a terminal: it may be read, it may not act.

What a model, a cell, a child or a server says can hold escape sequences that set the clipboard or
the window's title, hide lines, or turn the reading order. Colours and carriage returns are left
out; everything else that acts is shown as U+FFFD.
"""

import re

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m|\r")
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Give text in which nothing acts on a terminal but newlines and tabs."""
    return _ACTS.sub("\ufffd", _COLOURS.sub("", text)) if _ACTS.search(text) else text
