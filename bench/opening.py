"""How long it takes to open a long thread and fold it to its state, beside reading the same turns as JSON."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from bench.corpus import Corpus
from bench.lanes import FILES, SQLITE, Prepared, floor_database, insert, prepare
from bench.reading import alternate
from bench.results import Result, at_most
from bench.scale import Scale, progress, scratch
from clew.checkpointers import Checkpointer, FileCheckpointer, SQLiteCheckpointer
from clew.log import Checkpoint
from clew.threads import Thread

__all__ = ["opening"]


async def opening(scale: Scale) -> list[Result]:
    turns = max(scale.turns)
    conversation = prepare(Corpus().conversation(turns))
    with scratch() as folder:
        db = _fill_floor(folder / "floor.db", conversation)

        async def floor() -> list[Any]:
            return [json.loads(data) for (data,) in db.execute("SELECT data FROM turns ORDER BY id")]

        results: list[Result] = []
        for name, checkpointer in (
            (SQLITE, SQLiteCheckpointer(folder / "clew.db")),
            (FILES, FileCheckpointer(folder / "clew")),
        ):
            progress(f"open: {turns} turns, {name}")
            async with checkpointer:
                await _fill(checkpointer, conversation)

                async def ours(checkpointer: Checkpointer = checkpointer) -> Checkpoint:
                    return await Thread.load(checkpointer, "bench")

                if (await ours()).turns != turns:
                    raise AssertionError("the thread that was read is not the one that was written")
                what = f"open and fold {turns} turns: {name} / SELECT + json.loads"
                limit = at_most(1.2) if name == SQLITE else None
                results.append(await alternate(what, ours, floor, scale, limit))
        db.close()
    return results


async def _fill(checkpointer: Checkpointer, conversation: list[Prepared]) -> None:
    async with Thread.open(checkpointer, "bench") as thread:
        for turn in conversation:
            await thread.append(*turn.entries)


def _fill_floor(path: Path, conversation: list[Prepared]) -> sqlite3.Connection:
    db = floor_database(path)
    for turn in conversation:
        insert(db, turn.json)
    return db
