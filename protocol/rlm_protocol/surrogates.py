"""
JSON whose strings hold half of a surrogate pair, as JavaScript writes what UTF-8 cannot say.

Its grammar allows the escape (RFC 8259, section 8.2), so a peer that sends it is owed an answer.
"""

import re

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"%b(?!%b)|(?<!%b)%b" % (_HIGH, _LOW, _HIGH, _LOW))


def mended(frame: bytes) -> bytes | None:
    """Give the frame with U+FFFD for each half that is alone; None when there is none."""
    # So written, a backslash of the text is never taken for the beginning of an escape.
    plain = frame.replace(rb"\\", rb"\u005c")
    found = _LONE.sub(rb"\\ufffd", plain)
    return found if found != plain else None
