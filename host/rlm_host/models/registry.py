"""What app.py builds of models/: catalog, credentials, limiters, providers, behind one object."""

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import anyio.to_thread

from rlm_protocol import limits
from rlm_protocol.errors import AuthRequired

from .catalog import ModelInfo, build_catalog
from .credentials import Credentials
from .limiter import Limiter
from .provider import Done, Event, Provider, ProviderError, Request
from .scripted import ScriptedProvider
from .scripts import SCRIPTS, load_script
from .settings import read_providers
from .vendors import Vendor

DEFAULTS = ("anthropic/claude-sonnet-5-5", "openai/gpt-6.1-sol")
"""What a root session gets that names no model, by the first provider with a credential."""
SCRIPTED_DEFAULT = "scripted/demo"


class Models:
    """
    Every model that sessions of this host may use.

    Owns the connections to providers: close it with `aclose`. `tables` is the `[providers]` part of
    the configuration, `base_dir` its folder, `env` the environment to take keys from. `now_ms` is
    wall-clock time, `monotonic_ms` a clock that never jumps, `random` gives numbers in [0, 1).

    Raises:
        ConfigInvalid: a table is wrong; which one, and in what.
    """

    def __init__(
        self,
        tables: Mapping[str, object],
        *,
        base_dir: Path,
        auth_file: Path,
        env: Mapping[str, str],
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        on_secret: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = read_providers(tables, base_dir=base_dir)
        self.catalog = build_catalog(self.settings)
        self.credentials = Credentials(
            auth_file, self.settings, env=env, now_ms=now_ms, on_secret=on_secret
        )
        self._monotonic_ms = monotonic_ms
        self._random = random
        self._sleep = sleep
        self._vendors: dict[str, Vendor] = {}
        self._scripted: dict[str, ScriptedProvider] = {}
        self._limiters: dict[tuple[str, bytes], Limiter] = {}

    def resolve(self, selector: str) -> ModelInfo:
        """
        Give the model of exactly this selector, with a usable credential. Asks nobody outside.

        Raises:
            ModelUnavailable: there is no such model. Another one is never taken instead.
            AuthRequired: its provider has no active credential; the reason says what to do.
        """
        info = self.catalog.get(selector)
        state = self.credentials.state(info.provider)
        if not state.usable:
            raise AuthRequired(
                f"{info.selector} cannot be used. {state.reason}",
                provider=info.provider,
                status=state.status,
            )
        return info

    def usable(self, provider: str) -> bool:
        """Whether the provider has an active, non-expired credential, or needs none."""
        return self.credentials.state(provider).usable

    def find(self, query: str = "", limit: int = 8) -> list[ModelInfo]:
        """Give the best matches among the models that can be used; bounded for a kernel's eyes."""
        return self.catalog.find(query, min(limit, limits.FIND_MODELS_MAX), self.usable)

    def default(self, chosen: str | None = None) -> ModelInfo:
        """
        Give the model of a root session: `chosen`, else what the user's own means allow.

        A provider with a credential comes first, then a server that the user configured without a
        key, then the scripted model, which says what it is. A child never gets a default.

        Raises:
            ModelUnavailable, AuthRequired: as `resolve`, for `chosen`.
        """
        if chosen is not None:
            return self.resolve(chosen)
        for selector in DEFAULTS:
            if self.usable(selector.partition("/")[0]):
                return self.catalog.get(selector)
        real = [name for name, setting in self.settings.items() if setting.kind != "scripted"]
        for status in ("active", "none_needed"):
            for provider in real:
                models = self.catalog.of_provider(provider)
                if models and self.credentials.state(provider).status == status:
                    return models[0]
        return self.catalog.get(SCRIPTED_DEFAULT)

    def provider_for(self, selector: str) -> tuple[ModelInfo, Provider]:
        """
        Give the model and what answers its requests; name `info.selector` in them.

        The credential is looked up again for each request.

        Raises:
            ModelUnavailable, AuthRequired: as `resolve`.
            ConfigInvalid: a script file of the user cannot be loaded.
        """
        info = self.resolve(selector)
        if self.settings[info.provider].kind == "scripted":
            return info, self._scripts_of(info.provider)
        return info, _Model(self, info, self._vendor(info.provider))

    async def warm_up(self, provider: str) -> None:
        """Import, in a thread, what the provider's first request would have to wait for."""
        if self.settings[provider].kind != "scripted":
            await anyio.to_thread.run_sync(self._vendor(provider).warm_up, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """Close every connection. Requests that still run fail."""
        while self._vendors:
            await self._vendors.popitem()[1].aclose()

    def limiter(self, provider: str, secret: str) -> Limiter:
        """Give the one limiter of this provider and key."""
        key = provider, hashlib.sha256(secret.encode()).digest()
        if key not in self._limiters:
            self._limiters[key] = Limiter(
                self.settings[provider].max_concurrent,
                monotonic_ms=self._monotonic_ms,
                sleep=self._sleep,
                random=self._random,
            )
        return self._limiters[key]

    def _vendor(self, provider: str) -> Vendor:
        if provider not in self._vendors:
            self._vendors[provider] = Vendor(provider, self.settings[provider])
        return self._vendors[provider]

    def _scripts_of(self, provider: str) -> ScriptedProvider:
        if provider not in self._scripted:
            files = self.settings[provider].scripts
            own = {name: load_script(Path(file)) for name, file in files.items()}
            self._scripted[provider] = ScriptedProvider({**SCRIPTS, **own}, sleep=self._sleep)
        return self._scripted[provider]


class _Model:
    """One model of a vendor: takes the key, waits its turn, and learns from what comes of it."""

    def __init__(self, models: Models, info: ModelInfo, vendor: Vendor) -> None:
        self._models = models
        self._info = info
        self._vendor = vendor

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Send the request once; see `Provider.stream`."""
        credentials, provider = self._models.credentials, self._info.provider
        secret = credentials.secret(provider)
        if secret is None:
            raise ProviderError("auth", credentials.state(provider).reason)
        async with self._models.limiter(provider, secret).slot() as slot:
            try:
                answer = self._vendor.stream(request, self._info, secret)
                async with contextlib.aclosing(answer) as events:
                    async for event in events:
                        if isinstance(event, Done):
                            slot.succeeded()  # now: nobody has to ask for more after it
                        yield event
            except ProviderError as error:
                if error.status == 401:
                    credentials.reject(provider, secret)
                slot.failed(error)
                raise
