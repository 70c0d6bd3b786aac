"""Which models there are, and what each accepts and costs. Pure, but for reading its own data."""

from collections.abc import Callable, Iterable, Mapping
from importlib import resources

import msgspec

from rlm_protocol.errors import ConfigInvalid, ModelUnavailable, ThinkingUnsupported

from .prices import Price
from .provider import THINKING_LEVELS, Thinking
from .scripted import PRICES as SCRIPTED_PRICES
from .scripts import SCRIPTS
from .settings import ModelSetting, ProviderSetting

SCRIPTED_CONTEXT_TOKENS = 200_000


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """
    One model. None and empty mean unknown, never zero.

    `thinking` holds the levels it accepts, from least to most. `prices` are its tiers.
    """

    provider: str
    name: str
    context_window_tokens: int | None = None
    max_output_tokens: int | None = None
    thinking: tuple[Thinking, ...] = ()
    prices: tuple[Price, ...] = ()

    @property
    def selector(self) -> str:
        """The exact `provider/model` that names it."""
        return f"{self.provider}/{self.name}"


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """The content of catalog.json, with the versions that it was generated from."""

    sources: dict[str, str]
    prices_of_day: str
    models: tuple[ModelInfo, ...]


class Catalog:
    """Every model the host knows of, by selector; upper and lower case are the same."""

    def __init__(self, models: Iterable[ModelInfo]) -> None:
        """
        Take the models.

        Raises:
            ConfigInvalid: two of them have the same selector.
        """
        self._models: dict[str, ModelInfo] = {}
        for model in models:
            if self._models.setdefault(model.selector.lower(), model) is not model:
                raise ConfigInvalid(f"The model {model.selector} is named twice.")

    def get(self, selector: str) -> ModelInfo:
        """
        Give the model of this exact selector.

        Raises:
            ModelUnavailable: it is no selector, or names no model. Nothing is substituted.
        """
        provider, slash, name = selector.partition("/")
        if not (provider and slash and name):
            raise ModelUnavailable(
                f"{selector!r} is not of the form provider/model; none was substituted.",
                selector=selector,
            )
        model = self._models.get(selector.lower())
        if model is None:
            raise ModelUnavailable(
                f"There is no model {selector!r}; none was substituted. "
                "`rlm-host models` lists what there is; others are named in [providers.NAME].",
                selector=selector,
            )
        return model

    def find(self, query: str, limit: int, usable: Callable[[str], bool]) -> list[ModelInfo]:
        """
        Give models of usable providers: those named exactly so, then by prefix, then the others.

        Every word of `query` must be part of the selector. At most `limit`.
        """
        asked = " ".join(query.lower().split())
        ranked = sorted(
            (m for m in self._models.values() if _has_words(m, asked.split())),
            key=lambda model: (_rank(model, asked), model.selector),
        )
        # Asked once for each provider: a look at credentials reads a file.
        fits = {provider: usable(provider) for provider in {m.provider for m in ranked}}
        return [model for model in ranked if fits[model.provider]][: max(0, limit)]

    def of_provider(self, provider: str) -> list[ModelInfo]:
        """Give the provider's models in the order in which they were named."""
        return [model for model in self._models.values() if model.provider == provider]


def build_catalog(providers: Mapping[str, ProviderSetting]) -> Catalog:
    """
    Give the catalog of the generated models, the scripts and the models that a user named.

    A user's entry replaces the generated one of the same name.

    Raises:
        ConfigInvalid: a table names a model twice.
    """
    models: list[ModelInfo] = []
    for provider, setting in providers.items():
        named = [_of_setting(provider, model) for model in setting.model_settings()]
        own = {model.name.lower() for model in named}
        if setting.kind == "scripted":
            known = [_of_script(provider, name) for name in (*SCRIPTS, *setting.scripts)]
        else:
            known = [model for model in read_generated().models if model.provider == provider]
        models += [*named, *(model for model in known if model.name.lower() not in own)]
    return Catalog(models)


def read_generated() -> Generated:
    """Give the catalog that came with this release."""
    data = resources.files(__package__).joinpath("catalog.json").read_bytes()
    return msgspec.json.decode(data, type=Generated)


def check_thinking(model: ModelInfo, level: Thinking | None) -> None:
    """
    Raise ThinkingUnsupported if the model does not accept the level that was asked for.

    The vendors' library would clamp it silently, so it is decided here. None is the model's own.
    """
    if level is not None and level not in model.thinking:
        accepted = ", ".join(model.thinking) or "none that is known"
        raise ThinkingUnsupported(
            f"{model.selector} does not accept thinking {level!r}; it accepts {accepted}.",
            model=model.selector,
            level=level,
            accepted=list(model.thinking),
        )


def clamp_thinking(model: ModelInfo, level: Thinking | None) -> Thinking | None:
    """Give the most that the model accepts up to an inherited level, else the least it accepts."""
    if level is None or not model.thinking:
        return None
    order = THINKING_LEVELS.index
    below = [accepted for accepted in model.thinking if order(accepted) <= order(level)]
    return max(below, key=order) if below else min(model.thinking, key=order)


def _has_words(model: ModelInfo, words: list[str]) -> bool:
    return all(word in model.selector.lower() for word in words)


def _rank(model: ModelInfo, asked: str) -> int:
    names = (model.selector.lower(), model.name.lower())
    if asked in names:
        return 0
    return 1 if any(name.startswith(asked) for name in names) else 2


def _of_setting(provider: str, setting: ModelSetting) -> ModelInfo:
    return ModelInfo(
        provider=provider,
        name=setting.name,
        context_window_tokens=setting.context_window_tokens,
        max_output_tokens=setting.max_output_tokens,
        thinking=tuple(sorted(set(setting.thinking), key=THINKING_LEVELS.index)),
        prices=(setting.price.price(),) if setting.price else (),
    )


def _of_script(provider: str, name: str) -> ModelInfo:
    return ModelInfo(
        provider=provider,
        name=name,
        context_window_tokens=SCRIPTED_CONTEXT_TOKENS,
        thinking=THINKING_LEVELS,
        prices=SCRIPTED_PRICES,
    )
