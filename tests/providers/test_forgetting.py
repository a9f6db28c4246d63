"""A program that answers and does not keep the answer: that is found out at once, told, and nothing is forgotten."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from clew import Thread
from clew.checkpointers import MemoryCheckpointer
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("what", ["all", "the answer"])
async def test_an_exchange_that_the_program_did_not_keep_is_told_and_goes_on_from_the_record(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    await session.send("say one")
    before = session.resume_handle
    with caplog.at_level(logging.WARNING):
        turn = await session.send(f"forget {what}\nsay two")
    assert (turn.status, turn.output) == ("done", "two")
    assert "did not keep this exchange" in turn.reason
    assert "did not keep this exchange" in caplog.text
    state = await Thread.load(store, session.thread_id)
    assert (state.status, state.reason) == ("done", turn.reason)
    assert (await session.trajectory()).exchanges[-1].reason == turn.reason
    told = (await session.send("echo")).output
    assert [told.count(f"assistant={word}") for word in ("one", "two")] == [1, 1]
    assert session.resume_handle != before, "it goes on in another session of the program"
    assert (await session.send("echo")).reason == ""


async def test_an_answer_that_was_not_kept_is_there_on_another_machine(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path / "a"), store).start_session()
    await session.send("say one")
    await session.send("forget all\nsay two")
    there = toy_agent(toy_place(tmp_path / "b"), store).resume_session(session.resume_handle)
    told = (await there.send("echo")).output
    assert [told.count(f"assistant={word}") for word in ("one", "two")] == [1, 1]


async def test_an_equal_exchange_before_it_does_not_stand_for_one_that_was_not_kept(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    assert (await session.send("forget a bit\nsay on")).reason != ""
    for _ in range(2):
        assert (await session.send("say on")).reason == ""
    assert "did not keep" in (await session.send("forget all\nsay on")).reason


async def test_the_first_prompt_that_was_not_kept_is_found_out_too(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    turn = await session.send("forget all\nsay one")
    assert "did not keep" in turn.reason
    assert "assistant=one" in (await session.send("echo")).output


async def test_what_must_not_be_on_record_does_not_hide_that_it_was_kept(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer(), redact=["secret"]).start_session()
    assert (await session.send("say a secret")).reason == ""
    assert "did not keep" in (await session.send("forget the answer\nsay another secret")).reason
