"""How long it takes to list many threads, beside the SELECT that reads the same rows."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

from bench.corpus import Corpus
from bench.lanes import SQLITE, Prepared, prepare
from bench.reading import alternate
from bench.results import Result, at_most
from bench.scale import Scale, progress, scratch
from clew.checkpointers import Head, SQLiteCheckpointer
from clew.threads import Thread

__all__ = ["listing"]

_SELECT = "SELECT head FROM heads WHERE ns = '' ORDER BY updated DESC, key DESC"
_AT_ONCE = 64


async def listing(scale: Scale) -> list[Result]:
    progress(f"list: {scale.threads} threads")
    turns = prepare(Corpus().conversation(scale.threads))
    with scratch() as folder:
        async with SQLiteCheckpointer(folder / "clew.db") as checkpointer:
            for start in range(0, scale.threads, _AT_ONCE):
                some = enumerate(turns[start : start + _AT_ONCE], start)
                await asyncio.gather(*(_work(checkpointer, number, turn) for number, turn in some))
            copy = await checkpointer.backup(folder / "copy.db")  # no file is opened with two SQLite libraries
            db = sqlite3.connect(copy.path, isolation_level=None)

            async def ours() -> list[Head]:
                return [head async for head in checkpointer.heads()]

            async def floor() -> list[Any]:
                return db.execute(_SELECT).fetchall()

            if len(await ours()) != scale.threads or len(await floor()) != scale.threads:
                raise AssertionError("the two listings do not list the same threads")
            what = f"list {scale.threads} threads: {SQLITE} / SELECT of the same rows"
            result = await alternate(what, ours, floor, scale, at_most(5.0))
            db.close()
    return [result]


async def _work(checkpointer: SQLiteCheckpointer, number: int, turn: Prepared) -> None:
    async with Thread.open(checkpointer, f"customer-{number}") as thread:
        await thread.append(*turn.entries)
