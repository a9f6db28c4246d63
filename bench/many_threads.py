"""A store with many threads, filled in seconds: one turn each, with the titles, tags and statuses that a listing selects by.

python -m bench.many_threads sqlite:///tmp/many.db 100000
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

from bench.corpus import MODEL, Corpus, Turn
from clew._runtime.batches import batches
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.checkpointers.heads import Status
from clew.log import FIRST, Described, Logged, StatusChanged, ThreadStarted, encode_entries, encode_frame, fold
from clew.threads.heads import head_of, new_head

__all__ = ["RARE", "WORD", "write_threads"]

RARE = {"customer": "rare"}
"""The tag of every thousandth thread, from the oldest on."""
WORD = "needle"
"""The word in the title of every thousandth thread, from the one after the oldest on."""
_EVERY = 1000
_POOL = 256
_AT_ONCE = 500
_START = datetime(2026, 1, 1, tzinfo=UTC)
_OTHERS: tuple[Status, ...] = ("interrupted", "waiting", "failed")


async def write_threads(store: Checkpointer, count: int, *, seed: int = 1, first: int = 0) -> None:
    """Write this many new threads, one second apart, each with one turn of about 3 KB of JSON. Begin with the thread
    number `first`, if the store has those before it.

    Each has a title and two tags, `customer` and `team`. Every thousandth has the tag `RARE`, and the one after it has
    `WORD` in its title. Nine of ten threads are done, and the others have another status.
    """
    random, pool = Random(seed), Corpus(seed).conversation(min(count, _POOL))
    for part in batches(range(first, count), _AT_ONCE):
        await asyncio.gather(*(_write(store, number, pool[number % len(pool)], random) for number in part))


async def _write(store: Checkpointer, number: int, turn: Turn, random: Random) -> None:
    tags = {"customer": f"c-{random.randrange(5000)}", "team": f"t-{random.randrange(20)}"}
    words = " ".join(turn.user.split()[:8])
    entries: list[Logged] = [
        ThreadStarted(f"agent-{number % 7}", MODEL),
        Described(f"{words} {WORD if number % _EVERY == 1 else number}", tags | RARE if number % _EVERY == 0 else tags),
        *turn.entries(),
        StatusChanged(random.choice(_OTHERS) if random.random() < 0.1 else "done"),
    ]
    base = new_head(f"thread-{number:07}", created_at=_START + timedelta(seconds=number))
    frame = encode_frame([encode_entries(entries)], previous=FIRST, thread_id=base.thread_id, keys=store.keys)
    changes = {"frames": 1, "digest": frame.digest.hex(), "updated_at": base.created_at}
    head = head_of(fold(entries), base, encrypted=store.keys is not None, **changes)
    await store.append(head.thread_id, [frame.data], at=0, head=head)


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.many_threads", description="Write many threads to a store.")
    parser.add_argument("store", help="the store's URL")
    parser.add_argument("threads", type=int)
    given = parser.parse_args()
    async with open_checkpointer(given.store) as store:
        await write_threads(store, given.threads)


if __name__ == "__main__":
    asyncio.run(_main())
