"""The names that caw's guide to resuming sessions shows: its classes, their parameters and what their results have."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_type_hints

import pytest

from clew.compat import caw
from clew.compat.caw import Agent, Session, Trajectory, Turn, UsageStats
from clew.errors import InvalidInput
from clew.providers import read_handle, write_handle

PARAMETERS: dict[Any, list[str]] = {
    Agent.__init__: ["provider", "data_dir", "system_prompt", "model"],
    Agent.start_session: [],
    Agent.resume_session: ["resume_handle"],
    Agent.completion: ["message"],
    Session.send: ["message"],
    Session.end: [],
}
"""The parameters of each call, in caw's order: they may be given by position."""

ATTRIBUTES: dict[type, set[str]] = {
    Agent: {"start_session", "resume_session", "completion"},
    Session: {"send", "end", "resume_handle", "trajectory", "__enter__", "__exit__"},
    Turn: {"result", "input", "output", "usage", "duration_ms", "tool_calls"},
    Trajectory: {
        *("agent", "model", "session_id", "created_at", "completed_at", "system_prompt", "turns", "usage"),
        *("num_turns", "result", "duration_ms", "total_tool_calls", "total_usage", "is_complete"),
    },
    UsageStats: {
        *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd", "total_tokens"),
    },
    caw.ToolUse: {"id", "name", "arguments", "output", "is_error"},
    caw.TextBlock: {"text"},
    caw.ThinkingBlock: {"text"},
}
HANDLE = '{"version": 1, "provider": "claude_code", "session_id": "bd260210-1", "resume_key": "bd260210-2"}'


@pytest.mark.parametrize("call", PARAMETERS, ids=lambda call: call.__qualname__)
def test_a_call_has_the_parameters_of_caw_in_its_order(call: Any) -> None:
    given = [
        parameter
        for parameter in list(inspect.signature(call).parameters.values())[1:]
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    assert [parameter.name for parameter in given][: len(PARAMETERS[call])] == PARAMETERS[call]
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in given)
    if call is Agent.__init__:
        assert all(parameter.default is not parameter.empty for parameter in given)


@pytest.mark.parametrize("cls", ATTRIBUTES, ids=lambda cls: cls.__name__)
def test_a_class_has_the_attributes_of_caw(cls: type) -> None:
    assert ATTRIBUTES[cls] - set(dir(cls)) == set()


def test_the_module_exports_these_classes() -> None:
    assert set(caw.__all__) == {cls.__name__ for cls in ATTRIBUTES}
    assert [getattr(caw, name).__name__ for name in caw.__all__] == caw.__all__


def test_results_are_text_and_counts_and_nothing_has_to_be_awaited() -> None:
    results = {
        (Turn, "result"): str,
        (Session, "resume_handle"): str,
        (Trajectory, "num_turns"): int,
        (Trajectory, "result"): str,
    }
    for (cls, name), kind in results.items():
        assert get_type_hints(getattr(cls, name).fget)["return"] is kind
    for call in PARAMETERS:
        assert not inspect.iscoroutinefunction(call)


def test_a_handle_of_caw_is_one_of_clew_and_the_other_way_round() -> None:
    found = read_handle(HANDLE)
    written = write_handle(found.provider, found.session_id, found.resume_key)
    assert json.loads(written) == json.loads(HANDLE)


ELSEWHERE: dict[str, tuple[Any, str]] = {
    "auto_wait": (True, "ProviderLimited"),
    "description": ("d", "leave it out"),
    "logger": (None, "CAW_LOG"),
    "metadata": ({}, "session_id"),
    "reasoning": ("high", "options="),
    "stateless_tools": ([], r"clew\.sync\.Agent"),
    "tool_servers": ([], "MCP"),
    "tools": (None, "permissions="),
    "traj_path": ("x", "data_dir"),
    "wings": (2, "permissions"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_argument_that_is_not_here_is_an_error_that_says_what_clew_calls_it(name: str) -> None:
    value, said = ELSEWHERE[name]
    with pytest.raises(InvalidInput, match=f"^{name}: .*{said}"):
        Agent("codex", **{name: value})
    with pytest.raises(InvalidInput, match=f"^{name}: "):
        Agent("codex").start_session(**{name: value})
    with pytest.raises(InvalidInput, match=f"^{name}: "):
        Agent("codex").resume_session(HANDLE, **{name: value})


def test_what_clew_does_anyway_may_be_asked_for() -> None:
    Agent("codex", auto_wait=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"provider": "nobody"}, "no provider 'nobody'"),
        ({"provider": []}, "provider"),
        ({"provider": 5}, "provider"),
        ({"model": 5}, "Clew has no tiers"),
        ({"data_dir": 5}, "data_dir"),
        ({"system_prompt": 5}, "system_prompt"),
        ({"permissions": "all"}, "permissions is one of"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_a_wrong_value_is_refused_when_the_agent_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Agent(**given)
