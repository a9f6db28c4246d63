"""`clew tail` on a store behind `clew serve`: words as the model writes them, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from rich.console import Console

from clew import Agent, Thread, open_checkpointer
from clew.agent import live
from clew.checkpointers import Checkpointer, Delta, MemoryCheckpointer
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.checkpointers.live import Changed, LiveChannel, LiveEvent
from clew.cli import live as cli_live
from clew.cli.commands.tail import Follower, PrintView
from clew.cli.live import Watch
from clew.cli.output.conversation import Pen
from clew.errors import Unavailable
from clew.log import MessageAdded
from clew.messages import assistant, user
from clew.models.base import ModelEvent, ModelRequest, TextDelta
from clew.server.routes import events
from clew.testing import ScriptedModel, say
from clew.testing.contract.builders import a_head
from tests.cli.command_line import hear_signals
from tests.limits import PATIENCE
from tests.server.serving import serving
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Told(ScriptedModel):
    """A model that writes on when it is told to: piece after piece, and then the whole response."""

    def __init__(self, script: Sequence[object]) -> None:
        super().__init__(script)  # type: ignore[arg-type]
        self.pieces: asyncio.Semaphore = asyncio.Semaphore(0)
        self.end = asyncio.Event()

    def write(self, pieces: int) -> None:
        for _ in range(pieces):
            self.pieces.release()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        async for event in super().stream(request):
            if isinstance(event, TextDelta):
                await self.pieces.acquire()
            else:
                await self.end.wait()
            yield event


@asynccontextmanager
async def tailing(url: str, *arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "clew", "tail", *arguments),
        env={**os.environ, "CLEW_STORE": url},
        stdout=PIPE,
        stderr=PIPE,
        preexec_fn=hear_signals,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Screen:
    """What a process has printed so far."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._out = process.stdout
        self.text = ""

    async def until(self, words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while words not in self.text:
                read = await self._out.read(4096)
                assert read, f"it ended: {self.text}"
                self.text += read.decode()

    async def more(self) -> None:
        """Wait until something more is printed."""
        seen = len(self.text)
        async with asyncio.timeout(PATIENCE):
            while len(self.text) == seen:
                self.text += (await self._out.read(4096)).decode()

    async def rest(self) -> str:
        async with asyncio.timeout(PATIENCE):
            self.text += (await self._out.read()).decode()
        return self.text


@asynccontextmanager
async def working(store: Checkpointer, model: Told) -> AsyncIterator[asyncio.Task[object]]:
    """An agent that works on the thread `t`, which has a turn already."""
    await Agent(ScriptedModel(["An earlier answer."]), checkpointer=store).run("Hello.", thread_id="t")

    async def work() -> object:
        return await Agent(model, checkpointer=store).run("Tell me more.", thread_id="t")

    task = asyncio.create_task(work())
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                head = await store.head("t")
                if head is not None and head.status == "running":
                    break
                await asyncio.sleep(0.01)
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def written_until(model: Told, shown: Coroutine[Any, Any, None]) -> None:
    """Let the model write on until this is shown: nobody may have followed when it began."""
    task = asyncio.create_task(shown)
    while not task.done():
        model.write(1)
        await asyncio.wait((task,), timeout=0.2)
    await task


COUNTED = " ".join(f"word{number}" for number in range(2000))


async def test_words_are_printed_while_the_model_writes_and_once() -> None:
    model = Told([say("An earlier answer."), say("one two three")])
    with serving() as running:
        async with (
            HTTPCheckpointer(running.url) as store,
            working(store, model) as work,
            tailing(running.url, "t") as process,
        ):
            screen = Screen(process)
            await screen.until("> Tell me more.")
            while not await store.publish("t", []):
                await asyncio.sleep(0.01)
            model.pieces.release()
            await screen.until("one")
            head = await store.head("t")
            assert head is not None
            assert head.turns == 1, "the response is not on record yet"
            model.write(10)
            await screen.until("three")
            model.end.set()
            await work
            text = await screen.rest()
    assert text.count("one two three") == 1
    assert "done" in text


async def test_after_a_broken_connection_words_go_on_and_the_recorded_response_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_NOBODY", 0.2)
    model = Told([say("An earlier answer."), say(COUNTED)])
    with serving() as running:
        async with (
            Proxy(("127.0.0.1", running.server.port)) as proxy,
            HTTPCheckpointer(running.url) as store,
            working(store, model) as work,
            tailing(f"http://127.0.0.1:{proxy.port}", "t") as process,
        ):
            screen = Screen(process)
            await written_until(model, screen.until("word"))
            for _ in range(3):
                proxy.cut()
                await written_until(model, screen.more())
            assert "word1999" not in screen.text
            model.write(5000)
            model.end.set()
            await work
            text = await screen.rest()
    assert text.count("> Tell me more.") == 1
    assert COUNTED in " ".join(text.split())


async def test_an_older_service_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ROUTES", [])
    model = Told([say("An earlier answer."), say("one two three")])
    model.write(10)
    with serving() as running:
        async with (
            HTTPCheckpointer(running.url) as store,
            working(store, model) as work,
            tailing(running.url, "t") as process,
        ):
            screen = Screen(process)
            await screen.until("> Tell me more.")
            model.end.set()
            await work
            text = await screen.rest()
    assert text.count("one two three") == 1


async def test_with_a_key_the_thread_is_followed_without_words_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_KEY", "3" * 64)
    model = Told([say("An earlier answer."), say("one two three")])
    with serving() as running:
        async with (
            open_checkpointer(running.url) as store,
            working(store, model) as work,
            tailing(running.url, "t") as process,
        ):
            screen = Screen(process)
            await screen.until("> Tell me more.")
            model.write(10)
            model.end.set()
            await work
            text = await screen.rest()
    assert text.count("one two three") == 1


class Breaking(LiveChannel):
    """A channel whose first connection breaks when it is told to, and whose second says nothing."""

    def __init__(self) -> None:
        self.breaks = asyncio.Event()
        self.asked: list[tuple[int, str]] = []

    async def publish(self, thread_id: str, deltas: Sequence[Delta]) -> int:
        return 0

    async def follow(self, thread_id: str, *, after: int = -1, log_id: str = "") -> AsyncIterator[LiveEvent]:
        self.asked.append((after, log_id))
        if len(self.asked) > 1:
            await asyncio.Event().wait()
        yield Changed()
        await self.breaks.wait()
        raise Unavailable("cut")


async def test_when_the_connection_breaks_the_thread_is_looked_at_and_followed_from_where_it_was_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli_live, "_TOLD", 100 * PATIENCE)
    channel = Breaking()
    watch = Watch(channel, a_head("t", 3, log_id="x"))
    async with asyncio.timeout(PATIENCE):
        while not channel.asked:
            await watch.next(a_head("t", 3, log_id="x"), moved=True)
        later = asyncio.create_task(watch.next(a_head("t", 7, log_id="x"), moved=True))
        await asyncio.sleep(0)
        channel.breaks.set()
        assert await later is None
        while len(channel.asked) < 2:
            assert await watch.next(a_head("t", 7, log_id="x"), moved=False) is None
        await watch.close()
    assert channel.asked == [(2, "x"), (6, "x")]


# What is printed


async def printed(*heard: Delta, recorded: str = "one two") -> str:
    """What is printed of a response of which these pieces were heard before it came."""
    out = io.StringIO()
    async with MemoryCheckpointer() as store, Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Say it.")))
        follower = Follower(store, "t", PrintView(Pen(Console(file=out)), 1), 1)
        await follower.catch_up(thread.head)
        for delta in heard:
            follower.hear(delta)
        await thread.append(MessageAdded(assistant(recorded)))
        await follower.catch_up(thread.head)
    return out.getvalue()


async def test_a_response_that_was_heard_whole_is_not_printed_again() -> None:
    assert (await printed(Delta(1, 0, "one "), Delta(1, 4, "two"))).count("one two") == 1


async def test_a_response_with_gaps_is_printed_whole_once_it_is_on_record() -> None:
    text = await printed(Delta(1, 4, "two"))
    assert "… two" in text
    assert text.count("one two") == 1


async def test_a_response_that_begins_anew_is_printed_anew() -> None:
    text = await printed(Delta(1, 0, "one, no"), Delta(1, 0, "one "), Delta(1, 4, "two"))
    assert text.index("one, no") < text.index("begins anew") < text.index("one two")


async def test_words_of_a_recorded_response_or_of_one_to_come_are_not_printed() -> None:
    text = await printed(Delta(0, 0, "late"), Delta(2, 0, "early"))
    assert "late" not in text
    assert "early" not in text


async def test_words_cannot_control_the_terminal() -> None:
    assert "\x1b" not in await printed(Delta(1, 0, "\x1b[2Jone\x1b]0;owned\x07"))
