"""The memory store. It is the reference implementation, short enough to be read as the specification of a store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.checks import (
    NO_THREAD,
    Guard,
    check_append,
    check_blobs,
    check_digests,
    check_grace,
    check_namespace,
    check_query,
    check_range,
    check_thread_id,
    check_wanted,
)
from clew.checkpointers.heads import Head, HeadQuery, select
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.urls import without_options
from clew.errors import Conflict, InvalidInput, MissingBlob

__all__ = ["MemoryCheckpointer"]


class _Log:
    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.refs: set[str] = set()
        self.head: Head | None = None


class _Space:
    """The threads and blobs of one namespace (a separate part) of a memory store."""

    def __init__(self) -> None:
        self.logs: dict[str, _Log] = {}
        self.queued: set[str] = set()
        """The ids of the threads in the queue of the workers: those whose head has `due`."""
        self.blobs: dict[str, bytes] = {}
        self.touched: dict[str, float] = {}


@explains_lack_of_memory()
class MemoryCheckpointer(Checkpointer):
    """A store in the memory of this process, for tests, notebooks and short-lived work. It is lost when the process
    ends.

    `beside` is another memory checkpointer whose threads and blobs the new one shares, as two connections to one server
    share its data.
    """

    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None:
        check_namespace(namespace)
        self._spaces: dict[str, _Space] = {} if beside is None else beside._spaces
        self._space = self._spaces.setdefault(namespace, _Space())
        self._guard = Guard("this memory checkpointer")

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> MemoryCheckpointer:
        if url != "memory://":
            raise InvalidInput(f"{without_options(url)}: a memory store has no address. Write memory://")
        return cls(namespace)

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self._guard.enter()
        check_append(thread_id, frames, at, head, refs)
        check_wanted()
        log = self._space.logs.get(thread_id)
        if log is None:
            if at > 0 or not frames:
                raise Conflict(thread_id, NO_THREAD)
            log = _Log()
        elif log.head is None or log.head.log_id != head.log_id:
            raise Conflict(thread_id, "the thread was deleted and made again; this is another log")
        elif len(log.frames) != at:
            if frames and log.frames[at : at + len(frames)] == list(frames):
                return
            raise Conflict(thread_id, f"its log ends at frame {len(log.frames)}, not {at}")
        if missing := await self.missing_blobs(refs):
            raise MissingBlob(missing, thread_id=thread_id)
        self._space.logs[thread_id] = log
        log.frames.extend(frames)
        log.refs.update(refs)
        log.head = head
        if head.due is None:
            self._space.queued.discard(thread_id)
        else:
            self._space.queued.add(thread_id)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        self._guard.enter()
        check_range(thread_id, start, stop)
        log = self._space.logs.get(thread_id)
        return log.frames[start:stop] if log else []

    async def head(self, thread_id: str) -> Head | None:
        self._guard.enter()
        check_thread_id(thread_id)
        log = self._space.logs.get(thread_id)
        return log.head if log else None

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        self._guard.enter()
        check_query(query)
        logs = self._space.logs
        names = self._space.queued if query.order == "due" else logs
        for head in select([head for name in names if (head := logs[name].head)], query):
            yield head

    async def refs(self, thread_id: str) -> set[str]:
        self._guard.enter()
        check_thread_id(thread_id)
        log = self._space.logs.get(thread_id)
        return set(log.refs) if log else set()

    async def delete(self, thread_id: str) -> None:
        self._guard.enter()
        check_thread_id(thread_id)
        check_wanted()
        self._space.logs.pop(thread_id, None)
        self._space.queued.discard(thread_id)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        self._guard.enter()
        check_blobs(blobs)
        self._space.blobs.update({digest: bytes(data) for digest, data in blobs.items()})
        self._space.touched.update(dict.fromkeys(blobs, time.time()))

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        self._guard.enter()
        check_digests(digests)
        return {digest: self._space.blobs[digest] for digest in digests if digest in self._space.blobs}

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        self._guard.enter()
        check_digests(digests)
        here = {digest for digest in digests if digest in self._space.blobs}
        self._space.touched.update(dict.fromkeys(here, time.time()))
        return set(digests) - here

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        self._guard.enter()
        check_grace(untouched_for)
        for digest in [digest for digest in self._space.blobs if self._untouched(digest, untouched_for)]:
            yield digest

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        self._guard.enter()
        check_digests(digests)
        check_grace(untouched_for)
        for digest in digests:
            if digest in self._space.blobs and self._untouched(digest, untouched_for):
                del self._space.blobs[digest], self._space.touched[digest]

    def _untouched(self, digest: str, untouched_for: timedelta) -> bool:
        return self._space.touched[digest] <= time.time() - untouched_for.total_seconds()

    async def close(self) -> None:
        self._guard.close(on_any_loop=True)
