import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.faces.demo_step import CODECS, GENERATIONS, TRANSFORMS, candidate, measure


@given(st.binary(min_size=1, max_size=300))
def test_every_preprocessing_and_codec_gives_the_data_back(data: bytes) -> None:
    for transform in TRANSFORMS:
        for codec in CODECS:
            measure(f"{transform}+{codec}", data)


@pytest.mark.parametrize(
    "data",
    [
        b"a",
        b"\0" * 50_000,
        b"the quick brown fox\n" * 500,
        random.Random(1).randbytes(20_000),
        bytes(range(256)) * 40,
        "ünïcödé text, line after line\n".encode() * 99,
    ],
)
def test_whatever_the_file_generation_four_gains_and_the_control_loses(data: bytes) -> None:
    """The demo is killed inside the apply of generation 4, so it must be an accepted one."""
    best, best_id, actions = None, None, []
    for generation in range(GENERATIONS):
        seen = measure(candidate(generation, best_id), data)
        accepted = best is None or seen["reward"] > best
        if accepted:
            best, best_id = seen["reward"], seen["artifactId"]
        actions.append(accepted)
    assert actions[0]
    assert actions[4]
    assert not actions[7]
