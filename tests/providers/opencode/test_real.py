"""The real opencode, against a scripted model: what Clew says of it holds."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clew.log import Usage
from clew.messages import Image, Text, Thinking, ToolCall, ToolResult, assistant, tool, user
from clew.models.base import ModelRequest
from clew.providers.base import Conversation, Job, Permissions
from clew.providers.events import Failed, Finished, Response, Result
from clew.providers.opencode import OpenCode
from clew.testing import Fault, ModelServer, call, say, turns_in
from tests.providers.opencode.driven import ask, asked
from tests.sampling import only_in_full
from tests.servers.clis import MODELS, Machine, answering, main_requests

_MODEL = MODELS["opencode"]
_SYSTEM = "Answer like a pirate, and keep to it."

pytestmark = pytest.mark.slow


def _job(key: str, prompt: str, **more: object) -> Job:
    return Job(**{"prompt": prompt, "key": key, "model": _MODEL, "permissions": "full", **more})  # type: ignore[arg-type]


@only_in_full
@pytest.mark.anyio
async def test_a_session_keeps_its_key_its_system_prompt_and_its_history_in_another_folder(tmp_path: Path) -> None:
    look = say("Let me look.") + call("bash", command="echo of the tool", description="say")
    with ModelServer(answering([look, "It said so.", "Aye."])) as server:
        machine = Machine(tmp_path, server)
        key = OpenCode(machine.place()).new_key()
        first = await ask(machine.place(), _job(key, "-- Look.\n", system_prompt=_SYSTEM))
        other = tmp_path / "elsewhere"
        other.mkdir()
        second = await asked(machine.place(other), _job(key, "And now?", system_prompt=_SYSTEM))
        requests = main_requests(server)

    results = [happening.result for happening in first if isinstance(happening, Result)]
    assert [result.content for result in results] == [(Text("of the tool\n"),)]
    finished = first[-1]
    assert isinstance(finished, Finished)
    assert finished.text == "It said so."
    assert finished.usage is not None
    assert finished.usage.output_tokens == 18
    assert second.text == "Aye."
    assert all(_SYSTEM in request.system for request in requests)
    assert all("You are opencode" in request.system for request in requests)
    assert requests[2].messages == (
        user("-- Look.\n"),
        assistant("Let me look.", ToolCall("call_1_1", "bash", {"command": "echo of the tool", "description": "say"})),
        tool(ToolResult("call_1_1", (Text("of the tool\n"),))),
        assistant("It said so."),
        user("And now?"),
    )
    assert str(other) in requests[2].system


@only_in_full
@pytest.mark.anyio
async def test_a_refused_request_is_a_failure_and_no_answer(tmp_path: Path) -> None:
    with ModelServer(answering(["never said"]), faults=Fault(status=400, message="no such thing")) as server:
        machine = Machine(tmp_path, server)
        happened = await ask(machine.place(), _job(OpenCode(machine.place()).new_key(), "Hi"))
    assert happened == [Failed("failed", "no such thing (status 400)")]


_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_SEES = {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
_MOVED = (
    user("What is on it?", Image("image/png", _PIXEL)),
    assistant(Thinking("Let me see.", "signed"), "A pixel.", ToolCall("call_a", "bash", {"command": "ls"})),
    tool(ToolResult("call_a", (Text("a.txt"),))),
    assistant(ToolCall("call_b", "Unheard-of", {"x": [1]}), ToolCall("call_c", "bash", {"command": "rm"})),
    tool(ToolResult("call_b", (Text("no such file"),), is_error=True)),
    assistant("One file."),
)


@only_in_full
@pytest.mark.anyio
async def test_a_conversation_from_elsewhere_goes_on_and_then_on_another_machine(tmp_path: Path) -> None:
    provider, _, name = _MODEL.partition("/")
    with ModelServer(answering(["First.", "Second."])) as server:
        here, there = Machine(tmp_path / "here", server), Machine(tmp_path / "there", server)
        for machine in (here, there):
            settings = {"provider": {provider: {"models": {name: _SEES}}}}
            machine.env["OPENCODE_CONFIG_CONTENT"] = json.dumps(settings) + "// as the user gave it"
        opencode = OpenCode(here.place())
        key = opencode.new_key()
        losses = opencode.write(Conversation(messages=_MOVED, model="claude-opus-4"), key, tmp_path / "moved")
        opencode.install_session(key, tmp_path / "moved")
        await asked(here.place(), _job(key, "Go on."))
        assert opencode.standing(key, tmp_path / "moved") == "ahead"
        assert opencode.export(key, tmp_path / "kept")

        repository = tmp_path / "there" / "repository"
        subprocess.run(["git", "init", "-q", repository], check=True)
        fresh = OpenCode(there.place(repository))
        assert fresh.standing(key, tmp_path / "kept") == "absent"
        fresh.install_session(key, tmp_path / "kept")
        assert fresh.standing(key, tmp_path / "kept") == "same"
        await asked(there.place(repository), _job(key, "And on."))
        seen = [request.messages for request in main_requests(server)]

    assert losses == ()
    told = (
        user("What is on it?", Image("image/png", _PIXEL)),
        assistant("Let me see.A pixel.", ToolCall("call_a", "bash", {"command": "ls"})),
        tool(ToolResult("call_a", (Text("a.txt"),))),
        assistant(ToolCall("call_b", "Unheard-of", {"x": [1]}), ToolCall("call_c", "bash", {"command": "rm"})),
        tool(ToolResult("call_b", (Text("no such file"),)), ToolResult("call_c", (Text("Tool execution aborted"),))),
        assistant("One file."),
        user("Go on."),
    )
    assert seen == [told, (*told, assistant("First."), user("And on."))]


@only_in_full
@pytest.mark.anyio
async def test_a_session_under_another_key_goes_on_beside_the_one_it_was_taken_from(tmp_path: Path) -> None:
    with ModelServer(answering(["First.", "Second."])) as server:
        machine = Machine(tmp_path, server)
        opencode = OpenCode(machine.place())
        key, other = opencode.new_key(), opencode.new_key()
        await asked(machine.place(), _job(key, "One"))
        opencode.export(key, tmp_path / "kept")
        opencode.install_session(other, tmp_path / "kept")
        await asked(machine.place(), _job(other, "Two"))
        assert opencode.standing(key, tmp_path / "kept") == "same"
        assert main_requests(server)[-1].messages == (user("One"), assistant("First."), user("Two"))


@only_in_full
@pytest.mark.anyio
async def test_a_sub_agent_is_told_of_and_counted_and_goes_with_the_session(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> Any:
        turns = turns_in(request)
        if request.messages[0] == user("Count to 3."):
            return [call("bash", command="echo 1 2 3", description="count"), "1, 2, 3"][turns]
        return [call("task", description="count", prompt="Count to 3.", subagent_type="general"), "Done."][turns]

    with ModelServer(answering(script), usage=Usage(100, 10)) as server:
        machine = Machine(tmp_path, server)
        opencode = OpenCode(machine.place())
        key = opencode.new_key()
        happened = await ask(machine.place(), _job(key, "Have it counted."))

    of_child = [each for each in happened if isinstance(each, (Response, Result)) and each.child]
    assert [type(each).__name__ for each in of_child] == ["Response", "Result", "Response"]
    assert {each.child for each in of_child} == {"call_1_1"}
    assert of_child[2].blocks == (Text("1, 2, 3"),)  # type: ignore[union-attr]
    assert happened[-1] == Finished("Done.", Usage(400, 40), None, _MODEL)
    opencode.export(key, tmp_path / "kept")
    assert len(list((tmp_path / "kept").glob("ses_*"))) == 2
    assert [session.key for session in opencode.sessions()] == [key]


@only_in_full
@pytest.mark.anyio
@pytest.mark.parametrize(("permissions", "tools"), [("read", set()), ("edit", {"edit", "write"})])
async def test_permissions_take_the_tools_that_they_deny_from_the_model(
    tmp_path: Path, permissions: Permissions, tools: set[str]
) -> None:
    with ModelServer(answering(["Fine."])) as server:
        machine = Machine(tmp_path, server)
        allowed = {"permission": {"bash": {"*": "allow"}, "*": "allow"}, "agent": {"build": {"permission": "allow"}}}
        machine.env["OPENCODE_CONFIG_CONTENT"] = json.dumps(allowed)
        key = OpenCode(machine.place()).new_key()
        await asked(machine.place(), _job(key, "Hi", permissions=permissions))
        offered = {tool.name for tool in main_requests(server)[0].tools}
    assert "read" in offered
    assert offered & {"bash", "edit", "write", "question", "plan_exit"} == tools
