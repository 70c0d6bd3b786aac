"""Σ own = the root's aggregate, over random trees, crashes between journals, forks and deletions."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rlm_host.children.lifecycle import Status
from rlm_host.children.registry import Registry, usage_of
from rlm_host.children.usage import Attribution, Node, own_of_tree, total, tree_node
from rlm_protocol import records as r
from rlm_protocol.item import AgentMessage
from rlm_protocol.session import TreeNode
from rlm_protocol.usage import Usage

usages = st.builds(
    Usage,
    input_tokens=st.integers(0, 1000),
    output_tokens=st.integers(0, 1000),
    cache_read_tokens=st.integers(0, 100),
    cost_nano_usd=st.integers(0, 10**9),
    responses=st.just(1),
    unknown_cost=st.integers(0, 1),
    unmeasured=st.integers(0, 1),
)


class Session:
    """A session as far as usage goes: its journal, its own usage, and whose child it is."""

    def __init__(self, name: str, parent: "Session | None", journal: list[r.Record]) -> None:
        self.name, self.parent, self.journal = name, parent, list(journal)
        self.own = Usage()
        self.frozen: dict[str, Usage] = {}

    def registry(self) -> Registry:
        folded = Registry()
        for seq, record in enumerate(self.journal, 1):
            folded.apply(r.Entry(seq, 1, seq, record))
        return folded

    def subtree(self) -> Usage:
        return self.own + self.registry().attribution.total

    def fold_up(self) -> bool:
        """Bring the parent up to date; False when there is nothing to do."""
        if self.parent is None:
            return False
        registry = self.parent.registry()
        child = registry.by_session(self.name)
        assert child is not None
        due = registry.attribution.due(child.id, self.subtree(), child.item_id)
        if due is not None:
            self.parent.journal.append(due)
        return due is not None


def header(session_id: str) -> r.SessionOpened:
    return r.SessionOpened(
        session_id=session_id, name="", cwd="/", model="a/b", prompt="", max_depth=9
    )


class Trees(RuleBasedStateMachine):
    """Children are spawned, answer, are folded up or not (a crash), are deleted; the root forks."""

    @initialize()
    def start(self) -> None:
        self.root = Session("s0", None, [header("s0")])
        self.all = [self.root]

    def pick(self, data: Any) -> Session:
        return data.draw(st.sampled_from(self.all))

    @rule(data=st.data(), item=st.sampled_from(["m1", "m2", None]))
    def spawn(self, data: Any, item: str | None) -> None:
        parent = self.pick(data)
        child = Session(f"s{len(self.all)}", parent, [header(f"s{len(self.all)}")])
        parent.journal.append(
            r.ChildAdmitted(
                child_id=f"sub-{len(self.all):08x}",
                parent_id=parent.name,
                session_id=child.name,
                directory="",
                name="",
                model="a/b",
                prompt="",
                depth=1,
                max_depth=9,
                item_id=item,
            )
        )
        self.all.append(child)

    @rule(data=st.data(), usage=usages)
    def answer(self, data: Any, usage: Usage) -> None:
        self.pick(data).own += usage

    @rule(data=st.data())
    def fold_one(self, data: Any) -> None:
        self.pick(data).fold_up()

    @rule(data=st.data())
    def first_message(self, data: Any) -> None:
        item = AgentMessage(id="m1", text="")
        self.pick(data).journal.append(r.ItemCompleted(item=item))

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        session = self.pick(data)
        if session.parent is not None:
            child = session.parent.registry().by_session(session.name)
            assert child is not None
            session.parent.journal.append(r.ChildDeleted(child_id=child.id))

    @rule()
    def fork_the_root(self) -> None:
        """Its children stay with the session that admitted them."""
        fork = Session(f"f{len(self.root.journal)}", None, [])
        fork.journal = [header(fork.name), *self.root.journal[1:]]
        fork.own = self.root.own
        tree = self.tree(fork)
        assert own_of_tree(tree) == tree.subtree == self.root.subtree()
        assert all(c.foreign and not c.owes_notice for c in fork.registry().children.values())

    def settle(self) -> None:
        """Recovery asks every session of the tree, deepest first, until nobody owes anything."""
        for _ in range(len(self.all) + 1):
            if not any([session.fold_up() for session in reversed(self.all)]):  # noqa: C419
                return
        raise AssertionError("somebody owes for ever")

    def tree(self, session: Session) -> TreeNode:
        registry = session.registry()
        below = []
        for child in registry.children.values():
            inner = next((s for s in self.all if s.name == child.admitted.session_id), None)
            if inner is not None and not child.foreign:
                below.append(self.tree(inner))
            else:
                below.append(tree_node(node(child.id, usage_of(registry, child), {}), ()))
        return tree_node(node(session.name, session.own, registry.attribution.by_child), below)

    @rule()
    def own_adds_up_to_the_aggregate(self) -> None:
        self.settle()
        tree = self.tree(self.root)
        assert own_of_tree(tree) == tree.subtree == total(s.own for s in self.all)
        for session in self.all:
            attribution = session.registry().attribution
            assert total(attribution.by_item.values()) == attribution.total

    def teardown(self) -> None:
        self.own_adds_up_to_the_aggregate()


def node(name: str, own: Usage, attributed: dict[str, Usage]) -> Node:
    return Node(
        id=name,
        name=name,
        model="a/b",
        status="idle",
        depth=0,
        turns=0,
        own=own,
        attributed=attributed,
    )


Trees.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestTrees = Trees.TestCase


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), usages), max_size=10))
def test_the_bucket_moves_to_the_first_message_whole(parts: list[tuple[str, Usage]]) -> None:
    book, grown = Attribution(), {"a": Usage(), "b": Usage()}
    for child, usage in parts:
        grown[child] += usage
        due = book.due(child, grown[child], None)
        assert (due is None) == (usage == Usage())
        if due is not None:
            assert due.target_item_id is None
            book.apply(due)
            assert due.aggregate == book.total
    book.settle("first")
    book.settle("second")
    assert set(book.by_item) <= {"first"}
    assert book.total == total(usage for _, usage in parts)


def test_a_dumped_registry_is_the_registry() -> None:
    session = Session("s0", None, [header("s0")])
    registry = session.registry()
    registry.apply(
        r.Entry(
            2,
            1,
            5,
            r.ChildAdmitted(
                child_id="sub-1",
                parent_id="s0",
                session_id="s1",
                directory="sub-1",
                name="n",
                model="a/b",
                prompt="p",
                depth=1,
                max_depth=2,
            ),
        )
    )
    registry.apply(
        r.Entry(
            3,
            1,
            6,
            r.ChildUsageAttributed(child_id="sub-1", child_usage=Usage(), aggregate=Usage()),
        )
    )
    again = Registry()
    again.load(registry.dump())
    assert again == registry
    assert again.children["sub-1"].status is Status.QUEUED
