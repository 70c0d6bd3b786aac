"""Which interpreter counts, what a kernel sees of the host, and what is packed for it."""

import os
import zipfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.kernels import distributions, wheel
from rlm_host.kernels.environment import kernel_variables
from rlm_host.kernels.recipe import Choice, Recipe, SessionFacts, Source, choose
from rlm_protocol.errors import ConfigInvalid


def facts(recipe: Recipe | None = None, cwd: Path = Path("/w")) -> SessionFacts:
    return SessionFacts(
        recipe=recipe or Recipe(), cwd=cwd, session_dir=Path("/s"), depth=1, max_depth=2
    )


def test_the_first_that_is_named_counts(tmp_path: Path) -> None:
    named = {"RLM_KERNEL_PYTHON": "/named"}
    assert choose(Recipe(), tmp_path, {}) == Choice(source=Source.MANAGED)
    (tmp_path / ".venv").mkdir()
    assert choose(Recipe(), tmp_path, {}).source is Source.MANAGED, "an empty folder is no venv"
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("")
    workspace = Choice(source=Source.WORKSPACE, python=str(tmp_path / ".venv/bin/python"))
    assert choose(Recipe(), tmp_path, {}) == workspace
    assert choose(Recipe(), tmp_path, {"RLM_KERNEL_PYTHON": ""}) == workspace
    assert choose(Recipe(), tmp_path, named) == Choice(source=Source.VARIABLE, python="/named")
    by_file = Choice(source=Source.CONFIG, python="/file")
    assert choose(Recipe(), tmp_path, {}, "/file") == by_file
    assert choose(Recipe(), tmp_path, named, "/file").source is Source.VARIABLE
    own = Recipe(python="/own")
    assert choose(own, tmp_path, named) == Choice(source=Source.RECIPE, python="/own")


def test_a_recipe_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"python": "/x", "pyhton": "/y"}, Recipe)


CANARY = {
    "OPENAI_API_KEY": "canary",
    "ANTHROPIC_API_KEY": "canary",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "HTTPS_PROXY": "http://user:canary@proxy",
    "RLM_HOME": "canary",
    "RLM_KERNEL_PYTHON": "canary",
    "PYTHONPATH": "canary",
    "LD_PRELOAD": "canary",
    "XPATH": "canary",
    "PATHX": "canary",
    "LC_": "fine",
}


def test_a_kernel_sees_the_allowed_variables_and_ours_only() -> None:
    allowed = {"PATH": "/bin", "HOME": "/h", "LANG": "C", "LC_ALL": "C", "TZ": "UTC"}
    seen = kernel_variables({**CANARY, **allowed}, facts(Recipe(env={"MINE": "1"})))
    assert "canary" not in seen.values()
    assert seen == {
        **allowed,
        "LC_": "fine",
        "MINE": "1",
        "RLM_DEPTH": "1",
        "RLM_MAX_DEPTH": "2",
        "RLM_SESSION_DIR": "/s",
        "RLM_SIGINT": "doorbell",
    }


@given(st.dictionaries(st.text(min_size=1), st.just("canary")))
def test_no_other_name_gets_through(environ: dict[str, str]) -> None:
    names = {"PATH", "HOME", "LANG", "TZ", "TERM", "TMPDIR"}
    for name, value in kernel_variables(environ, facts()).items():
        assert value != "canary" or name in names or name.startswith("LC_")


def test_a_recipe_cannot_set_what_the_host_says() -> None:
    for name in ("RLM_DEPTH", "RLM_GUARD_FD", "RLM_ANYTHING"):
        with pytest.raises(ConfigInvalid) as refused:
            kernel_variables({}, facts(Recipe(env={name: "secret"})))
        assert refused.value.data["names"] == [name]
        assert "secret" not in str(refused.value)


def test_the_kernel_gets_the_runtime_and_nothing_of_the_host(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel.build(tmp_path)) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        build = archive.read("rlm/_build.py").decode()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"rlm", "rlm_protocol"}
    assert not [n for n in names if "conformance" in n or "schema.py" in n or "__pycache__" in n]
    assert "rlm/repl.py" in names
    packed = wheel.runtime()
    assert f'VERSION = "{packed.version}"' in build
    for name, pin in packed.pins.items():
        assert f"Requires-Dist: {name}=={pin}" in metadata


def test_the_same_files_give_the_same_wheel_and_others_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = wheel.build(tmp_path / "a"), wheel.build(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    before = wheel.runtime().version
    wheel.runtime.cache_clear()
    assert wheel.runtime().version == before
    for name, value in (("_read_files", lambda: {"rlm/x.py": b"1"}), ("PINNED", ("msgspec",))):
        with monkeypatch.context() as patched:
            patched.setattr(wheel, name, value)
            wheel.runtime.cache_clear()
            assert wheel.runtime().version != before
    wheel.runtime.cache_clear()


def test_unpacked_it_is_what_was_packed(tmp_path: Path) -> None:
    wheel.unpack(tmp_path)
    found = {
        str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    }
    assert found == wheel.runtime().files


def test_a_distribution_is_copied_by_its_record(tmp_path: Path) -> None:
    for name in wheel.PINNED:
        assert distributions.copy(name, tmp_path)
    copied = distributions.installed(tmp_path)
    ours = distributions.installed()
    assert {n: copied[n].version for n in copied} == {n: ours[n].version for n in wheel.PINNED}
    assert copied["dill"].pure
    assert not copied["msgspec"].pure
    assert not list(tmp_path.rglob("__pycache__"))
    assert not (tmp_path / "bin").exists()
    assert not distributions.copy("no-such-distribution", tmp_path)


def test_a_record_that_names_files_outside_copies_none_of_them(tmp_path: Path) -> None:
    site, target = tmp_path / "site", tmp_path / "target"
    info = site / "evil-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "outside").write_text("precious")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Evil\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"../outside,,\n{tmp_path}/outside,,\nmissing.py,,\n")
    assert not distributions.copy("evil", target, site=site)
    (info / "RECORD").write_text(f"../outside,,\n{tmp_path}/outside,,\n")
    assert distributions.copy("evil", target, site=site)
    assert not target.exists()


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.2.3", (1, 2, 3)), ("1!2.0rc1", (2, 0)), ("0.20", (0, 20)), ("x", ()), ("", ())],
)
def test_releases_compare_as_numbers(version: str, expected: tuple[int, ...]) -> None:
    assert distributions.release(version) == expected


def test_names_compare_as_the_index_compares_them() -> None:
    assert distributions.normalised("A_b.C--d") == "a-b-c-d"
    assert os.sep not in distributions.own_abi()
