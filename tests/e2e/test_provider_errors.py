"""The three real coding agents, refused by their vendor: what it says is told once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.errors import ProviderError
from clew.log import Usage
from clew.models import ModelRequest
from clew.testing import Fault, ModelServer
from clew.threads import to_markdown
from clew.threads.views.timeline import read_timeline
from tests.e2e.desk import NAMES, Desk
from tests.servers.clis import answering

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]


@pytest.mark.parametrize("provider", NAMES)
async def test_an_error_of_the_vendor_is_told_once(
    provider: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = Fault(status=400, message="no such thing as 4711")
    with ModelServer(answering(lambda request: refused), strict=False) as server:
        here = Desk(tmp_path, server)
        async with open_checkpointer(here.url) as store:
            agent = here.agent(here.machine(), provider, store)
            with caplog.at_level(logging.INFO, "clew"), pytest.raises(ProviderError) as caught:
                await agent.run("Hi", thread_id="t")
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ()), caplog.text])
    assert told.count("no such thing as 4711") == 1


@pytest.mark.parametrize("provider", [name for name in NAMES if name != "opencode"])  # it tries again in silence
async def test_a_prompt_that_the_vendor_refused_cost_nothing_and_is_no_lost_call(provider: str, tmp_path: Path) -> None:
    refused = Fault(status=400, message="no such thing as 4711")
    with ModelServer(answering(lambda request: refused), strict=False) as server:
        here = Desk(tmp_path, server)
        async with open_checkpointer(here.url) as store:
            session = here.agent(here.machine(), provider, store).start_session(thread_id="t")
            for _ in range(2):
                with pytest.raises(ProviderError):
                    await session.send("Hi")
            state = await Thread.load(store, "t")
            turns = (await session.trajectory()).exchanges
            timeline = await read_timeline(store, "t")
    assert (state.unaccounted, state.in_flight, state.usage, state.cost_usd) == (0, False, Usage(), 0.0)
    assert [(turn.status, turn.usage, turn.cost) for turn in turns] == [("failed", Usage(), 0.0)] * 2
    said = [mark.text for mark in timeline.marks if mark.kind == "failed"]
    assert len(said) == 2
    assert all("the request was refused: " in text and "no such thing as 4711" in text for text in said)
    assert "lost" not in to_markdown(state)


@pytest.mark.parametrize("provider", NAMES)
async def test_a_prompt_is_not_free_if_an_attempt_before_the_refusal_may_have_been_charged(
    provider: str, tmp_path: Path
) -> None:
    faults = [Fault(status=500, message="down"), Fault(status=500, message="down")]

    def answer(request: ModelRequest) -> Fault:
        return faults.pop() if faults else Fault(status=400, message="no such thing as 4711")

    with ModelServer(answering(answer), strict=False) as server:
        here = Desk(tmp_path, server)
        async with open_checkpointer(here.url) as store:
            session = here.agent(here.machine(), provider, store).start_session(thread_id="t")
            with pytest.raises(ProviderError):
                await session.send("Hi")
            assert (await Thread.load(store, "t")).in_flight, "the next request counts this one as unaccounted"
