"""A test that every store has to pass. Several callers make random calls at the same time. The answers are right if
they are the answers that the store could give if it made the same calls one after the other, in some order.

`Visitor` makes the calls, a `Recorder` writes them down, and `check_history` looks for that order. Use `Visitor` in
processes of your own too, and kill, freeze or disconnect these processes, to test a store under faults.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from clew._runtime.clock import now
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
    """Tests that a store gives consistent answers if several checkpointers make random calls on the same threads at the
    same time: the answers could also be those to the same calls made one after the other, in some order."""

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
    """A caller that makes random calls of a store on the threads with the ids `threads`, which other callers may use at
    the same time. Give it a `Recorder` as `store`, so that its calls are written down and `check_history` can judge the
    answers.

    `dice` makes all random choices. Every text that the visitor writes to the store begins with its `name`, which no
    other visitor may have.
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
        """Make a random call of the store on a random thread, and the calls that belong to it: `head` before an append,
        and `get_blobs` after `refs`, which returns the digests of the thread's blobs.

        `Conflict`, `MissingBlob` and `Unavailable` are ignored, because a store may raise them here; `check_history`
        judges later whether the store was right to do so. Any other error is raised.
        """
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
        """Append random frames, and sometimes store a blob that they refer to. The position is the end of the thread as
        the visitor last saw it, without asking the store; if the visitor has not seen the thread, it tries to begin it.
        Raises `Conflict` if other callers have changed the thread since then."""
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
        """Append these frames and refs (digests of the blobs that the frames refer to) to a thread, with this head. If
        that raises `Unavailable`, it is not known whether the append was written. Then `dice` decides whether the error
        is raised or the same append is made once more."""
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
        moment = now()
        due = moment if self._dice.random() < 0.5 else None
        if head is None:
            return a_head(
                thread_id,
                frames,
                log_id=self._text(),
                title=self._text(),
                created_at=moment,
                updated_at=moment,
                due=due,
            )
        return msgspec.structs.replace(
            head, frames=head.frames + frames, title=self._text(), updated_at=moment, due=due
        )

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
        if self._dice.random() < 0.5:
            await heads(self._store, HeadQuery(prefix=prefix, limit=limit, order="due"))

    async def _delete(self, thread_id: str) -> None:
        await self._store.delete(thread_id)

    def _text(self) -> str:
        """Return a text that is different from all other texts that this or another visitor has written: its name and a
        number."""
        self._count += 1
        return f"{self._name} {self._count}"


async def look_at_all(store: Checkpointer, prefix: str) -> None:
    """Read the head, the frames, and the blobs with the references to them, of every thread whose id starts with
    `prefix`, and return nothing. Give a `Recorder` as `store`, and call this after all other calls that it records.
    Then the recorded history ends with what these calls have left in the store, and a check of the history can compare
    it."""
    for head in await heads(store, HeadQuery(prefix=prefix)):
        await store.head(head.thread_id)
        await store.read(head.thread_id)
        if refs := await store.refs(head.thread_id):
            await store.get_blobs(refs)
