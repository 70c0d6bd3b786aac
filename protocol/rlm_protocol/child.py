"""
What a spawn agrees on with a child: which result comes back, and what the parent may see and do.

These Structs lie in the parent's journal (the admission) and in the child's `.rlm-contract.json`.
"""

from typing import Any

import msgspec


class ResultContract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What the child may submit (seed: rlm-runtime, Python API).

    `schema` is JSON Schema draft 2020-12 without remote references; None admits any JSON value.
    `sink` is a relative path inside the child's directory that always holds the newest result.
    With `required`, a task that ends without a result has failed.
    """

    schema: dict[str, Any] | bool | None = None
    sink: str | None = None
    required: bool = False


class ContextPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Four independent switches: the notice at a task's end, direct messages, observation, fields.

    `fields` names the top-level fields of a result that the parent may read; None admits all.
    """

    terminal: bool = True
    messages: bool = True
    observe: bool = True
    fields: tuple[str, ...] | None = None
