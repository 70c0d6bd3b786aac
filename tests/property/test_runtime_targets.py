"""However interrupts and requests interleave, a request is hit only by an interrupt for it."""

from hypothesis import given
from hypothesis import strategies as st

from rlm._interrupt import Targets, Verdict

IDS = st.sampled_from("abcd")
STEPS = st.lists(
    st.tuples(st.just("admit"), IDS)
    | st.tuples(st.just("aim"), IDS | st.none())
    | st.tuples(st.sampled_from(["begin", "end"]), st.none()),
    max_size=60,
)


@given(STEPS)
def test_who_is_hit(steps: list[tuple[str, str | None]]) -> None:
    targets = Targets()
    waiting: list[str] = []
    aimed: set[str] = set()  # ids whose current request was aimed at while it waited
    active: str | None = None
    for what, id_ in steps:
        if what == "admit" and id_ is not None:
            assert targets.admit(id_) == (id_ not in waiting and id_ != active)
            if id_ not in waiting and id_ != active:
                waiting.append(id_)
        elif what == "aim":
            verdict = targets.aim(id_)
            target = id_ or active or (waiting[0] if waiting else None)
            if target is not None and target == active:
                assert verdict is Verdict.NOW
            elif target in waiting:
                assert verdict is Verdict.PARKED
                aimed.add(str(target))
            else:
                assert verdict is Verdict.DROPPED
        elif what == "begin" and waiting and active is None:
            active = waiting.pop(0)
            assert targets.begin(active) == (active in aimed)
            aimed.discard(active)
        elif what == "end" and active is not None:
            targets.end()
            active = None
        assert targets.active == active
