"""What an append does, counted instead of timed: SQL statements and bytes written, early and late in a conversation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from bench.corpus import Corpus
from bench.lanes import INSERT, SQLITE, Lane, Prepared, clew_sqlite, one_insert, prepare
from bench.results import Result, at_most, spread
from bench.scale import Scale, progress, scratch

__all__ = ["counting"]

_IO = Path("/proc/self/io")


async def counting(scale: Scale) -> list[Result]:
    progress("count: statements and bytes of each append")
    short, long = min(scale.turns), max(scale.turns)
    conversation = prepare(Corpus().conversation(long))
    with _statements() as statements:
        counted, _ = await _count(clew_sqlite, conversation, lambda: len(statements))
    results = [_early_and_late(f"SQL statements in an append: turn {long} / turn {short}", counted, short, 1.0)]
    if not _IO.exists():
        progress("count: this system does not tell how many bytes a process wrote; left out")
        return results
    written, whole = await _count(clew_sqlite, conversation, _written)
    _, whole_short = await _count(clew_sqlite, conversation[:short], _written)
    _, whole_floor = await _count(one_insert, conversation, _written)
    results.append(_early_and_late(f"bytes written by an append: last tenth / up to turn {short}", written, short, 1.2))
    results.append(
        _ratio(f"bytes written a turn, all in all: {long} / {short} turns", whole / long, whole_short / short, 1.2)
    )
    results.append(
        _ratio(f"bytes written a turn, all in all: {SQLITE} / {INSERT}", whole / long, whole_floor / long, None)
    )
    return results


async def _count(lane: Lane, turns: list[Prepared], reading: Callable[[], int]) -> tuple[list[int], int]:
    """How far the reading moved with each append, and from the first append until all was closed."""
    moved: list[int] = []
    with scratch() as folder:
        async with lane(folder) as save:
            first = reading()
            for turn in turns:
                before = reading()
                await save(turn)
                moved.append(reading() - before)
        return moved, reading() - first


def _early_and_late(what: str, counted: list[int], short: int, limit: float) -> Result:
    late = statistics.median(counted[-max(1, len(counted) // 10) :])
    early = statistics.median(counted[max(0, short - 10) : short])
    return _ratio(what, late, early, limit)


def _ratio(what: str, ours: float, other: float, limit: float | None) -> Result:
    return Result(
        what, f"{ours:,.0f}", f"{other:,.0f}", spread([ours / other]), None if limit is None else at_most(limit)
    )


@contextmanager
def _statements() -> Iterator[list[str]]:
    """Every statement that any connection opened in here runs."""
    seen: list[str] = []

    def watch(connection: apsw.Connection) -> None:
        def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
            seen.append(statement)
            return True

        connection.exec_trace = trace

    apsw.connection_hooks.append(watch)
    try:
        yield seen
    finally:
        apsw.connection_hooks.remove(watch)


def _written() -> int:
    """Bytes that this process has handed to write calls so far."""
    for line in _IO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "wchar":
            return int(value)
    raise LookupError("no wchar in /proc/self/io")
