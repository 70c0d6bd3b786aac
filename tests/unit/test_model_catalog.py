"""The catalog: exact selectors, ranked search, thinking levels, prices, and the user's own entries."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_host.models.catalog import (
    Catalog,
    ModelInfo,
    build_catalog,
    check_thinking,
    clamp_thinking,
    read_generated,
)
from rlm_host.models.prices import Price, cost_nano_usd
from rlm_host.models.provider import THINKING_LEVELS, UNMEASURED, Thinking, Usage
from rlm_host.models.settings import KNOWN, read_providers
from rlm_protocol.errors import ConfigInvalid, ModelUnavailable, ThinkingUnsupported

HERE = Path("/etc/rlm")


def catalog(*selectors: str) -> Catalog:
    split = (selector.partition("/") for selector in selectors)
    return Catalog(ModelInfo(provider=p, name=n) for p, _, n in split)


def found(
    one: Catalog, query: str, limit: int = 9, closed: frozenset[str] = frozenset()
) -> list[str]:
    return [m.selector for m in one.find(query, limit, lambda provider: provider not in closed)]


def test_a_selector_is_split_at_its_first_slash_and_case_does_not_matter() -> None:
    one = catalog("router/deepseek/chat", "router/deepseek")
    assert one.get("Router/DeepSeek/Chat").name == "deepseek/chat"
    assert one.get("router/deepseek").name == "deepseek"


@pytest.mark.parametrize(
    "selector", ["", "gpt", "/gpt", "openai/", "openai/gp", "openai /gpt", "x/y"]
)
def test_what_is_not_exactly_a_model_is_refused_and_nothing_is_substituted(selector: str) -> None:
    with pytest.raises(ModelUnavailable, match="none was substituted") as refused:
        catalog("openai/gpt").get(selector)
    assert refused.value.data == {"selector": selector}


def test_search_gives_exact_then_prefix_then_the_rest_each_in_order() -> None:
    one = catalog("b/mini", "a/gpt-mini", "a/mini-2", "mini/x", "a/mini", "a/big")
    assert found(one, "mini") == ["a/mini", "b/mini", "a/mini-2", "mini/x", "a/gpt-mini"]
    assert found(one, " A/MINI ") == ["a/mini", "a/mini-2"]
    assert found(one, "mini gpt") == ["a/gpt-mini"]
    assert found(one, "nothing") == []


def test_search_is_bounded_and_shows_only_what_can_be_used() -> None:
    one = catalog("a/x", "b/x", "c/x")
    assert found(one, "", limit=2) == ["a/x", "b/x"]
    assert found(one, "", limit=0) == []
    assert found(one, "", limit=-1) == []
    assert found(one, "", closed=frozenset("ab")) == ["c/x"]


@given(
    st.lists(st.from_regex(r"[ab]/[ab]{1,3}", fullmatch=True), unique=True),
    st.text("ab/ ", max_size=4),
)
def test_search_finds_exactly_what_has_every_word(selectors: list[str], query: str) -> None:
    want = {s for s in selectors if all(word in s for word in query.split())}
    got = found(catalog(*selectors), query, limit=99)
    assert set(got) == want
    assert len(got) == len(want)


def test_the_generated_catalog_is_sane() -> None:
    models = read_generated().models
    assert {m.provider for m in models} == {"anthropic", "openai"}
    for model in models:
        assert model.context_window_tokens is not None
        assert model.context_window_tokens >= 100_000, model.selector
        assert model.thinking == tuple(sorted(model.thinking, key=THINKING_LEVELS.index))
        assert model.prices[0].above_input_tokens == 0, model.selector
        for price in model.prices:
            assert 0 < price.input_nano_usd_per_mtok < price.output_nano_usd_per_mtok
            assert price.cache_read_nano_usd_per_mtok is not None
            assert price.cache_read_nano_usd_per_mtok < price.input_nano_usd_per_mtok


def test_the_generated_catalog_is_what_the_installed_library_says() -> None:
    generated = read_generated()
    installed = {source: version(source) for source in generated.sources}
    if installed != generated.sources:
        pytest.skip(f"made from {generated.sources}, installed is {installed}")
    code = (
        "import sys, datetime\n"
        "from rlm_host.models import _generate_catalog as g\n"
        f"day = datetime.date.fromisoformat({generated.prices_of_day!r})\n"
        "sys.exit(g.encode(g.generate(day)) != g.FILE.read_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `python -m rlm_host.models._generate_catalog`\n{done.stderr}"


def test_thinking_that_a_model_does_not_accept_is_refused_not_clamped() -> None:
    model = ModelInfo(provider="p", name="m", thinking=("low", "high"))
    check_thinking(model, None)
    check_thinking(model, "low")
    with pytest.raises(ThinkingUnsupported, match="it accepts low, high") as refused:
        check_thinking(model, "max")
    assert refused.value.data == {"model": "p/m", "level": "max", "accepted": ["low", "high"]}
    with pytest.raises(ThinkingUnsupported, match="none that is known"):
        check_thinking(ModelInfo(provider="p", name="m"), "off")


@pytest.mark.parametrize(
    ("accepted", "inherited", "want"),
    [
        (("low", "high"), "medium", "low"),
        (("low", "high"), "max", "high"),
        (("low", "high"), "off", "low"),
        (("off",), "max", "off"),
        (("off", "low"), None, None),
        ((), "high", None),
    ],
)
def test_an_inherited_level_is_clamped(
    accepted: tuple[Thinking, ...], inherited: Thinking | None, want: Thinking | None
) -> None:
    assert clamp_thinking(ModelInfo(provider="p", name="m", thinking=accepted), inherited) == want


@given(st.sets(st.sampled_from(THINKING_LEVELS)), st.sampled_from(THINKING_LEVELS))
def test_a_clamped_level_is_always_accepted(accepted: set[Thinking], level: Thinking) -> None:
    levels = tuple(sorted(accepted, key=THINKING_LEVELS.index))
    model = ModelInfo(provider="p", name="m", thinking=levels)
    clamped = clamp_thinking(model, level)
    check_thinking(model, clamped)
    assert (clamped == level) == (level in accepted)


PRICES = (
    Price(
        input_nano_usd_per_mtok=1_000_000_000,
        output_nano_usd_per_mtok=5_000_000_000,
        cache_read_nano_usd_per_mtok=100_000_000,
    ),
    Price(
        input_nano_usd_per_mtok=2_000_000_000,
        output_nano_usd_per_mtok=7_500_000_000,
        above_input_tokens=1000,
    ),
)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(input_tokens=1000, output_tokens=10), 1000 * 1000 + 10 * 5000),
        (Usage(input_tokens=1001, output_tokens=10), 1001 * 2000 + 10 * 7500),
        (Usage(input_tokens=1000, cache_read_tokens=900), 100 * 1000 + 900 * 100),
        (Usage(input_tokens=1000, cache_write_tokens=900), 1000 * 1000),
        (Usage(input_tokens=2000, cache_read_tokens=900), 2000 * 2000),
        (Usage(), 0),
        (UNMEASURED, None),
    ],
)
def test_cost_is_exact_in_its_tier(usage: Usage, cost: int | None) -> None:
    assert cost_nano_usd(PRICES, usage) == cost


def test_an_unknown_price_is_an_unknown_cost_and_a_fraction_is_rounded_once() -> None:
    assert cost_nano_usd((), Usage(input_tokens=1)) is None
    third = (Price(input_nano_usd_per_mtok=500_000, output_nano_usd_per_mtok=0),)
    assert [cost_nano_usd(third, Usage(input_tokens=n)) for n in (1, 2, 3)] == [1, 1, 2]


def test_the_known_providers_stand_without_a_configuration() -> None:
    providers = read_providers({}, base_dir=HERE)
    assert providers == KNOWN
    one = build_catalog(providers)
    assert one.get("scripted/demo").thinking == THINKING_LEVELS
    assert one.get("anthropic/claude-haiku-4-5").context_window_tokens == 200_000


def test_a_users_server_models_and_scripts_join_the_catalog() -> None:
    tables: dict[str, object] = {
        "ollama": {
            "kind": "openai",
            "base_url": "http://127.0.0.1:11434/v1",
            "models": [
                "qwen3",
                {
                    "name": "Org/Big",
                    "context_window_tokens": 8192,
                    "thinking": ["high", "off"],
                    "price": {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 0.2},
                },
            ],
        },
        "scripted": {"scripts": {"mine": "scripts/mine.py"}},
        "openai": {"base_url": "http://127.0.0.1:9/v1", "models": ["gpt-of-tomorrow"]},
    }
    providers = read_providers(tables, base_dir=HERE)
    assert providers["scripted"].scripts == {"mine": "/etc/rlm/scripts/mine.py"}
    assert providers["openai"].kind == "openai-responses"
    assert providers["openai"].api_key_env == "OPENAI_API_KEY"
    one = build_catalog(providers)
    assert one.get("ollama/qwen3") == ModelInfo(provider="ollama", name="qwen3")
    big = one.get("ollama/org/big")
    assert (big.name, big.thinking) == ("Org/Big", ("off", "high"))
    assert big.prices[0].input_nano_usd_per_mtok == 100_000_000
    assert one.get("scripted/mine").prices
    assert one.get("openai/gpt-of-tomorrow").prices == ()
    assert len(one.of_provider("openai")) > 2


def test_a_users_entry_replaces_the_generated_one() -> None:
    (known, *_) = [m for m in read_generated().models if m.provider == "openai"]
    table = {"models": [{"name": known.name, "context_window_tokens": 5}]}
    one = build_catalog(read_providers({"openai": table}, base_dir=HERE))
    assert one.get(known.selector) == ModelInfo(
        provider="openai", name=known.name, context_window_tokens=5
    )


@pytest.mark.parametrize(
    ("name", "table", "why"),
    [
        ("Big", {}, "lower case"),
        ("a/b", {}, "without a slash"),
        ("x", 5, "not a table"),
        ("x", {}, "needs a kind"),
        ("x", {"kind": "llama"}, "Invalid enum value"),
        ("x", {"kind": "openai"}, "needs a base_url"),
        ("x", {"kind": "openai", "base_url": "ftp://a"}, "needs a base_url"),
        ("x", {"kind": "openai", "base_url": "http://a", "scripts": {"s": "p"}}, "has scripts"),
        ("openai", {"api_key": "sk-secret"}, "unknown field `api_key`"),
        ("openai", {"models": [""]}, "not empty"),
        ("openai", {"models": ["a b"]}, "no blanks"),
        ("openai", {"models": [{"name": "a", "ctx": 1}]}, "unknown field"),
        ("openai", {"max_concurrent": 0}, r">= 1 - at `\$\.max_concurrent`"),
        ("openai", {"idle_timeout_ms": 0}, r">= 1 - at `\$\.idle_timeout_ms`"),
    ],
)
def test_a_wrong_table_is_a_clear_error_that_names_it(name: str, table: object, why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why) as refused:
        read_providers({name: table}, base_dir=HERE)
    assert f"providers.{name}" in str(refused.value)
    assert "sk-secret" not in str(refused.value)


def test_a_model_named_twice_is_an_error() -> None:
    providers = read_providers({"openai": {"models": ["a", "A"]}}, base_dir=HERE)
    with pytest.raises(ConfigInvalid, match="openai/A is named twice"):
        build_catalog(providers)


def test_model_info_has_a_json_form() -> None:
    for model in read_generated().models:
        assert msgspec.json.decode(msgspec.json.encode(model), type=ModelInfo) == model
