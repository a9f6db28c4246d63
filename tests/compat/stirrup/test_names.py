"""The names of Stirrup: what its document shows is there, and what it does not have is an error that says what to use."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import clew.compat.stirrup as names
from clew import Budget
from clew.compat.stirrup import Agent, CacheManager, ChatCompletionsClient, Session
from clew.errors import InvalidInput
from clew.testing import ScriptedModel

DOCUMENTED: list[tuple[str, list[str]]] = [
    ("Agent", ["client", "name", "tools", "max_turns"]),
    ("Agent.session", ["output_dir", "resume", "clear_cache_on_success", "clear_on_success"]),
    ("ChatCompletionsClient", ["model"]),
    ("CacheManager", []),
    ("CacheManager.list_caches", []),
    ("CacheManager.get_cache_info", ["task_hash"]),
    ("CacheManager.clear_cache", ["task_hash"]),
    ("CacheManager.save_state", ["task_hash", "state", "exec_env_dir"]),
    ("CacheManager.load_state", ["task_hash"]),
    ("CacheManager.restore_files", ["task_hash", "dest_dir"]),
    ("Session.run", ["init_msgs"]),
    ("compute_task_hash", ["init_msgs"]),
]
ATTRIBUTES = {
    "Agent": ["name", "client", "session"],
    "ChatCompletionsClient": ["model_slug", "max_tokens", "context_window_tokens"],
    "Outcome": ["finish_params", "history", "metadata"],
    "FinishParams": ["reason", "paths"],
    "Session": ["run", "__aenter__", "__aexit__"],
}


def found(path: str) -> Any:
    value: Any = names
    for part in path.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("path", "parameters"), DOCUMENTED, ids=[path for path, _ in DOCUMENTED])
def test_a_name_has_the_parameters_that_the_document_shows(path: str, parameters: list[str]) -> None:
    known = inspect.signature(found(path)).parameters
    assert [name for name in parameters if name not in known] == []


def test_classes_have_the_attributes_of_the_document() -> None:
    made: dict[str, Any] = {
        "Agent": Agent(ScriptedModel([]), "researcher"),
        "ChatCompletionsClient": ChatCompletionsClient("gpt-5", api_key="any"),
        "Outcome": names.Outcome(None, [], {}),
        "FinishParams": names.FinishParams("Done."),
        "Session": Session,
    }
    assert [
        f"{name}.{attribute}"
        for name, attributes in ATTRIBUTES.items()
        for attribute in attributes
        if not hasattr(made[name], attribute)
    ] == []
    assert sorted(names.__all__) == sorted(name for name in dir(names) if name in names.__all__)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"context_summarization_cutoff": 0.7}, "it is called compact_at here"),
        ({"turns_remaining_warning_threshold": 20}, "it is called warn_turns here"),
        ({"finish_tool": None}, "finish=your_tool"),
        ({"logger": None}, "read the steps from events"),
        ({"model": "openai:gpt-5"}, "it is called client here"),
        ({"workspace": "."}, "it is called output_dir here"),
        ({"provider": "codex"}, "clew.Agent has it"),
        ({"max_turn": 5}, "neither Stirrup's documents nor Clew know it"),
        ({"checkpointer": None}, "nothing could be resumed"),
        ({"name": ""}, "name is the name of the agent"),
        ({"tools": "none"}, "tools is a list"),
        ({"max_turns": 0}, "max_turns is a whole number"),
        ({"client": "gpt-5"}, "Write openai:gpt-5"),
    ],
)
def test_an_argument_that_an_agent_does_not_have_says_what_to_use(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said.replace("(", r"\(")):
        Agent(**{"client": ScriptedModel([]), "name": "researcher", **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"input_files": "data"}, "put the files into the folder output_dir"),
        ({"skills_dir": "skills"}, "put that folder into output_dir"),
        ({"cache_on_interrupt": False}, "everything is always on record"),
        ({"workspace": "."}, "it is called output_dir here"),
        ({"clear": True}, "neither Stirrup's documents nor Clew know it"),
        ({"clear_on_success": True, "clear_cache_on_success": True}, "two names for the same"),
        ({"output_dir": ""}, "output_dir is the path of a folder"),
        ({"resume": 1}, "resume is True or False"),
        ({"clear_on_success": "no"}, "clear_cache_on_success is True or False"),
    ],
)
def test_an_argument_that_a_session_does_not_have_says_what_to_use(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Agent(ScriptedModel([]), "researcher").session(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cache_base_dir": "folder"}, "it is called checkpointer here"),
        ({"clear_on_success": False}, "it belongs to the session"),
        ({"checkpointer": ScriptedModel([])}, "is not the URL of a store"),
    ],
)
def test_an_argument_that_the_cache_manager_does_not_have_says_what_to_use(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        CacheManager(**given)


def test_arguments_of_clew_are_passed_on() -> None:
    Agent(ScriptedModel([]), "researcher", budget=Budget(tokens=1000), compact_at=0.7, warn_turns=20, redact=["key"])
    with pytest.raises(InvalidInput, match="compact_at is a share"):
        Agent(ScriptedModel([]), "researcher", compact_at=7)


def test_a_client_passes_its_settings_to_the_model_and_to_each_request() -> None:
    client = ChatCompletionsClient(
        "my-model", 1000, context_window_tokens=5000, reasoning_effort="low", kwargs={"seed": 1}, api_key="any"
    )
    assert (client.model_slug, client.new_model().name) == ("my-model", "openai:my-model")
    assert client.new_model().context_window == client.context_window_tokens == 5000
    assert client.options == {"reasoning_effort": "low", "seed": 1}
    with pytest.raises(InvalidInput, match="has no argument temperature="):
        ChatCompletionsClient("my-model", temperature=1)
