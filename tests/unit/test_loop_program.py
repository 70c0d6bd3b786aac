"""A Python file as a loop: what it must define, and what is said when it does not."""

import os
import pickle
import sys
from pathlib import Path

import pytest

from rlm_host.loops.program import load_program
from rlm_protocol.errors import ConfigInvalid

HEAD = "from rlm_host import LoopConfig\n"
LINES = HEAD + "config = LoopConfig('t', 'w', max_generations=2)\ndef step(ctx): return 1\n"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("climb", "helper_of_climb"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def written(folder: Path, text: str) -> Path:
    file = folder / "climb.py"
    file.write_text(text)
    os.utime(file, (1e9, 1e9))
    return file


def test_what_may_be_missing_is_none(tmp_path: Path) -> None:
    found = load_program(written(tmp_path, LINES))
    assert (found.config.max_generations, found.run_id) == (2, "climb")
    assert (found.apply, found.rollback, found.gates) == (None, None, ())
    assert pickle.loads(pickle.dumps(found.step)) is found.step


def test_its_folder_is_importable_and_it_is_not_main(tmp_path: Path) -> None:
    (tmp_path / "helper_of_climb.py").write_text("def judge(ctx, seen): pass\n")
    text = LINES + "import helper_of_climb\ngates = [helper_of_climb.judge]\napply = step\n"
    found = load_program(written(tmp_path, text + "assert __name__ == 'climb', __name__\n"))
    assert [gate.__name__ for gate in found.gates] == ["judge"]
    assert found.apply is found.step


def test_an_edit_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    assert load_program(written(tmp_path, LINES)).config.max_generations == 2
    changed = written(tmp_path, LINES.replace("=2", "=3"))
    assert load_program(changed).config.max_generations == 3
    assert os.listdir(tmp_path) == ["climb.py"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def step(:", "climb.py cannot be loaded: SyntaxError: invalid syntax (climb.py, line 1)"),
        ("x = 1\nprint(y)", "NameError: name 'y' is not defined (line 2)."),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1", "must define config as a LoopConfig: it is missing."),
        ("config = {}", "must define config as a LoopConfig: it is dict."),
        (LINES.replace("def step", "def stop"), "must define step as a function: it is mis"),
        (LINES + "apply = 1", "must define apply as a function, or None: it is int."),
        (LINES + "rollback = ''", "must define rollback as a function, or None: it is str."),
        (LINES + "gates = [1]", "must define gates as a list of functions: it is list."),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load_program(written(tmp_path, text))
    assert said in refused.value.message
    assert "\n" not in refused.value.message
    assert "climb" not in sys.modules or "cannot be loaded" not in said


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("missing.py", "climb.txt", "."):
        (tmp_path / "climb.txt").touch()
        with pytest.raises(ConfigInvalid, match=r"no file|no Python file"):
            load_program(tmp_path / name)
