"""From what a user writes to a model, or to what the user should have written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from clew._runtime import plugins
from clew.errors import InvalidInput, MissingExtra
from clew.models import ModelEvent, ModelRequest, resolve, resolve_model
from clew.models.anthropic import AnthropicModel
from clew.models.compatible import AzureModel, OllamaModel, OpenRouterModel
from clew.models.gemini import GeminiModel
from clew.models.openai_chat import OpenAIChatModel
from clew.models.openai_responses import OpenAIResponsesModel


class Own:
    """A user's own model."""

    name = "own:model"
    context_window = None

    def __init__(self, model: str = "", **settings: Any) -> None:
        self.model = model
        self.settings = settings

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        raise NotImplementedError
        yield


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("anthropic:claude-opus-4-7", AnthropicModel),
        ("gemini:gemini-3.8-flash", GeminiModel),
        ("openai:gpt-5", OpenAIChatModel),
        ("openai-responses:gpt-5", OpenAIResponsesModel),
        ("azure:my-deployment", AzureModel),
        ("ollama:qwen3:8b", OllamaModel),
        ("openrouter:openai/gpt-5:nitro", OpenRouterModel),
        ("openai:ft:gpt-4o:me::1", OpenAIChatModel),
        ("openai:meta-llama/Llama-3", OpenAIChatModel),
    ],
)
def test_a_prefix_says_whose_model_it_is(text: str, kind: type) -> None:
    model = resolve_model(text)
    assert isinstance(model, kind)
    assert model.name == text


def test_case_and_blanks_of_the_prefix_do_not_matter() -> None:
    assert resolve_model(" OpenAI:gpt-5 ").name == "openai:gpt-5"


def test_a_model_of_the_users_own_is_given_back() -> None:
    own = Own()
    assert resolve_model(own) is own
    with pytest.raises(InvalidInput, match="timeout"):
        resolve_model(own, timeout=1)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("opnai:gpt-5", "openai:gpt-5"),
        ("openai-response:gpt-5", "openai-responses:gpt-5"),
        ("antropic:claude-opus-4-7", "anthropic:claude-opus-4-7"),
        ("gpt-5", "Write openai:gpt-5"),
        ("gpt5", "Write openai:gpt-5"),
        ("openai/gpt-5", "Write openai:gpt-5"),
        ("claude-opus-4-7", "Write anthropic:claude-opus-4-7"),
        ("gemini-2.5-pro", "Write gemini:gemini-2.5-pro"),
        ("gemini:", "gemini:gemini-3.8-flash"),
        ("something else entirely", "openai:NAME, openai-responses:NAME, anthropic:NAME or gemini:NAME"),
        ("", "openai:NAME"),
        ("openai:", "openai:gpt-5"),
        ("anthropic: ", "anthropic:claude-opus-4-7"),
        ("zzz:gpt-5", "Known here: anthropic, azure, gemini, oci, ollama, openai, openai-responses, openrouter"),
        ("olama:qwen3:8b", "Did you mean ollama:qwen3:8b?"),
        ("oci:", "oci:openai.gpt-5.5"),
        ("azure:", "azure:NAME-OF-YOUR-DEPLOYMENT"),
        ("ollama:", "ollama:qwen3:8b"),
        ("openrouter:", "openrouter:openai/gpt-5"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve_model(text)
    assert advice in str(caught.value)


def test_what_is_no_model_is_told() -> None:
    with pytest.raises(InvalidInput, match="no method `stream`"):
        resolve_model(42)  # type: ignore[arg-type]


def test_others_add_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = EntryPoint("own", f"{__name__}:Own", resolve.GROUP)
    broken = EntryPoint("broken", "no_such_module:Model", resolve.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [plugin, broken])
    model = resolve_model("own:some-model", timeout=1)
    assert isinstance(model, Own)
    assert (model.model, model.settings) == ("some-model", {"timeout": 1})
    with pytest.raises(MissingExtra):
        resolve_model("broken:x")
    with pytest.raises(InvalidInput, match="own"):
        resolve_model("owm:x")


def test_no_sdk_is_imported_before_the_first_call() -> None:
    script = (
        "import sys, clew.models as m\n"
        "for prefix in ('openai', 'openai-responses', 'anthropic', 'gemini', 'azure', 'ollama', 'openrouter'):\n"
        "    m.resolve_model(prefix + ':x')\n"
        "print(sorted({'openai', 'anthropic', 'google.genai', 'httpx', 'httpx2', 'pydantic'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("missing", ["oci", "openai"])
def test_a_missing_sdk_is_told_with_the_one_command_that_installs_both(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=r"pip install 'clew\[oci,openai\]'"):
        resolve_model("oci:openai.gpt-5.5")
