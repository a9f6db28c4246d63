"""Ways to save a turn durably, side by side: Clew's stores, and the floors below which no store can go.

A lane is a folder-bound context that gives a function which saves one turn and returns once the turn is durable.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from bench.corpus import Turn
from bench.syllables import PlainTurn
from clew.checkpointers import Checkpointer, FileCheckpointer, SQLiteCheckpointer
from clew.log import MessageAdded
from clew.threads import Thread

__all__ = [
    "FILES",
    "FLOORS",
    "HOP",
    "INSERT",
    "LINE",
    "OURS",
    "SQLITE",
    "Lane",
    "Prepared",
    "floor_database",
    "interleave",
    "prepare",
]


class Prepared(msgspec.Struct, frozen=True):
    """A turn in the form each lane is handed it in: making that form is the caller's work, and is not timed."""

    entries: tuple[MessageAdded, ...]
    messages: list[dict[str, object]]
    json: str
    langchain: tuple[object, ...] = ()


Save = Callable[[Prepared], Awaitable[object]]
Lane = Callable[[Path], AbstractAsyncContextManager[Save]]


def prepare(turns: Sequence[Turn | PlainTurn]) -> list[Prepared]:
    return [Prepared(turn.entries(), turn.messages(), turn.json()) for turn in turns]


def floor_database(path: Path) -> sqlite3.Connection:
    """A plain table in the same mode as ours: WAL, synchronous FULL."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE turns (id INTEGER PRIMARY KEY, thread TEXT NOT NULL, data TEXT NOT NULL)")
    return db


def insert(db: sqlite3.Connection, text: str) -> None:
    db.execute("INSERT INTO turns (thread, data) VALUES (?, ?)", ("bench", text))


@asynccontextmanager
async def clew_sqlite(folder: Path) -> AsyncIterator[Save]:
    async with _thread(SQLiteCheckpointer(folder / "clew.db")) as save:
        yield save


@asynccontextmanager
async def clew_files(folder: Path) -> AsyncIterator[Save]:
    async with _thread(FileCheckpointer(folder / "clew")) as save:
        yield save


@asynccontextmanager
async def _thread(checkpointer: Checkpointer) -> AsyncIterator[Save]:
    async with checkpointer, Thread.open(checkpointer, "bench") as thread:
        append = thread.append
        yield lambda turn: append(*turn.entries)


@asynccontextmanager
async def one_insert(folder: Path) -> AsyncIterator[Save]:
    """Floor: one INSERT of the JSON text, in this very thread."""
    db = floor_database(folder / "insert.db")

    async def save(turn: Prepared) -> None:
        insert(db, turn.json)

    yield save
    db.close()


@asynccontextmanager
async def hopped_insert(folder: Path) -> AsyncIterator[Save]:
    """Floor: the same INSERT awaited through one hop to a thread, as an event loop needs it."""
    db = floor_database(folder / "hop.db")
    yield lambda turn: asyncio.to_thread(insert, db, turn.json)
    db.close()


@asynccontextmanager
async def one_line(folder: Path) -> AsyncIterator[Save]:
    """Floor: one line of JSON at the end of a file, and one fdatasync."""
    sync = getattr(os, "fdatasync", os.fsync)
    file = os.open(folder / "lines.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    async def save(turn: Prepared) -> None:
        os.write(file, turn.json.encode() + b"\n")
        sync(file)

    yield save
    os.close(file)


SQLITE, FILES, INSERT, HOP, LINE = "clew sqlite", "clew files", "INSERT", "INSERT + hop", "JSON line + fdatasync"
OURS: Mapping[str, Lane] = {SQLITE: clew_sqlite, FILES: clew_files}
FLOORS: Mapping[str, Lane] = {INSERT: one_insert, HOP: hopped_insert, LINE: one_line}


async def interleave(lanes: Mapping[str, Lane], turns: Sequence[Prepared], folder: Path) -> dict[str, list[float]]:
    """Save each turn in every lane before the next turn, in an order drawn anew each time. Seconds by lane and turn."""
    times: dict[str, list[float]] = {name: [] for name in lanes}
    order = Random(len(turns))
    async with AsyncExitStack() as stack:
        ways = [(name, await stack.enter_async_context(lane(folder))) for name, lane in lanes.items()]
        for turn in turns:
            order.shuffle(ways)
            for name, save in ways:
                start = time.perf_counter()
                await save(turn)
                times[name].append(time.perf_counter() - start)
    return times
