"""A test that every store has to pass: the answers to random concurrent calls fit together in one order.

`make_calls` makes such calls. Use it in processes of your own too, which you kill, freeze and cut off from the server, to
hold a store to the same under faults.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import Head, HeadQuery
from clew.errors import Conflict, MissingBlob, Unavailable
from clew.testing.contract.builders import OpenStore, a_head, digest_of, heads
from clew.testing.history import Call, Recorder, check_history

__all__ = ["HistoryContract", "Visitor", "look_at_all"]

_THREADS = ("history/1", "history/2", "history/3")
_VISITORS = 4
_STEPS = 30


class HistoryContract:
    """A test of a store that several checkpointers use at the same time."""

    async def test_the_answers_to_concurrent_calls_fit_together_in_one_order(self, open_store: OpenStore) -> None:
        calls: dict[tuple[str, int], Call] = {}

        def write(call: Call) -> None:
            calls[call.process, call.number] = call

        stores = [Recorder(open_store(), write, process=f"visitor {number}") for number in range(_VISITORS)]
        visitors = [
            Visitor(store, random.Random(number), f"visitor {number}", _THREADS)  # noqa: S311 - the same each time
            for number, store in enumerate(stores)
        ]
        await asyncio.gather(*(_make_steps(visitor) for visitor in visitors))
        await look_at_all(stores[0], "history/")
        assert check_history(calls.values()) == []


async def _make_steps(visitor: Visitor) -> None:
    for _ in range(_STEPS):
        await visitor.step()


class Visitor:
    """Makes random calls on a few threads that others use at the same time.

    `name` must be unique: what is written begins with it. A call that ends with `Conflict`, `MissingBlob` or `Unavailable`
    is no failure here; the history shows whether it was right.
    """

    def __init__(self, store: Checkpointer, dice: random.Random, name: str, threads: Sequence[str]) -> None:
        self._store = store
        self._dice = dice
        self._name = name
        self._threads = threads
        self._known: dict[str, Head | None] = {}
        self._count = 0
        self._kinds: dict[str, tuple[int, Callable[[str], Awaitable[object]]]] = {
            "append": (8, self._append),
            "append from memory": (3, self._append_from_memory),
            "head alone": (2, self._append_head),
            "read": (4, self._read),
            "head": (3, self._look),
            "refs": (2, self._follow_refs),
            "list": (2, self._list),
            "delete": (1, self._delete),
        }

    async def step(self) -> None:
        """Make one random call, with the calls that prepare it."""
        weights, kinds = zip(*self._kinds.values(), strict=True)
        kind = self._dice.choices(kinds, weights)[0]
        try:
            await kind(self._dice.choice(self._threads))
        except (Conflict, MissingBlob, Unavailable):
            self._known.clear()

    async def _append(self, thread_id: str) -> None:
        self._known[thread_id] = await self._store.head(thread_id)
        await self._append_from_memory(thread_id)

    async def _append_from_memory(self, thread_id: str) -> None:
        """Append after the head that was last seen, which may be old by now: then it is a conflict."""
        head = self._known.get(thread_id)
        frames = [f"{self._text()} {number}".encode() for number in range(self._dice.randint(1, 3))]
        refs = []
        if self._dice.random() < 0.3:
            blob = f"a blob of {self._text()}".encode()
            await self._store.put_blobs({digest_of(blob): blob})
            refs = [digest_of(blob)]
        await self._send(thread_id, frames, refs, self._next_head(thread_id, head, len(frames)))

    async def _append_head(self, thread_id: str) -> None:
        head = await self._store.head(thread_id)
        if head is not None:
            await self._send(thread_id, [], [], self._next_head(thread_id, head, 0))

    async def _send(self, thread_id: str, frames: list[bytes], refs: list[str], head: Head) -> None:
        """Append, and repeat the same append if it is not known whether it was written."""
        for _ in range(2):
            try:
                await self._store.append(thread_id, frames, at=head.frames - len(frames), head=head, refs=refs)
            except Unavailable:
                if self._dice.random() < 0.5:
                    raise
            else:
                self._known[thread_id] = head
                return

    def _next_head(self, thread_id: str, head: Head | None, frames: int) -> Head:
        now = datetime.now(UTC)
        if head is None:
            return a_head(thread_id, frames, log_id=self._text(), title=self._text(), created_at=now, updated_at=now)
        return msgspec.structs.replace(head, frames=head.frames + frames, title=self._text(), updated_at=now)

    async def _read(self, thread_id: str) -> None:
        start = self._dice.choice((0, 0, 1, 5))
        await self._store.read(thread_id, start=start, stop=self._dice.choice((None, None, start + 3)))

    async def _look(self, thread_id: str) -> None:
        self._known[thread_id] = await self._store.head(thread_id)

    async def _follow_refs(self, thread_id: str) -> None:
        if refs := await self._store.refs(thread_id):
            await self._store.get_blobs(refs)

    async def _list(self, thread_id: str) -> None:
        prefix = self._dice.choice(("", thread_id, thread_id[:-1]))
        limit = self._dice.choice((None, None, 2))
        await heads(self._store, HeadQuery(prefix=prefix, limit=limit))

    async def _delete(self, thread_id: str) -> None:
        await self._store.delete(thread_id)

    def _text(self) -> str:
        """Return a text that no other call has."""
        self._count += 1
        return f"{self._name} {self._count}"


async def look_at_all(store: Checkpointer, prefix: str) -> None:
    """Read everything there is of the threads whose ids start with `prefix`, so that a history ends with what has become
    of all its calls."""
    for head in await heads(store, HeadQuery(prefix=prefix)):
        await store.head(head.thread_id)
        await store.read(head.thread_id)
        if refs := await store.refs(head.thread_id):
            await store.get_blobs(refs)
