"""A run interrupted at turn 15 goes on at turn 15: in another process, and with an agent of Clew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clew import Agent
from clew.compat.session import Checkpoint, Store
from clew.messages import plain_text
from clew.testing import ModelServer, Response, ScriptedModel, call
from clew.tools import tool
from tests.compat.session.runner import work
from tests.limits import PATIENCE

TURNS = 20
COUNTING: list[Response] = [*(call("count", number=number) for number in range(1, TURNS + 1)), "I have counted."]


def run(folder: Path, server: ModelServer, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.compat.session.runner", str(folder), "run-1", *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.getcwd(), **server.env()},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def counted(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "counted").read_text().split()]


@pytest.mark.parametrize("options", [(), pytest.param(("--json",), marks=pytest.mark.slow)])
def test_a_run_that_was_killed_at_turn_15_goes_on_at_turn_15(options: tuple[str, ...], tmp_path: Path) -> None:
    with ModelServer(COUNTING) as server:
        killed = run(tmp_path, server, *options, "--kill-at", "15")
        assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "from iteration 0\n"), killed.stderr
        with Store(tmp_path, json_files=bool(options)) as store:
            (listed,) = store.list()
            assert (listed.run_id, listed.task_name, listed.iteration) == ("run-1", "count", 15)
            kept = store.load("run-1")
            assert len(kept.messages) == 31
            assert kept.input_tokens == listed.input_tokens > 0
        asked = server.calls
        again = run(tmp_path, server, *options)
        assert (again.returncode, again.stdout) == (0, "from iteration 15\nI have counted.\n"), again.stderr
        assert (asked, server.calls) == (15, TURNS + 1)
        assert counted(tmp_path) == list(range(1, TURNS + 1))
        with Store(tmp_path, json_files=bool(options)) as store:
            assert not store.has_checkpoint("run-1")


class Stopped(Exception):
    """Raised in place of a kill."""


def test_a_run_that_fails_in_a_process_goes_on_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(pid: int, number: int) -> None:
        raise Stopped

    with ModelServer(COUNTING) as server, Store(tmp_path) as store:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "kill", stop)
        with pytest.raises(Stopped):
            work(store, "r", tmp_path / "counted", kill_at=15)
        with Store(tmp_path) as other:
            assert work(other, "r", tmp_path / "counted") == "I have counted."
        assert server.calls == TURNS + 1
        assert counted(tmp_path) == list(range(1, TURNS + 1))


@pytest.mark.anyio
async def test_an_agent_of_clew_goes_on_with_a_run_where_its_last_save_was(tmp_path: Path) -> None:
    counted: list[int] = []

    @tool
    def count(number: int) -> str:
        counted.append(number)
        return "counted"

    messages: list[object] = [{"role": "user", "content": "Count."}]
    with Store(tmp_path) as store:
        for turn in range(1, 16):
            call_id = f"toolu_{turn}"
            asked = {"type": "tool_use", "id": call_id, "name": "count", "input": {"number": turn}}
            messages.append({"role": "assistant", "content": [asked]})
            done = {"type": "tool_result", "tool_use_id": call_id, "content": "counted"}
            messages.append({"role": "user", "content": [done]})
            store.save(Checkpoint("r", "count", turn, messages, "You count.", input_tokens=10 * turn))
        model = ScriptedModel(COUNTING)
        async with Agent(model, tools=[count], checkpointer=f"sqlite:///{tmp_path}/clew.db", max_turns=18) as agent:
            result = await agent.resume(thread_id="r")
            assert (result.status, result.resumed_from, counted) == ("interrupted", 15, [16, 17, 18])
        assert [plain_text(message) for message in model.requests[0].messages if plain_text(message)] == ["Count."]

        found = store.load("r")
        assert (found.iteration, len(found.messages), found.task_name) == (18, 37, "count")
        assert found.input_tokens > 150
        assert [run.iteration for run in store.list()] == [18]
        found.iteration += 1
        found.messages.append({"role": "assistant", "content": "Enough."})
        store.save(found)
        assert store.load("r").messages[-1] == {"role": "assistant", "content": [{"type": "text", "text": "Enough."}]}
        assert store.load("r").iteration == 19


@pytest.mark.anyio
async def test_the_saved_system_prompt_stays_on_record_unless_an_agent_has_one_of_its_own(tmp_path: Path) -> None:
    begun = Checkpoint("r", messages=[{"role": "user", "content": "Count."}], system_prompt="You count.")
    with Store(tmp_path) as store:
        store.save(begun)
        own: dict[str, Any] = {"system_prompt": "You count on."}
        for given, told in (({}, "You count."), (own, "You count on.")):
            model = ScriptedModel(COUNTING)
            async with Agent(model, checkpointer=f"sqlite:///{tmp_path}/clew.db", max_turns=1, **given) as agent:
                await agent.run("Go on.", thread_id="r")
            assert store.load("r").system_prompt == told
            store.save(store.load("r"))
            with Store(tmp_path) as other:
                assert other.load("r").system_prompt == told

        run = store.load("r")
        run.system_prompt = ""
        store.save(run)
        assert store.load("r").system_prompt == ""
