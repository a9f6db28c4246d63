"""`GenericAgent` through the real coding agents: Claude Code, Codex and opencode."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clew.compat.cortex import AgentConfig, GenericAgent, check_session_resumption, get_claude_session_id
from clew.messages import Message, User, plain_text
from clew.models.base import ModelRequest
from clew.providers import discover
from clew.testing import ModelServer
from tests.e2e.desk import desk, has_call, texts
from tests.limits import PATIENCE
from tests.servers.clis import Machine, answering

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-clis")]

PROVIDERS = ["claude", "openai", "opencode"]
"""By the names that users of `GenericAgent` know, where they have one."""


def config(machine: Machine, provider: str, prompt: str, **settings: Any) -> AgentConfig:
    found = AgentConfig(
        prompt, model_provider=provider, env=machine.env, cwd=machine.cwd, permissions="full", timeout=PATIENCE
    )
    return found.changed(model=machine.models[found.provider], **settings)


def _said(messages: tuple[Message, ...]) -> str:
    return "\n".join(plain_text(message) for message in messages if isinstance(message, User))


def _remembering(request: ModelRequest) -> str:
    """Answer questions for a name and a number from the conversation alone."""
    said = _said(request.messages)
    found = re.search(r"My name is (\w+) and my number is (\d+)", said)
    if not re.search("What is my (name|number)", said):
        return "OK"
    return f"You are {found[1]}, and your number is {found[2]}." if found else "I do not know."


@contextmanager
def remembering(root: Path) -> Iterator[Machine]:
    with ModelServer(answering(_remembering), strict=False) as server:
        yield Machine(root / "here", server)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_agent_resumes_its_session_and_another_one_does_by_its_id(provider: str, tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        agent = GenericAgent(config(machine, provider, "RUN echo forty-two", checkpointer=here.url))
        first = agent.run()
        assert "forty-two" in str(first.result)
        assert [use.output.strip().endswith("forty-two") for use in first.tool_uses] == [True]
        assert first.session_id in [found.key for found in discover(agent.config.provider, place=machine.place())]

        second = agent.resume("What did I ask before?")
        assert second.session_id == first.session_id
        assert has_call(machine.asked[-1], "echo forty-two", "forty-two")

        fresh = GenericAgent(config(machine, provider, "And now?", checkpointer=here.url, resume_from=first.session_id))
        third = fresh.run()
        assert (third.session_id, third.thread_id) == (first.session_id, first.thread_id)
        assert has_call(machine.asked[-1], "echo forty-two", "forty-two")
        assert "What did I ask before?" in texts(machine.asked[-1])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_session_goes_on_without_the_store_that_recorded_it(provider: str, tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        first = GenericAgent(config(machine, provider, "RUN echo forty-two", checkpointer=None)).run()
        agent = GenericAgent(config(machine, provider, "", checkpointer=None, resume_from=first.session_id))
        assert agent.resume("What did I ask before?").session_id == first.session_id
        assert has_call(machine.asked[-1], "echo forty-two", "forty-two")


def test_a_session_goes_on_from_another_folder_and_on_another_machine(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine, other = here.machine(), here.machine("another machine")
        first = GenericAgent(config(machine, "claude", "RUN echo forty-two", checkpointer=here.url)).run()
        (tmp_path / "elsewhere").mkdir()
        elsewhere = config(machine, "claude", "Second", cwd=tmp_path / "elsewhere")
        for there in (elsewhere, config(other, "claude", "Third")):
            again = GenericAgent(there.changed(checkpointer=here.url, resume_from=first.session_id)).run()
            assert again.thread_id == first.thread_id
            assert has_call(machine.asked[-1], "echo forty-two", "forty-two")
        assert "Second" in texts(other.asked[-1])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_self_test_says_that_each_provider_resumes(provider: str, tmp_path: Path) -> None:
    with remembering(tmp_path) as machine:
        report = check_session_resumption(
            config(machine, provider, "Hi.", checkpointer=f"sqlite:///{tmp_path}/clew.db")
        )
    assert (report.session_resumption_tested, report.session_resumption_working, report.problem) == (True, True, "")


def test_claude_code_stops_after_max_turns_and_goes_on(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        agent = GenericAgent(config(machine, "claude", "RUN echo forty-two", checkpointer=here.url, max_turns=1))
        first = agent.run()
        assert (first.result, first.status, first.reason) == (None, "interrupted", "max_turns: 1")
        second = agent.resume("What did I ask before?", max_turns=5, timeout=PATIENCE)
        assert (second.status, second.session_id) == ("done", first.session_id)
        assert "RUN echo forty-two" in texts(machine.asked[-1])


def test_a_session_that_was_begun_without_clew_is_found_and_resumed(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        began = time.time()
        assert get_claude_session_id(began, machine.cwd, env=machine.env) is None
        subprocess.run(
            ["claude", "-p", "--permission-mode", "bypassPermissions"],
            input="RUN echo forty-two",
            cwd=machine.cwd,
            env=machine.env,
            text=True,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )
        session_id = get_claude_session_id(began, machine.cwd, env=machine.env)
        assert session_id is not None
        agent = GenericAgent(config(machine, "claude", "", checkpointer=here.url, resume_from=session_id))
        assert agent.resume("What did I ask before?").session_id == session_id
        assert has_call(machine.asked[-1], "echo forty-two", "forty-two")
        assert get_claude_session_id(time.time() + 60, machine.cwd, env=machine.env) is None


PROGRAM = """
import sys
from clew.compat.cortex import AgentConfig, GenericAgent

prompt, session_id = sys.argv[1], sys.argv[2] or None
agent = GenericAgent(AgentConfig(prompt, resume_from=session_id, checkpointer="sqlite:///clew.db"))
response = agent.run()
print(response.session_id)
print(response.result)
"""


def test_the_examples_of_the_guide_run_with_the_real_programs(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "coming-from" / "cortex.md").read_text()
    examples = re.findall(r"^```py\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    with remembering(tmp_path) as machine:
        for code in (code for code in examples if "clew.compat" in code):
            run = subprocess.run(
                [sys.executable, "-c", code],
                cwd=machine.cwd,
                env=machine.env,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert run.returncode == 0, run.stderr
            if "check_session_resumption" in code:
                assert [line.partition(":")[2] for line in run.stdout.splitlines()] == [" resuming a session works"] * 3
            else:
                assert run.stdout.splitlines()[-1] == "You are Alice, and your number is 777."


def test_a_session_goes_on_in_another_process(tmp_path: Path) -> None:
    with remembering(tmp_path) as machine:

        def ask(prompt: str, session_id: str) -> list[str]:
            run = subprocess.run(
                [sys.executable, "-c", PROGRAM, prompt, session_id],
                cwd=machine.cwd,
                env=machine.env,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert run.returncode == 0, run.stderr
            return run.stdout.splitlines()

        session_id, answer = ask("My name is Alice and my number is 777. Remember both.", "")
        assert answer == "OK"
        assert ask("What is my name, and what is my number?", session_id) == [
            session_id,
            "You are Alice, and your number is 777.",
        ]
