"""
Generate catalog.json from the vendors' library and its price table. Run by hand, for a release.

    python -m rlm_host.models._generate_catalog [YYYY-MM-DD]

The day decides which of several dated prices holds; it is written into the file.
"""

import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from .catalog import Generated, ModelInfo
from .prices import Price
from .provider import THINKING_LEVELS, Thinking
from .settings import KNOWN, NANO_USD

FILE = Path(__file__).with_name("catalog.json")
SOURCES = ("pydantic-ai-slim", "genai-prices")


def generate(day: date) -> Generated:
    """Give the catalog as the installed libraries have it, with the prices of `day`."""
    from pydantic_ai.models import infer_model_profile, known_model_names

    models = []
    for full_name in sorted(known_model_names()):
        provider, _, name = full_name.partition(":")
        if provider not in KNOWN:
            continue
        profile: dict[str, Any] = dict(infer_model_profile(full_name))
        models.append(
            ModelInfo(
                provider=provider,
                name=name,
                context_window_tokens=profile.get("context_window"),
                max_output_tokens=profile.get("anthropic_max_output_tokens"),
                thinking=_levels(profile),
                prices=_prices(provider, name, day),
            )
        )
    return Generated(
        sources={source: version(source) for source in SOURCES},
        prices_of_day=day.isoformat(),
        models=tuple(models),
    )


def encode(generated: Generated) -> bytes:
    """Give the bytes of the file."""
    return msgspec.json.format(msgspec.json.encode(generated), indent=1) + b"\n"


def _levels(profile: dict[str, Any]) -> tuple[Thinking, ...]:
    if not profile.get("supports_thinking"):
        return ("off",)
    accepted: set[str] = {"low", "medium", "high"}
    if (efforts := profile.get("openai_reasoning_efforts")) is not None:
        accepted = {"off" if effort == "none" else effort for effort in efforts}
    elif "openai_supports_reasoning" in profile:
        if profile.get("openai_supports_reasoning_effort_none"):
            accepted |= {"off"}
        accepted |= (
            {"minimal"} if profile.get("openai_supports_minimal_reasoning_effort") else set()
        )
        if profile.get("openai_responses_supports_max_reasoning_effort"):
            accepted |= {"xhigh", "max"}
    else:
        if not profile.get("thinking_always_enabled"):
            accepted |= {"off"}
        for level in ("xhigh", "max") if profile.get("anthropic_supports_effort") else ():
            accepted |= {level} if profile.get(f"anthropic_supports_{level}_effort") else set()
    return tuple(level for level in THINKING_LEVELS if level in accepted)


def _prices(provider: str, name: str, day: date) -> tuple[Price, ...]:
    from genai_prices.data_snapshot import get_snapshot
    from genai_prices.types import TieredPrices

    noon = datetime.combine(day, time(12), UTC)
    try:
        _, model = get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return ()
    found = model.get_prices(noon)
    keys = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    given = {key: getattr(found, key) for key in keys}
    if given["input_mtok"] is None or given["output_mtok"] is None:
        return ()
    starts = {0} | {
        tier.start
        for value in given.values()
        if isinstance(value, TieredPrices)
        for tier in value.tiers
    }

    def nano(key: str, start: int) -> int | None:
        value = given[key]
        if isinstance(value, TieredPrices):
            fits = [tier.price for tier in value.tiers if tier.start <= start]
            value = fits[-1] if fits else value.base
        return None if value is None else int(Decimal(value) * NANO_USD)

    return tuple(
        Price(
            input_nano_usd_per_mtok=nano("input_mtok", start) or 0,
            output_nano_usd_per_mtok=nano("output_mtok", start) or 0,
            cache_read_nano_usd_per_mtok=nano("cache_read_mtok", start),
            cache_write_nano_usd_per_mtok=nano("cache_write_mtok", start),
            above_input_tokens=start,
        )
        for start in sorted(starts)
    )


def main() -> None:
    """Write the file next to this module."""
    day = date.fromisoformat(sys.argv[1]) if len(sys.argv) > 1 else datetime.now(UTC).date()
    FILE.write_bytes(encode(generate(day)))


if __name__ == "__main__":
    main()
