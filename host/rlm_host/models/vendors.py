"""
Hosted and local servers, through the vendors' library's direct streaming, and nothing more of it.

The library is imported at the first use, in a thread. It never retries: that is the session's.
"""

import contextlib
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from .catalog import ModelInfo
from .failures import failure
from .provider import Event, Request
from .settings import ProviderSetting
from .translate import deltas, ending, to_library

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider as LibraryProvider
    from pydantic_ai.settings import ModelSettings

IMPORT_SWITCH_S = 0.0005
"""While a thread imports megabytes of modules, the event loop gets its turn this often."""
NO_KEY = "none"
"""Sent where no key is needed: given none, the libraries take some vendor's from os.environ."""

Connect = Callable[[str], Any]
Speak = Callable[[str, Any], Any]

_building = threading.Lock()
"""Held while models are imported and made, so that nothing is made twice."""


class Vendor:
    """
    The connections to one provider. Owned by `Models`, which closes it.

    Requests run side by side; the library's client pools the connections of each key.
    """

    def __init__(self, name: str, setting: ProviderSetting) -> None:
        self._name = name
        self._setting = setting
        self._clients: dict[str, LibraryProvider[Any]] = {}
        self._models: dict[tuple[str, str], Model[Any]] = {}

    async def stream(
        self, request: Request, info: ModelInfo, secret: str
    ) -> AsyncGenerator[Event, None]:
        """
        Send one request with `secret` and give its events.

        Cancelling, or closing the generator, closes the request.

        Raises:
            ProviderError: as the seam says.
        """
        key = secret or NO_KEY
        model = self._models.get((info.name, key))
        if model is None:
            # Abandoned when cancelled: an interrupt shall not wait for an import.
            model = await anyio.to_thread.run_sync(
                self._build, info.name, key, abandon_on_cancel=True
            )
        begun = False
        try:
            async with _open(model, request, self._settings(request)) as opened:
                async with contextlib.aclosing(aiter(opened)) as events:
                    async for event in events:
                        for delta in deltas(event):
                            begun = True
                            yield delta
                last = ending(opened.get(), info.prices)
        except Exception as error:
            raise failure(error, partial=begun, secret=secret) from error
        for event in last:
            yield event

    def warm_up(self) -> None:
        """Import what this provider's requests need. Takes seconds of CPU: call it in a thread."""
        with _building, _gentle():
            self._library()

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.client.close()
        self._clients.clear()
        self._models.clear()

    def _settings(self, request: Request) -> "ModelSettings":
        idle_s = self._setting.idle_timeout_ms / 1000
        settings: dict[str, Any] = {
            "max_retries": 0,
            "timeout": idle_s,
            "first_event_timeout": idle_s,
            "cache": True,
        }
        level = request.thinking
        if level is not None and self._setting.kind == "anthropic":
            settings["thinking"] = False if level == "off" else level
        elif level is not None:
            # Not by `thinking`: that is dropped in silence for a model the library does not know.
            settings["openai_reasoning_effort"] = "none" if level == "off" else level
        if request.max_output_tokens is not None:
            settings["max_tokens"] = request.max_output_tokens
        if self._setting.kind == "openai-responses":
            settings["openai_store"] = False
        return settings  # type: ignore[return-value]

    def _build(self, name: str, key: str) -> "Model[Any]":
        with _building, _gentle():
            connect, speak = self._library()
            if key not in self._clients:
                self._clients[key] = connect(key)
            return self._models.setdefault((name, key), speak(name, self._clients[key]))

    def _library(self) -> tuple[Connect, Speak]:
        """Give how to make this provider's client from a key, and a model on that client."""
        import pydantic_ai.direct  # noqa: F401

        name, url = self._name, self._setting.base_url or ""
        if self._setting.kind == "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            return (
                lambda key: AnthropicProvider(api_key=key, base_url=url),
                lambda model, client: AnthropicModel(model, provider=client),
            )
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        dialect = OpenAIChatModel if self._setting.kind == "openai" else OpenAIResponsesModel

        def connect(key: str) -> "LibraryProvider[Any]":
            if name == "openai":
                return OpenAIProvider(base_url=url, api_key=key)
            return OpenAICompatibleProvider(name, base_url=url, api_key=key)

        return connect, lambda model, client: dialect(model, provider=client)


def _open(model: "Model[Any]", request: Request, settings: "ModelSettings") -> Any:
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=tool.name, description=tool.description, parameters_json_schema=tool.schema
        )
        for tool in request.tools
    ]
    return model_request_stream(
        model,
        to_library(request),
        model_settings=settings,
        model_request_parameters=ModelRequestParameters(function_tools=tools),
    )


@contextlib.contextmanager
def _gentle() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(IMPORT_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
