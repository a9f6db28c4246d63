"""`Recorder`: a checkpointer that passes every call on to another one, and writes down each call with its answer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import Head, HeadQuery
from clew.checkpointers.wrapper import WrappedCheckpointer
from clew.errors import Conflict, InvalidInput, MissingBlob, Unavailable
from clew.testing.history.calls import Call, Method, Outcome, digest_of_head, short_digest

__all__ = ["Recorder"]


class Recorder(WrappedCheckpointer):
    """A checkpointer that passes each call on to another one, `store`, and writes the call down before it begins and
    again after it ended.

        journal = Journal(folder / f"{os.getpid()}.journal")
        store = Recorder(MyCheckpointer(url), journal, process=f"{os.getpid()}")

    `write` is a `Journal`, or any function that takes a `Call`. `process` is the name of this process in the findings
    of `check_history`. Closing the recorder closes `store`.
    """

    def __init__(self, store: Checkpointer, write: Callable[[Call], object], *, process: str, writer: str = "") -> None:
        super().__init__(store)
        self._write = write
        self._process = process
        self._writer = writer
        self._numbers: Iterator[int] = itertools.count()

    def as_writer(self, writer: str) -> Recorder:
        """Return another recorder for the same store and the same journal, which records its calls under the name
        `writer`. Open each `Thread` with a recorder of its own, so that `check_history` can tell apart the holders of
        the thread's lease."""
        other = Recorder(self.store, self._write, process=self._process, writer=writer)
        other._numbers = self._numbers
        return other

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        given = {
            "log_id": head.log_id,
            "at": at,
            "frames": tuple(map(short_digest, frames)),
            "head": digest_of_head(head),
            "refs": tuple(sorted(refs)),
        }
        with self._recorded("append", thread_id=thread_id, **given):
            await self.store.append(thread_id, frames, at=at, head=head, refs=refs)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        with self._recorded("read", thread_id=thread_id, at=start, stop=stop) as answer:
            frames = await self.store.read(thread_id, start=start, stop=stop)
            answer["frames"] = tuple(map(short_digest, frames))
        return frames

    async def head(self, thread_id: str) -> Head | None:
        with self._recorded("head", thread_id=thread_id) as answer:
            head = await self.store.head(thread_id)
            answer["head"], answer["log_id"] = digest_of_head(head), head.log_id if head else ""
        return head

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        listed: dict[str, str] = {}
        with self._recorded("heads", prefix=query.prefix) as answer:
            answer["heads"] = listed
            async for head in self.store.heads(query):
                if head.thread_id in listed:
                    raise AssertionError(f"thread {head.thread_id!r} was listed twice")
                listed[head.thread_id] = digest_of_head(head)
                yield head
            answer["is_whole"] = query == HeadQuery(prefix=query.prefix)

    async def refs(self, thread_id: str) -> set[str]:
        with self._recorded("refs", thread_id=thread_id) as answer:
            refs = await self.store.refs(thread_id)
            answer["refs"] = tuple(sorted(refs))
        return refs

    async def delete(self, thread_id: str) -> None:
        with self._recorded("delete", thread_id=thread_id):
            await self.store.delete(thread_id)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        with self._recorded("put_blobs", blobs=tuple(blobs)):
            await self.store.put_blobs(blobs)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        with self._recorded("get_blobs", blobs=tuple(digests)) as answer:
            found = await self.store.get_blobs(digests)
            answer["found"] = tuple(found)
        return found

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        with self._recorded("missing_blobs", blobs=tuple(digests)) as answer:
            missing = await self.store.missing_blobs(digests)
            answer["found"] = tuple(set(digests) - missing)
        return missing

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        with self._recorded("delete_blobs", blobs=tuple(digests)):
            await self.store.delete_blobs(digests, untouched_for=untouched_for)

    @contextmanager
    def _recorded(self, method: Method, **given: Any) -> Iterator[dict[str, Any]]:
        """Record a call of `method` with the arguments `given`. Used as a context manager around the call: writes the
        call down before the `with` block, and again after it, with the outcome and the answer. The block puts the
        answer of the store into the yielded dict, by the field names of `Call`."""
        call = Call(
            process=self._process,
            number=next(self._numbers),
            method=method,
            began=time.monotonic_ns(),
            writer=self._writer,
            **given,
        )
        self._write(call)
        answer: dict[str, Any] = {}
        outcome: Outcome = "ok"
        error = ""
        try:
            yield answer
        except BaseException as raised:
            outcome, error = _outcome_of(raised), f"{type(raised).__name__}: {raised}"
            raise
        finally:
            ended = time.monotonic_ns()
            self._write(msgspec.structs.replace(call, ended=ended, outcome=outcome, error=error, **answer))


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, Conflict):
        return "conflict"
    if isinstance(error, MissingBlob | InvalidInput):
        return "refused"
    return "unknown" if isinstance(error, Unavailable | asyncio.CancelledError | GeneratorExit) else "failed"
