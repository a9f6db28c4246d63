"""Both kinds of agents, built-in and of a provider, are an `Agent` with the same public methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clew.sync
from clew import Agent
from clew.checkpointers import MemoryCheckpointer
from clew.errors import ClewError, InvalidInput, UsageError
from clew.providers import ProviderAgent
from clew.testing import ScriptedModel
from tests.providers.toy import toy_place
from tests.providers.toys import with_toys


def toy(tmp_path: Path) -> Agent:
    with_toys()
    place = toy_place(tmp_path)
    return Agent(provider="toy", env=place.env, cwd=place.cwd, name="toy", checkpointer=MemoryCheckpointer())


def test_an_agent_of_a_provider_is_an_agent(tmp_path: Path) -> None:
    agent = toy(tmp_path)
    assert isinstance(agent, Agent)
    assert isinstance(agent, ProviderAgent)
    assert type(Agent(ScriptedModel(["Hi."]), checkpointer=None)) is Agent


@pytest.mark.parametrize("name", [name for name in dir(Agent) if not name.startswith("_")])
def test_every_public_method_has_the_same_parameters_in_both_kinds(name: str) -> None:
    own, provided = inspect.getattr_static(Agent, name), inspect.getattr_static(ProviderAgent, name)
    assert type(own) is type(provided)
    if inspect.isfunction(own):
        assert inspect.signature(own).parameters == inspect.signature(provided).parameters


@pytest.mark.parametrize(
    "ask",
    [
        lambda agent: agent.session(),
        lambda agent: agent.task_id("Do it."),
        lambda agent: agent.run("say x", max_turns=3),
        lambda agent: agent.resume(thread_id="t", max_turns=3),
        lambda agent: agent.resume(thread_id="t", answer="yes"),
        lambda agent: agent.stream(thread_id="t", answer="yes"),
        lambda agent: agent.start_session().resume(max_turns=3),
    ],
)
def test_what_a_provider_cannot_do_is_refused_with_the_reason(ask: Callable[[Any], Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="built-in agent"):
        ask(toy(tmp_path))


def test_an_agent_of_a_provider_is_refused_as_a_tool(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be a tool of another agent"):
        Agent(ScriptedModel(["Hi."]), tools=[toy(tmp_path)], checkpointer=None)


def test_a_subclass_of_agent_is_told_where_providers_are() -> None:
    class Mine(Agent):
        pass

    with pytest.raises(ClewError, match="ProviderAgent"):
        Mine(provider="toy")


@pytest.mark.anyio
async def test_trajectory_and_questions_of_a_thread_are_there_in_both_kinds(tmp_path: Path) -> None:
    agents = [toy(tmp_path), Agent(ScriptedModel(["Hi."]), checkpointer=MemoryCheckpointer())]
    for agent in agents:
        await agent.run("say hi", thread_id="t")
        assert (await agent.trajectory("t")).num_exchanges == 1
        assert await agent.questions("t") == []


def test_the_blocking_agent_of_a_provider_is_an_agent(tmp_path: Path) -> None:
    with_toys()
    place = toy_place(tmp_path)
    with clew.sync.Agent(provider="toy", env=place.env, cwd=place.cwd, checkpointer=None) as agent:
        assert isinstance(agent, clew.sync.Agent)
        run = agent.stream("say hi", thread_id="t")
        assert len(list(run)) > 0
        assert run.result.output == "hi"
        assert agent.trajectory("t").num_exchanges == 1
