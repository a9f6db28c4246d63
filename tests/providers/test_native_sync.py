"""What was done in a program itself, between two of our prompts, is on record: once, in its order, and marked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Thread
from clew.agent import ToolStarted
from clew.checkpointers import MemoryCheckpointer
from clew.errors import ProviderError
from clew.log import MessageAdded, ProviderKey, StatusChanged, ThreadStarted
from clew.messages import Message, ToolCall, ToolResult, assistant, plain_text, user
from clew.messages import tool as results
from clew.providers import Place, ProviderSession
from clew.providers.native_sync import beyond
from clew.testing import ScriptedModel
from tests.providers.toy import PROGRAM, toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio


def by_hand(place: Place, session: ProviderSession, prompt: str) -> None:
    """What a user does who starts the program himself."""
    file = place.home / session.provider / json.loads(session.resume_handle)["resume_key"]
    subprocess.run([sys.executable, "-I", PROGRAM, file], input=prompt.encode(), check=True, stdout=subprocess.DEVNULL)


async def prompts(session: ProviderSession) -> list[tuple[str, str | None]]:
    return [(turn.prompt, turn.output) for turn in (await session.trajectory()).exchanges]


async def test_an_exchange_by_hand_between_two_prompts_is_on_record_once_and_in_its_order(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    by_hand(place, session, "call c9 Bash\nresult c9 two files\nsay two")
    turn = await session.send("say three")
    assert [answer for _, answer in await prompts(session)] == ["one", "two", "three"]
    middle = (await session.trajectory()).exchanges[1]
    assert (middle.status, middle.reason, middle.provider) == ("done", "asked in Toy itself", "toy")
    assert [(use.name, use.output) for use in middle.tool_uses] == [("Bash", "two files")]
    assert (middle.usage, middle.cost, turn.usage and turn.usage.input_tokens) == (None, None, 10)
    assert (await session.trajectory()).usage.input_tokens == 20, "it was not paid for through Clew"
    await session.send("say four")
    assert [answer for _, answer in await prompts(session)] == ["one", "two", "three", "four"]


async def test_several_exchanges_by_hand_with_equal_words_are_all_there(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say on")
    for _ in range(2):
        by_hand(place, session, "say on")
    await session.send("say on")
    assert await prompts(session) == [("say on", "on")] * 4


@pytest.mark.parametrize("target", ["clew", "twin"])
async def test_an_exchange_by_hand_after_the_last_prompt_goes_along_on_a_move(target: str, tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    by_hand(place, session, "say typed by hand")
    model = ScriptedModel(lambda request: " ".join(map(plain_text, request.messages)))
    moved = await session.move_to(target, **({"model": model} if target == "clew" else {}))
    assert (await moved.send("echo")).output.count("say typed by hand") == 1
    history = (await Thread.load(store, session.thread_id)).history
    assert [plain_text(message) for message in history].count("say typed by hand") == 1


async def test_an_exchange_by_hand_is_there_on_another_machine(tmp_path: Path) -> None:
    here, store = toy_place(tmp_path / "a"), MemoryCheckpointer()
    session = toy_agent(here, store).start_session()
    await session.send("say one")
    by_hand(here, session, "say typed by hand")
    with pytest.raises(ProviderError):
        await session.send("say three\ncrash")
    there = toy_agent(toy_place(tmp_path / "b"), store).resume_session(session.resume_handle)
    turn = await there.send("echo")
    assert [turn.output.count(words) for words in ("user=say typed by hand", "user=say three")] == [1, 1]
    assert [prompt for prompt, _ in await prompts(there)] == [
        "say one",
        "say typed by hand",
        "say three\ncrash",
        "echo",
    ]


async def test_a_prompt_that_crashed_is_no_exchange_by_hand_and_one_after_it_is(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    with pytest.raises(ProviderError):
        await session.send("stream half an\ncall c1 Bash\ncrash")
    by_hand(place, session, "say typed by hand")
    turn = await session.send("echo")
    assert [prompt for prompt, _ in await prompts(session)] == [
        "say one",
        "stream half an\ncall c1 Bash\ncrash",
        "say typed by hand",
        "echo",
    ]
    assert turn.output.count("typed by hand") == 2, "once as it was asked, and once as it was answered"


async def test_an_exchange_by_hand_that_was_broken_off_leaves_its_calls_in_doubt(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    by_hand(place, session, "call c9 Deploy")
    model = ScriptedModel(["Well."])
    home = await session.move_to("clew", model=model)
    state = await Thread.load(store, session.thread_id)
    assert [(call.call.name, call.status) for call in state.calls] == [("Deploy", "in_doubt")]
    await home.cancel()


async def test_what_must_not_be_on_record_is_not_taken_in_either(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store, redact=["secret"]).start_session()
    await session.send("say the secret one")
    by_hand(place, session, "say the secret two")
    await session.send("say three")
    assert [answer for _, answer in await prompts(session)] == ["the [redacted] one", "the [redacted] two", "three"]
    await session.send("say four")
    assert len(await prompts(session)) == 4


async def test_a_prompt_that_is_stopped_and_asked_again_stands_there_as_often_as_it_was_asked(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    run = session.send("call c1 Bash\nsleep 600")
    async for event in run:
        if isinstance(event, ToolStarted):
            break
    await session.cancel()
    await session.send("say three")
    assert len(await prompts(session)) == 3


async def test_an_answer_that_came_after_we_were_killed_is_on_record_behind_its_prompt(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    with pytest.raises(ProviderError):
        await session.send("crash\nsay two")
    file = place.home / "toy" / json.loads(session.resume_handle)["resume_key"]
    with file.open("a") as rows:
        rows.write('{"role": "assistant", "text": "two"}\n')
    home = await session.move_to(
        "clew", model=ScriptedModel(lambda request: " ".join(map(plain_text, request.messages)))
    )
    assert (await home.send("And?")).output.split()[-2:] == ["two", "And?"]


TALK: list[Message] = [user("one"), assistant("1"), user("two"), assistant("2")]
BY_HAND: list[Message] = [user("three"), assistant(ToolCall("c", "Bash", {})), results(ToolResult("c")), assistant("3")]


def test_what_a_session_holds_beyond_the_record_is_found_by_where_it_was_captured() -> None:
    assert beyond(TALK, [*TALK, *BY_HAND], []) == tuple(BY_HAND)
    assert beyond(TALK, TALK, []) == ()
    assert beyond([], [*TALK, *BY_HAND], [user("one"), user("two")]) == tuple(BY_HAND)


def test_an_answer_that_came_while_nobody_listened_is_beyond_the_record() -> None:
    assert beyond(TALK[:2], TALK, [user("two")]) == ()
    assert beyond(TALK[:2], TALK, [user("two")], is_answered=False) == (assistant("2"),)
    assert beyond(TALK[:2], [*TALK, *BY_HAND], [user("two")], is_answered=False) == (assistant("2"), *BY_HAND)


def test_a_prompt_with_a_note_before_it_is_known_as_ours() -> None:
    sent: list[Message] = [user("[clew] It was stopped.\n\ntwo"), assistant("2")]
    asked = [user("[clew] It was stopped."), user("two")]
    assert beyond(TALK[:2], [*TALK[:2], *sent], asked) == ()
    assert beyond(TALK[:2], [*TALK[:2], *sent, *TALK[2:]], asked) == tuple(TALK[2:]), "the second time it was by hand"


def test_a_session_that_was_compacted_by_hand_has_its_summary_and_what_came_then_beyond_the_record() -> None:
    summary: list[Message] = [user("A summary."), *TALK[2:], *BY_HAND]
    assert beyond(TALK, summary, []) == (user("A summary."), *BY_HAND)
    told: list[Message] = [user("[clew] It was stopped.\n\ntwo"), assistant("2")]
    assert beyond([*TALK[:2], *told], [user("A summary."), *told], []) == (user("A summary."),)


async def test_a_session_of_which_neither_a_copy_nor_a_mark_is_left_is_not_taken_in_a_second_time(
    tmp_path: Path,
) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store, redact=lambda text: text).start_session()
    for words in ("say one", "say two"):
        await session.send(words)
    shutil.rmtree(place.cache / "providers")  # it may be deleted at any time
    await session.send("say three")
    assert [answer for _, answer in await prompts(session)] == ["one", "two", "three"]


async def test_a_session_that_is_on_record_by_its_key_alone_goes_on_as_it_is(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    elsewhere = toy_agent(place, MemoryCheckpointer()).start_session()
    await elsewhere.send("say one")
    key = json.loads(elsewhere.resume_handle)["resume_key"]
    async with Thread.open(store, "imported") as thread:
        await thread.append(
            ThreadStarted("toy", limits={"provider": "toy"}),
            MessageAdded(user("the prompt in other words")),
            MessageAdded(assistant("one")),
            ProviderKey("toy", key, messages=2),
            StatusChanged("done"),
        )
    session = toy_agent(place, store).resume_session("imported")
    assert "user=say one assistant=one" in ((await session.send("echo")).output or "")
    assert json.loads(session.resume_handle)["resume_key"] == key
    assert [prompt for prompt, _ in await prompts(session)] == ["the prompt in other words", "echo"]
