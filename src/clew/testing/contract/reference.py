"""A test that every store has to pass: random operations must give the same results and errors as on the memory store,
which is the reference for all stores."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import ORDERS, STATUSES, Head, HeadQuery
from clew.checkpointers.memory import MemoryCheckpointer
from clew.errors import ClewError
from clew.testing.contract.builders import OpenStore, a_head, digest_of, heads, minute, put, state

_IDS = ("a", "A", "user/1", "user_1")
_STEPS = 150
_SEEDS = (1, 2)

Step = tuple[str, Callable[[Checkpointer], Awaitable[object]]]


class ModelContract:
    """A test that makes the same random operations on a store and on the memory store, and checks that both give the
    same results and errors."""

    async def test_random_operations_give_what_the_reference_gives(self, open_store: OpenStore) -> None:
        for seed in _SEEDS:
            stores = [open_store(f"seed {seed}"), open_store(f"seed {seed}")]
            model = MemoryCheckpointer()
            done: list[str] = []
            async for name, step in _steps(random.Random(seed), model):  # noqa: S311 - must be the same each time
                done.append(name)
                expected = await _outcome(step, model)
                actual = await _outcome(step, stores[len(done) % 2])
                assert actual == expected, f"seed {seed}, step {len(done)}: {done[-5:]}"
            for thread_id in _IDS:
                assert await state(stores[0], thread_id) == await state(model, thread_id)


async def _outcome(step: Callable[[Checkpointer], Awaitable[object]], store: Checkpointer) -> object:
    try:
        return await step(store)
    except ClewError as error:
        return type(error)


async def _steps(dice: random.Random, model: Checkpointer) -> AsyncIterator[Step]:
    """Yield random operations, each as a pair of its name and a function that makes the operation on the store that it
    is given. Most operations are valid. Some repeat an earlier append, append at a wrong position, or refer to a blob
    that does not exist. `dice` makes the random choices. `model` is the memory store on which each operation is made
    before the next one is chosen: operations are chosen to fit the threads that it holds."""
    earlier: list[Step] = []
    for number in range(_STEPS):
        thread_id = dice.choice(_IDS)
        head = await model.head(thread_id)
        kind = dice.choice(_KINDS)
        step = kind, _step(kind, dice, number, thread_id, head, earlier)
        if kind in ("append", "append elsewhere"):
            earlier.append(step)
        yield step


_KINDS = (*["append"] * 6, *["append elsewhere"] * 2, *["repeat"] * 3, "head only", "head only", "other log", "delete",
          "read", "read", "state", "list", "list", "put", "get", "missing", "ref", "bad ref", "delete blob")  # fmt: skip


def _step(
    kind: str, dice: random.Random, number: int, thread_id: str, head: Head | None, earlier: list[Step]
) -> Callable[[Checkpointer], Awaitable[object]]:
    end = head.frames if head else 0
    log_id = head.log_id if head else f"log-{number}"
    fields = {
        "status": dice.choice(STATUSES),
        "title": f"Step {number}",
        "agent": dice.choice(["", "planner"]),
        "updated_at": minute(number // 4),
        "tags": {"lane": str(number % 3)},
        "due": minute(dice.randrange(9)) if dice.random() < 0.5 else None,
    }
    frames = [b"%d.%d" % (number, part) for part in range(dice.randint(1, 3))]
    blob = b"blob %d" % dice.randrange(4)

    def appending(at: int, frames: list[bytes], log_id: str, *refs: str) -> Callable[[Checkpointer], Awaitable[object]]:
        new = a_head(thread_id, at + len(frames), log_id=log_id, **fields)
        return lambda store: store.append(thread_id, frames, at=at, head=new, refs=refs)

    match kind:
        case "append":
            return appending(end, frames, log_id)
        case "append elsewhere":
            return appending(max(0, end + dice.choice([-2, -1, 1])), frames, log_id)
        case "repeat" if earlier:
            return dice.choice(earlier[-4:])[1]
        case "head only":
            return appending(max(0, end - dice.choice([0, 0, 1])), [], log_id)
        case "other log":
            return appending(end, frames, "another log" if head else log_id)
        case "ref":
            return lambda store: _put_and_append(store, blob, appending(end, frames, log_id, digest_of(blob)))
        case "bad ref":
            return appending(end, frames, log_id, digest_of(b"never put"))
        case "delete":
            return lambda store: store.delete(thread_id)
        case "read":
            start, stop = dice.randrange(6), dice.choice([None, *range(8)])
            return lambda store: store.read(thread_id, start=start, stop=stop)
        case "list":
            query = _query(dice, number)
            return lambda store: heads(store, query)
        case "put":
            return lambda store: put(store, blob)
        case "get":
            return lambda store: store.get_blobs([digest_of(blob)])
        case "missing":
            return lambda store: store.missing_blobs([digest_of(blob), digest_of(b"never put")])
        case "delete blob":
            return lambda store: store.delete_blobs([digest_of(blob)], untouched_for=timedelta(0))
        case _:
            return lambda store: state(store, thread_id)


async def _put_and_append(
    store: Checkpointer, blob: bytes, append: Callable[[Checkpointer], Awaitable[object]]
) -> object:
    await put(store, blob)
    return await append(store)


def _query(dice: random.Random, number: int) -> HeadQuery:
    return HeadQuery(
        prefix=dice.choice(["", "", "user", "a"]),
        status=dice.choice([None, None, "done", ("running", "waiting")]),
        agent=dice.choice([None, "planner"]),
        tags=dice.choice([{}, {"lane": "1"}]),
        title=dice.choice(["", "STEP 1"]),
        updated_after=dice.choice([None, minute(number // 8)]),
        order=dice.choice(ORDERS),
        limit=dice.choice([None, 1, 2]),
    )
