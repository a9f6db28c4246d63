"""How long it takes to open a long thread and fold it to its state, beside reading the same turns as JSON and beside
`SQLiteSession` of openai-agents."""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from bench import peers
from bench.corpus import Corpus
from bench.lanes import FILES, SQLITE, Prepared, floor_database, prepare
from bench.reading import Read, seconds
from bench.results import Limit, Result, Spread, at_most, below, spread
from bench.scale import Scale, progress, scratch
from bench.show import micros
from bench.syllables import Syllables
from clew.checkpointers import Checkpointer, FileCheckpointer, SQLiteCheckpointer
from clew.log import Checkpoint
from clew.threads import Thread

__all__ = ["opening"]

FLOOR = "SELECT + json.loads"
_LIMITS: tuple[tuple[str, str, Limit], ...] = (
    (SQLITE, FLOOR, at_most(1.2)),
    (SQLITE, peers.SESSION, below(1.0)),
    (FILES, FLOOR, at_most(1.6)),
)


async def opening(scale: Scale) -> list[Result]:
    if not peers.has_agents():
        progress(f"open: {peers.HOW_TO_INSTALL}")
    results: list[Result] = []
    for turns in scale.opened:
        for name, corpus in (("", Corpus()), (" of syllables", Syllables())):
            conversation = prepare(corpus.conversation(turns))
            with scratch() as folder:
                progress(f"open: {turns} turns{name}, filling the stores")
                times = await _times(folder, conversation, scale)
            for ours, other, limit in _LIMITS:
                if other in times:
                    what = f"open and fold {turns} turns{name}: {ours} / {other}"
                    results.append(_compare(what, times[ours], times[other], limit))
    return results


def _compare(what: str, ours: Sequence[Sequence[float]], others: Sequence[Sequence[float]], limit: Limit) -> Result:
    """Compare the medians of each repeat, so that a read that was held up by other work on the machine does not count."""
    mine, theirs = ([statistics.median(repeat) for repeat in times] for times in (ours, others))
    ratio: Spread = spread([our / other for our, other in zip(mine, theirs, strict=True)])
    return Result(what, micros(statistics.median(mine)), micros(statistics.median(theirs)), ratio, limit)


async def _times(folder: Path, conversation: list[Prepared], scale: Scale) -> dict[str, list[list[float]]]:
    """The seconds of each read, by way and repeat. All ways read in turns, in an order drawn anew each time."""
    async with SQLiteCheckpointer(folder / "clew.db") as sqlite, FileCheckpointer(folder / "clew") as files:
        ways: dict[str, Read] = {}
        for name, checkpointer in ((SQLITE, sqlite), (FILES, files)):
            await _fill(checkpointer, conversation)
            ways[name] = _loader(checkpointer, len(conversation))
        with _floor(folder / "floor.db", conversation) as ways[FLOOR]:
            if not peers.has_agents():
                return await _alternate(ways, scale)
            session = peers.new_session("bench", folder / "session.db")
            await session.add_items([message for turn in conversation for message in turn.messages])
            ways[peers.SESSION] = session.get_items
            try:
                return await _alternate(ways, scale)
            finally:
                session.close()


async def _alternate(ways: Mapping[str, Read], scale: Scale) -> dict[str, list[list[float]]]:
    order = Random(1)
    times: dict[str, list[list[float]]] = {name: [] for name in ways}
    names = list(ways)
    for repeat in range(scale.repeats):
        progress(f"open: repeat {repeat + 1} of {scale.repeats}")
        for taken in times.values():
            taken.append([])
        for _ in range(scale.reads):
            order.shuffle(names)
            for name in names:
                times[name][-1].append(await seconds(ways[name]))
    return times


def _loader(checkpointer: Checkpointer, turns: int) -> Read:
    async def load() -> Checkpoint:
        found = await Thread.load(checkpointer, "bench")
        if found.turns != turns:
            raise AssertionError("the thread that was read is not the one that was written")
        return found

    return load


async def _fill(checkpointer: Checkpointer, conversation: list[Prepared]) -> None:
    async with Thread.open(checkpointer, "bench") as thread:
        for turn in conversation:
            await thread.append(*turn.entries)


@contextmanager
def _floor(path: Path, conversation: list[Prepared]) -> Iterator[Read]:
    db: sqlite3.Connection = floor_database(path)
    with db:
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO turns (thread, data) VALUES (?, ?)", [("bench", turn.json) for turn in conversation]
        )

    async def read() -> list[Any]:
        return [json.loads(data) for (data,) in db.execute("SELECT data FROM turns ORDER BY id")]

    yield read
    db.close()
