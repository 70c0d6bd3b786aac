"""The life of children over real sessions: ends, notices, follow-ups, cancellation, deletion."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlm_host.children.kin import ChildrenSettings, registry_of
from rlm_host.children.usage import own_of_tree
from rlm_protocol import errors as e
from rlm_protocol.agent import Agent
from rlm_protocol.errors import RlmError
from rlm_protocol.session import (
    KernelRecipe,
    SessionCreateParams,
    SessionForkParams,
    SessionOptions,
)
from support.family import PYTHON, STEPS, Family, family
from support.processes import in_time, my_children, until

pytestmark = pytest.mark.anyio


def play(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


SAY = play({"text": "done"})
WAIT = play({"wait_ms": 60_000}, {"text": "never"})
FAIL = play({"error": "auth", "message": "no key"})
SUBMIT = play({"call": "await rlm.submit_result({'a': 1, 'b': 2})"}, {"text": "done"})
REPLY = play({"call": "await rlm.send_parent('hello')"}, {"text": "done"})


async def test_each_way_to_end_gives_its_one_notice(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        told = {
            "say": await host.spawn(root, SAY, name="say"),
            "fail": await host.spawn(root, FAIL, name="fail"),
            "missing": await host.spawn(root, SAY, name="missing", result={"required": True}),
            "reply": await host.spawn(root, REPLY, name="reply"),
            "submit": await host.spawn(root, SUBMIT, name="submit"),
            "wait": await host.spawn(root, WAIT, name="wait"),
            "mute": await host.spawn(root, SAY, name="mute", context={"terminal": False}),
        }
        await until(lambda: host.agent(root, "wait").status == "running")
        await host.children.cancel(root, "wait")
        await host.ended(root, *told.values())
        notices = await host.noticed(root, 6)
        assert {n.sender_name: n.notice for n in notices} == {
            "say": "endedWithoutReply",
            "fail": "failed",
            "missing": "failed",
            "reply": "replied",
            "submit": "submitted",
            "wait": "cancelled",
        }
        assert len(notices) == 6
        texts = {n.sender_name: n.text for n in notices}
        assert "done" in texts["say"]
        assert "no key" in texts["fail"]
        assert "requires" in texts["missing"]
        assert {name: host.agent(root, name).status for name in told} == {
            "say": "completed",
            "fail": "error",
            "missing": "error",
            "reply": "completed",
            "submit": "completed",
            "wait": "cancelled",
            "mute": "completed",
        }
        listed = await host.cell(root, "sorted(h.name for h in await rlm.list_subagents())")
        assert listed == "['mute', 'reply', 'say', 'submit']"
    assert not my_children()


async def test_a_follow_up_is_a_new_task_with_its_own_result_and_notice(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        agent = await host.spawn(root, SUBMIT, name="worker")
        await host.noticed(root, 1)
        receipt = await host.children.send(
            root, "worker", play({"call": "await rlm.submit_result(2)"}, {"text": "again"})
        )
        assert receipt.target == "worker"
        await host.noticed(root, 2)
        assert host.agent(root, "worker").generation == 2
        assert await host.children.result(root, "worker", None, None) == (2, 2)
        assert await host.children.result(root, agent.child_id, ("b",), 1) == ({"b": 2}, 1)
        await host.children.send(root, "worker", SAY)
        notices = await host.noticed(root, 3)
        assert [n.notice for n in notices] == ["submitted", "submitted", "endedWithoutReply"]
        assert await host.children.result(root, "worker", None, None) == (2, 2)
        with pytest.raises(e.ResultMissing):
            await host.children.result(root, "worker", None, 3)


async def test_a_result_is_checked_written_once_and_projected(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        trial = """
out = []
for value in ({'a': 'x'}, {'a': 1, 'b': 2}, {'b': 2, 'a': 1}, {'a': 2, 'b': 2}, float('nan')):
    try:
        out.append((await rlm.submit_result(value)).generation)
    except Exception as why:
        out.append(getattr(why, 'kind', type(why).__name__))
open(__import__('os').environ['RLM_SESSION_DIR'] + '/said.txt', 'w').write(repr(out))
"""
        agent = await host.spawn(
            root,
            play({"call": trial}, {"text": "ok"}),
            name="w",
            result={
                "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
                "sink": "out/result.json",
            },
            context={"fields": ["a"]},
        )
        await host.noticed(root, 1)
        said = (Path(agent.session_dir) / "said.txt").read_text()
        assert said.startswith("['resultInvalid', 1, 1, 'resultConflict', ")
        assert await host.children.result(root, "w", None, None) == ({"a": 1}, 1)
        with pytest.raises(e.FieldNotAdmitted):
            await host.children.result(root, "w", ("b",), None)
        sink = Path(agent.session_dir) / "out/result.json"
        assert host.agent(root, "w").result_path == str(sink)
        assert json.loads(sink.read_bytes()) == {"a": 1, "b": 2}


async def test_no_refusal_leaves_anything_behind(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        seq = root.state.seq
        wrong: list[tuple[dict[str, Any], type[RlmError]]] = [
            ({"result": {}}, e.ModelUnavailable),
            ({"model": STEPS, "unguarded": False}, e.ContractRequired),
            ({"model": STEPS, "result": {}, "colour": "red"}, e.UnknownOption),
            ({"model": "openai/gpt-4o-mini", "result": {}}, RlmError),
            ({"model": STEPS, "result": {}, "name": "all"}, e.NameInvalid),
            ({"model": STEPS, "result": {"schema": 3}}, e.ContractInvalid),
            ({"model": STEPS, "result": {}, "budget": {"x": 1}}, e.UnknownOption),
        ]
        for options, error in wrong:
            with pytest.raises(error):
                await host.children.spawn(root, "task", options)
        assert root.state.seq == seq
        assert host.children.agents(root) == ()
        assert not root.artifacts_path.exists() or not list(root.artifacts_path.iterdir())


async def test_depth_is_the_hosts_record_whatever_the_kernel_believes(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        deepest = (
            "__import__('os').environ['RLM_DEPTH'] = '0'\n"
            "try:\n    await rlm('x', model='scripted/echo', unguarded=True)\n"
            "except Exception as why:\n    await rlm.submit_result([why.kind, why.data['depth']])"
        )
        middle = f"""
handle = await rlm({play({"call": deepest}, {"text": "ok"})!r}, name='deep', model='scripted/steps', result={{}})
"""
        await host.spawn(root, play({"call": middle}, {"text": "ok"}), name="middle")
        await host.noticed(root, 1)
        child = await host.store.get(host.agent(root, "middle").session_id)
        assert await host.children.result(child, "deep", None, None) == (["depthLimit", 2], 1)
        tree = await host.children.tree(root.id)
        assert [n.depth for n in (tree, tree.children[0], tree.children[0].children[0])] == [
            0,
            1,
            2,
        ]


async def test_a_child_is_not_done_before_its_own_children_are(tmp_path: Path) -> None:
    """Reported of a host that said `completed` while a grandchild was still running."""
    async with family(tmp_path) as host:
        root = await host.root()
        slow = play({"wait_ms": 300}, {"text": "slow"})
        middle = f"await rlm({slow!r}, name='slow', model='scripted/steps', unguarded=True)"
        agent = await host.spawn(root, play({"call": middle}, {"text": "ok"}), name="middle")
        [done] = await host.ended(root, agent)
        assert done.status == "completed"
        child = await host.store.get(agent.session_id)
        assert [a.status for a in host.children.agents(child)] == ["completed"]
        assert len(await host.notices(child)) == 1


async def test_closing_a_parent_cancels_everything_below_it(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        middle = f"await rlm({WAIT!r}, name='leaf', model='scripted/steps', unguarded=True)"
        await host.spawn(root, play({"call": middle}, {"wait_ms": 60_000}), name="middle")
        child_id = host.agent(root, "middle").session_id
        await until(lambda: _running(host, child_id, "leaf"))
        await in_time(root.close())
        assert host.store.loaded() == ()
        again = await host.store.get(root.id)
        assert host.agent(again, "middle").status == "cancelled"
        [notice] = await host.noticed(again, 1)
        assert notice.notice == "cancelled"
        middle_again = await host.store.get(child_id)
        assert host.agent(middle_again, "leaf").status == "cancelled"


def _running(host: Family, session_id: str, name: str) -> bool:
    loaded = {actor.id: actor for actor in host.store.loaded()}
    actor = loaded.get(session_id)
    return actor is not None and any(
        a.name == name and a.status == "running" for a in host.children.agents(actor)
    )


async def test_one_stop_ends_a_tree_and_wakes_nobody(tmp_path: Path) -> None:
    async with family(tmp_path, settings=ChildrenSettings(running_max=2)) as host:
        root = await host.root(model=STEPS)
        spawning = "\n".join(
            f"await rlm({WAIT!r}, name='w{n}', model='scripted/steps', unguarded=True)"
            for n in range(5)
        )
        await root.start_turn(play({"call": spawning}, {"wait_ms": 60_000}, {"text": "never"}))
        await until(lambda: len(host.children.agents(root)) == 5)
        await in_time(root.interrupt(subtree=True))
        assert {a.status for a in host.children.agents(root)} == {"cancelled"}
        await in_time(root.wait_idle())
        turns = root.state.turns
        await until(lambda: [actor.id for actor in host.store.loaded()] == [root.id])
        assert len(root.state.pending) == 5
        assert root.state.turns == turns
        await host.say(root, SAY)
        assert len(await host.noticed(root, 5)) == 5


async def test_interrupting_a_turn_leaves_its_children_running(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(model=PYTHON)
        slow = play({"wait_ms": 500}, {"text": "slow"})
        code = f"await rlm({slow!r}, name='w', model='scripted/steps', unguarded=True)"
        await root.start_turn(f"run: {code}\nimport asyncio\nawait asyncio.sleep(60)")
        await until(lambda: len(host.children.agents(root)) == 1)
        await root.interrupt()
        [agent] = await host.ended(root, *host.children.agents(root))
        assert agent.status == "completed"
        assert [n.notice for n in await host.noticed(root, 1)] == ["endedWithoutReply"]


async def test_a_deleted_child_is_gone_for_good(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        middle = f"await rlm({SAY!r}, name='leaf', model='scripted/steps', unguarded=True)"
        await host.spawn(root, play({"call": middle}, {"text": "ok"}), name="middle")
        await host.noticed(root, 1)
        middle_agent = host.agent(root, "middle")
        [leaf] = host.children.agents(await host.store.get(middle_agent.session_id))
        gone = await host.children.delete(root, "middle")
        assert gone.status == "deleted"
        for target in ("middle", middle_agent.child_id, middle_agent.session_id):
            for attempt in (
                host.children.send(root, target, SAY),
                host.children.observe(root, target, 8, 800),
                host.children.result(root, target, None, None),
                host.children.cancel(root, target),
                host.children.delete(root, target),
            ):
                with pytest.raises(e.AgentNotFound):
                    await attempt
        for session_id in (middle_agent.session_id, leaf.session_id):
            with pytest.raises(e.SessionNotFound):
                await host.store.get(session_id)
        await host.spawn(root, SAY, name="middle")
        assert await host.cell(root, "len(await rlm.list_subagents())") == "1"
        assert (Path(middle_agent.session_dir) / f"{middle_agent.session_id}.jsonl").exists()
        tree = await host.children.tree(root.id)
        assert next(node.status for node in tree.children) == "deleted"
    async with family(tmp_path) as host:
        root = await host.store.get(root.id)
        for session_id in (leaf.session_id, middle_agent.session_id):
            with pytest.raises(e.SessionNotFound):
                await host.store.get(session_id)
        assert [a.child_id for a in host.children.agents(root)] != [middle_agent.child_id]


async def test_a_client_that_deletes_a_running_child_leaves_its_parent_a_notice(
    tmp_path: Path,
) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        await host.spawn(root, WAIT, name="w")
        await until(lambda: host.agent(root, "w").status == "running")
        await host.children.delete(root, "w")
        assert [n.notice for n in await host.noticed(root, 1)] == ["cancelled"]


async def test_children_over_the_limit_wait_visibly(tmp_path: Path) -> None:
    async with family(tmp_path, settings=ChildrenSettings(running_max=2)) as host:
        root = await host.root()
        agents = [await host.spawn(root, WAIT, name=f"w{n}") for n in range(5)]

        def statuses() -> list[str]:
            return sorted(a.status for a in host.children.agents(root))

        await until(lambda: statuses() == ["queued"] * 3 + ["running"] * 2)
        waiting = [a for a in host.children.agents(root) if a.status == "queued"]
        await host.children.cancel(root, waiting[0].child_id)
        running = [a for a in host.children.agents(root) if a.status == "running"]
        await host.children.cancel(root, running[0].child_id)
        await until(lambda: statuses() == ["cancelled"] * 2 + ["queued"] + ["running"] * 2)
        for agent in agents:
            await host.children.cancel(root, agent.child_id)
        assert statuses() == ["cancelled"] * 5


async def test_a_spawn_is_admitted_before_anything_of_it_can_fail(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        agent: Agent = await host.spawn(root, SAY)
        assert agent.status == "queued"
        assert agent.name.startswith("subagent-text-done-")
        child = registry_of(root).children[agent.child_id]
        assert child.admitted.prompt == SAY
        assert (Path(agent.session_dir) / ".rlm-contract.json").exists()
        await host.ended(root, agent)


async def test_children_of_an_ephemeral_session_are_inline(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(ephemeral=True)
        agent = await host.spawn(root, SAY, name="w")
        await host.noticed(root, 1)
        assert host.agent(root, "w").active_session_id is None
        assert not Path(agent.session_dir).is_relative_to(host.home)
        assert await host.cell(root, "(await rlm.info('w')).status") == "'completed'"


async def test_python_prompts_reach_a_python_child(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root()
        await host.spawn(root, "run: await rlm.submit_result(2**60 + 1)", name="w", model=PYTHON)
        await host.noticed(root, 1)
        assert await host.children.result(root, "w", None, None) == (2**60 + 1, 1)


async def test_large_integers_are_exact_or_refused_at_the_call(tmp_path: Path) -> None:
    """Reported of a host that changed big integers at the JSON border (dspy #10144)."""
    exact = [2**53 + 1, 2**63, 2**64 - 1, -(2**63)]
    task = f"""run:
said = []
for value in ({2**64}, {-(2**63) - 1}, 10 ** 5000, {{'deep': [1, {2**64}]}}):
    try:
        await rlm.submit_result(value)
    except ValueError as why:
        said.append(str(why))
await rlm.submit_result({{'exact': {exact}, 'said': said}})
"""
    async with family(tmp_path) as host:
        root = await host.root()
        await host.spawn(root, task, name="w", model=PYTHON)
        await host.noticed(root, 1)
        value, _ = await host.children.result(root, "w", None, None)
        assert value["exact"] == exact
        place = "payload.value"
        assert [said.partition(" is an integer beyond 64 bits")[0] for said in value["said"]] == [
            place,
            place,
            place,
            f"{place}.deep[1]",
        ]
        assert await host.cell(root, "(await rlm.get_result('w'))['exact']") == str(exact)


async def test_a_fork_reads_the_children_of_its_origin_and_owns_none(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.root(model="scripted/echo")
        agent = await host.spawn(root, SUBMIT, name="w")
        await host.noticed(root, 1)
        fork = await host.store.fork(SessionForkParams(session_id=root.id))
        [seen] = host.children.agents(fork)
        assert (seen.child_id, seen.status) == (agent.child_id, "completed")
        assert await host.children.result(fork, "w", ("a",), None) == ({"a": 1}, 1)
        with pytest.raises(e.PolicyDenied):
            await host.children.send(fork, "w", SAY)
        assert (await host.children.delete(fork, "w")).status == "deleted"
        assert agent.session_id in {actor.id for actor in host.store.loaded()}
        assert host.agent(root, "w").status == "completed"
        assert await host.children.result(root, "w", ("a",), None) == ({"a": 1}, 1)
        tree = await host.children.tree(fork.id)
        assert own_of_tree(tree) == tree.subtree == fork.state.subtree


async def test_a_child_inherits_what_its_parent_was_given_but_its_model(tmp_path: Path) -> None:
    async with family(tmp_path) as host:
        root = await host.store.create(
            SessionCreateParams(
                cwd=str(tmp_path),
                model=PYTHON,
                thinking="high",
                options=SessionOptions(
                    recipe=KernelRecipe(env={"GIVEN": "secret-value"}),
                    instructions="Be brief.",
                    labels={"team": "a"},
                ),
            )
        )
        task = play({"call": "import os; await rlm.submit_result(os.environ['GIVEN'])"})
        agent = await host.spawn(root, task, name="w")
        await host.ended(root, agent)
        assert await host.children.result(root, "w", None, None) == ("secret-value", 1)
        child = await host.store.get(agent.session_id)
        assert child.state.thinking == "high"
        assert child.state.opened.cwd == str(tmp_path)
        assert child.state.options.labels == {"team": "a"}
        assert "Be brief." in child.state.prompt
        assert child.state.model == STEPS
        opened = (Path(agent.session_dir) / f"{agent.session_id}.jsonl").read_bytes()
        assert b"secret-value" not in opened.partition(b"\n")[0]
