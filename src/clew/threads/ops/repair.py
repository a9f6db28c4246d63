"""Repair: save the readable part of a damaged thread as a new thread. The damaged thread is not changed."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.checkpointers.base import MAX_APPEND
from clew.errors import Conflict, Corrupt, MissingBlob, NewerFormat, ThreadNotFound, WrongKey
from clew.log import FIRST, EncodedFrame, Fold, Frame, encode_entries, encode_frame
from clew.log.trees import named_trees
from clew.threads.appends import append_frames
from clew.threads.heads import PART, REPAIR_OF, inbox_id, is_inbox, new_head
from clew.threads.inbox import carry_posts
from clew.threads.ops.gc import below
from clew.threads.ops.purge import remove_part
from clew.threads.ops.scan import is_snapshot, scan

__all__ = ["repair"]

log = logging.getLogger("clew.threads")


async def repair(checkpointer: Checkpointer, thread_id: str, new_id: str) -> Head:
    """Save a thread up to its last good frame as a new thread, and return the new thread's head.

    The damaged thread is not touched. The saved part ends with the last frame whose state can still be computed: a
    frame with an unbroken chain back to the beginning, or back to a folded state, which is the thread's whole state at
    some point and stands for everything before it. Entries and their times are kept. Frames are encoded again, so that
    they follow each other and, in an encrypted store, open under the new id. The new thread has no lease, and its
    status is that of its last frame.

    A long thread is written in parts and stays hidden until the last part is written. If this is interrupted, call it
    again with the same ids: it starts over. Raises `Conflict` if any other thread has the id `new_id`.

    What was posted to the thread's inbox and is not taken in yet is in the inbox of the new thread too.

    Intact frames that cannot be read here are not damage: then `WrongKey` or `NewerFormat` is raised and nothing is
    written. Raises `Corrupt` if nothing can be saved. A sound thread is simply copied.
    """
    try:
        old = await checkpointer.head(thread_id)
        if old is None:
            raise ThreadNotFound(thread_id)
    except Corrupt:
        old = None
    start, stop = await _best_run(checkpointer, thread_id, old)
    await _clear(checkpointer, thread_id, new_id)
    head = await _write(checkpointer, thread_id, new_id, old, start, stop)
    await _carry_posts(checkpointer, thread_id, old, new_id)
    return head


async def _carry_posts(checkpointer: Checkpointer, thread_id: str, old: Head | None, new_id: str) -> None:
    """Bring the posts that are not taken in yet to the inbox of the new thread. A damaged inbox is left where it is, with
    a warning. `old` is the damaged thread's head, or None if it cannot be read: its inboxes are then found by their
    heads."""
    names = [inbox_id(thread_id, old.log_id)] if old is not None else []
    try:
        if old is None:
            names = [head.thread_id async for head in checkpointer.heads(HeadQuery(parent=thread_id)) if is_inbox(head)]
        for name in names:
            await carry_posts(checkpointer, name, checkpointer, new_id)
    except (Corrupt, MissingBlob) as error:
        log.warning("thread %r: what was posted to it cannot be read, and is not in %r: %s", thread_id, new_id, error)


async def _best_run(checkpointer: Checkpointer, thread_id: str, head: Head | None) -> tuple[int, int]:
    """Return which frames to save, as (start, stop): the numbers of the first one and of the one after the last.

    The state after a run of frames can be computed only if the run begins with the log's first frame or with a folded
    state (a frame that holds the thread's whole state). Of all unbroken runs of this kind, the one that ends last is
    returned. Raises `Corrupt` if there is none, and `WrongKey` or `NewerFormat` if an intact frame cannot be read here.
    """
    best: tuple[int, int] | None = None
    begin: int | None = None
    async for seen in scan(checkpointer, thread_id, None if head is None else head.frames):
        if isinstance(seen.error, NewerFormat) or (isinstance(seen.error, WrongKey) and seen.error.key_id is not None):
            raise seen.error
        if seen.frame is None:
            begin = None
            continue
        if not seen.follows:
            begin = None
        if begin is None and (is_snapshot(seen.frame) or (seen.number == 0 and seen.follows)):
            begin = seen.number
        if begin is not None:
            best = begin, seen.number + 1
    if best is None:
        raise Corrupt(
            f"thread {thread_id!r}: nothing can be saved: every frame where reading could start is damaged. Restore a copy."
        )
    return best


async def _clear(checkpointer: Checkpointer, thread_id: str, new_id: str) -> None:
    """Delete what an interrupted repair of the same thread left under `new_id`.

    Raises `Conflict` if another thread has that id.
    """
    head = await checkpointer.head(new_id)
    if head is None:
        return
    if head.tags != {PART: "1", REPAIR_OF: thread_id}:
        raise Conflict(new_id, f"the repair of {thread_id!r} needs an unused id, and this thread exists")
    await remove_part(checkpointer, head)


async def _write(
    checkpointer: Checkpointer, thread_id: str, new_id: str, old: Head | None, start: int, stop: int
) -> Head:
    log = _NewLog(checkpointer, new_id, thread_id, None if old is None else old.created_at)
    async for seen in scan(checkpointer, thread_id, stop):
        if seen.number < start:
            continue
        if seen.frame is None:
            raise Corrupt(f"thread {thread_id!r}, frame {seen.number} was intact a moment ago and is damaged now.")
        await log.add(seen.frame)
    return await log.finish()


class _NewLog:
    """The new log that a repair writes, in parts that each fit into one append.

    Listings leave the thread out until the last part is written.
    """

    def __init__(self, checkpointer: Checkpointer, new_id: str, old_id: str, created_at: datetime | None) -> None:
        self._checkpointer = checkpointer
        self._hidden = {PART: "1", REPAIR_OF: old_id}
        self._created_at = created_at
        self._fold = Fold()
        self._head = new_head(new_id, created_at=created_at)
        self._waiting: list[EncodedFrame] = []
        self._trees: set[str] = set()
        self._size = 0

    async def add(self, frame: Frame) -> None:
        at = self._head.frames + len(self._waiting)
        before = self._waiting[-1].digest if self._waiting else bytes.fromhex(self._head.digest) or FIRST
        encoded = encode_frame(
            [encode_entries(frame.entries)],
            previous=before,
            thread_id=self._head.thread_id,
            number=at,
            keys=self._checkpointer.keys,
            now=frame.time,
        )
        size = len(encoded.data) + sum(map(len, encoded.blobs.values()))
        if self._waiting and self._size + size > MAX_APPEND:
            await self._send(hidden=True)
        if at == 0 and self._created_at is None:
            self._head = msgspec.structs.replace(self._head, created_at=_moment(frame.time))
        if is_snapshot(frame):
            self._head = msgspec.structs.replace(self._head, snapshot=at)
        self._fold.push(frame.entries)
        self._trees |= named_trees(frame.entries)
        self._waiting.append(encoded)
        self._size += size

    async def finish(self) -> Head:
        await self._send(hidden=False)
        return self._head

    async def _send(self, *, hidden: bool) -> None:
        trees = self._trees - await self._checkpointer.missing_blobs(await below(self._checkpointer, self._trees))
        if hidden:
            self._head = await append_frames(
                self._checkpointer, self._head, self._waiting, refs=trees, tags=self._hidden
            )
        else:
            self._head = await append_frames(
                self._checkpointer, self._head, self._waiting, state=self._fold, refs=trees
            )
        self._waiting, self._size, self._trees = [], 0, set()


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)
