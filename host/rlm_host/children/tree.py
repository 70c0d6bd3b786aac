"""The tree below a session, with who used what: loaded sessions as they are, others as they lie."""

from typing import cast

from rlm_protocol.errors import RlmError
from rlm_protocol.session import TreeNode

from ..sessions.state import SessionState
from .kin import REGISTRY, Kin
from .registry import Child, Registry, usage_of
from .usage import Node, tree_node


async def tree_of(kin: Kin, session_id: str) -> TreeNode:
    """
    Give a session's tree; Σ own over its nodes is the root's subtree.

    Every child that was ever admitted is in it, with its last status, deleted ones too. A child
    that cannot be read any more stands there with what was folded in of it.

    Raises:
        SessionNotFound: there is no such session.
    """
    state, folds = await kin.store.peek(session_id)
    return await _node(kin, state, cast(Registry, folds[REGISTRY]), None)


async def _node(kin: Kin, state: SessionState, registry: Registry, entry: Child | None) -> TreeNode:
    children = [await _child(kin, registry, child) for child in registry.children.values()]
    node = Node(
        id=state.id,
        name=state.name,
        model=state.model,
        status=state.status() if entry is None else entry.told,
        depth=state.opened.parent.depth if state.opened.parent else 0,
        turns=state.turns,
        own=state.own,
        attributed=registry.attribution.by_child,
    )
    return tree_node(node, children)


async def _child(kin: Kin, registry: Registry, child: Child) -> TreeNode:
    if child.started and not child.foreign:
        try:
            state, folds = await kin.store.peek(child.admitted.session_id)
        except RlmError:
            pass  # lost with its disk: the parent's records speak for it
        else:
            return await _node(kin, state, cast(Registry, folds[REGISTRY]), child)
    admitted = child.admitted
    gone = Node(
        id=admitted.session_id,
        name=child.name,
        model=admitted.model,
        status=child.told,
        depth=admitted.depth,
        turns=0,
        own=usage_of(registry, child),
    )
    return tree_node(gone, ())
