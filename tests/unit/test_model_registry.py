"""What app.py gets: defaults, refusals, and a start that imports nothing of the vendors' library."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from rlm_host.models.provider import Done, Request, Text, UserMessage
from rlm_host.models.registry import DEFAULTS, Models
from rlm_protocol import limits
from rlm_protocol.errors import AuthRequired, ConfigInvalid, ModelUnavailable

LOCAL: dict[str, object] = {
    "kind": "openai",
    "base_url": "http://127.0.0.1:9/v1",
    "models": ["first", "second"],
}
HOSTED: dict[str, object] = {**LOCAL, "api_key_env": "HOSTED_KEY"}


def models(tmp_path: Path, tables: dict[str, object] | None = None, **env: str) -> Models:
    return Models(
        tables or {},
        base_dir=tmp_path,
        auth_file=tmp_path / "auth.json",
        env=env,
        now_ms=lambda: 0,
        monotonic_ms=lambda: 0,
        random=lambda: 0.0,
    )


def test_the_start_imports_nothing_of_the_vendors() -> None:
    code = (
        "import sys\n"
        "import rlm_host.models.provider, rlm_host.models.scripted, rlm_host.models.scripts\n"
        "import rlm_host.models.catalog, rlm_host.models.credentials, rlm_host.models.registry\n"
        "import pathlib\n"
        "m = rlm_host.models.registry.Models({}, base_dir=pathlib.Path('/'),"
        " auth_file=pathlib.Path('/x'), env={'OPENAI_API_KEY': 'k'}, now_ms=lambda: 0,"
        " monotonic_ms=lambda: 0, random=lambda: 0)\n"
        "m.find(), m.default(), m.provider_for('openai/gpt-6.1-sol')\n"
        "heavy = {'pydantic_ai', 'pydantic', 'openai', 'anthropic', 'httpx', 'httpx2', 'genai_prices'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_seam_and_the_scripted_provider_need_msgspec_only() -> None:
    code = (
        "import sys\n"
        "import msgspec, hashlib, json, re, typing, collections.abc, runpy, pathlib\n"
        "before = set(sys.modules)\n"
        "import rlm_host.models.provider, rlm_host.models.scripted\n"
        "print(sorted(n for n in set(sys.modules) - before if not n.startswith('rlm_host')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("tables", "env", "want"),
    [
        ({}, {}, "scripted/demo"),
        ({}, {"OPENAI_API_KEY": "k"}, "openai/gpt-6.1-sol"),
        (
            {},
            {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"},
            "anthropic/claude-sonnet-5-5",
        ),
        ({"local": LOCAL}, {}, "local/first"),
        ({"local": LOCAL}, {"OPENAI_API_KEY": "k"}, "openai/gpt-6.1-sol"),
        ({"local": LOCAL, "hosted": HOSTED}, {"HOSTED_KEY": "k"}, "hosted/first"),
        ({"hosted": HOSTED}, {}, "scripted/demo"),
        ({"local": {**LOCAL, "models": []}}, {}, "scripted/demo"),
    ],
)
def test_the_default_is_the_best_that_the_user_has(
    tmp_path: Path, tables: dict[str, object], env: dict[str, str], want: str
) -> None:
    assert models(tmp_path, tables, **env).default().selector == want


def test_the_defaults_exist(tmp_path: Path) -> None:
    for selector in DEFAULTS:
        assert models(tmp_path).catalog.get(selector).selector == selector


def test_a_chosen_model_is_never_replaced(tmp_path: Path) -> None:
    one = models(tmp_path, {"local": LOCAL})
    assert one.default("Local/Second").selector == "local/second"
    with pytest.raises(AuthRequired, match="OPENAI_API_KEY") as refused:
        one.default("openai/gpt-6.1-sol")
    assert refused.value.data == {"provider": "openai", "status": "missing"}
    with pytest.raises(ModelUnavailable, match="none was substituted"):
        one.default("openai/gpt-99")
    with pytest.raises(ModelUnavailable):
        one.provider_for("local")


def test_find_shows_only_what_can_be_used_and_is_bounded(tmp_path: Path) -> None:
    many = {**LOCAL, "models": [f"m{n:02}" for n in range(50)]}
    one = models(tmp_path, {"local": many}, ANTHROPIC_API_KEY="k")
    assert len(one.find()) == 8
    assert len(one.find("local", 1000)) == limits.FIND_MODELS_MAX
    assert {m.provider for m in one.find("", 1000)} <= {"anthropic", "local", "scripted"}
    assert one.find("openai") == []
    assert one.find("claude-haiku-4-5")[0].selector == "anthropic/claude-haiku-4-5"


def test_a_users_script_answers_through_the_registry(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def respond(request):\n    return [{'text': 'mine'}]\n")
    tables: dict[str, object] = {"scripted": {"scripts": {"Mine": "mine.py", "bad": "no.py"}}}
    one = models(tmp_path, tables)
    with pytest.raises(ConfigInvalid, match="cannot be loaded"):
        one.provider_for("scripted/mine")
    (tmp_path / "no.py").write_text("respond = lambda request: []\n")
    info, provider = one.provider_for("SCRIPTED/mine")

    async def main() -> None:
        asked = Request(model=info.selector, messages=(UserMessage(text="hi"),))
        *said, done = [event async for event in provider.stream(asked)]
        assert said == [Text(delta="mine")]
        assert isinstance(done, Done)

    anyio.run(main)


def test_one_limiter_for_each_provider_and_key(tmp_path: Path) -> None:
    one = models(tmp_path, {"local": {**LOCAL, "max_concurrent": 3}})
    assert one.limiter("local", "a") is one.limiter("local", "a")
    assert one.limiter("local", "a") is not one.limiter("local", "b")
    assert one.limiter("openai", "a") is not one.limiter("local", "a")
    assert one.limiter("local", "a").allowed == 3
