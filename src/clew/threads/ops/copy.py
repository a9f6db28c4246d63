"""Copy threads between any two stores. Copies are verified, can be resumed, and are hidden until they are complete."""

from __future__ import annotations

import logging
from contextlib import suppress

import msgspec

from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.checkpointers.base import MAX_APPEND
from clew.errors import (
    ClewError,
    Conflict,
    Corrupt,
    MissingBlob,
    ThreadBusy,
    ThreadNotFound,
    Unavailable,
    UsageError,
    WrongKey,
)
from clew.log import DIGEST, FIRST, EncodedFrame, Frame, Logged, encode_entries, encode_frame, sealed_with
from clew.log.trees import named_trees, rename_trees
from clew.threads.appends import append_frames
from clew.threads.frames import Source, decoded
from clew.threads.heads import PART, is_hidden, is_part, new_head, without_lease
from clew.threads.inbox import carry_posts, inbox_of
from clew.threads.leases import wait_until_free
from clew.threads.ops.purge import remove_part
from clew.threads.reader import Progress, decoded_frames, frames, outline_at
from clew.threads.trees import TreeMover

__all__ = ["Copied", "Transfer", "copy", "copy_all", "transfer"]

log = logging.getLogger("clew.threads")

PART_SIZE = 2**20
"""The most bytes of frames in one append to a copy; only a single frame that is larger by itself may exceed it. So
neither writing such a part nor reading it takes much memory."""


class Copied(msgspec.Struct, frozen=True):
    """The result of `copy_all`: which threads were copied, which were up to date already and which failed, and the
    bytes written."""

    ids: tuple[str, ...] = ()
    """Ids of the threads that were copied, or whose earlier copy was brought up to date."""
    skipped: tuple[str, ...] = ()
    """Ids of the threads that were not written, because the target already had them and they had not changed."""
    failed: dict[str, str] = {}
    """For each thread that could not be copied, the reason. The keys are thread ids."""
    bytes: int = 0
    """Number of bytes of frames and blobs that were written to the target."""


class Transfer(msgspec.Struct, frozen=True):
    """The result of copying one thread: the head of the copy, and the number of bytes written to the target.

    `written` is False if the target already had a complete copy, so that nothing was written.
    """

    head: Head
    written: bool = False
    bytes: int = 0


async def copy(
    source: Checkpointer,
    target: Checkpointer,
    thread_id: str,
    *,
    new_id: str | None = None,
    progress: Progress | None = None,
) -> Head:
    """Copy one thread to another store, to another namespace (part) of a store, or to another id, and return the head
    of the copy.

    The copy gets the id `new_id`, by default the same id. Its entries and their times do not change.

    - **Hidden until complete.** The copy is written in parts; its last frame makes it visible. Of two copies with the
      same id that are written at once, at most one is completed; the other raises `Conflict`.
    - **Resumable.** Run again after a crash, it continues from what the target has. A finished copy is left alone; a
      copy whose source has grown since is brought up to date. Any other thread of that id raises `Conflict`.
    - **Verified.** Before the copy becomes visible it is read back, all but its last frame, and its entries must give
      the same state as those of the source. The last frame is read back afterwards.
    - **Encrypted again** if the target has another encryption key: reading the copy does not need the source's key. In
      a target with a key, no frame is left unencrypted.

    What was posted to the thread's inbox and is not taken in yet is in the inbox of the copy too, and is asked there.
    A thread that is being worked on is copied as it was when the copy began. Leases are never copied: a running thread
    is interrupted in the copy. `progress` is called with the number of frames copied so far and the number of all
    frames.
    """
    return (await _copy_whole(source, target, thread_id, thread_id if new_id is None else new_id, progress)).head


async def copy_all(
    source: Checkpointer,
    target: Checkpointer,
    query: HeadQuery = HeadQuery(),
    progress: Progress | None = None,
) -> Copied:
    """Copy every thread that the query lists, by default all.

    Run again after a crash or later, it leaves finished copies alone. A thread that cannot be copied is reported in the
    result and does not stop the others. Raises `Unavailable` if a store does not answer. `progress` is called with the
    number of threads done and the number of all threads.
    """
    ids = [head.thread_id async for head in source.heads(query) if not is_hidden(head)]
    done: list[str] = []
    skipped: list[str] = []
    failed: dict[str, str] = {}
    size = 0
    for count, thread_id in enumerate(ids, 1):
        try:
            outcome = await _copy_whole(source, target, thread_id, thread_id)
        except ThreadNotFound:
            log.info("thread %r was deleted before it was copied", thread_id)
        except (Unavailable, UsageError):
            raise
        except ClewError as error:
            log.info("thread %r was not copied: %s", thread_id, error)
            failed[thread_id] = str(error)
        else:
            (done if outcome.written else skipped).append(thread_id)
            size += outcome.bytes
        if progress is not None:
            progress(count, len(ids))
    return Copied(tuple(done), tuple(skipped), failed, size)


async def _copy_whole(
    source: Checkpointer, target: Checkpointer, thread_id: str, new_id: str, progress: Progress | None = None
) -> Transfer:
    """Copy a thread, and then bring the posts in its inbox that are not taken in yet to the inbox of the copy."""
    inbox = await inbox_of(source, thread_id)
    done = await transfer(source, target, thread_id, new_id, progress)
    if inbox is not None:
        await carry_posts(source, inbox, target, new_id)
    return done


async def transfer(
    source: Source,
    target: Checkpointer,
    thread_id: str,
    new_id: str,
    progress: Progress | None = None,
    *,
    extend: bool = True,
) -> Transfer:
    """Copy the thread `thread_id` from a store or a `.clew` file to the id `new_id` in the target, and check the copy.

    The copy stays hidden (listings leave it out) until it is complete. If this is interrupted, the next call continues
    it. Returns the head of the copy and what was written. If the target has a complete copy of an earlier state of the
    thread, the copy is brought up to date; with `extend=False`, `Conflict` is raised instead. `progress` is called with
    the number of frames copied so far and the number of all frames.
    """
    head = await source.head(thread_id)
    if head is None or is_part(head):
        raise ThreadNotFound(thread_id)
    verbatim = await _may_stay_as_it_is(source, target, head, new_id)
    there = await target.head(new_id)
    common = FIRST if there is None else await _common(source, head, target, there, verbatim)
    if there is not None and is_part(there):
        if common is None or there.tags[PART] != head.log_id or there.frames == head.frames:
            await remove_part(target, there)
            there, common = None, FIRST
    elif there is not None:
        if common is not None and there.frames == head.frames:
            return Transfer(there)
        if common is None or not extend:
            raise Conflict(
                new_id,
                "the target has another thread with this id, or another version of this thread; use another new_id",
            )
        await wait_until_free(target, there)
    copy = _ThreadCopy(source, target, head, new_id, there, progress)
    try:
        done = await copy.run(common or FIRST, verbatim)
    except (Unavailable, UsageError, Conflict, ThreadBusy):
        raise
    except ClewError as error:
        if await copy.is_replaced():
            raise Conflict(new_id, "another copy with this id was written meanwhile") from error
        await _discard(target, new_id, head.log_id)
        raise
    log.info("thread %r: copied as %r, %d frames", thread_id, new_id, head.frames)
    return Transfer(done, True, copy.written)


async def _discard(target: Checkpointer, new_id: str, log_id: str) -> None:
    """Delete the thread `new_id` from the target if it is an incomplete copy of the source's log. `log_id` is the
    random id of that log, with which an incomplete copy is tagged. Used after an error that would come again if the
    copy were continued."""
    with suppress(ClewError):  # the error that led here says more
        there = await target.head(new_id)
        if there is not None and there.tags.get(PART) == log_id:
            await remove_part(target, there)


async def _may_stay_as_it_is(source: Source, target: Checkpointer, head: Head, new_id: str) -> bool:
    """Return whether the thread's frames can be copied byte for byte.

    They can if they are plain and the target has no key, or if they are encrypted with the target's key and `new_id`,
    the copy's id, is the same as the thread's.
    """
    if target.keys is None and source.keys is None:
        return True
    if target.keys is not None and (source.keys is None or source.keys.current != target.keys.current):
        return False
    wanted = None if target.keys is None else target.keys.current
    if wanted is not None and new_id != head.thread_id:
        return False
    async for _, data in frames(source, head):
        if sealed_with(data) != wanted:
            return False
    return True


async def _common(source: Source, head: Head, target: Checkpointer, there: Head, verbatim: bool) -> bytes | None:
    """Compare the target's log with the source's. If the source's log begins with the whole log of the target, return
    the digest that the last of these common frames has in the source. Otherwise return None.

    `head` is the source's head and `there` the target's. If the last frames differ in their bytes, for example because
    of another key, the logs are compared by their entries. An exception: if frames are copied byte for byte
    (`verbatim`) and the target is an incomplete copy, returns None at once.
    """
    if there.frames > head.frames:
        return None
    last = await source.read(head.thread_id, start=there.frames - 1, stop=there.frames)
    if last and last[0][DIGEST].hex() == there.digest:
        return last[0][DIGEST]
    if verbatim and is_part(there):
        return None
    try:
        return await _common_entries(source, head, target, there)
    except (Corrupt, MissingBlob, WrongKey):
        if is_part(there):
            return None
        raise


async def _common_entries(source: Source, head: Head, target: Checkpointer, there: Head) -> bytes | None:
    """Compare the target's log with the source's by the entries and times of their frames, instead of by bytes.

    The bytes differ if, for example, the logs are encrypted with different keys. If the source's log begins with
    the whole log of the target, returns the digest that the last of these common frames has in the source. Otherwise
    returns None. `head` is the source's head and `there` the target's.
    """
    wanted = None if target.keys is None else target.keys.current
    previous = FIRST
    others = frames(target, there)
    async for number, mine in decoded_frames(source, head, stop=there.frames):
        _, copied = await anext(others)
        if is_part(there) and sealed_with(copied) != wanted:
            return None
        theirs = await decoded(target, there.thread_id, number, copied)
        if mine.time != theirs.time or _without_trees(mine) != _without_trees(theirs):
            return None
        previous = mine.digest
    return previous


def _without_trees(frame: Frame) -> bytes:
    """Return a frame's entries as bytes, to compare them with those of a frame in another store. The digests of file
    snapshots are left empty, because the same files have another digest under another key."""
    return encode_entries(rename_trees(frame.entries, dict.fromkeys(named_trees(frame.entries), ""))).entries


class _Ahead:
    """Stands for a store in which the copy of a thread is complete already. It reads the copy's frames from `target`,
    and adds `last`, the last frame, which is not stored yet. So the copy can be checked before it is completed. `done`
    is the head of the complete copy."""

    def __init__(self, target: Checkpointer, done: Head, last: bytes) -> None:
        self.keys = target.keys
        self.get_blobs = target.get_blobs
        self.refs = target.refs
        self._target = target
        self._done = done
        self._last = last

    async def head(self, thread_id: str) -> Head:
        return self._done

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        place = self._done.frames - 1
        found = [] if start >= place else await self._target.read(thread_id, start=start, stop=stop)
        is_wanted = start <= place and (stop is None or place < stop)
        return [*found, self._last] if is_wanted and len(found) == place - start else found


class _ThreadCopy:
    """A copy of one thread in progress: the frames and blobs gathered for the next append, and the head of the copy so
    far."""

    def __init__(
        self,
        source: Source,
        target: Checkpointer,
        head: Head,
        new_id: str,
        there: Head | None,
        progress: Progress | None,
    ) -> None:
        self.written = 0
        self._source = source
        self._target = target
        self._head = head
        self._new_id = new_id
        self._whole = there is not None and not is_part(there)
        self._there = new_head(new_id) if there is None else there
        self._digest = bytes.fromhex(self._there.digest) or FIRST
        self._frames: list[EncodedFrame] = []
        self._size = 0
        self._refs: set[str] = set()
        self._blobs: dict[str, bytes] = {}
        self._blobs_size = 0
        self._verbatim = False
        self._trees = TreeMover(source, target.keys, self._put, head.thread_id)
        self._progress = progress

    async def run(self, previous: bytes, verbatim: bool) -> Head:
        source, target, head = self._source, self._target, self._head
        self._verbatim = verbatim
        if verbatim:
            self._refs = await source.refs(head.thread_id)
            await self._trees.move(self._refs)
        async for number, data in frames(source, head, start=self._there.frames, previous=previous):
            if verbatim:
                await self._add(data)
                continue
            frame = await decoded(source, head.thread_id, number, data)
            if not 0 <= frame.time < 2**64:
                raise Corrupt(f"thread {head.thread_id!r}, frame {number} has an impossible time")
            names = await self._trees.move(named_trees(frame.entries))
            self._refs.update(names.values())
            sealed = encode_frame(
                [encode_entries(rename_trees(frame.entries, names))],
                previous=self._digest,
                thread_id=self._new_id,
                number=number,
                keys=target.keys,
                now=frame.time,
            )
            await self._add(sealed.data, sealed.blobs)
        if self._whole:
            return await self._bring_up_to_date()
        return await self._complete()

    async def _complete(self) -> Head:
        """Check the copy, write its last frame, and return its head. Until that frame is written, listings leave the
        copy out.

        The last frame cannot be appended if another process has begun to delete the copy. If it was appended first, the
        other process cannot delete the copy any more.
        """
        last = self._frames.pop().data
        self._size -= len(last)
        await self._flush()
        await self._put(self._blobs)
        done, expected = await self._done()
        if (await outline_at(_Ahead(self._target, done, last), done))[1] != expected:
            raise Corrupt(
                f"the copy of thread {self._head.thread_id!r} folds to another state than the thread. Copy it again."
            )
        await self._target.append(self._new_id, [last], at=done.frames - 1, head=done, refs=self._refs)
        self._there = done
        self.written += len(last)
        self._tell(done.frames, done.frames)
        if await self._target.read(self._new_id, start=done.frames - 1, stop=done.frames) != [last]:
            raise Corrupt(f"the last frame of the copy of thread {self._head.thread_id!r} is not as it was written.")
        return done

    async def is_replaced(self) -> bool:
        """Return whether another process has deleted the copy, or begun to delete it, since this one wrote to it last."""
        now = await self._target.head(self._new_id)
        mine = self._there.log_id, self._there.frames
        return not self._whole and mine != ((self._there.log_id, 0) if now is None else (now.log_id, now.frames))

    async def _bring_up_to_date(self) -> Head:
        """Append to an earlier copy what it lacks of the thread, and return the copy's new head.

        All frames are written in one append, so that nobody sees only some of them. Raises `Corrupt` if the copy then
        has another state than the thread.
        """
        done, expected = await self._done()
        await self._put(self._blobs)
        data = [frame.data for frame in self._frames]
        await self._target.append(self._new_id, data, at=self._there.frames, head=done, refs=self._refs)
        self.written += self._size
        self._tell(done.frames, done.frames)
        if (await outline_at(self._target, done))[1] != expected:
            raise Corrupt(f"the copy of thread {self._head.thread_id!r} folds to another state than the thread.")
        return done

    async def _add(self, data: bytes, blobs: dict[str, bytes] | None = None) -> None:
        if self._size + len(data) > (MAX_APPEND if self._whole else PART_SIZE):
            if self._whole:
                raise Conflict(
                    self._new_id,
                    "the target has an earlier copy, and the frames added since are too large for one append; delete "
                    "that copy first",
                )
            await self._flush()
        self._frames.append(EncodedFrame(data, data[DIGEST], {}))  # `_put` stores the blobs
        self._size += len(data)
        self._digest = data[DIGEST]
        if blobs:
            self._refs.update(blobs)
            self._blobs |= blobs
            self._blobs_size += sum(map(len, blobs.values()))
            if self._blobs_size > PART_SIZE:
                await self._put(self._blobs)
                self._blobs, self._blobs_size = {}, 0

    async def _flush(self) -> None:
        """Append the frames gathered so far to the copy, which is still hidden.

        The copy is tagged with the random id of the source's log (`log_id`), so that a later run recognises it and
        continues.
        """
        if not self._frames:
            return
        await self._put(self._blobs)
        self._there = await append_frames(
            self._target, self._there, self._frames, refs=self._refs, tags={PART: self._head.log_id}
        )
        self.written += self._size
        self._frames, self._size, self._refs = [], 0, set()
        self._blobs, self._blobs_size = {}, 0
        self._tell(self._there.frames, self._head.frames)

    async def _put(self, blobs: dict[str, bytes]) -> None:
        if not blobs:
            return
        missing = await self._target.missing_blobs(blobs)
        if missing:
            await self._target.put_blobs({digest: blobs[digest] for digest in missing})
            self.written += sum(len(blobs[digest]) for digest in missing)

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    async def _done(self) -> tuple[Head, bytes]:
        """Return the head that the copy gets when it is complete, and a digest of the state that the copy must have."""
        head = self._head
        state, digest = await outline_at(self._source, head, None if self._verbatim else self._renamed)
        done = msgspec.structs.replace(
            without_lease(head),
            thread_id=self._new_id,
            log_id=self._there.log_id,
            digest=self._digest.hex(),
            title=(head.title or state.title) if self._target.keys is None else "",
            seal="",
        )
        return done, digest

    async def _renamed(self, entries: list[Logged]) -> list[Logged]:
        """Copy the trees of blobs that these entries name, such as file snapshots, to the target. A tree is a blob that
        points at other blobs. Return the entries with the digests that the trees have in the target."""
        trees = named_trees(entries)
        return rename_trees(entries, await self._trees.move(trees)) if trees else entries
