"""What Locus' page on persistent conversations shows, with only the imports changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clew import Thread
from clew.compat.locus import Agent, AgentConfig, ThinkEvent, tool
from clew.compat.locus.memory import BaseCheckpointer
from clew.compat.locus.memory.backends import (
    FileCheckpointer,
    HTTPCheckpointer,
    MemoryCheckpointer,
    sqlite_checkpointer,
)
from clew.messages import Message, plain_text
from clew.testing import ModelServer, Response, call
from tests.limits import PATIENCE
from tests.server.serving import a_token, serving

pytestmark = pytest.mark.anyio

TRIP: list[Response] = [call("weather", city="Paris"), "A week in Paris, then.", "The flights are booked."]


@tool
async def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"{city}: 18 degrees"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A model server to which the vendor's own SDK talks."""
    with ModelServer(TRIP) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        yield server


def last_request(server: ModelServer) -> tuple[Message, ...]:
    """The conversation that the model was sent last."""
    request = server.requests[-1].request
    assert request is not None
    return request.messages


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[BaseCheckpointer]:
    if kind == "memory":
        async with MemoryCheckpointer() as checkpointer:
            yield checkpointer
    elif kind == "files":
        async with FileCheckpointer(folder / "checkpoints") as checkpointer:
            yield checkpointer
    elif kind == "sqlite":
        async with sqlite_checkpointer(str(folder / "checkpoints.db")) as checkpointer:
            yield checkpointer
    else:
        with serving(tokens=[a_token("s3cret", "alice")]) as service:
            async with HTTPCheckpointer(service.url, headers={"Authorization": "Bearer s3cret"}) as checkpointer:
                yield checkpointer


@pytest.mark.parametrize("kind", ["memory", "files", "sqlite", "http"])
async def test_a_brand_new_agent_on_the_same_thread_sees_the_prior_conversation(
    kind: str, tmp_path: Path, server: ModelServer
) -> None:
    async with opened(kind, tmp_path) as checkpointer:
        agent1 = Agent(model="openai:gpt-5", tools=[weather], checkpointer=checkpointer)
        first = await agent1.run("I'm Alex. Plan a trip to Paris.", thread_id="t1").__anext__()
        assert isinstance(first, ThinkEvent)
        assert [made.name for made in first.tool_calls] == ["weather"]
        del agent1

        agent2 = Agent(model="openai:gpt-5", tools=[weather], checkpointer=checkpointer)
        await agent2.run("Who am I?", thread_id="t1").__anext__()
        asked = [plain_text(message) for message in last_request(server)]
        assert asked[0] == "I'm Alex. Plan a trip to Paris."
        assert asked[-2:] == ["A week in Paris, then.", "Who am I?"]

        state = await checkpointer.load("t1")
        assert state is not None
        assert [message.role for message in state.messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        assert state.messages[-1].content == "The flights are booked."


async def test_the_first_event_alone_does_not_cancel_the_run(server: ModelServer) -> None:
    checkpointer = MemoryCheckpointer()
    agent = Agent(model="openai:gpt-5", tools=[weather], checkpointer=checkpointer, checkpoint_every_n_iterations=5)
    await agent.run("Plan a trip to Paris.", thread_id="user-42").__anext__()
    state = await Thread.load(checkpointer.store, "user-42")
    assert (state.status, state.turns) == ("done", 2)
    assert server.calls == 2
    await agent.run("Now book the flights.", thread_id="user-42").__anext__()
    assert (await Thread.load(checkpointer.store, "user-42")).turns == 3


async def test_a_config_says_the_same(server: ModelServer) -> None:
    checkpointer = MemoryCheckpointer()
    config = AgentConfig(
        model="openai:gpt-5",
        tools=[weather],
        system_prompt="You plan trips.",
        checkpointer=checkpointer,
        checkpoint_every_n_iterations=1,
    )
    await Agent(config=config).run("Plan a trip to Paris.", thread_id="user-42").__anext__()
    request = server.requests[0].request
    assert request is not None
    assert request.system == "You plan trips."
    state = await checkpointer.load("user-42")
    assert state is not None
    assert (state.messages[0].role, state.messages[0].content) == ("system", "You plan trips.")


SCRIPT = """
import asyncio, os, signal, sys

from clew.compat.locus import Agent, tool
from clew.compat.locus.memory.backends import FileCheckpointer, sqlite_checkpointer

@tool
async def weather(city: str) -> str:
    "Tell the weather in a city."
    with open("calls", "a") as file:
        file.write(city + "\\n")
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{city}: 18 degrees"

async def main():
    checkpointer = sqlite_checkpointer("clew.db") if sys.argv[1] == "sqlite" else FileCheckpointer("clew")
    agent = Agent(model="openai:gpt-5", tools=[weather], checkpointer=checkpointer)
    print(type(await agent.run(sys.argv[2], thread_id="user-42").__anext__()).__name__)

asyncio.run(main())
"""


def ran(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "agent.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "agent.py", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_another_process_goes_on_with_the_conversation(kind: str, tmp_path: Path, server: ModelServer) -> None:
    for prompt in ("Plan a trip to Paris.", "Now book the flights."):
        run = ran(tmp_path, kind, prompt)
        assert run.stdout == "ThinkEvent\n", run.stderr
    asked = [plain_text(message) for message in last_request(server)]
    assert asked[0] == "Plan a trip to Paris."
    assert asked[-1] == "Now book the flights."
    assert (tmp_path / "calls").read_text() == "Paris\n"


@pytest.mark.slow
def test_a_process_that_is_killed_in_a_tool_is_followed_by_one_that_goes_on(
    tmp_path: Path, server: ModelServer
) -> None:
    assert ran(tmp_path, "sqlite", "Plan a trip to Paris.", DIE="1").returncode < 0
    run = ran(tmp_path, "sqlite", "Plan a trip to Paris.")
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "calls").read_text() == "Paris\n", (
        "the tool may have had its effect, and is not run again unseen"
    )
    results = [block for message in last_request(server) for block in message.content if hasattr(block, "call_id")]
    assert "not known whether weather took effect" in str(results[0])
    assert server.calls == 2, "the response on record was not bought twice"
