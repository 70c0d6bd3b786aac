"""
The spawn boundary: one pure function that admits a child or says why not, in one fixed order.

It fails closed: nothing is ignored, inherited or substituted that the spawn did not say. The shell
makes the directory and the durable admission only after it has answered.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rlm_protocol import limits
from rlm_protocol.child import ContextPolicy, ResultContract
from rlm_protocol.errors import (
    BudgetExhausted,
    ChildLimit,
    ContractInvalid,
    ContractRequired,
    DepthLimit,
    InvalidParams,
    ModelUnavailable,
    NameInvalid,
    NameTaken,
    SessionClosed,
    UnknownOption,
)
from rlm_protocol.session import Thinking
from rlm_protocol.usage import Budget

from ..models.catalog import ModelInfo, check_thinking, clamp_thinking
from .contract import read_context, read_result

OPTIONS = (
    "name",
    "model",
    "thinking",
    "result",
    "context",
    "unguarded",
    "budget",
    "tools",
)
RESERVED_NAMES = frozenset({"all", "children", "everyone", "family", "parent", "self", "siblings"})
"""Words that address more than one agent, or one by its place."""
SLUG_CHARS = limits.NAME_CHARS - len("subagent-") - len("-12345678")


Resolve = Callable[[str], ModelInfo]
"""
Give the model of an exact selector (compared without case), usable with a credential that is active
and not expired. Raises ModelUnavailable or AuthRequired; never answers with another model.
"""


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """
    The host's own record of the session that spawns; nothing of it comes from a kernel.

    `taken` are the names and ids of its living children. `spawns_left` is the room that the
    narrowest budget above the child leaves, None without one.
    """

    depth: int
    max_depth: int
    thinking: Thinking | None = None
    taken: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()
    living: int = 0
    children_max: int = limits.CHILDREN_LIVING
    spawns_left: int | None = None
    alive: bool = True


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A spawn that nothing speaks against. `name` None lets the shell make one (`default_name`)."""

    prompt: str
    name: str | None
    model: str
    thinking: Thinking | None
    contract: ResultContract | None
    context: ContextPolicy
    budget: Budget | None
    tools: tuple[str, ...]
    depth: int
    max_depth: int


def admit(prompt: str, options: Mapping[str, Any], parent: Parent, *, resolve: Resolve) -> Admitted:
    """
    Hold a spawn to every rule of the boundary, from first to last; the first broken one is raised.

    The order: prompt and unknown options, form of the name, a contract or `unguarded=True`, depth,
    an exact model selector, the name free in the family, the model usable, thinking level, tools,
    budget and number of children, the parent alive (seed: rlm-runtime, Child Execution).

    Raises:
        RlmError: the row of the error table that belongs to the rule. Nothing has happened.
    """
    if not prompt.strip():
        raise InvalidParams("A spawn needs a prompt that says what the child shall do.")
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise UnknownOption(
            f"Unknown spawn options: {', '.join(unknown)}. Known are {', '.join(OPTIONS)}.",
            unknown=unknown,
        )
    name = read_name(options.get("name"))
    contract, context = _contracts(options)
    if parent.depth >= parent.max_depth:
        raise DepthLimit(
            f"This session has depth {parent.depth} and the maximum is {parent.max_depth}: "
            "it may not spawn children.",
            depth=parent.depth,
            max_depth=parent.max_depth,
        )
    selector = read_selector(options.get("model"))
    if name in parent.taken:
        raise NameTaken(f"A living child is already called {name!r}.", name=name)
    model = resolve(selector)
    thinking = options.get("thinking")
    if thinking is None:
        thinking = clamp_thinking(model, parent.thinking)
    else:
        check_thinking(model, thinking)
    tools = _tools(options.get("tools"), parent.tools)
    budget = read_budget(options.get("budget"))
    if parent.spawns_left is not None and parent.spawns_left < 1:
        raise BudgetExhausted("The budget has no room for another child.", scope="spawns")
    if parent.living >= parent.children_max:
        raise ChildLimit(
            f"The session has {parent.living} living children; delete some first.",
            limit=parent.children_max,
        )
    if not parent.alive:
        raise SessionClosed("The session is closing and spawns no more children.")
    return Admitted(
        prompt=prompt,
        name=name,
        model=model.selector,
        thinking=thinking,
        contract=contract,
        context=context,
        budget=budget,
        tools=tools,
        depth=parent.depth + 1,
        max_depth=parent.max_depth,
    )


def read_name(given: object) -> str | None:
    """
    Give a child's name as it was given, None when there is none.

    Raises:
        NameInvalid: no string, empty, too long, with space at the ends or unprintable characters,
            or a word that addresses more than one agent.
    """
    if given is None:
        return None
    if (
        not isinstance(given, str)
        or given != given.strip()
        or not 1 <= len(given) <= limits.NAME_CHARS
        or not given.isprintable()
        or given.lower() in RESERVED_NAMES
    ):
        raise NameInvalid(name=given if isinstance(given, str) else type(given).__name__)
    return given


def default_name(prompt: str, child_id: str) -> str:
    """Give `subagent-<slug of the prompt>-<last 8 of the id>`, at most 64 characters."""
    slug = re.sub(r"[^a-z0-9]+", "-", prompt[:200].lower()).strip("-")[:SLUG_CHARS].strip("-")
    return f"subagent-{slug or 'task'}-{child_id[-8:]}"


def read_selector(given: object) -> str:
    """
    Give an exact `provider/model` selector, split at its first slash.

    Raises:
        ModelUnavailable: it is missing or no selector; the parent's model is never inherited.
    """
    if isinstance(given, str):
        provider, slash, model = given.partition("/")
        if provider and slash and model and not re.search(r"\s", given):
            return given
    raise ModelUnavailable(
        "A spawn names its model exactly, as model='provider/model'; rlm.find_models() lists them.",
        model=given if isinstance(given, str) else None,
    )


def read_budget(given: object) -> Budget | None:
    """
    Give the child's own limits; None when it has none but its ancestors'.

    Raises:
        UnknownOption: a key that is no limit.
        InvalidParams: a limit that is no number, or below zero.
    """
    if given is None:
        return None
    known = Budget.__struct_fields__
    if isinstance(given, Mapping):
        unknown = sorted(f"budget.{key}" for key in given if key not in known)
        if unknown:
            raise UnknownOption(
                f"Unknown limits: {', '.join(unknown)}. Known are {', '.join(known)}.",
                unknown=unknown,
            )
    try:
        budget = msgspec.convert(given, Budget)
    except msgspec.ValidationError as why:
        raise InvalidParams(f"budget: {why}", option="budget") from why
    if any(not 0 <= (getattr(budget, name) or 0) < float("inf") for name in known):
        raise InvalidParams("budget: a limit is a number from 0.", option="budget")
    return budget


def _contracts(options: Mapping[str, Any]) -> tuple[ResultContract | None, ContextPolicy]:
    given, unguarded = options.get("result"), options.get("unguarded", False)
    if not isinstance(unguarded, bool):
        raise ContractInvalid("unguarded is not True or False.", option="unguarded")
    if given is None and not unguarded:
        raise ContractRequired
    contract = None if given is None else read_result(given)
    return contract, read_context(options.get("context"), contracted=contract is not None)


def _tools(given: object, offered: frozenset[str]) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise InvalidParams("tools is not a list of names.", option="tools")
    missing = sorted(set(given) - offered)
    if missing:
        has = ", ".join(sorted(offered)) or "none"
        raise InvalidParams(
            f"The parent has no tools named {', '.join(missing)} to hand on; it has: {has}.",
            option="tools",
        )
    return tuple(dict.fromkeys(given))
