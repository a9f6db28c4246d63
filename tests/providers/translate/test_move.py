"""Conversations that move from one agent to another."""

from __future__ import annotations

import os
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.agent import Agent
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, SessionNotFound
from clew.log import MessageAdded, ThreadStarted, ToolIntent, ToolOutcome
from clew.messages import (
    Assistant,
    File,
    Image,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
    assistant,
    plain_text,
    system,
    tool,
    tool_calls,
    user,
)
from clew.messages.dialects import Loss
from clew.providers.base import Conversation, Job, Place
from clew.providers.events import Failed, Finished, ProviderEvent
from clew.providers.process import run
from clew.providers.registry import PROVIDERS, find_provider
from clew.providers.translate.move import Translated, for_provider, translate, write_for
from clew.testing import ModelServer, Response, ScriptedModel, call
from clew.threads import Thread
from tests import strategies
from tests.limits import PATIENCE
from tests.sampling import only_in_full
from tests.servers.clis import Machine, answering

pytestmark = pytest.mark.anyio

CWD = "/home/ada/work"
SHELL: dict[str, tuple[str, dict[str, Any]]] = {
    "claude_code": ("Bash", {"command": "ls"}),
    "codex": ("exec_command", {"cmd": "ls"}),
    "opencode": ("bash", {"command": "ls"}),
    "clew": ("run_command", {"command": "ls"}),
}


def talk(*messages: Message, cwd: str = CWD) -> Conversation:
    return Conversation(messages=messages, cwd=cwd, title="A talk", model="some-model")


def said(
    *messages: Message, source: str = "claude_code", target: str = "codex"
) -> tuple[tuple[Message, ...], list[str]]:
    """The messages for the target, and what was lost."""
    there, losses = for_provider(talk(*messages), source, target)
    return there.messages, [loss.what for loss in losses]


def with_call(side: str, call_id: str = "call_1") -> tuple[Message, ...]:
    name, arguments = SHELL[side]
    asked = assistant("Let me look.", ToolCall(call_id, name, arguments))
    return user("What is there?"), asked, tool(ToolResult(call_id, (Text("a.txt"),))), assistant("A file.")


@pytest.mark.parametrize(("source", "target"), list(permutations(SHELL, 2)))
def test_calls_are_those_of_the_targets_tools_and_come_back_as_they_were(source: str, target: str) -> None:
    assert said(*with_call(source), source=source, target=target) == (with_call(target), [])
    assert said(*with_call(target), source=target, target=source) == (with_call(source), [])


def test_a_conversation_for_the_same_agent_is_not_touched() -> None:
    conversation = talk(user(""), assistant(Thinking("Hm", "sig"), ToolCall("ä", "Bash", "text")))
    assert for_provider(conversation, "claude", "claude_code") == (conversation, ())


def test_calls_of_whoever_had_the_conversation_earlier_are_the_targets_too() -> None:
    moved = (*with_call("claude_code", "call_1"), *with_call("codex", "call_2"))
    there = (*with_call("opencode", "call_1"), *with_call("opencode", "call_2"))
    assert said(*moved, source="codex", target="opencode") == (there, [])


def test_ids_are_made_to_fit_and_results_follow_their_calls() -> None:
    calls = [ToolCall(name, "t", {}) for name in ("a b", "x" * 90, "", "fine", "fine")]
    results = tool(*(ToolResult(call.id, (Text(str(n)),)) for n, call in enumerate(calls)))
    (asked, answered), losses = said(assistant(*calls), results)
    ids = [call.id for call in tool_calls(asked)]
    assert all(given and len(given) <= 64 and given.replace("-", "_").isidentifier() for given in ids)
    assert (ids[3], len(set(ids))) == ("fine", 5)
    assert [block.call_id for block in answered.content if isinstance(block, ToolResult)] == ids
    assert losses == ["the id of a tool call"] * 4


def test_an_id_that_is_used_again_later_is_another_call() -> None:
    twice = (assistant(ToolCall("1", "t", {})), tool(ToolResult("1", (Text("a"),))))
    messages, _ = said(*twice, user("Again"), *twice)
    first, second = (tool_calls(message)[0].id for message in messages if isinstance(message, Assistant))
    assert first != second
    blocks = [block for message in messages if isinstance(message, Tool) for block in message.content]
    assert [block.call_id for block in blocks if isinstance(block, ToolResult)] == [first, second]


@pytest.mark.parametrize("target", PROVIDERS)
def test_instructions_are_a_users_text_between_tags(target: str) -> None:
    messages, losses = said(system("Be brief."), user("Hi"), source="clew", target=target)
    assert messages == (user("<system>\nBe brief.\n</system>"), user("Hi"))
    assert losses == ["instructions in the conversation"]


SIGNED = Thinking("Hm", "signature")
REDACTED = Thinking("", None, "sealed")
REASONED = Thinking("So", None, "sealed", {"openai-responses": {"id": "rs_1"}})
PLAIN = Thinking("Well")


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        ("opencode", "claude_code", [SIGNED, REDACTED]),
        ("opencode", "codex", [REASONED]),
        ("claude_code", "opencode", [SIGNED, REDACTED, REASONED, PLAIN]),
        ("claude_code", "clew", [SIGNED, REDACTED, REASONED, PLAIN]),
    ],
)
def test_thinking_stays_where_the_target_can_give_it_back(source: str, target: str, kept: list[Thinking]) -> None:
    messages, losses = said(assistant(SIGNED, REDACTED, REASONED, PLAIN, "Yes."), source=source, target=target)
    assert messages == (assistant(*kept, "Yes."),)
    assert losses == ["thinking"] * (4 - len(kept))


def test_thinking_that_went_through_opencode_is_still_its_vendors() -> None:
    kept = {"openai": {"itemId": "rs_1", "reasoningEncryptedContent": "sealed"}}
    of_openai = Thinking("", None, "sealed", {"opencode": kept})
    of_anthropic = Thinking("Hm", "signature", None, {"opencode": {"anthropic": {"signature": "signature"}}})
    both = assistant(of_openai, of_anthropic, "Yes.")
    back = Thinking("", None, "sealed", {"openai-responses": {"id": "rs_1"}})
    assert said(both, source="opencode", target="codex") == ((assistant(back, "Yes."),), ["thinking"])
    assert said(both, source="opencode", target="claude_code") == ((assistant(SIGNED, "Yes."),), ["thinking"])


def test_messages_with_nothing_in_them_are_left_out_and_losses_keep_their_places(tmp_path: Path) -> None:
    conversation = talk(
        user(""), assistant(), assistant(Thinking("Hm", "signature")), user("Hi"), assistant(ToolCall("ä", "t", {}))
    )
    there, losses = for_provider(conversation, "claude_code", "codex")
    assert [type(message) for message in there.messages] == [User, Assistant]
    assert [(loss.message, loss.block) for loss in losses] == [(2, 0), (4, 0)]
    codex = find_provider("codex")(Place(tmp_path, {"HOME": str(tmp_path)}))
    written = write_for(codex, conversation, "claude_code", codex.new_key(), tmp_path / "session")
    assert {loss.message for loss in written} == {2, 4}


def test_what_only_another_vendor_can_read_is_told() -> None:
    blocks = (
        Opaque("anthropic", {"type": "server_tool_use"}),
        Text("Yes.", {"anthropic": {"citations": [{"url": "u"}], "cache_control": {}}}),
    )
    messages, losses = said(assistant(*blocks), tool(ToolResult("1", (Opaque("anthropic", {}), Text("b")))))
    assert messages == (assistant("Yes."), tool(ToolResult("1", (Text("b"),))))
    assert losses == [
        "a block that only another vendor knows",
        "what a vendor said beside the block",
        "a block that only another vendor knows",
    ]


def test_what_a_vendor_said_for_its_own_books_is_dropped_without_a_word() -> None:
    block = Text("Yes.", {"openai-responses": {"message": {"id": "msg_1"}, "annotations": []}})
    call = ToolCall("c", "unknown", {}, {"openai-responses": {"id": "fc_1", "status": "completed"}})
    messages, losses = said(assistant(block, call), source="codex", target="claude_code")
    assert (messages, losses) == ((assistant("Yes.", ToolCall("c", "unknown", {})),), [])


def test_pictures_and_files_are_carried(tmp_path: Path) -> None:
    picture, paper = Image("image/png", b"\x89PNG"), File("a.pdf", "application/pdf", b"%PDF")
    shown = (user("Look", picture, paper), assistant(ToolCall("c", "t", {})), tool(ToolResult("c", (picture,))))
    assert said(*shown) == (shown, [])


def test_the_model_of_another_agent_is_not_asked_for_again_but_still_known_for_what_it_said() -> None:
    there, _ = for_provider(talk(user("Hi"), assistant("Yes.", model="claude", stop="end")), "claude_code", "codex")
    assert (there.model, there.title, there.cwd) == ("", "A talk", CWD)
    assert there.messages[1] == assistant("Yes.", model="claude")


def test_a_call_without_a_result_is_not_left_for_the_built_in_agent_to_run() -> None:
    calls = assistant(ToolCall("1", "Bash", {"command": "rm x"}), ToolCall("2", "Bash", {"command": "ls"}))
    messages, losses = said(calls, tool(ToolResult("2", (Text("b"),))), user("Go on"), calls, target="clew")
    first, last = messages[1], messages[-1]
    assert [(block.call_id, block.is_error) for block in first.content if isinstance(block, ToolResult)] == [
        ("2", False),
        ("1", True),
    ]
    assert [block.is_error for block in last.content if isinstance(block, ToolResult)] == [True, True]
    assert losses == ["calls without a result"] * 2


@given(
    st.lists(strategies.messages, max_size=6),
    st.sampled_from([*SHELL, "another"]),
    st.sampled_from([*SHELL, "another"]),
)
def test_every_conversation_fits_every_agent(messages: list[Message], source: str, target: str) -> None:
    there, losses = for_provider(talk(*messages), source, target)
    assert all(0 <= loss.message < len(messages) for loss in losses)
    if source == target:
        return
    ids = [call.id for message in there.messages for call in tool_calls(message)]
    assert all(message.content for message in there.messages)
    if target == "clew":
        for message, after in zip(there.messages, [*there.messages[1:], user()], strict=False):
            answered = {block.call_id for block in after.content if isinstance(block, ToolResult)}
            assert answered >= {call.id for call in tool_calls(message)}
    else:
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", given) for given in ids)
        assert not any(isinstance(message, System) for message in there.messages)


def place_in(root: Path, env: dict[str, str] | None = None) -> Place:
    (root / "work").mkdir(parents=True, exist_ok=True)
    return Place(root / "work", {"HOME": str(root / "home"), "PATH": os.environ["PATH"], **(env or {})})


def keep(place: Place, provider: str, messages: tuple[Message, ...], scratch: Path) -> str:
    """A session that the provider has on this machine."""
    found = find_provider(provider)(place)
    key, folder = found.new_key(), scratch / f"kept-{provider}"
    folder.mkdir()
    found.write(Conversation(messages=messages, cwd=str(place.cwd)), key, folder)
    found.install_session(key, folder)
    return key


def on_disk(place: Place, translated: Translated, scratch: Path) -> tuple[Message, ...]:
    """What the provider itself would go on with, without models and reasons to stop."""
    provider = find_provider(translated.provider)(place)
    assert provider.export(translated.key, scratch / translated.key)
    found = provider.read(scratch / translated.key).messages
    return tuple(Assistant(message.content) if isinstance(message, Assistant) else message for message in found)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), list(permutations(PROVIDERS, 2)))
async def test_a_native_session_becomes_one_of_any_other_and_comes_back(
    source: str, target: str, tmp_path: Path
) -> None:
    with ModelServer() as server:
        place = Machine(tmp_path, server).place()
    key = keep(place, source, with_call(source), tmp_path)
    there = await translate(key, source=source, to=target, place=place)
    assert (there.provider, there.cwd, there.losses) == (target, str(place.cwd), ())
    assert on_disk(place, there, tmp_path) == with_call(target)
    back = await translate(there.key, source=target, to=source, place=place)
    assert back.key != key
    assert on_disk(place, back, tmp_path) == with_call(source)


async def test_a_session_is_found_by_a_part_of_its_key_and_by_its_path(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    key = keep(place, "claude_code", with_call("claude_code"), tmp_path)
    (session,) = find_provider("claude_code")(place).sessions()
    for named in (key[:8], session.path):
        there = await translate(named, source="claude", to="codex", place=place)
        assert on_disk(place, there, tmp_path) == with_call("codex")


async def ask(machine: Machine, name: str, key: str, prompt: str) -> None:
    """One prompt, answered by the real program in this conversation."""
    provider = find_provider(name)(machine.place())
    program = provider.program()
    assert program is not None
    job = Job(prompt=prompt, key=key, model=machine.models[name], permissions="full")
    await provider.prepare(program, job)
    reader, happened = provider.reader(job), list[ProviderEvent]()
    ended = await run(
        provider.command(program, job),
        provider.place,
        lambda line: happened.extend(reader.read(line)),
        timeout=PATIENCE,
    )
    happened += reader.end(ended.status, ended.stderr)
    assert [type(end) for end in happened if isinstance(end, Finished | Failed)] == [Finished], happened


@pytest.mark.slow
@only_in_full
async def test_a_conversation_goes_round_the_real_programs_and_each_sees_it_in_its_own_words(tmp_path: Path) -> None:
    file = str(tmp_path / "work" / "a.txt")
    script: list[Response] = [
        call("Write", file_path=file, content="one\ntwo\n"),
        call("Edit", file_path=file, old_string="two\n", new_string="2\n"),
        call("Bash", command="cat a.txt"),
        *("Claude's.", "Codex's.", "opencode's.", "Claude's again."),
    ]
    with ModelServer(answering(script)) as server:
        machine = Machine(tmp_path, server)
        key, name = find_provider("claude_code")(machine.place()).new_key(), "claude_code"
        await ask(machine, name, key, "Ask claude_code")
        for after in ("codex", "opencode", "claude_code"):
            key = (await translate(key, source=name, to=after, place=machine.place())).key
            name = after
            await ask(machine, name, key, f"Ask {after}")
        seen = [[tool_call for message in asked for tool_call in tool_calls(message)] for asked in machine.asked[-3:]]
        assert [[made.name for made in calls] for calls in seen] == [
            ["apply_patch", "apply_patch", "exec_command"],
            ["write", "edit", "bash"],
            ["Write", "Edit", "Bash"],
        ]
        assert seen[0][1].arguments == "*** Begin Patch\n*** Update File: a.txt\n@@\n-two\n+2\n*** End Patch\n"
        assert seen[2][1].arguments == {"file_path": file, "old_string": "two\n", "new_string": "2\n"}
        for asked in machine.asked[-3:]:
            results = [block for message in asked for block in message.content if isinstance(block, ToolResult)]
            assert [part.text for part in results[-1].content if isinstance(part, Text)] == ["one\n2"]
        words = "".join(plain_text(message) for message in machine.asked[-1])
        for part in ("Claude's.", "Ask codex", "Codex's.", "Ask opencode", "opencode's.", "Ask claude_code"):
            assert part in words


@pytest.mark.parametrize("source", PROVIDERS)
async def test_a_session_that_is_not_there_is_told_as_that(source: str, tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound, match="no session"):
        await translate("deadbeef", source=source, to="codex", place=place_in(tmp_path))


async def test_a_session_for_another_folder_of_the_same_agent_is_taken_as_it_is(tmp_path: Path) -> None:
    here, there = place_in(tmp_path / "a"), place_in(tmp_path / "b", {"HOME": str(tmp_path / "a" / "home")})
    key = keep(here, "claude_code", with_call("claude_code"), tmp_path)
    moved = await translate(key, source="claude_code", to="claude_code", place=there)
    assert (moved.cwd, moved.losses) == (str(there.cwd), ())
    assert moved.key != key
    assert on_disk(there, moved, tmp_path) == with_call("claude_code")


async def test_a_native_session_goes_on_in_the_built_in_agent(tmp_path: Path) -> None:
    place, store = place_in(tmp_path), MemoryCheckpointer()
    key = keep(place, "codex", with_call("codex"), tmp_path)
    there = await translate(key, source="codex", to="clew", place=place, checkpointer=store)
    assert (there.provider, there.key, there.losses) == ("clew", f"codex:{key}", ())
    model = ScriptedModel(["Then.", "Then.", "Still one file."])
    result = await Agent(model, checkpointer=store).resume("And now?", thread_id=there.key)
    (request,) = model.requests
    assert [plain_text(message) for message in request.messages if isinstance(message, User)][-1] == "And now?"
    (made,) = [call for message in request.messages for call in tool_calls(message)]
    assert (made.name, made.arguments) == SHELL["clew"]
    assert result.status == "done"
    with pytest.raises(InvalidInput, match="already"):
        await translate(key, source="codex", to="clew", place=place, checkpointer=store)


async def test_a_thread_of_the_built_in_agent_becomes_a_native_session_with_its_open_calls_told(tmp_path: Path) -> None:
    place, store = place_in(tmp_path), MemoryCheckpointer()
    calls = [ToolCall(str(number), "run_command", {"command": "ls"}) for number in range(3)]
    async with Thread.open(store, "t") as thread:
        await thread.append(
            ThreadStarted(system_prompt="Be brief."),
            MessageAdded(user("Go")),
            MessageAdded(assistant(*calls)),
            *(ToolIntent(1, 0), ToolOutcome(1, 0, ToolResult("0", (Text("done"),))), ToolIntent(1, 1)),
        )
    there = await translate("t", source="clew", to="codex", place=place, checkpointer=store)
    asked, made, answered = on_disk(place, there, tmp_path)
    assert (asked, [call.name for call in tool_calls(made)]) == (user("Go"), ["exec_command"] * 3)
    results = [block.content[0] for block in answered.content if isinstance(block, ToolResult)]
    assert [part.text for part in results if isinstance(part, Text)] == [
        "done",
        "No result is on record: the call was interrupted and its outcome is unknown.",
        "The call was not made: the work stopped before it.",
    ]
    assert Loss(0, None, "the system prompt", there.losses[0].why) == there.losses[0]


@pytest.mark.parametrize(("source", "to"), [("clew", "clew"), ("codx", "codex"), ("codex", "codx")])
async def test_an_agent_that_is_none_is_refused(source: str, to: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        await translate("x", source=source, to=to, place=place_in(tmp_path), checkpointer=None)
