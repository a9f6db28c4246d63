"""The uses of caw's guide to resuming sessions, with the three real coding agents."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clew.compat.caw import Agent
from clew.errors import ProviderError
from clew.messages import plain_text, tool_calls
from tests.e2e.desk import NAMES, desk, has_call, texts
from tests.limits import PATIENCE
from tests.servers.clis import Machine

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "compat" / "importers" / "fixtures" / "caw"
EXAMPLE = re.compile(r"^```python notest\n# after\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-clis")]

FIRST = """
import sys
from clew.compat.caw import Agent

agent = Agent(provider=sys.argv[1], data_dir="caw_data")
session = agent.start_session()
turn = session.send("RUN echo forty-two")
assert "forty-two" in turn.result, turn
handle = session.resume_handle
session.end()
print(handle)
"""
LATER = """
import json, sys
from clew.compat.caw import Agent

agent = Agent(provider=sys.argv[1], data_dir=sys.argv[2] or None)
session = agent.resume_session(sys.argv[3])
turn = session.send(sys.argv[4])
session.end()
print(json.dumps([turn.result, session.trajectory.num_turns]))
"""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_LOG", "off")


def run(machine: Machine, provider: str, code: str, *arguments: str) -> str:
    """Run a program in a process of its own, and return the last line that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, provider, *arguments],
        cwd=machine.cwd,
        env={**machine.env, "CAW_LOG": "off", "CAW_MODEL": machine.models[provider]},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def agent(machine: Machine, provider: str, **settings: Any) -> Agent:
    where: dict[str, Any] = {"cwd": machine.cwd, "env": machine.env, "timeout": 60}
    return Agent(provider, model=machine.models[provider], **where, **settings)


@pytest.mark.parametrize("provider", NAMES)
def test_the_handle_goes_on_in_another_process_with_and_without_the_data_dir(provider: str, tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        handle = run(machine, provider, FIRST)
        said = json.loads(handle)
        assert set(said) == {"version", "provider", "session_id", "resume_key"}
        assert (said["version"], said["provider"]) == (1, provider)

        answer, turns = json.loads(run(machine, provider, LATER, "caw_data", handle, "What was it?"))
        assert ("What was it?" in answer, turns) == (True, 2)
        assert has_call(machine.asked[-1], "echo forty-two", "forty-two")
        answer, turns = json.loads(run(machine, provider, LATER, "", handle, "And again?"))
        assert ("And again?" in answer, turns) == (True, 1)
        assert has_call(machine.asked[-1], "echo forty-two", "forty-two")
        assert texts(machine.asked[-1]).count("What was it?") == 2, "once asked, once in the answer"

        answer, turns = json.loads(run(machine, provider, LATER, "caw_data", said["session_id"], "And now?"))
        assert turns == 4, "what was asked without the data_dir was found in the program's own session"
        (file,) = machine.cwd.glob("caw_data/sessions/*/trajectory.json")
        found = json.loads(file.read_text())
        inputs = [turn["input"] for turn in found["turns"]]
        assert inputs == ["RUN echo forty-two", "What was it?", "And again?", "And now?"]
        (call,) = [block for turn in found["turns"] for block in turn["output"] if block["type"] == "tool_use"]
        assert call["output"].strip().endswith("forty-two")


@pytest.mark.parametrize("provider", NAMES)
def test_a_session_of_caw_goes_on_with_its_history_its_handle_and_the_programs_own_conversation(
    provider: str, tmp_path: Path
) -> None:
    """caw changes prompts on their way, so the words in its files are not those in the program's own session."""
    with desk(tmp_path) as here:
        machine = here.machine()
        with agent(machine, provider).start_session() as before:
            before.send("Be kind.\n\nRUN echo forty-two")
        key = json.loads(before.resume_handle)["resume_key"]
        session_id = key if provider == "claude_code" else "b5bc5d83-3f14-4a09-8dbd-4b20e7f0c6d9"
        handle = json.dumps({"version": 1, "provider": provider, "session_id": session_id, "resume_key": key})
        written = as_caw_writes(provider, session_id, key)
        file = machine.cwd / "caw_data" / "sessions" / session_id / "trajectory.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(written))

        for given in (handle, session_id):
            with agent(machine, provider, data_dir=machine.cwd / "caw_data").resume_session(given) as session:
                turns = session.trajectory.num_turns
                assert "What was it" in session.send("What was it?").result
                assert session.trajectory.num_turns == turns + 1
            assert json.loads(session.resume_handle) == json.loads(handle), "the same conversation of the program"
        assert session.trajectory.num_turns == 3
        asked = machine.asked[-1]
        assert has_call(asked, "echo forty-two", "forty-two"), "what caw does not keep of Codex is there too"
        assert sum("RUN echo forty-two" in plain_text(message) for message in asked) == 1
        found = json.loads(file.read_text())
        assert found["turns"][0] == written["turns"][0], "what caw wrote stays as it is"
        assert [turn["input"] for turn in found["turns"]] == ["RUN echo forty-two", "What was it?", "What was it?"]
        assert found["created_at"] == written["created_at"]
        assert found["metadata"] == written["metadata"]
        assert found["system_prompt"] == session.trajectory.system_prompt == "Be kind."


def as_caw_writes(provider: str, session_id: str, key: str) -> dict[str, Any]:
    amounts = {"input_tokens": 9, "output_tokens": 2, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost_usd": 0.0}
    name = {"codex": "thread_id", "opencode": "opencode_session_id"}.get(provider)
    call = {"type": "tool_use", "id": "c1", "name": "shell", "arguments": {"command": "echo forty-two"}, "output": ""}
    output = [call, {"type": "text", "text": "It printed: forty-two"}]
    return {
        "agent": provider,
        "model": "",
        "session_id": session_id,
        "created_at": "2026-01-02T03:04:05.000000+00:00",
        "completed_at": "2026-01-02T03:05:05.000000+00:00",
        "usage_limited": False,
        "system_prompt": "Be kind.",
        "reasoning": "",
        "mcp_servers": [],
        "turns": [{"input": "RUN echo forty-two", "output": output, "usage": amounts, "duration_ms": 5}],
        "usage": amounts,
        "total_usage": amounts,
        "duration_ms": 5,
        "metadata": {name: key} if name else {},
    }


@pytest.mark.parametrize("provider", NAMES)
def test_what_the_real_caw_wrote_elsewhere_goes_on_here_where_the_program_knows_nothing_of_it(
    provider: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "caw_data"
    shutil.copytree(DATA, data_dir)
    (session_id,) = (
        file.parent.name
        for file in data_dir.glob("sessions/*/trajectory.json")
        if (found := json.loads(file.read_text()))["agent"] == provider and found["completed_at"]
    )
    with desk(tmp_path) as here:
        machine = here.machine()
        with agent(machine, provider, data_dir=data_dir).resume_session(session_id) as session:
            assert session.trajectory.num_turns == 2
            assert "What is my number?" in session.send("What is my number?").result
            assert session.trajectory.num_turns == 3
        asked = machine.asked[-1]
        assert "My number is 42." in texts(asked)
        assert any("echo forty-two" in str(call.arguments) for message in asked for call in tool_calls(message))


def test_an_error_of_the_model_is_raised_and_never_an_answer(tmp_path: Path) -> None:
    with desk(tmp_path) as here, agent(here.machine(), "claude_code").start_session() as session:
        with pytest.raises(ProviderError, match="no more"):
            session.send("BREAK echo forty-two")
        assert session.trajectory.turns[0].status == "failed"
        assert "Go on" in session.send("Go on.").result


def test_the_examples_of_the_guide_run_one_after_the_other(tmp_path: Path) -> None:
    examples = EXAMPLE.findall((ROOT / "docs" / "coming-from" / "caw.md").read_text())
    assert len(examples) >= 2
    with desk(tmp_path) as here:
        machine = here.machine()
        for code in examples:
            (machine.cwd / "example.py").write_text(code)
            done = subprocess.run(
                [sys.executable, "example.py"],
                cwd=machine.cwd,
                env=machine.env,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, done.stdout + done.stderr
