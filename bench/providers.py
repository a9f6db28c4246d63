"""What a session at a provider costs: what Clew adds to a turn of its program, and an event after a thousand turns."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from bench.results import Result, at_most, spread
from bench.scale import Scale, progress, scratch
from bench.show import micros
from clew.agent.journal import Journal
from clew.checkpointers import SQLiteCheckpointer
from clew.log import MessageAdded
from clew.messages import Text, ToolCall, ToolResult, user
from clew.providers.base import Place
from clew.providers.events import Delta, Response
from clew.providers.events import Result as Outcome
from clew.providers.recorder import Recorder
from clew.threads import Thread
from tests.providers.toy import PROGRAM, Toy, toy_place
from tests.providers.toys import toy_agent

__all__ = ["providers"]

_PROMPT = "stream one two three\nsay one two three \ncall c1 Bash\nresult c1 out\nsay done"
_ALLOWED = 0.05
"""Seconds that Clew may add to a turn."""
_EVENTS = 10


async def providers(scale: Scale) -> list[Result]:
    with scratch() as folder:
        return [await _added(scale, folder), await _flat(scale, folder)]


async def _added(scale: Scale, folder: Path) -> Result:
    """The same program on the same prompt, by itself and through a session with every event on record and the conversation
    captured; one after the other, so that both see the same machine."""
    place = toy_place(folder / "machine")
    added: list[float] = []
    async with SQLiteCheckpointer(folder / "turns.db") as store:
        session = toy_agent(place, store).start_session()
        await session.send(_PROMPT)
        for repeat in range(scale.provider_turns):
            progress(f"providers: turn {repeat + 1} of {scale.provider_turns}")
            alone = await _alone(place)
            begun = time.perf_counter()
            await session.send(_PROMPT)
            added.append(time.perf_counter() - begun - alone)
    shares = [seconds / _ALLOWED for seconds in added]
    return Result(
        "provider, a turn: what Clew adds / 50 ms",
        micros(statistics.median(added)),
        micros(_ALLOWED),
        spread(shares),
        at_most(1.0),
    )


async def _alone(place: Place) -> float:
    provider = Toy(place)
    program = provider.program()
    if program is None:
        raise AssertionError("the toy's program is this interpreter")
    file = place.home / "alone"
    file.unlink(missing_ok=True)
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(str(program.path), "-I", str(PROGRAM), str(file)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=place.cwd,
    )
    await process.communicate(_PROMPT.encode())
    return time.perf_counter() - begun


async def _flat(scale: Scale, folder: Path) -> Result:
    """Ten events a turn on one thread: those of the last tenth of the turns beside those of the first."""
    async with (
        SQLiteCheckpointer(folder / "events.db") as store,
        Thread.open(store, "t", durability="async") as thread,
        Journal(thread) as journal,
    ):
        taken = [await _turn(journal, number) for number in range(scale.provider_events_turns)]
    tenth = len(taken) // 10
    first, last = taken[:tenth], taken[-tenth:]
    return Result(
        f"provider, an event: after {scale.provider_events_turns:,} turns / at the start",
        micros(statistics.median(last) / _EVENTS),
        micros(statistics.median(first) / _EVENTS),
        spread([late / early for late, early in zip(last, first, strict=True)]),
        at_most(1.3),
    )


async def _turn(journal: Journal, number: int) -> float:
    """Seconds until all events of a turn are durable."""
    recorder = Recorder(journal, lambda event: None)
    await journal.record(MessageAdded(user(f"prompt {number}")))
    begun = time.perf_counter()
    for word in range(_EVENTS - 4):
        recorder.take(Delta(f"word {word} "))
    recorder.take(Response((ToolCall(f"c{number}", "Bash", {"command": "ls"}),), id=f"{number}a"))
    recorder.take(Outcome(ToolResult(f"c{number}", (Text("a\nb\nc"),))))
    recorder.take(Response((Text("done"),), id=f"{number}b"))
    await recorder.settle()
    return time.perf_counter() - begun
