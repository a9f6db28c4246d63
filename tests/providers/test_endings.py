"""The trajectory of a session at a provider tells how each prompt ended, why, and what it cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Budget, Thread, open_checkpointer
from clew.agent import TextDelta, ToolStarted
from clew.agent.exchanges import NO_END
from clew.checkpointers import MemoryCheckpointer
from clew.errors import ProviderError
from clew.log import Usage
from clew.providers import Exchange, ProviderSession
from clew.testing import ScriptedModel, call
from clew.threads.views.timeline import read_timeline
from clew.tools import tool
from tests.clock import Clock
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent
from tests.providers.worker import worker

pytestmark = pytest.mark.anyio


async def done(session: ProviderSession) -> None:
    await session.send("say two", prompt_id="m2")


async def failed(session: ProviderSession) -> None:
    with pytest.raises(ProviderError):
        await session.send("fail error no such model", prompt_id="m2")


async def crashed(session: ProviderSession) -> None:
    with pytest.raises(ProviderError):
        await session.send("stream half\ncrash", prompt_id="m2")


async def cancelled(session: ProviderSession) -> None:
    async for event in session.send("call c1 Bash\nsleep 600", prompt_id="m2"):
        if isinstance(event, ToolStarted):
            break
    await session.cancel()


async def timed_out(session: ProviderSession) -> None:
    with Clock() as clock:
        async for event in session.send("stream half\nsleep 600", prompt_id="m2", timeout=300):
            if isinstance(event, TextDelta):
                clock.advance(300)


Ending = Callable[[ProviderSession], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    ("end", "status", "reason", "is_known"),
    [
        (done, "done", "", True),
        (failed, "failed", "no such model", True),
        (crashed, "interrupted", "", False),
        (cancelled, "interrupted", "cancelled", False),
        (timed_out, "interrupted", "timeout: 300 s", False),
    ],
)
async def test_each_prompt_has_its_status_reason_usage_and_cost(
    end: Ending, status: str, reason: str, is_known: bool, tmp_path: Path
) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    await session.send("say one", prompt_id="m1")
    await end(session)
    trajectory = await session.trajectory()
    first, last = trajectory.exchanges
    assert (first.status, first.usage, first.cost) == ("done", Usage(10, 2), 0.25)
    assert (last.status, last.prompt_id, last.provider) == (status, "m2", "toy")
    assert reason in last.reason
    assert (last.status == "done") == (last.output is not None)
    assert last.duration > 0
    assert (last.usage is not None, last.cost is not None) == (is_known, is_known)
    state = await Thread.load(store, session.thread_id)
    assert (state.status, state.reason) == (last.status, last.reason)
    assert state.cost_usd == pytest.approx((first.cost or 0.0) + (last.cost or 0.0))
    timeline = await read_timeline(store, session.thread_id)
    assert timeline.turns[0].cost_usd == 0.25, "what a later prompt cost is not told of an earlier turn"


async def test_a_prompt_whose_process_was_killed_is_interrupted_and_what_it_cost_is_not_known(tmp_path: Path) -> None:
    place, url = toy_place(tmp_path), f"sqlite:///{tmp_path}/clew.db"

    async def told(handle: str) -> Exchange:
        async with open_checkpointer(url) as store:
            return (await toy_agent(place, store).resume_session(handle).trajectory()).exchanges[0]

    with worker(place, url, provider="toy", prompt="say half\ncall c1 Bash\nsleep 600") as running:
        handle = running.wait_for("handle")["handle"]
        running.wait_for("tool-started")
        now = await told(handle)
        assert (now.status, now.reason, now.usage, now.cost) == ("running", "", None, None)
        running.kill()
    now = await told(handle)
    assert (now.status, now.reason, now.usage, now.cost) == ("interrupted", NO_END, None, None)
    async with open_checkpointer(url) as store:
        await toy_agent(place, store).resume_session(handle).send("say on")
    now = await told(handle)
    assert (now.status, now.reason, now.usage, now.cost) == ("interrupted", NO_END, None, None)
    assert json.loads(handle)["session_id"] == now.thread_id


async def test_a_prompt_that_the_budget_refused_cost_nothing_and_is_not_asked(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer(), budget=Budget(usd=0.2)).start_session()
    await session.send("say one")
    refused = await session.send("say two", prompt_id="m2")
    assert (refused.status, refused.usage, refused.cost, refused.prompt_id) == ("interrupted", Usage(), 0.0, "m2")
    assert [turn.prompt for turn in (await session.trajectory()).exchanges] == ["say one"]


async def test_an_exchange_of_the_built_in_agent_that_a_provider_takes_over_keeps_its_ending(tmp_path: Path) -> None:
    @tool(effect="none")
    async def look() -> str:
        return "a row"

    store = MemoryCheckpointer()
    own = Agent(ScriptedModel([call("look")]), tools=[look], checkpointer=store, max_turns=1)
    stopped = await own.run("Look around.", thread_id="t", prompt_id="m1")
    session = toy_agent(toy_place(tmp_path), store).start_session(thread_id="t")
    turn = await session.send("echo", prompt_id="m2")
    assert "was stopped while it worked on this prompt: 'Look around.'" in str(turn.output)
    told = (await session.trajectory()).exchanges
    assert [(found.prompt_id, found.provider, found.status, found.reason) for found in told] == [
        ("m1", "clew", "interrupted", "max_turns: 1"),
        ("m2", "toy", "done", ""),
    ]
    assert told[0].usage == stopped.usage
