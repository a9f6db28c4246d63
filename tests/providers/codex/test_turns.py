"""Turns of the real Codex: what it is told, what it says, and where it goes on."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from clew.log import Usage
from clew.messages import Assistant, Message, System, Text, Tool, ToolCall, ToolResult, User, plain_text
from clew.messages import assistant as said
from clew.providers.base import Conversation, Job, Permissions
from clew.providers.codex import Codex
from clew.providers.events import Failed, Finished, ProviderEvent, Result
from clew.providers.events import Response as Said
from clew.testing import Fault, ModelServer, Response, call, reply
from tests.limits import PATIENCE
from tests.servers.clis import Machine, answering

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def turn(
    codex: Codex, key: str, prompt: str, *, system_prompt: str = "", permissions: Permissions = "full"
) -> list[ProviderEvent]:
    """One prompt, as a session drives it."""
    program = codex.program()
    assert program is not None
    job = Job(prompt=prompt, key=key, system_prompt=system_prompt, permissions=permissions)
    await codex.prepare(program, job)
    command, reader = codex.command(program, job), codex.reader(job)
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=codex.place.cwd,
        env={**codex.place.env, **command.env},
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(command.stdin), PATIENCE)
    except BaseException:
        process.kill()
        await process.communicate()
        raise
    happened = [one for line in stdout.splitlines(keepends=True) for one in reader.read(line)]
    assert process.returncode is not None
    return [*happened, *reader.end(process.returncode, stderr.decode())]


def prompts(messages: Sequence[Message]) -> list[str]:
    """What the user said, without what Codex adds."""
    words = [plain_text(message) for message in messages if isinstance(message, User)]
    return [text for text in words if not text.startswith("<environment_context>")]


def told(messages: Sequence[Message]) -> list[str]:
    """The instructions, each text by itself."""
    blocks = [block for message in messages if isinstance(message, System) for block in message.content]
    return [block.text for block in blocks if isinstance(block, Text)]


async def test_turns_under_a_key_of_ours_go_on_in_another_folder_with_the_system_prompt_and_usage_of_their_own(
    tmp_path: Path,
) -> None:
    script = [
        reply("Blue.", usage=Usage(100, 10, 40)),
        reply("Let me look.", call("exec_command", cmd="echo seen; exit 3"), usage=Usage(200, 20)),
        reply("Blue still.", usage=Usage(300, 30, 0, 0, 5)),
    ]
    with ModelServer(answering(script)) as server:
        machine = Machine(tmp_path, server)
        codex = Codex(machine.place())
        key = codex.new_key()
        first = await turn(codex, key, "-- my colour is blue", system_prompt='Say "clew".\nAlways \x7f.')
        other = tmp_path / "elsewhere"
        other.mkdir()
        second = await turn(Codex(machine.place(other)), key, "Which is it?", system_prompt='Say "clew".\nAlways \x7f.')
        model = machine.models["codex"]
        dollars = [(60 * 5 + 40 * 0.5 + 10 * 30) / 1e6, (500 * 5 + 50 * 30) / 1e6]
        ends = [happened[-1] for happened in (first, second)]
        costs = [ended.cost_usd for ended in ends if isinstance(ended, Finished)]
        assert costs == pytest.approx(dollars)
        assert ends[0] == Finished("Blue.", Usage(100, 10, 40), costs[0], model)
        assert ends[1] == Finished("Blue still.", Usage(500, 50, 0, 0, 5), costs[1], model)
        blocks = [block for one in second if isinstance(one, Said) for block in one.blocks]
        (made,) = [block for block in blocks if isinstance(block, ToolCall)]
        assert (made.name, made.arguments) == ("exec_command", {"cmd": "echo seen; exit 3"})
        (result,) = [one.result for one in second if isinstance(one, Result)]
        assert result == ToolResult(made.id, (Text("seen\n"), Text("exit code 3")), is_error=True)
        for asked in machine.asked:
            assert told(asked).count('Say "clew".\nAlways \x7f.') == 1
        assert prompts(machine.asked[1]) == ["-- my colour is blue", "Which is it?"]
        assert f"<cwd>{other}</cwd>" in str(machine.asked[1])


async def test_a_system_prompt_that_was_not_there_in_the_first_turn_holds_from_the_next_one_on(tmp_path: Path) -> None:
    with ModelServer(answering(["One.", "Two.", "Three.", "Four."])) as server:
        machine = Machine(tmp_path, server)
        codex = Codex(machine.place())
        started = subprocess.run(
            [codex.program().path, "exec", "--json", "--skip-git-repo-check", "-"],  # type: ignore[union-attr]
            input=b"begun without Clew",
            cwd=machine.cwd,
            env=machine.env,
            capture_output=True,
            check=True,
        )
        (native,) = codex.sessions()
        assert started.returncode == 0
        for prompt, rule in (("a", "Be brief."), ("b", "Be brief."), ("c", "Be long.")):
            await turn(codex, native.key, prompt, system_prompt=rule)
        rules = [[text for text in told(asked) if text.startswith("Be ")] for asked in machine.asked]
        assert rules == [[], ["Be brief."], ["Be brief."], ["Be brief.", "Be long."]]


async def test_what_the_model_refuses_is_a_failure_and_no_answer(tmp_path: Path) -> None:
    script = [Fault(status=400, message="no such thing"), Fault(overflow=True)]
    with ModelServer(answering(script)) as server:
        machine = Machine(tmp_path, server)
        codex = Codex(machine.place())
        key = codex.new_key()
        refused = await turn(codex, key, "hello")
        assert refused[-1] == Failed("failed", "no such thing", is_refused=True)
        assert not [one for one in refused if isinstance(one, Finished | Said)]
        *_, failed = await turn(codex, key, "hello")
        assert isinstance(failed, Failed)
        assert failed.kind == "context"


async def test_a_conversation_that_another_process_runs_is_said_to_be_so(tmp_path: Path) -> None:
    with ModelServer(answering(["Late."]), delay=30) as server:
        machine = Machine(tmp_path, server)
        codex = Codex(machine.place())
        key = codex.new_key()
        running = asyncio.ensure_future(turn(codex, key, "first"))
        await server.wait_for(1, PATIENCE)
        *_, failed = await turn(codex, key, "second")
        assert failed == Failed("failed", f"thread {key} already has an active writer")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_conversation_written_by_us_goes_on_with_its_call_and_result(tmp_path: Path) -> None:
    made = ToolCall("toolu_1", "Bash", {"command": "ls"})
    conversation = Conversation(
        messages=(
            User((Text("What is here?"),)),
            said("Let me look.", made),
            Tool((ToolResult("toolu_1", (Text("notes.txt"),)),)),
            said("One file."),
        )
    )
    with ModelServer(answering(["It is notes.txt."])) as server:
        machine = Machine(tmp_path, server)
        codex = Codex(machine.place())
        key = codex.new_key()
        assert codex.write(conversation, key, tmp_path / "folder") == ()
        codex.install_session(key, tmp_path / "folder")
        *_, ended = await turn(codex, key, "Which one?", system_prompt="Be brief.")
        assert isinstance(ended, Finished)
        assert ended.text == "It is notes.txt."
        (asked,) = machine.asked
        assert prompts(asked) == ["What is here?", "Which one?"]
        assert [message for message in asked if isinstance(message, Assistant | Tool)] == [*conversation.messages[1:]]
        assert "Be brief." in told(asked)


async def test_a_conversation_goes_on_on_another_machine_with_another_provider_configured(tmp_path: Path) -> None:
    script: list[Response] = ["Kept.", call("exec_command", cmd="echo from afar"), "You said kept.", "Both."]
    with ModelServer(answering(script)) as server:
        here, there = Machine(tmp_path / "here", server), Machine(tmp_path / "there", server)
        config = there.home / ".codex" / "config.toml"
        config.write_text(
            config.read_text().replace('"scripted"', '"another"').replace("providers.scripted", "providers.another")
        )
        codex, other = Codex(here.place()), Codex(there.place())
        key = codex.new_key()
        await turn(codex, key, "Keep this.")
        assert codex.export(key, tmp_path / "folder")
        assert other.standing(key, tmp_path / "folder") == "absent"
        other.install_session(key, tmp_path / "folder")
        assert other.standing(key, tmp_path / "folder") == "same"
        *_, ended = await turn(other, key, "What did I say?")
        assert isinstance(ended, Finished)
        assert ended.text == "You said kept."
        assert prompts(there.asked[-1]) == ["Keep this.", "What did I say?"]
        assert other.standing(key, tmp_path / "folder") == "ahead"
        assert other.export(key, tmp_path / "back")
        assert codex.standing(key, tmp_path / "back") == "behind"
        assert (
            (tmp_path / "back/rollout.jsonl").read_bytes().startswith((tmp_path / "folder/rollout.jsonl").read_bytes())
        )
        copy = codex.new_key()
        codex.install_session(copy, tmp_path / "back")
        *_, ended = await turn(codex, copy, "And once more?")
        assert isinstance(ended, Finished)
        assert prompts(here.asked[-1]) == ["Keep this.", "What did I say?", "And once more?"]
        assert codex.standing(key, tmp_path / "back") == "behind"
