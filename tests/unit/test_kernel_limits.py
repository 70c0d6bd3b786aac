"""What a recipe and the settings say together, and the evidence of the system's OOM killer."""

from pathlib import Path

import pytest

from rlm_host import config
from rlm_host.kernels.recipe import Recipe
from rlm_host.processes import facts
from rlm_protocol.errors import ConfigInvalid
from rlm_protocol.limits import KERNEL_MEMORY_MIN_BYTES

BIG = 1 << 30


def test_the_session_counts_before_the_settings() -> None:
    defaults = Recipe(sandbox="workspace", network=True, memory_bytes=BIG)
    assert Recipe().completed(defaults) == defaults
    own = Recipe(python="/p", network=False, memory_bytes=2 * BIG, env={"A": "1"})
    whole = own.completed(defaults)
    assert (whole.sandbox, whole.network, whole.memory_bytes) == ("workspace", False, 2 * BIG)
    assert (whole.python, whole.env) == ("/p", {"A": "1"})


@pytest.mark.parametrize(
    ("recipe", "defaults"),
    [
        (Recipe(launcher=("env",)), Recipe(sandbox="workspace")),
        (Recipe(launcher=("env",), sandbox="workspace"), Recipe()),
        (Recipe(network=False), Recipe()),
        (Recipe(), Recipe(network=False)),
        (Recipe(memory_bytes=KERNEL_MEMORY_MIN_BYTES - 1), Recipe()),
    ],
)
def test_what_cannot_be_kept_is_refused(recipe: Recipe, defaults: Recipe) -> None:
    with pytest.raises(ConfigInvalid):
        recipe.completed(defaults)


@pytest.mark.parametrize(
    ("key", "value"), [("sandbox", "all"), ("memory_bytes", 1), ("network", "yes")]
)
def test_a_setting_that_is_none_is_refused_by_its_name(key: str, value: object) -> None:
    with pytest.raises(ConfigInvalid, match=f"kernel.{key}"):
        config.parse({"kernel": {key: value}}, source=Path("config.toml"))


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (
            {
                "/proc/self/cgroup": "5:cpu:/x\n0::/user.slice/a",
                "/sys/fs/cgroup/user.slice/a/memory.events": "low 0\noom 3\noom_kill 2\n",
                "/proc/vmstat": "oom_kill 9",
            },
            2,
        ),
        ({"/proc/self/cgroup": "0::/", "/proc/vmstat": "nr_free 1\noom_kill 9\nx 2"}, 9),
        ({"/proc/self/cgroup": "4:memory:/x", "/proc/vmstat": "oom_kill 7"}, 7),
        ({"/proc/vmstat": "nr_free 1"}, 0),
        ({}, 0),
    ],
)
def test_oom_kills_are_counted_where_the_system_tells(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(facts, "_read", lambda path: files.get(path, ""))
    assert facts.oom_kills() == count
