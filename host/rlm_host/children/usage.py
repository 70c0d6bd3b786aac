"""
Who used what: a session's own usage, what its children were folded into, and sums over the tree.

Pure. The invariant: Σ over all nodes of own usage = the root's aggregate. It holds because a
child's growth is folded up by difference (`due`): a crash between two journals is mended by asking
again.
"""

from collections.abc import Iterable, Mapping

import msgspec

from rlm_protocol.child import ChildUsageAttributed
from rlm_protocol.session import SessionStatus, TreeNode
from rlm_protocol.usage import Usage

NONE = Usage()
BUCKET = ""
"""Stands for the launching item of usage that came before there was one."""


class Attribution(msgspec.Struct, kw_only=True):
    """
    Fold of a session's `ChildUsageAttributed` records.

    `by_child` is what each child's subtree was folded in as, `by_item` what each launching item has
    gathered. What came before the session's first assistant message lies under BUCKET, until
    `settle` moves it to that message.
    """

    by_child: dict[str, Usage] = {}
    by_item: dict[str, Usage] = {}
    first_item: str | None = None

    @property
    def total(self) -> Usage:
        """Usage of all descendants, as far as it was folded in."""
        return total(self.by_child.values())

    def due(
        self, child_id: str, subtree: Usage, target_item_id: str | None
    ) -> ChildUsageAttributed | None:
        """Give the record that brings `child_id` up to its `subtree`; None when it is up to it."""
        grown = subtree - self.by_child.get(child_id, NONE)
        if grown == NONE:
            return None
        target = target_item_id or self.first_item
        return ChildUsageAttributed(
            child_id=child_id,
            child_usage=grown,
            aggregate=self.by_item.get(target or BUCKET, NONE) + grown,
            target_item_id=target,
        )

    def apply(self, record: ChildUsageAttributed) -> None:
        """Take a record into the fold."""
        target = record.target_item_id or self.first_item or BUCKET
        self.by_child[record.child_id] = (
            self.by_child.get(record.child_id, NONE) + record.child_usage
        )
        self.by_item[target] = self.by_item.get(target, NONE) + record.child_usage

    def settle(self, item_id: str) -> None:
        """Take the session's first assistant message: what lay in its bucket is that item's now."""
        if self.first_item is None:
            self.first_item = item_id
            waiting = self.by_item.pop(BUCKET, NONE)
            if waiting != NONE:
                self.by_item[item_id] = self.by_item.get(item_id, NONE) + waiting


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One session of a tree as its journal tells it; `attributed` is each child's folded usage."""

    id: str
    name: str
    model: str
    status: SessionStatus
    depth: int
    turns: int
    own: Usage
    attributed: Mapping[str, Usage] = {}


def total(parts: Iterable[Usage]) -> Usage:
    """Give the sum."""
    return sum(parts, NONE)


def tree_node(node: Node, children: Iterable[TreeNode]) -> TreeNode:
    """
    Give a node with its children below it; `subtree` is its own usage and all that was folded in.

    Every child that was ever folded in must be among the children, deleted ones too, or the sum
    over the tree would lack it.
    """
    return TreeNode(
        id=node.id,
        name=node.name,
        model=node.model,
        status=node.status,
        depth=node.depth,
        own=node.own,
        subtree=node.own + total(node.attributed.values()),
        turns=node.turns,
        children=tuple(children),
    )


def own_of_tree(root: TreeNode) -> Usage:
    """Give Σ own over a tree."""
    return total((root.own, *(own_of_tree(child) for child in root.children)))
