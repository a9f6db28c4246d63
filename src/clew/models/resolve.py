"""Makes a model object from a string such as `anthropic:claude-opus-4-7`, whose prefix names the vendor. Other
installed packages can add prefixes through the entry point group `clew.models`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from clew._runtime import plugins
from clew.errors import InvalidInput
from clew.models.base import Model
from clew.models.windows import WINDOWS

__all__ = ["GROUP", "resolve_model"]

GROUP = "clew.models"
"""The entry point group in which installed packages add models. The name of an entry point is the prefix before the
colon. Its value is a class or function that takes a model's name and settings, and returns a model."""

_BUILT_IN = {
    "anthropic": "clew.models.anthropic:AnthropicModel",
    "azure": "clew.models.compatible:AzureModel",
    "gemini": "clew.models.gemini:GeminiModel",
    "oci": "clew.models.oci:OCIModel",
    "ollama": "clew.models.compatible:OllamaModel",
    "openai": "clew.models.openai_chat:OpenAIChatModel",
    "openai-responses": "clew.models.openai_responses:OpenAIResponsesModel",
    "openrouter": "clew.models.compatible:OpenRouterModel",
}


def resolve_model(model: str | Model, **settings: Any) -> Model:
    """Return the model that a string names, for example `openai:gpt-5`. If `model` is a model object already, return it
    as it is.

    `settings` are passed to the model's class: `max_retries`, `context_window`, and what its SDK's client takes, such
    as `api_key`, `base_url` and `timeout`. No connection is made before the first call. Raises `InvalidInput` if the
    string names no known prefix or no model, or if settings are given for a model object, which has its own.
    """
    if not isinstance(model, str):
        return _checked(model, settings)
    prefix, colon, name = model.partition(":")
    prefix, name = prefix.strip().lower(), name.strip()
    if not colon:
        raise InvalidInput(f"{model!r} does not say whose model it is. {_write(model)}")
    maker = _maker(prefix, name)
    if not name:
        raise InvalidInput(
            f"{model!r} does not name a model. Write {prefix}:NAME, for example {prefix}:{_example(prefix)}."
        )
    return maker(name, **settings)


def _checked(model: Model, settings: dict[str, Any]) -> Model:
    if not callable(getattr(model, "stream", None)):
        raise InvalidInput(f"a {type(model).__name__} is not a model: it has no method `stream`. {_write('')}")
    if settings:
        given = ", ".join(sorted(settings))
        raise InvalidInput(f"a model object takes no settings, but was given {given}.")
    return model


def _maker(prefix: str, name: str) -> Callable[..., Model]:
    try:
        maker: Callable[..., Model] = plugins.find(prefix, _BUILT_IN, GROUP, f"the models of {prefix!r}")
    except plugins.Unknown as unknown:
        guess = f" Did you mean {unknown.close}:{name}?" if unknown.close else ""
        raise InvalidInput(
            f"the prefix {prefix + ':'!r} of a model is not known.{guess} Known here: {unknown.known}."
        ) from None
    return maker


def _write(text: str) -> str:
    """Return a sentence that tells the user what to write in place of `text`, a model's name that lacks a prefix such
    as `openai:`. The sentence names the known model whose name is closest, with its prefix. If no known name is close,
    the sentence shows general forms, such as `openai:NAME`."""
    bare = text.strip().lower().rpartition("/")[2]
    close = [bare] if bare in WINDOWS else difflib.get_close_matches(bare, WINDOWS, n=1)
    if close:
        return f"Write {_vendor(close[0])}:{close[0]}."
    return (
        "Write openai:NAME, openai-responses:NAME, anthropic:NAME or gemini:NAME, or where the model runs: azure:, oci:, "
        "ollama: or openrouter:NAME."
    )


def _vendor(name: str) -> str:
    return "anthropic" if name.startswith("claude") else "gemini" if name.startswith("gemini") else "openai"


def _example(prefix: str) -> str:
    examples = {
        "anthropic": "claude-opus-4-7",
        "azure": "NAME-OF-YOUR-DEPLOYMENT",
        "gemini": "gemini-3.8-flash",
        "oci": "openai.gpt-5.5",
        "ollama": "qwen3:8b",
        "openrouter": "openai/gpt-5",
    }
    return examples.get(prefix, "gpt-5" if prefix in _BUILT_IN else "NAME")
