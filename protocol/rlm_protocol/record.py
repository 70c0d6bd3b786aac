"""The base of every journal record; `records.py` holds the records and their lines."""

import msgspec


class Record(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="type",
    omit_defaults=True,
):
    """Base of every record. Unknown fields are ignored: a newer host may have added some."""
