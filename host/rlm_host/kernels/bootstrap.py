"""What every kernel process is told before its first cell, and again after every restore."""

BIND = "from rlm._bootstrap import bind; bind()"
"""
Puts `rlm`, `bash` and the skills into the namespace. After a restore too: they win over restored
names, for a skill that could not be imported on the day of the snapshot must not stay broken.
"""
