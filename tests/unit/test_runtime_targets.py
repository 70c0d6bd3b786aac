"""The rule of who is interrupted, as a table of stories."""

import pytest

from rlm._interrupt import Targets, Verdict

NOW, PARKED, DROPPED = Verdict.NOW, Verdict.PARKED, Verdict.DROPPED


@pytest.mark.parametrize(
    ("steps", "verdicts"),
    [
        ("I", [DROPPED]),
        ("Ia", [DROPPED]),
        ("+a Ia", [PARKED]),
        ("+a I", [PARKED]),
        ("+a !a Ia", [NOW]),
        ("+a !a I", [NOW]),
        ("+a !a +b I", [NOW]),
        ("+a !a +b Ib", [PARKED]),
        ("+a !a . Ia", [DROPPED]),
        ("+a !a . I", [DROPPED]),
        ("+a +b I I", [PARKED, PARKED]),
    ],
)
def test_stories(steps: str, verdicts: list[Verdict]) -> None:
    targets = Targets()
    got = []
    for step in steps.split():
        match step[0], step[1:]:
            case "+", id_:
                assert targets.admit(id_)
            case "!", id_:
                targets.begin(id_)
            case ".", _:
                targets.end()
            case "I", id_:
                got.append(targets.aim(id_ or None))
    assert got == verdicts


def test_a_parked_interrupt_is_consumed_by_its_request_alone() -> None:
    targets = Targets()
    for id_ in "abc":
        targets.admit(id_)
    targets.aim("b")
    hit = []
    for id_ in "abc":
        hit.append(targets.begin(id_))
        targets.end()
    assert hit == [False, True, False]
    targets.admit("b")
    assert targets.begin("b") is False


def test_an_id_in_flight_is_refused_until_its_request_is_closed() -> None:
    targets = Targets()
    assert targets.admit("a")
    assert not targets.admit("a")
    targets.begin("a")
    assert not targets.admit("a")
    targets.end()
    assert targets.admit("a")
