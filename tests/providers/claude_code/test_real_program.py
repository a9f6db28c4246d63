"""Claude Code itself, against a scripted model: what the model was asked tells what the program took from us."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clew.messages import Message, Text, ToolCall, ToolResult, assistant, plain_text, tool, tool_calls, user
from clew.providers.base import Conversation, Job, Place
from clew.providers.claude_code import ClaudeCode
from clew.providers.events import Delta, Failed, Finished, ProviderEvent, Response, Result
from clew.testing import Fault, ModelServer, call, say
from tests.servers.clis import Machine, answering, main_requests

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def turn(claude: ClaudeCode, **job: Any) -> list[ProviderEvent]:
    """One prompt, from the preparations to the program's end."""
    program = claude.program()
    assert program is not None
    given = Job(**job)
    await claude.prepare(program, given)
    command = claude.command(program, given)
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        cwd=claude.place.cwd,
        env={**claude.place.env, **command.env},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(command.stdin)
    assert process.returncode is not None
    reader = claude.reader(given)
    said = [one for line in out.splitlines(keepends=True) for one in reader.read(line)]
    return [*said, *reader.end(process.returncode, err.decode())]


def answer(said: list[ProviderEvent]) -> str:
    assert isinstance(said[-1], Finished), said[-1]
    return said[-1].text


def words(messages: tuple[Message, ...]) -> list[str]:
    """What was said, without what the program adds to it."""
    texts = [block.text for message in messages for block in message.content if isinstance(block, Text)]
    return [text for text in texts if not text.startswith("<system-reminder>")]


def in_another_folder(claude: ClaudeCode) -> ClaudeCode:
    folder = claude.place.cwd.parent / "another folder"
    folder.mkdir()
    return ClaudeCode(Place(folder, claude.place.env))


async def test_a_session_goes_on_under_its_key_from_another_folder_with_its_system_prompt(tmp_path: Path) -> None:
    with ModelServer(answering([call("Bash", command="echo out-of-the-tool"), "First.", "Second."])) as server:
        claude = ClaudeCode(Machine(tmp_path, server).place())
        key = claude.new_key()
        job = {"key": key, "system_prompt": "Speak like a sailor.", "permissions": "full"}

        first = await turn(claude, prompt="--hello, ünï", **job)
        assert claude.find(key) == key
        second = await turn(in_another_folder(claude), prompt="And now?", **job)

    assert (answer(first), answer(second)) == ("First.", "Second.")
    assert "".join(one.text for one in first if isinstance(one, Delta)) == "First."
    (result,) = [one.result for one in first if isinstance(one, Result)]
    assert result.content == (Text("out-of-the-tool"),)
    asked = main_requests(server)
    assert words(asked[-1].messages) == ["--hello, ünï", "First.", "And now?"]
    assert all("Speak like a sailor." in request.system for request in asked)
    assert len(list(claude.sessions())) == 1


async def test_an_error_of_the_vendor_is_a_failure_and_the_session_goes_on(tmp_path: Path) -> None:
    with ModelServer(answering(lambda _: say("Better."))) as server:
        claude = ClaudeCode(Machine(tmp_path, server).place())
        key = claude.new_key()
        server.fail(Fault(status=400, message="no such thing"))
        failed = await turn(claude, key=key, prompt="Hi")
        later = await turn(claude, key=key, prompt="Again")

    assert isinstance(failed[-1], Failed)
    assert failed[-1].kind == "failed"
    assert "no such thing" in failed[-1].reason
    assert not [one for one in failed if isinstance(one, Response)]
    assert answer(later) == "Better."


async def test_a_session_that_clew_wrote_is_resumed_with_its_call_and_result(tmp_path: Path) -> None:
    written = (
        user("Which files?"),
        assistant("I look.", ToolCall("call_1", "Bash", {"command": "ls"}), model="gpt-5.5"),
        tool(ToolResult("call_1", (Text("a.txt"),))),
        assistant("There is a.txt.", model="gpt-5.5"),
    )
    with ModelServer(answering(["It has one line."])) as server:
        machine = Machine(tmp_path, server)
        claude = ClaudeCode(machine.place())
        key = claude.new_key()
        conversation = Conversation(messages=written, title="Files", model="gpt-5.5")
        assert claude.write(conversation, key, tmp_path / "folder") == ()
        claude.install_session(key, tmp_path / "folder")
        said = await turn(claude, key=key, prompt="How long is it?")

    assert answer(said) == "It has one line."
    (asked,) = main_requests(server)
    assert {record.body["model"] for record in server.requests if record.request} == {machine.models["claude_code"]}
    assert words(asked.messages) == ["Which files?", "I look.", "There is a.txt.", "How long is it?"]
    (response,) = [message for message in asked.messages if tool_calls(message)]
    assert tool_calls(response) == (ToolCall("call_1", "Bash", {"command": "ls"}),)
    (result,) = [block for message in asked.messages for block in message.content if isinstance(block, ToolResult)]
    assert (result.call_id, result.content) == ("call_1", (Text("a.txt"),))


async def test_a_session_goes_on_on_another_machine(tmp_path: Path) -> None:
    script = answering([call("Bash", command="echo one") + call("Bash", command="echo two"), "Done.", "Here too."])
    with ModelServer(script) as server:
        old = ClaudeCode(Machine(tmp_path / "old", server).place())
        key = old.new_key()
        await turn(old, key=key, prompt="Remember staging-eu.", permissions="full")
        assert old.export(key, tmp_path / "folder")

        new = ClaudeCode(Machine(tmp_path / "new", server).place())
        new.install_session(key, tmp_path / "folder")
        said = await turn(new, key=key, prompt="Where?")
        assert new.standing(key, tmp_path / "folder") == "ahead"
        assert new.export(key, tmp_path / "folder")

    assert answer(said) == "Here too."
    asked = main_requests(server)[-1].messages
    assert words(asked) == ["Remember staging-eu.", "Done.", "Where?"]
    results = [block.content for message in asked for block in message.content if isinstance(block, ToolResult)]
    assert sorted(results, key=str) == [(Text("one"),), (Text("two"),)]
    read = new.read(tmp_path / "folder").messages
    assert [plain_text(message) for message in read] == [
        "Remember staging-eu.",
        "",
        "",
        "Done.",
        "Where?",
        "Here too.",
    ]


async def test_a_session_under_another_key_goes_on_beside_the_one_it_was_taken_from(tmp_path: Path) -> None:
    with ModelServer(answering(["First.", "Second.", "Third."])) as server:
        claude = ClaudeCode(Machine(tmp_path, server).place())
        key, other = claude.new_key(), claude.new_key()
        await turn(claude, key=key, prompt="One")
        assert claude.export(key, tmp_path / "folder")
        claude.install_session(other, tmp_path / "folder")
        await turn(claude, key=other, prompt="Two")
        assert claude.standing(key, tmp_path / "folder") == "same"
        assert claude.standing(other, tmp_path / "folder") == "ahead"
        await turn(claude, key=key, prompt="Three")

    asked = [words(request.messages) for request in main_requests(server)]
    assert asked[1:] == [["One", "First.", "Two"], ["One", "First.", "Three"]]


async def test_behind_a_row_that_was_torn_a_session_goes_on_with_all_others(tmp_path: Path) -> None:
    with ModelServer(answering(["First.", "Second.", "Third."])) as server:
        claude = ClaudeCode(Machine(tmp_path, server).place())
        key = claude.new_key()
        await turn(claude, key=key, prompt="One")
        (session,) = claude.sessions()
        with session.path.open("ab") as file:
            file.write(b'{"parentUuid":null,"type":"user","message":{"role":"us')
        await turn(claude, key=key, prompt="Two")
        await turn(claude, key=key, prompt="Three")
        assert claude.export(key, tmp_path / "folder")

    assert words(main_requests(server)[-1].messages) == ["One", "First.", "Two", "Second.", "Three"]
    assert len(claude.read(tmp_path / "folder").messages) == 6


async def test_who_may_only_look_changes_nothing_whatever_the_users_settings_allow(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    calls = call("Bash", command=f"touch {folder}/by-shell") + call("Write", file_path=f"{folder}/new", content="x")
    with ModelServer(answering([calls + call("Glob", pattern="*"), "."])) as server:
        machine = Machine(tmp_path, server)
        (machine.cwd / "there.txt").write_text("x")
        settings = machine.home / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"permissions": {"allow": ["Bash", "Write"]}}')
        claude = ClaudeCode(machine.place())
        said = await turn(claude, key=claude.new_key(), prompt="Go", permissions="read")

    assert [path.name for path in machine.cwd.iterdir()] == ["there.txt"]
    results = {one.result.call_id: one.result for one in said if isinstance(one, Result)}
    assert [result.is_error for _, result in sorted(results.items())] == [True, True, False]
