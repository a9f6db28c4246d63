"""Many sessions at once in one process: how many appends a second, beside one INSERT after another and SQLiteSession."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bench import peers
from bench.corpus import Corpus
from bench.lanes import INSERT, SQLITE, Prepared, floor_database, insert, prepare
from bench.results import Limit, Result, at_least, spread
from bench.scale import Scale, progress, scratch
from bench.show import rate
from clew.checkpointers import SQLiteCheckpointer
from clew.threads import Thread

__all__ = ["crowd"]

_TIMES = 3
"""As many repeats as elsewhere: a crowd is done in less than a second, and what slows a shared machine lasts longer."""

Work = Callable[[Path, list[list[Prepared]]], Awaitable[float]]


async def crowd(scale: Scale) -> list[Result]:
    corpus = Corpus()
    conversations = [prepare(corpus.conversation(scale.session_turns)) for _ in range(scale.sessions)]
    appends = scale.sessions * scale.session_turns
    ways: dict[str, Work] = {SQLITE: _clew, INSERT: _inserts}
    if peers.has_agents():
        ways[peers.SESSION] = _sessions
    else:
        progress(f"crowd: {peers.HOW_TO_INSTALL}")
    rates: dict[str, list[float]] = {name: [] for name in ways}
    repeats = _TIMES * scale.repeats
    for repeat in range(repeats):
        names = list(ways)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            progress(f"crowd: {scale.sessions} x {scale.session_turns}, {name}, repeat {repeat + 1} of {repeats}")
            with scratch() as folder:
                gc.collect()
                rates[name].append(appends / await ways[name](folder, conversations))
    what = f"{scale.sessions} sessions x {scale.session_turns} turns at once"
    return [
        Result(
            f"{what}: {SQLITE} / {name}",
            rate(spread(rates[SQLITE]).median),
            rate(spread(rates[name]).median),
            spread([ours / theirs for ours, theirs in zip(rates[SQLITE], rates[name], strict=True)]),
            limit,
        )
        for name, limit in _limits()
        if name in ways
    ]


def _limits() -> tuple[tuple[str, Limit], ...]:
    return (INSERT, at_least(2.5)), (peers.SESSION, at_least(4.0))


async def _clew(folder: Path, conversations: list[list[Prepared]]) -> float:
    async with SQLiteCheckpointer(folder / "clew.db") as checkpointer, AsyncExitStack() as stack:
        threads = [
            await stack.enter_async_context(Thread.open(checkpointer, f"session-{number}"))
            for number in range(len(conversations))
        ]

        async def session(thread: Thread, conversation: list[Prepared]) -> None:
            for turn in conversation:
                await thread.append(*turn.entries)

        start = time.perf_counter()
        await asyncio.gather(*map(session, threads, conversations))
        return time.perf_counter() - start


async def _inserts(folder: Path, conversations: list[list[Prepared]]) -> float:
    db = floor_database(folder / "insert.db")
    start = time.perf_counter()
    for turns in zip(*conversations, strict=True):
        for turn in turns:
            insert(db, turn.json)
    taken = time.perf_counter() - start
    db.close()
    return taken


async def _sessions(folder: Path, conversations: list[list[Prepared]]) -> float:
    sessions = [peers.new_session(f"session-{number}", folder / "session.db") for number in range(len(conversations))]

    async def run(session: peers.Session, conversation: list[Prepared]) -> None:
        for turn in conversation:
            await session.add_items(turn.messages)

    start = time.perf_counter()
    await asyncio.gather(*map(run, sessions, conversations))
    taken = time.perf_counter() - start
    for session in sessions:
        session.close()
    return taken
