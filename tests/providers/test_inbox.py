"""What is posted to the inbox of a provider's thread is asked before the next prompt, each as a prompt of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread
from clew.agent.journal import Journal
from clew.agent.prompts import WaitingPrompt, prompts_waiting
from clew.checkpointers import MemoryCheckpointer
from clew.log import MessageAdded
from clew.messages import user
from clew.providers.native_sync import take_back
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio


async def test_posts_are_asked_before_the_next_prompt(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session(thread_id="t")
    await session.send("say one")
    await Thread.post(store, "t", "say two", prompt_id="p2")
    await Thread.post(store, "t", "say three")
    result = await session.send("say four")
    assert (result.prompt, result.output) == ("say four", "four")
    found = (await session.trajectory()).exchanges
    assert [(each.prompt, each.output) for each in found] == [
        (f"say {word}", word) for word in ("one", "two", "three", "four")
    ]
    assert (await session.send("say two", prompt_id="p2")).output == "two"
    assert (await session.trajectory()).num_exchanges == 4


async def test_a_resume_without_a_prompt_asks_what_was_posted_instead_of_telling_to_go_on(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session(thread_id="t")
    await session.send("say one")
    await Thread.post(store, "t", "say two")
    assert (await session.resume()).output == "two"
    assert [each.prompt for each in (await session.trajectory()).exchanges] == ["say one", "say two"]


async def test_a_post_that_is_taken_back_for_the_next_provider_waits_until_it_is_asked(tmp_path: Path) -> None:
    """A process that is killed between two providers loses no post."""
    store = MemoryCheckpointer()
    async with Thread.open(store, "t") as thread, Journal(thread) as journal:
        await journal.record(MessageAdded(user("say two")))
        await take_back(journal, 0, WaitingPrompt("say two", "p2"))
        assert prompts_waiting(thread.checkpoint) == [WaitingPrompt("say two", "p2")]
        assert thread.checkpoint.messages == ()
    session = toy_agent(toy_place(tmp_path), store).start_session(thread_id="t")
    assert (await session.resume()).output == "two"
