"""Two ways to read the same thing, timed in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from random import Random

from bench.results import Limit, Result, paired
from bench.scale import Scale
from bench.show import micros

__all__ = ["Read", "alternate", "seconds"]

Read = Callable[[], Awaitable[object]]


async def alternate(what: str, ours: Read, floor: Read, scale: Scale, limit: Limit | None) -> Result:
    """Time both by turns in an order drawn anew each time; each starts with the garbage collected and memory freed."""
    order = Random(1)
    mine: list[list[float]] = []
    theirs: list[list[float]] = []
    for _ in range(scale.repeats):
        mine.append([])
        theirs.append([])
        for _ in range(scale.reads):
            ways = [(ours, mine[-1]), (floor, theirs[-1])]
            order.shuffle(ways)
            for read, times in ways:
                times.append(await seconds(read))
    typical = [statistics.median(map(statistics.median, runs)) for runs in (mine, theirs)]
    return Result(what, micros(typical[0]), micros(typical[1]), paired(mine, theirs), limit)


async def seconds(read: Read) -> float:
    """Time one read, which starts with the garbage collected and memory freed."""
    gc.collect()
    start = time.perf_counter()
    found = await read()
    taken = time.perf_counter() - start
    del found
    return taken
