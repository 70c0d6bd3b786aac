"""What a user may say about providers: the `[providers.NAME]` tables of the configuration."""

import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from rlm_protocol.errors import ConfigInvalid

from .prices import Price
from .provider import Thinking

Kind = Literal["openai", "openai-responses", "anthropic", "scripted"]
"""The dialect: Chat Completions, Responses, Messages, or a script instead of a model."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
BLANK = frozenset(string.whitespace)
NANO_USD = 1_000_000_000

Usd = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class PriceSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price in USD per million tokens, as vendors publish it."""

    input_usd_per_mtok: Usd
    output_usd_per_mtok: Usd
    cache_read_usd_per_mtok: Usd | None = None
    cache_write_usd_per_mtok: Usd | None = None

    def price(self) -> Price:
        """Give it in whole nano-USD."""
        return Price(
            input_nano_usd_per_mtok=round(self.input_usd_per_mtok * NANO_USD),
            output_nano_usd_per_mtok=round(self.output_usd_per_mtok * NANO_USD),
            cache_read_nano_usd_per_mtok=_nano(self.cache_read_usd_per_mtok),
            cache_write_nano_usd_per_mtok=_nano(self.cache_write_usd_per_mtok),
        )


class ModelSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that the catalog does not know. What is not said is unknown, never assumed."""

    name: str
    context_window_tokens: Positive | None = None
    max_output_tokens: Positive | None = None
    thinking: tuple[Thinking, ...] = ()
    price: PriceSetting | None = None


class ProviderSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One `[providers.NAME]` table.

    For a provider that the host knows (`openai`, `anthropic`, `scripted`) it changes only what it
    names and adds models. `api_key_env` names the environment variable with the key; a provider
    without one needs no key. `scripts` gives files to the scripted provider, by script name.
    `idle_timeout_ms` ends a request that brings nothing for so long.
    """

    kind: Kind | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    models: tuple[str | ModelSetting, ...] = ()
    scripts: dict[str, str] = {}
    max_concurrent: Positive = 16
    idle_timeout_ms: Positive = 600_000

    def model_settings(self) -> tuple[ModelSetting, ...]:
        """Give the models, each as a table."""
        return tuple(ModelSetting(name=m) if isinstance(m, str) else m for m in self.models)


KNOWN: dict[str, ProviderSetting] = {
    "anthropic": ProviderSetting(
        kind="anthropic",
        base_url="https://api.anthropic.com",
        api_key_env="ANTHROPIC_API_KEY",
    ),
    "openai": ProviderSetting(
        kind="openai-responses",
        base_url="https://api.openai.com/v1",
        api_key_env="OPENAI_API_KEY",
    ),
    "scripted": ProviderSetting(kind="scripted"),
}


def read_providers(tables: Mapping[str, object], *, base_dir: Path) -> dict[str, ProviderSetting]:
    """
    Give every provider there is: the known ones, changed and joined by the user's tables.

    Script paths become absolute against `base_dir`, the folder of the configuration file.

    Raises:
        ConfigInvalid: and which table is wrong in what; nothing of it is used.
    """
    providers = dict(KNOWN)
    for name, table in tables.items():
        providers[name] = _read_one(name, table, base_dir)
    return providers


def _read_one(name: str, table: object, base_dir: Path) -> ProviderSetting:
    where = f"providers.{name}"
    if not NAME.fullmatch(name):
        raise ConfigInvalid(f"{where}: a provider's name is lower case, without a slash.")
    if not isinstance(table, dict):
        raise ConfigInvalid(f"{where} is not a table.")
    try:
        given = msgspec.convert(table, ProviderSetting)
    except msgspec.ValidationError as why:
        raise ConfigInvalid(f"{where}: {why}") from why
    said = {field: getattr(given, field) for field in table}
    merged = msgspec.structs.replace(KNOWN.get(name, ProviderSetting()), **said)
    if merged.kind is None:
        raise ConfigInvalid(f"{where} needs a kind, one of {', '.join(get_args(Kind))}.")
    if merged.kind != "scripted" and not (merged.base_url or "").startswith(
        ("http://", "https://")
    ):
        raise ConfigInvalid(f"{where} needs a base_url that begins with http:// or https://.")
    if merged.scripts and merged.kind != "scripted":
        raise ConfigInvalid(f"{where}: only a scripted provider has scripts.")
    if not all(model.name and not set(model.name) & BLANK for model in merged.model_settings()):
        raise ConfigInvalid(f"{where}: a model's name is not empty and has no blanks.")
    scripts = {script: str(base_dir / path) for script, path in merged.scripts.items()}
    return msgspec.structs.replace(merged, scripts=scripts)


def _nano(usd: float | None) -> int | None:
    return None if usd is None else round(usd * NANO_USD)
