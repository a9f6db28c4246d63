"""SIGKILL for us, for the program and for the guard between: nothing on record is lost, and nothing is left running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from clew import Checkpoint, Thread, open_checkpointer
from clew.messages import Text, ToolCall, plain_text
from clew.providers.process import reap
from tests.limits import PATIENCE
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent
from tests.providers.worker import descendants, is_running, wait_until, worker

pytestmark = pytest.mark.anyio


async def test_when_we_are_killed_all_processes_end_and_words_calls_and_prompt_are_kept(tmp_path: Path) -> None:
    place, url = toy_place(tmp_path), f"sqlite:///{tmp_path}/clew.db"
    pids = place.cwd / "pids"
    prompt = f"spawn {pids}\nstream half an answer\ncall c1 Bash\nsleep 600"
    with worker(place, url, provider="toy", prompt=prompt) as running:
        handle = running.wait_for("handle")["handle"]
        running.wait_for("tool-started")
        await _until_recorded(url, handle, "c1")
        below = running.kill()
    started = [int(pid) for pid in pids.read_text().split()]
    assert {*started} < {*below}
    wait_until(lambda: not any(map(is_running, below)), "nothing of it runs any more")
    async with open_checkpointer(url) as store:
        session = toy_agent(place, store).resume_session(handle)
        turn = await session.send("echo")
        assert "Its words so far: 'half an answer '" in turn.output
        assert "took effect: Bash" in turn.output
        first, _ = (await session.trajectory()).exchanges
        assert (first.status, first.prompt) == ("interrupted", prompt)
        assert first.blocks[0] == Text("half an answer ")


async def _until_recorded(url: str, handle: str, call_id: str) -> None:
    """Until this call is on record, and so all that came before it."""
    async with asyncio.timeout(PATIENCE), open_checkpointer(url) as store:
        while not _has(await Thread.load(store, json.loads(handle)["session_id"]), call_id):
            await asyncio.sleep(0.02)


def _has(state: Checkpoint, call_id: str) -> bool:
    blocks = [*state.partial, *(block for message in state.history for block in message.content)]
    return any(isinstance(block, ToolCall) and block.id == call_id for block in blocks)


async def test_when_the_guard_is_killed_the_program_ends_and_what_it_started_is_reaped_on_the_next_start(
    tmp_path: Path,
) -> None:
    place, url = toy_place(tmp_path), f"sqlite:///{tmp_path}/clew.db"
    pids = place.cwd / "pids"
    with worker(place, url, provider="toy", prompt=f"spawn {pids}\ncall c1 Bash\nsleep 600") as running:
        running.wait_for("tool-started")
        program, orphan = map(int, pids.read_text().split())
        guard = next(pid for pid in descendants(running.pid) if program in descendants(pid))
        os.kill(running.pid, signal.SIGSTOP)
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not is_running(program), "the program ends with its guard")
        assert is_running(orphan)
        assert orphan not in reap(), "whose owner is alive is left alone"
        running.kill()
    wait_until(lambda: not is_running(running.pid), "the owner is gone")
    reap()  # or another test's start of a program, a moment ago
    wait_until(lambda: not is_running(orphan), "reaped")


async def test_a_program_that_is_killed_is_told_to_whoever_waits(tmp_path: Path) -> None:
    place, url = toy_place(tmp_path), f"sqlite:///{tmp_path}/clew.db"
    pids = place.cwd / "pids"
    with worker(place, url, provider="toy", prompt=f"spawn {pids}\ncall c1 Bash\nsleep 600") as running:
        running.wait_for("tool-started")
        program, orphan = map(int, pids.read_text().split())
        os.kill(program, signal.SIGKILL)
        assert running.wait_for("error")["error"] == "ProviderError"
    wait_until(lambda: not is_running(orphan), "what it had started ends with it")


async def test_what_a_program_left_running_ends_with_its_turn(tmp_path: Path) -> None:
    place, url = toy_place(tmp_path), f"sqlite:///{tmp_path}/clew.db"
    pids = place.cwd / "pids"
    with worker(place, url, provider="toy", prompt=f"spawn {pids}\nsay done") as running:
        assert running.wait_for("turn")["output"] == "done"
        orphan = int(pids.read_text().split()[1])
        assert not is_running(orphan)


async def test_after_a_crash_on_another_machine_the_record_alone_is_enough(tmp_path: Path) -> None:
    here, there = toy_place(tmp_path / "a"), toy_place(tmp_path / "b")
    url = f"sqlite:///{tmp_path}/clew.db"
    with worker(
        here, url, provider="toy", prompt="say first\ncall c1 Bash\nresult c1 out\ncall c2 Bash\nsleep 600"
    ) as one:
        handle = one.wait_for("handle")["handle"]
        one.wait_for("tool-finished")
        one.wait_for("tool-started")
        await _until_recorded(url, handle, "c2")
        one.kill()
    async with open_checkpointer(url) as store:
        turn = await toy_agent(there, store, takeover=True).resume_session(handle).send("echo")
        assert all(word in turn.output for word in ("assistant=first", "call=c1 Bash", "result=out"))
        state = await Thread.load(store, json.loads(handle)["session_id"])
        assert not state.calls
        assert any("[clew]" in plain_text(message) for message in state.history)
