"""A run that is cancelled again while it puts its end on record still does so: what it began is awaited, not abandoned."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew._runtime.aio import settle
from clew.agent import Agent
from clew.checkpointers import Head, MemoryCheckpointer
from clew.log import MessageAdded
from clew.messages import Assistant, assistant, user
from clew.models import ModelEvent, ModelRequest
from clew.sync import Thread as SyncThread
from clew.sync import open_checkpointer
from clew.testing import ScriptedModel, call
from clew.tools import ToolContext, run_command, tool
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


class Held(MemoryCheckpointer):
    """A store whose appends wait, once they are held, until they are let go; cancelling one does not abandon it."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.waiting = asyncio.Event()

    def hold(self) -> None:
        self.let_go.clear()
        self.waiting.clear()

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        async def later() -> None:
            self.waiting.set()
            await self.let_go.wait()
            await super(Held, self).append(thread_id, frames, at=at, head=head, refs=refs)

        await settle(later())


async def cancelled_again(task: asyncio.Task[Any], times: int) -> None:
    """Cancel a task so often, each time once it has heard of the last, and see that it waits for what it began."""
    for _ in range(times):
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
    assert not task.done()


@pytest.mark.parametrize("times", [2, 3, 10])
async def test_that_a_run_was_cancelled_is_on_record_however_often_it_is_cancelled(times: int) -> None:
    store, begun = Held(), asyncio.Event()

    @tool
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    agent = Agent(ScriptedModel([call("work")]), tools=[work], checkpointer=store)
    run = asyncio.ensure_future(agent.run("Go.", thread_id="t"))
    await begun.wait()
    store.hold()
    run.cancel()
    await store.waiting.wait()
    await cancelled_again(run, times - 1)
    store.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    state, head = await Thread.load(store, "t"), await store.head("t")
    assert (state.status, state.reason) == ("interrupted", "cancelled")
    assert head is not None
    assert head.lease is None


@pytest.mark.parametrize("times", [1, 2, 3, 10])
async def test_a_response_that_was_paid_for_is_on_record_however_often_the_run_is_cancelled(times: int) -> None:
    class Model(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            store.hold()
            held.set()
            async for event in super().stream(request):
                yield event

    store, held = Held(), asyncio.Event()
    agent = Agent(Model(["The answer."]), checkpointer=store)
    run = asyncio.ensure_future(agent.run("Go.", thread_id="t"))
    await held.wait()
    await store.waiting.wait()
    await cancelled_again(run, times)
    store.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    state = await Thread.load(store, "t")
    assert isinstance(state.history[-1], Assistant)
    assert not state.in_flight


@pytest.mark.parametrize("times", [2, 3, 10])
async def test_a_cancelled_run_ends_after_its_tools_however_often_it_is_cancelled(times: int) -> None:
    store, begun, may_end, ended = Held(), asyncio.Event(), asyncio.Event(), []

    async def clean_up() -> None:
        await may_end.wait()
        ended.append("cleaned up")

    @tool
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await settle(clean_up())

    agent = Agent(ScriptedModel([call("work")]), tools=[work], checkpointer=store)
    run = asyncio.ensure_future(agent.run("Go.", thread_id="t"))
    await begun.wait()
    await cancelled_again(run, times)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ended == ["cleaned up"]
    assert (await Thread.load(store, "t")).status == "interrupted"


@pytest.mark.parametrize("times", [1, 2, 10])
async def test_a_thread_gives_its_lease_back_however_often_its_holder_is_cancelled(times: int) -> None:
    store, held = Held(), asyncio.Event()

    async def hold() -> None:
        async with Thread.open(store, "t", durability="async") as thread:
            await thread.append(MessageAdded(user("question")), MessageAdded(assistant("answer")))
            store.hold()
            held.set()
            await thread.append(MessageAdded(user("another")))  # written behind: leaving waits for it, and writes again
            await store.waiting.wait()

    holder = asyncio.ensure_future(hold())
    await held.wait()
    await store.waiting.wait()
    await cancelled_again(holder, times)
    store.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await holder
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("interrupted", None)
    assert len((await Thread.load(store, "t")).history) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are those of POSIX")
async def test_a_command_is_gone_when_its_call_ends_however_often_that_is_cancelled(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    ctx = ToolContext(workspace=tmp_path)
    command = "trap '' TERM; echo $$ > begun.part; mv begun.part begun; while :; do sleep 0.1; done"
    running = asyncio.ensure_future(run_command.fn(command, ctx))
    while not begun.exists():
        await asyncio.sleep(0.01)
    pid = int(begun.read_text())
    await cancelled_again(running, 3)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode == 1


AGENT = """
import asyncio, signal, sys
from clew.testing import ScriptedModel, call
from clew.tools import tool

@tool
async def work() -> None:
    told = 0
    print("working", flush=True)
    while told < int(sys.argv[1]):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told += 1
            asyncio.get_running_loop().call_later(0.05, lambda told=told: print("told", told, flush=True))
    raise asyncio.CancelledError

def setup(**more):
    return dict(model=ScriptedModel([call("work")]), tools=[work], checkpointer="sqlite:///c.db", **more)
"""
ASYNC = """
from clew import Agent

async def main():
    async with Agent(**setup()) as agent:
        await agent.run("Go.", thread_id="t")

asyncio.run(main())
"""
BLOCKING = """
from clew.sync import Agent

with Agent(**setup()) as agent:
    agent.run("Go.", thread_id="t")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
@pytest.mark.parametrize("script", [ASYNC, BLOCKING], ids=["asyncio.run", "clew.sync"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_repeated_ctrl_c_is_a_keyboard_interrupt_and_the_record_says_interrupted(
    script: str, times: int, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", AGENT + script, str(times)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        for number in range(times):
            process.send_signal(signal.SIGINT)
            if number + 1 < times:
                assert process.stdout.readline() == f"told {number + 1}\n"
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors.splitlines()[-1] or errors.splitlines()[-2] == "KeyboardInterrupt"
    assert "Exception ignored" not in errors
    assert "never retrieved" not in errors
    with open_checkpointer(f"sqlite:///{tmp_path}/c.db") as store:
        state, head = SyncThread.load(store, "t"), store.head("t")
    assert (state.status, state.reason) == ("interrupted", "cancelled")
    assert head is not None
    assert head.lease is None
