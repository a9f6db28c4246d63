"""gc while eight processes create, fork and delete threads with shared blobs: nothing that a thread reaches ever goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer, open_checkpointer
from clew.threads.ops.gc import gc
from clew.threads.ops.verify import verify_all
from tests.crash.gc_writer import check
from tests.crash.processes import FULL, PATIENCE, STORES, Speaker, url_of
from tests.sampling import sampled

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

SECONDS = 60 if FULL else 4
WRITERS = 8
GRACE = timedelta(seconds=2)


async def under_fire(url: str, seconds: float, deleter: Checkpointer | None = None) -> tuple[int, int, list[str]]:
    """How many operations the writers made, how many blobs were collected meanwhile, and what went wrong."""
    wrong: list[str] = []
    refused: list[str] = []
    collected = operations = 0
    async with open_checkpointer(url) as store:
        await gc(store)  # the store is made before anybody races for it
        with ExitStack() as stack:
            writers = [stack.enter_context(Speaker("tests.crash.gc_writer", url, f"w{n}")) for n in range(WRITERS)]
            for writer in writers:
                assert writer.hear() == "ready"
            began = time.monotonic()
            while not wrong and time.monotonic() - began < (seconds if collected else seconds + PATIENCE):
                collected += (await gc(deleter or store, grace=GRACE)).deleted
                heads = [head async for head in store.heads()]
                for head in heads[:10]:
                    if (found := await check(store, head)) is not None:
                        wrong.append(found)
                await asyncio.sleep(0.02)
            for writer in writers:
                writer.say("stop")
            for writer in writers:
                while not (line := writer.hear()).startswith("done "):
                    (wrong if line.startswith("wrong ") else refused).append(line)
                operations += int(line.removeprefix("done "))
        await asyncio.sleep(GRACE.total_seconds() + 0.1)
        collected += (await gc(store, grace=GRACE)).deleted
        wrong += [str(verdict) async for verdict in verify_all(store) if not verdict.sound]
    print(f"{operations} operations, {len(refused)} of them refused, {collected} blobs collected")
    return operations, collected, wrong


@pytest.mark.parametrize("kind", STORES)
async def test_gc_never_takes_what_a_thread_reaches(kind: str, tmp_path: Path) -> None:
    operations, collected, wrong = await under_fire(url_of(kind, tmp_path), SECONDS)
    assert wrong == []
    assert operations > 20
    assert collected > 0


@pytest.mark.parametrize("kind", sampled(STORES, 1))
async def test_the_fire_finds_a_gc_that_breaks_the_promise(kind: str, tmp_path: Path) -> None:
    """By chance, so it may take more than one try on a machine that is busy."""
    found: list[str] = []
    for number in range(5):
        found = found or await _under_fire_of_a_broken_gc(url_of(kind, tmp_path / str(number)))
    assert found


async def _under_fire_of_a_broken_gc(url: str) -> list[str]:
    async with open_checkpointer(url) as store:
        delete, listed = store.delete_blobs, store.blobs

        async def hasty(digests: Collection[str], *, untouched_for: timedelta) -> None:
            await asyncio.sleep(0.2)
            await delete(digests, untouched_for=timedelta(0))

        store.blobs = lambda *, untouched_for: listed(untouched_for=timedelta(0))  # type: ignore[method-assign]
        store.delete_blobs = hasty  # type: ignore[method-assign]
        _, _, wrong = await under_fire(url, 6, deleter=store)
    return wrong
