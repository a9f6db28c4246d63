"""A program with Stirrup's names, in a real process and with a real model client: stopped at turn 15 in four ways, it goes
on at turn 15 with its files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.compat.stirrup import CacheManager, compute_task_hash
from clew.messages import plain_text
from clew.testing import Fault, ModelServer, Response, call, say
from tests.limits import PATIENCE

PROGRAM = """
import asyncio
import os

from clew.compat.stirrup import DEFAULT_TOOLS, Agent, ChatCompletionsClient

client = ChatCompletionsClient(model="gpt-5")
agent = Agent(client=client, name="researcher", tools=DEFAULT_TOOLS, max_turns=int(os.environ["MAX_TURNS"]))


async def main():
    async with agent.session(output_dir="./output", resume=True) as session:
        await session.run("Analyze all datasets in the data folder")


asyncio.run(main())
"""
HASH = compute_task_hash("Analyze all datasets in the data folder")
STEPS: list[Response] = [
    say(f"Step {step}.") + call("run_command", command=f"echo {step} > f{step}.txt") for step in range(1, 16)
]
END = call("finish", reason="Analysed.", paths=["f1.txt", "f15.txt"])
Stop = Callable[["subprocess.Popen[str]", ModelServer, CacheManager], None]


def send(number: signal.Signals) -> Stop:
    """Send a signal while the model, asked for the 16th time, does not answer. The files of turn 15 are on record by
    then: their snapshot is taken while the model is asked."""

    def stop(process: subprocess.Popen[str], server: ModelServer, caches: CacheManager) -> None:
        server.wait_for_blocking(16, PATIENCE)
        until = time.monotonic() + PATIENCE
        while (state := caches.load_state(HASH)) is None or state.files_turn < 15:
            assert time.monotonic() < until, state
        process.send_signal(number)

    return stop


STOPS: dict[str, tuple[Fault | None, str, Stop, int, str]] = {
    "Ctrl+C": (Fault(hang=True), "50", send(signal.SIGINT), -signal.SIGINT, "KeyboardInterrupt"),
    "error": (Fault(status=400), "50", lambda *given: None, 1, "ModelRefused"),
    "max turns": (None, "15", lambda *given: None, 0, ""),
    "kill": (Fault(hang=True), "50", send(signal.SIGKILL), -signal.SIGKILL, ""),
}
"""For each way of stopping: what goes wrong with the 16th call of the model, the limit of turns, what else stops the
process, its exit code, and what it says besides."""


@pytest.mark.parametrize(
    "way", ["Ctrl+C", *(pytest.param(way, marks=pytest.mark.slow) for way in ("error", "max turns", "kill"))]
)
def test_a_program_stopped_at_turn_15_goes_on_at_turn_15_with_its_files(way: str, tmp_path: Path) -> None:
    fault, max_turns, stop, code, said = STOPS[way]
    (tmp_path / "my_agent.py").write_text(PROGRAM)
    output = tmp_path / "output"
    store = f"sqlite:///{tmp_path}/clew.db"
    caches = CacheManager(checkpointer=store)
    with ModelServer([*STEPS, END], faults={} if fault is None else {16: fault}) as server:

        def start(turns: str) -> subprocess.Popen[str]:
            home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MAX_TURNS": turns}
            return subprocess.Popen(
                [sys.executable, "my_agent.py"],
                cwd=tmp_path,
                env={**home, "CLEW_STORE": store, **server.env()},
                stderr=subprocess.PIPE,
                text=True,
            )

        first = start(max_turns)
        stop(first, server, caches)
        _, told = first.communicate(timeout=PATIENCE)
        assert first.returncode == code, told
        assert (f"Cached state for task {HASH}\n" in told) == (way != "kill")
        assert "Resuming" not in told
        assert said in told
        info = caches.get_cache_info(HASH)
        assert info is not None
        assert (info["turn"], info["has_files"], info["agent_name"]) == (15, True, "researcher")
        assert len(list(output.glob("f*.txt"))) == 15
        calls = server.calls
        shutil.rmtree(output)

        second = start("50")
        _, told = second.communicate(timeout=PATIENCE)
    assert (second.returncode, told) == (0, "Resuming from cached state at turn 15\n")
    assert {path.name: path.read_text() for path in output.iterdir()} == {
        f"f{step}.txt": f"{step}\n" for step in range(1, 16)
    }
    assert server.calls == calls + 1, "a turn was paid twice"
    conversation = server.requests[-1].conversation
    assert [plain_text(message) for message in conversation if plain_text(message).startswith("Step")] == [
        f"Step {step}." for step in range(1, 16)
    ]
    assert caches.list_caches() == []
