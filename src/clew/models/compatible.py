"""Calls models of vendors that speak OpenAI's Chat Completions API at addresses of their own: Azure, Ollama and
OpenRouter. OpenAI's SDK makes the calls, but keys and settings that are meant for OpenAI are not sent to these vendors.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clew.errors import InvalidInput
from clew.models.openai_chat import ChatModel, closed_client, openai_vendor
from clew.models.retry import MAX_RETRIES, NoCredentials
from clew.models.windows import context_window

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["AzureModel", "OllamaModel", "OpenRouterModel"]

_OPENROUTER = "https://openrouter.ai/api/v1"
_OLLAMA_PORT = 11434
_ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104 - where Ollama listens, which is no address to call
_NO_KEY = "ollama-needs-no-key"
"""The key that is sent to Ollama, because the SDK does not send a request without one."""


def _azure_client(sdk: Any, **settings: Any) -> AsyncOpenAI:
    if not (settings.get("azure_endpoint") or settings.get("base_url") or os.environ.get("AZURE_OPENAI_ENDPOINT")):
        raise InvalidInput(
            "an azure: model needs the address of your resource. Give azure_endpoint='https://NAME.openai.azure.com', or "
            "set AZURE_OPENAI_ENDPOINT."
        )
    if not (settings.get("api_version") or os.environ.get("OPENAI_API_VERSION")):
        raise InvalidInput(
            "an azure: model needs the version of Azure's API. Give api_version='2024-10-21' or a newer one, or set "
            "OPENAI_API_VERSION."
        )
    return closed_client(sdk, sdk.AsyncAzureOpenAI, settings)


def _token_of(provider: Callable[[], str | Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    """Return an async function that gets an access token from the user's function `provider`, which may be async or
    not, and returns the token. The returned function raises `NoCredentials` if `provider` raises an error or returns no
    token."""
    if not callable(provider):
        raise InvalidInput("azure_ad_token_provider is a function without arguments that returns a token")

    async def token() -> str:
        try:
            given = await asyncio.to_thread(provider)  # of an async function, this only makes a coroutine
            said: Any = await given if inspect.isawaitable(given) else given
        except Exception as error:
            raise NoCredentials(f"azure_ad_token_provider raised {type(error).__name__}") from error
        if not isinstance(said, str) or not said:
            raise NoCredentials("azure_ad_token_provider returned no token")
        return said

    return token


def _azure_advice(model: str, status: int | None) -> str:
    if status in (401, 403):
        return (
            "Check the key in AZURE_OPENAI_API_KEY or the token of Entra ID, and that it is for the resource in "
            "AZURE_OPENAI_ENDPOINT."
        )
    if status == 404:
        return "Check the model's name, which is that of your deployment, and the address in AZURE_OPENAI_ENDPOINT."
    return _redirected(status)


def _ollama_client(sdk: Any, **settings: Any) -> AsyncOpenAI:
    base_url = settings.get("base_url") or _ollama_url(os.environ.get("OLLAMA_HOST", ""))
    key = settings.get("api_key") or _NO_KEY
    return closed_client(sdk, sdk.AsyncOpenAI, {**settings, "base_url": base_url, "api_key": key})


def _ollama_url(host: str) -> str:
    """Return the base URL for a value of the environment variable `OLLAMA_HOST`, which says where Ollama runs: a host,
    a port after a colon, both, or a URL. Ollama's own programs read this variable too. A host such as `0.0.0.0`, which
    means all addresses of a machine, becomes `127.0.0.1`."""
    said = host.strip().strip("\"'")
    has_scheme = "://" in said
    parts = urlsplit(said if has_scheme else f"http://{said}")
    try:
        port = parts.port
    except ValueError:
        raise InvalidInput(f"OLLAMA_HOST is {host!r}. Write a host and a port, for example 127.0.0.1:11434.") from None
    name = parts.hostname or ""
    name = "127.0.0.1" if name in _ANY_HOST else f"[{name}]" if ":" in name else name
    port = port or ({"http": 80, "https": 443}.get(parts.scheme) if has_scheme else None) or _OLLAMA_PORT
    return f"{parts.scheme}://{name}:{port}{parts.path.rstrip('/')}/v1"


def _ollama_advice(model: str, status: int | None) -> str:
    if status is None:
        return "If Ollama is not running, start it: ollama serve. If it runs elsewhere, set OLLAMA_HOST."
    if status == 404:
        return f"Check the model's name: ollama list shows what is here, and ollama pull {model} fetches it."
    if status in (401, 403):
        return "Check the key: give it as api_key, if a proxy before Ollama asks for one."
    return _redirected(status)


def _openrouter_client(sdk: Any, **settings: Any) -> AsyncOpenAI:
    key = settings.get("api_key") or os.environ.get("OPENROUTER_API_KEY")
    if not key:
        raise NoCredentials("no key was given")
    base_url = settings.get("base_url") or _OPENROUTER
    return closed_client(sdk, sdk.AsyncOpenAI, {**settings, "base_url": base_url, "api_key": key})


def _openrouter_advice(model: str, status: int | None) -> str:
    if status in (401, 403):
        return "Check the key in OPENROUTER_API_KEY and what it may use."
    if status == 402:
        return "Buy credits at OpenRouter, or raise the limit of the key."
    if status == 404:
        return "Check the model's name, which has the vendor before a slash, for example openai/gpt-5."
    return _redirected(status)


def _redirected(status: int | None) -> str:
    if status is not None and 300 <= status < 400:
        return "The address redirects to another one, where the key is not sent. Give the final address."
    return ""


class _CompatibleModel(ChatModel):
    """A model of a vendor whose endpoint speaks OpenAI's Chat Completions API. A subclass for each vendor says how an
    SDK client for the vendor's endpoint is made, and what the user should check if a call fails."""

    _maker: Callable[..., AsyncOpenAI]
    """Takes the imported SDK and the user's settings, and returns a client."""
    _advise: Callable[[str, int | None], str]
    """Takes the model's name and the HTTP status of a failed call (None without an answer), and returns the advice."""

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        max_retries: int = MAX_RETRIES,
        context_window: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            model,
            lambda name: openai_vendor(
                model, name, client, settings, max_retries, maker=self._maker, advice=partial(self._advise, model)
            ),
            context_window,
        )


class AzureModel(_CompatibleModel):
    """A model in Azure OpenAI. The model's name is the name of its deployment in Azure.

    The class `AsyncAzureOpenAI` of OpenAI's SDK reads `AZURE_OPENAI_ENDPOINT`, `OPENAI_API_VERSION`, and
    `AZURE_OPENAI_API_KEY` or `AZURE_OPENAI_AD_TOKEN`. `settings` are passed to this class: `azure_endpoint`,
    `api_version`, `api_key`, `azure_ad_token`, `timeout` … `azure_ad_token_provider` is a function that returns a token
    of Entra ID, sync or async, and is called for each request; a sync one runs in another OS thread. If you give your
    own `client`, it is used instead, and you have to close it.
    """

    _prefix = "azure"
    _maker = staticmethod(_azure_client)
    _advise = staticmethod(_azure_advice)

    def __init__(
        self,
        model: str,
        *,
        azure_ad_token_provider: Callable[[], str | Awaitable[str]] | None = None,
        **options: Any,
    ) -> None:
        if azure_ad_token_provider is not None:
            options["azure_ad_token_provider"] = _token_of(azure_ad_token_provider)
        super().__init__(model, **options)

    def _limit_name(self, base_url: str) -> str:
        return "max_completion_tokens"


class OllamaModel(_CompatibleModel):
    """A model that Ollama runs, on this machine unless `OLLAMA_HOST` or `base_url` says otherwise.

    Ollama needs no key; give `api_key` only if a proxy in front of Ollama asks for one. Ollama must be running, and the
    model must have been pulled: Clew starts and pulls nothing. `settings` are passed to the class `AsyncOpenAI` of
    OpenAI's SDK: `timeout`, `default_headers` … If you give your own `client`, it is used instead, and you have to
    close it. Clew does not know the context window, because it is set in Ollama, and Ollama cuts a longer conversation
    off without an error. So give the window as `context_window`.
    """

    _prefix = "ollama"
    _maker = staticmethod(_ollama_client)
    _advise = staticmethod(_ollama_advice)

    @property
    def context_window(self) -> int | None:
        return self._window


class OpenRouterModel(_CompatibleModel):
    """A model of any vendor, called through OpenRouter. The model's name has the vendor before a slash, such as
    `openai/gpt-5`.

    The key is `api_key` or the environment variable `OPENROUTER_API_KEY`. `settings` are passed to the class
    `AsyncOpenAI` of OpenAI's SDK: `base_url`, `timeout`, `default_headers` … If you give your own `client`, it is used
    instead, and you have to close it. The cost of a response is what OpenRouter says in it that it charges.
    """

    _prefix = "openrouter"
    _maker = staticmethod(_openrouter_client)
    _advise = staticmethod(_openrouter_advice)

    @property
    def context_window(self) -> int | None:
        bare = self._model.rpartition("/")[2].partition(":")[0]
        return self._window or context_window([bare, bare.replace(".", "-")])

    def _cost(self, usage: Mapping[str, Any]) -> float | None:
        """Return what a response cost, in US dollars, by the token counts and charges that OpenRouter sends with it. If
        the user's own key for the model's vendor was used (`is_byok`), what that vendor charges is included. Returns
        None if OpenRouter does not say what it charges."""
        details = usage.get("cost_details")
        upstream = details.get("upstream_inference_cost") if isinstance(details, Mapping) else None
        charged = [usage.get("cost")] + ([upstream] if usage.get("is_byok") else [])
        if not all(isinstance(one, (int, float)) and one >= 0 for one in charged):
            return None
        return float(sum(one for one in charged if one is not None))
