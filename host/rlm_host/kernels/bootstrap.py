"""What the host has every kernel process do, by silent cells."""

BIND = "from rlm._bootstrap import bind; bind()"
"""
Puts `rlm`, `bash` and the skills into the namespace. After a restore too: they win over restored
names, for a skill that could not be imported on the day of the snapshot must not stay broken.
"""

STOP = "from rlm._bootstrap import stop; stop()"
"""Ends what cells left running: background commands and tasks."""
