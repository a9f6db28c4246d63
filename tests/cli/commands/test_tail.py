"""`clew tail`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, Delta, Head, MemoryCheckpointer
from clew.cli.commands.tail import Follower, _follow
from clew.log import Frame, MessageAdded, StatusChanged, Streamed, ToolIntent, ToolOutcome
from clew.messages import Text, ToolCall, ToolResult, assistant, user
from clew.threads.views.timeline import TimelineReader
from tests.cli.command_line import Samples, clew, hear_signals, objects
from tests.limits import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


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


async def until(process: Process, words: str) -> str:
    """All that it says up to the line with these words."""
    assert process.stdout is not None
    said = ""
    async with asyncio.timeout(PATIENCE):
        while words not in said:
            line = await process.stdout.readline()
            assert line, f"it ended: {said}"
            said += line.decode()
    return said


async def rest(process: Process) -> tuple[int, str, str]:
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_thread_that_is_not_there_yet_is_waited_for_and_shown_as_it_is_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    async with open_checkpointer(url) as store, tailing(url, "live", "--wait") as process:
        assert process.stderr is not None
        assert b"Waiting for thread 'live'" in await process.stderr.readline()
        async with Thread.open(store, "live") as thread:
            await thread.append(MessageAdded(user("Begin.")))
            await until(process, "> Begin.")
            call = ToolCall("c1", "look_up", {"city": "Rome"})
            await thread.append(MessageAdded(assistant("At once.", call)), ToolIntent(1, 0, "k"))
            asked = await until(process, '→ look_up(city="Rome")')
            assert "At once." in asked
            await thread.append(ToolOutcome(1, 0, ToolResult("c1", (Text("seven hills"),))))
            await until(process, "    seven hills")
            await thread.append(Streamed((Text("Ro"),)))
            await thread.append(Streamed((Text("me.\n"),)), MessageAdded(assistant("Rome.\n")))
            await until(process, "Rome.")
            await thread.append(StatusChanged("done"))
        code, out, _ = await rest(process)
    assert code == 0
    assert "Rome." not in out
    assert "✓ done" in out


async def test_it_begins_with_the_last_turns_and_ends_where_nobody_works_on_it(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("tail", "trip", "--turns", "1")
    assert (run.returncode, run.stderr) == (0, "")
    assert [line[:6] for line in run.stdout.splitlines() if line.startswith("Turn")] == ["Turn 5"]
    crashed = samples.clew("tail", "report")
    assert crashed.returncode == 0
    assert crashed.stdout.count("ended without a word while it ran send_mail") == 1
    assert "it is interrupted. To see what to do: clew why report" in crashed.stderr
    assert samples.clew("tail", "trip", "--turns", "0").stdout == ""


async def test_json_is_each_entry_as_it_comes(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    entries = objects(samples.clew("tail", "visa", "--json"))
    assert [entry["kind"] for entry in entries] == ["spend", "message", "intent", "state", "spend", "status", "state"]
    async with open_checkpointer(samples.url) as store, tailing(samples.url, "visa", "--json", "--forever") as process:
        await until(process, '"waiting"')
        async with Thread.open(store, "visa") as thread:
            await until(process, '"kind":"lease"')
            await thread.append(StatusChanged("done"))
            await until(process, '"done"')
        assert process.returncode is None
        process.send_signal(signal.SIGINT)
        code, _, err = await rest(process)
    assert (code, err) == (130, "")


async def test_a_holder_that_dies_meanwhile_is_told(tmp_path: Path) -> None:
    """A process that is killed says no word: it is found out from its lease."""
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    hold = (
        "import asyncio, sys\nfrom clew import Thread, open_checkpointer\n"
        "async def main():\n"
        "    async with open_checkpointer(sys.argv[1]) as store, Thread.open(store, 'held'):\n"
        "        print('held', flush=True)\n        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", hold, url, stdout=PIPE)
    assert holder.stdout is not None
    await holder.stdout.readline()
    async with tailing(url, "held") as process:
        await until(process, "started by process")
        holder.kill()
        await holder.wait()
        code, out, err = await rest(process)
    assert code == 0
    assert "ended without a word" in out
    assert "it is interrupted" in err


async def test_a_thread_that_is_deleted_meanwhile_is_not_found(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store, tailing(samples.url, "trip", "--forever") as process:
        await until(process, "The tower is in it now.")
        await store.delete("trip")
        code, _, err = await rest(process)
    assert code == 3
    assert "no thread 'trip'" in err


class MadeAgain:
    """A view of a thread that is deleted and made again as soon as it is seen for the first time."""

    def __init__(self, store: Checkpointer, begun: list[int]) -> None:
        self._store = store
        self._begun = begun

    async def begin(self, reader: TimelineReader, head: Head) -> None:
        self._begun.append(reader.frames)
        if len(self._begun) == 1:
            await self._store.delete("trip")
            async with Thread.open(self._store, "trip") as thread:
                await thread.append(MessageAdded(user("Anew.")), StatusChanged("done"))

    def add(self, reader: TimelineReader, frame: Frame) -> None:
        raise AssertionError("another log is not the rest of this one")

    def hear(self, reader: TimelineReader, delta: Delta) -> None:
        raise AssertionError("a store in memory passes no words on")

    def end(self, reader: TimelineReader, head: Head) -> None:
        """Nothing to add."""


async def test_a_thread_that_is_deleted_and_made_again_is_followed_from_its_start() -> None:
    begun: list[int] = []
    async with MemoryCheckpointer() as store:

        def begin() -> Follower:
            return Follower(store, "trip", MadeAgain(store, begun), 1)

        async with Thread.open(store, "trip") as thread:
            await _follow(store, "trip", begin, forever=False)
            thread.abandon()
    assert begun == [1, 2]


def test_a_wrong_option_is_told_and_is_2(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("tail", "trip", "--turns", "-1")
    assert run.returncode == 2
    assert "--turns" in run.stderr
    assert clew("tail", "", store=samples.url).returncode == 2
