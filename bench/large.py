"""What stays the same at any size: a page of a listing, the memory to read a long thread, an agent's own cost a turn."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from bench.long_threads import write_thread
from bench.many_threads import RARE, WORD, write_threads
from bench.results import Result, Spread, at_most, paired
from bench.scale import Scale, progress, scratch
from bench.show import micros
from clew.agent import Agent
from clew.checkpointers import Checkpointer, HeadQuery, SQLiteCheckpointer
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.threads import Thread
from clew.tools import tool

__all__ = [
    "COMPACT",
    "PAGE",
    "PAGES",
    "PAGE_SECONDS",
    "large",
    "middle_page",
    "page_seconds",
    "peak_memory",
    "reads",
    "turn_seconds",
]

PAGE = 50
"""Threads on a page of a listing."""
COMPACT = 200
"""Turns between two summaries of the long thread."""
PAGE_SECONDS = 0.005
"""Processor time that a page may take."""
_MEMORY = 200 * 2**20
_SHORT = 2 * COMPACT
"""Turns of the short thread that a long one is compared with. The model sees as much of it as of the long one."""

PAGES: dict[str, HeadQuery] = {
    "the newest": HeadQuery(limit=PAGE),
    "by status": HeadQuery(status=("done",), limit=PAGE),
    "by a common tag": HeadQuery(tags={"team": "t-7"}, limit=PAGE),
    "by a rare tag": HeadQuery(tags=RARE, limit=PAGE),
    "by a word in the title": HeadQuery(title=WORD, limit=PAGE),
}
"""Listings that people and programs ask for. The last two look at every thread, because few have what is asked for."""
_EVERY_THREAD = ("by a rare tag", "by a word in the title")

_PEAK = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(used.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(os.waitstatus_to_exitcode(status))
"""
_ONE_TURN = """
import asyncio, sys
from clew.checkpointers import open_checkpointer
from clew.threads.views.timeline import TimelineReader, Window, reader_of
async def main(url, thread_id, number):
    async with open_checkpointer(url) as store:
        reader = TimelineReader(thread_id, Window(numbers={number}))
        await reader_of(store, thread_id, reader=reader)
        place = reader.turns.position_of(number)
        (turn,) = reader.timeline(place, place + 1).turns
        assert turn.number == number and turn.blocks
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def large(scale: Scale) -> list[Result]:
    with scratch() as folder:
        return [*await _listings(folder, scale), *await _long(folder, scale)]


async def _listings(folder: Path, scale: Scale) -> list[Result]:
    few, many = scale.many_threads // 10, scale.many_threads
    progress(f"large: {many:,} threads")
    async with SQLiteCheckpointer(folder / "few.db") as small, SQLiteCheckpointer(folder / "many.db") as full:
        await write_threads(small, few)
        await write_threads(full, many)
        pages = {name: [(full, query), (small, query)] for name, query in PAGES.items()}
        pages["in the middle"] = [(full, await middle_page(full, many)), (small, await middle_page(small, few))]
        times = {name: await _side_by_side(asked, scale) for name, asked in pages.items()}
    rows = []
    for name, (ours, other) in times.items():
        what, limit = f"a page of {PAGE}, {name}", [[PAGE_SECONDS] * scale.reads] * scale.repeats
        rows.append(_over(f"{what}, {many:,} threads / 5 ms", ours, limit, 1.0))
        if name not in _EVERY_THREAD:
            rows.append(_over(f"{what}: {many:,} / {few:,} threads", ours, other, 1.2))
    return rows


async def _side_by_side(asked: Sequence[tuple[Checkpointer, HeadQuery]], scale: Scale) -> list[list[list[float]]]:
    """Return the processor times of reading each of these pages, by repeats. The pages are read in turns."""
    times: list[list[list[float]]] = [[] for _ in asked]
    for _ in range(scale.repeats):
        gc.collect()
        for found in times:
            found.append([])
        for _ in range(scale.reads):
            for found, (store, query) in zip(times, asked, strict=True):
                found[-1].append(await page_seconds(store, query))
    return times


def _over(what: str, ours: list[list[float]], other: list[list[float]], limit: float) -> Result:
    typical = [statistics.median(map(statistics.median, times)) for times in (ours, other)]
    return Result(what, micros(typical[0]), micros(typical[1]), paired(ours, other), at_most(limit))


async def middle_page(store: Checkpointer, count: int) -> HeadQuery:
    """Return the query for the page in the middle of a listing of `count` threads."""
    query, last = HeadQuery(limit=count // 2), None
    async for head in store.heads(query):
        last = head
    if last is None:
        raise AssertionError("the store has no threads")
    return HeadQuery(limit=PAGE).after(last)


async def page_seconds(store: Checkpointer, query: HeadQuery) -> float:
    """Return the processor time of reading this page."""
    start = time.process_time()
    heads = [head async for head in Thread.list(store, query)]
    taken = time.process_time() - start
    if not heads:
        raise AssertionError(f"a page is empty: {query}")
    return taken


async def _long(folder: Path, scale: Scale) -> list[Result]:
    turns, path = scale.long_turns, folder / "long.db"
    progress(f"large: {turns:,} turns")
    async with SQLiteCheckpointer(path) as store:
        await write_thread(store, "long", turns, compact_every=COMPACT)
        await write_thread(store, "short", _SHORT, compact_every=COMPACT)
    rows = []
    for name, command in reads(path, turns, folder).items():
        used = peak_memory(command)
        ratio = Spread(used / _MEMORY, used / _MEMORY, used / _MEMORY, 1)
        what = f"peak memory, {turns:,} turns: {name} / 200 MB"
        rows.append(Result(what, f"{used / 2**20:.0f} MB", "200 MB", ratio, at_most(1.0)))
    costs: dict[str, list[list[float]]] = {"short": [], "long": []}
    for repeat in range(scale.repeats):
        for name, found in sorted(costs.items(), reverse=repeat % 2 == 1):
            async with SQLiteCheckpointer(path) as store:
                found.append(await turn_seconds(store, name, scale.reads * 6))
    what = f"an agent's processor time a turn: turn {turns:,} / turn {_SHORT}"
    return [*rows, _over(what, costs["long"], costs["short"], 1.2)]


def reads(path: Path, turns: int, folder: Path) -> dict[str, list[str]]:
    """Return commands that read the thread "long" of the SQLite store at `path`, by name. Copies go into `folder`."""
    url, clew = f"sqlite:///{path}", [sys.executable, "-m", "clew"]
    return {
        "clew show --turn 5": [*clew, "show", "long", "--turn", "5", "--store", url],
        f"clew show --turn {turns - 10}": [*clew, "show", "long", "--turn", str(turns - 10), "--store", url],
        "one turn, in Python": [sys.executable, "-c", _ONE_TURN, url, "long", str(turns // 2)],
        "clew copy to SQLite": [*clew, "copy", url, f"sqlite:///{folder / 'copy.db'}", "long"],
        "clew copy to files": [*clew, "copy", url, f"file://{folder / 'copy'}", "long"],
        "clew verify": [*clew, "verify", "long", "--store", url],
    }


def peak_memory(command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a command and return the most memory that its process had, in bytes.

    It is started by a small process: the system counts the memory of the starting process for that of the started one.
    """
    measured = [sys.executable, "-c", _PEAK, *command]
    done = subprocess.run(measured, env=env or os.environ, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} failed: {done.stderr}")
    return int(done.stdout)


@tool
async def look(number: int) -> str:
    """Look at a row."""
    return f"row {number}"


async def turn_seconds(store: Checkpointer, thread_id: str, turns: int) -> list[float]:
    """Let an agent go on with a thread for this many turns. Return the processor time of each: from one request of the
    model to the next."""
    moments: list[float] = []

    def answer(request: ModelRequest) -> Response:
        moments.append(time.process_time())
        return call("look", number=len(moments)) if len(moments) <= turns else "Done."

    agent = Agent(ScriptedModel(answer), tools=[look], checkpointer=store, max_turns=turns + 1)
    await agent.run("Look at the rows.", thread_id=thread_id)
    return [after - before for before, after in pairwise(moments)]
