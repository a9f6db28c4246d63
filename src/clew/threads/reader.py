"""Read a thread's frames from a store, check that each follows the one before, and fold them: compute the state that
their entries add up to."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypedDict

import msgspec
from blake3 import blake3

from clew._runtime.telemetry import span
from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.checks import fitting
from clew.checkpointers.heads import Status
from clew.errors import ClewError, Conflict, Corrupt, InvalidInput, ThreadNotFound
from clew.log import (
    DIGEST,
    EMPTY,
    FIRST,
    PREVIOUS,
    Checkpoint,
    Fold,
    FoldedState,
    Frame,
    Logged,
    MessageOutline,
    count_kept,
    decode_in_parts,
    decode_ordinary,
    encode_entries,
    is_sound,
)
from clew.log.batches import AT_ONCE
from clew.threads.frames import IncompleteFrame, Source, decoded, fill, one_by_one
from clew.threads.heads import is_part, new_head
from clew.threads.writer import LogSize

__all__ = [
    "Loaded",
    "Progress",
    "catch_up",
    "check_rest",
    "decoded_frames",
    "frames",
    "from_folded",
    "link",
    "load",
    "next_window",
    "or_new",
    "outline_at",
    "state_after",
    "state_at",
]


class Loaded(msgspec.Struct, frozen=True):
    """A thread as it is in the store: its head, its state, and sizes of its log. By the sizes a writer decides when to
    write the whole state to the log again, so that readers can start there."""

    head: Head
    state: Checkpoint = EMPTY
    size: LogSize = LogSize()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause Python's garbage collection inside the `with` block, which must not await anything.

    Decoding makes many small objects and no cycles. Measured on 1,000 turns: collection would take a tenth of the time.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


async def or_new(loading: Awaitable[Loaded], thread_id: str, status: Status) -> Loaded:
    """Await `loading` and return the thread that it loads. If it raises `ThreadNotFound`, return an empty thread
    instead.

    The empty thread gets this id and status, and a new random id of its log, which tells this log from other logs under
    the same thread id. Nothing is written.
    """
    try:
        return await loading
    except ThreadNotFound:
        return Loaded(new_head(thread_id, status))


async def load(checkpointer: Checkpointer, thread_id: str) -> Loaded:
    """Read a thread's head and state. Takes no lease and changes nothing.

    Raises `ThreadNotFound` if there is no such thread.
    """
    with fitting(thread_id), span("clew.load", thread_id=thread_id) as current:
        head = await checkpointer.head(thread_id)
        while head is not None:
            start = max(head.snapshot, 0)
            replay = _Replay(Fold(), LogSize(), start, FIRST if start == 0 else None)
            try:
                loaded = await replay.take_in(checkpointer, head)
            except _Broken as broken:
                head = await _made_again(checkpointer, head, broken)
            else:
                current.set(frames=head.frames - start, bytes=loaded.size.since + loaded.size.snapshot)
                return loaded
    raise ThreadNotFound(thread_id)


async def catch_up(checkpointer: Checkpointer, loaded: Loaded) -> Loaded:
    """Read what was appended to a thread after it was loaded, and return the thread as it is now.

    Usually reads only the new frames. Reads the thread anew if it was deleted and made again, or if one of the new
    frames holds the thread's whole state (a folded state), because reading can then start at that frame.
    """
    thread_id = loaded.head.thread_id
    head = await checkpointer.head(thread_id)
    start = loaded.head.frames
    if head is None or head.log_id != loaded.head.log_id or head.snapshot >= start:
        return await load(checkpointer, thread_id)
    replay = _Replay(Fold(loaded.state), loaded.size, start, bytes.fromhex(loaded.head.digest))
    try:
        with fitting(thread_id):
            return await replay.take_in(checkpointer, head)
    except _Broken as broken:
        await _made_again(checkpointer, head, broken)
        return await load(checkpointer, thread_id)


async def _made_again(checkpointer: Checkpointer, head: Head, broken: _Broken) -> Head | None:
    """Find out why frames did not match the head. `broken` is the error that said so.

    If the thread was deleted between the reading of the head and of the frames, return None. If it was made again,
    return its current head. Otherwise raise `Corrupt`.
    """
    again = await checkpointer.head(head.thread_id)
    if again is not None and again.log_id == head.log_id:
        raise Corrupt(f"thread {head.thread_id!r}, {broken}. Restore it from a copy.")
    return again


class _Broken(Exception):
    """Raised when the frames that were read do not follow each other, or do not end as the head says."""


class _Replay:
    """Reads a log frame by frame, computes the state that its entries add up to (folds it), and checks that each frame
    follows the one before it."""

    def __init__(self, fold: Fold, size: LogSize, start: int, previous: bytes | None) -> None:
        self._fold = fold
        self._size = size
        self._number = start
        self._previous = previous

    async def take_in(self, checkpointer: Checkpointer, head: Head) -> Loaded:
        """Read all frames from the current position up to the last frame that this head names, and add their entries to
        the state.

        Returns the loaded thread. Raises `_Broken` if the frames do not follow each other or do not end as the head
        says.
        """
        data = await checkpointer.read(head.thread_id, start=self._number, stop=head.frames)
        if self._number + len(data) != head.frames:
            raise _Broken(f"frame {self._number + len(data)} is missing: the log should have {head.frames} frames")
        folded = self._number == head.snapshot < head.frames
        if folded:
            await self._take_folded(checkpointer, head.thread_id, data[0])
        await self._take(checkpointer, head.thread_id, data[1:] if folded else data)
        if (self._previous or b"").hex() != head.digest:
            raise _Broken(f"frame {head.frames - 1} is not the frame that the head names as the last")
        return Loaded(head, self._fold.checkpoint(), self._size)

    async def _take_folded(self, checkpointer: Checkpointer, thread_id: str, data: bytes) -> None:
        frame = await decoded(checkpointer, thread_id, self._number, data)
        if not isinstance(next(iter(frame.entries), None), FoldedState):
            raise _Broken(f"frame {self._number} does not hold the folded state that its head says it does")
        self._follow([data])
        with _no_collection():
            self._fold.push(frame.entries)
        stored = max(frame.stored, len(data))
        self._size = LogSize(snapshot=stored, kept=stored)

    async def _take(self, checkpointer: Checkpointer, thread_id: str, data: list[bytes]) -> None:
        """Decode the next frames, which are given as bytes, and add their entries to the state. Empties the list
        `data`.

        If a frame refers to blobs that must be fetched first, it and all frames after it in `data` are added only at
        the end, so that the blobs of all of them are fetched together.
        """
        lacking: list[IncompleteFrame] = []
        waiting: list[list[Logged]] = []
        sizes: list[int] = []
        with _no_collection():
            for part, ordinary in decode_in_parts(data, checkpointer.keys):
                if ordinary is None:
                    found = one_by_one(part, thread_id, self._number, checkpointer.keys, lacking)
                else:
                    found = [entries for _, entries in ordinary]
                self._follow(part)
                waiting += found
                sizes += map(len, part)
                if not lacking:
                    self._fold_in(waiting, sizes)
                    waiting, sizes = [], []
        if lacking:
            await fill(checkpointer, thread_id, lacking)
            with _no_collection():
                self._fold_in(waiting, sizes)

    def _follow(self, data: list[bytes]) -> None:
        """Check that each of these frames holds the digest of the frame before it, and count them as read.

        Raises `_Broken` if one does not.
        """
        before = [frame[PREVIOUS] for frame in data]
        digests = [self._previous or before[0], *[frame[DIGEST] for frame in data]]
        if before != digests[:-1]:
            number = next(
                number for number, pair in enumerate(zip(before, digests, strict=False)) if pair[0] != pair[1]
            )
            raise _Broken(f"frame {self._number + number} does not follow the frame before it")
        self._previous = digests[-1]
        self._number += len(data)

    def _fold_in(self, frames: list[list[Logged]], sizes: list[int]) -> None:
        """Add the entries of these frames to the state, and count the frames in the figures that decide when the whole
        state is next written to the log. `sizes` are the frames' sizes in bytes."""
        entries = [*chain.from_iterable(frames)]
        self._fold.push(entries)
        size = sum(sizes)
        if count_kept(entries) == len(entries):  # a plain conversation: spares the sum below
            kept: float = size
        else:
            kept = sum([own * count_kept(each) / max(1, len(each)) for own, each in zip(sizes, frames, strict=True)])
        self._size = self._size.grown(size, kept / max(1, size))


Renamed = Callable[[list[Logged]], Awaitable[list[Logged]]]
"""Type of an async function that takes a frame's entries, and returns them with the digests that the same trees of
blobs (such as file snapshots) have in another store."""


class _Start(TypedDict):
    """Where to start to read a log: `start` is the number of the first frame to read, and `previous` the digest of the
    frame before it, or None if that digest is not known."""

    start: int
    previous: bytes | None


Progress = Callable[[int, int | None], None]
"""Type of a function that is called during long work with the number of steps done, and their total or None if it is
unknown."""

_WINDOW = 2 * 2**20  # bytes to read at once, estimated from the frames before
_MOST, _FEWEST = 8192, 4


def link(data: bytes, previous: bytes | None, what: str) -> bytes:
    """Return a frame's own digest.

    Raises `Corrupt` if it does not match the frame's bytes, or if the frame does not follow the one with the digest
    `previous`. Needs no key. With `previous=None` the order is not checked. `what` names the frame in the error.
    """
    if not is_sound(data):
        raise Corrupt(
            f"{what} fails its check: its bytes have changed since they were written. Restore it from a copy."
        )
    if previous is not None and data[PREVIOUS] != previous:
        raise Corrupt(f"{what} does not follow the frame before it. Restore it from a copy.")
    return data[DIGEST]


async def frames(
    source: Source, head: Head, *, start: int = 0, stop: int | None = None, previous: bytes | None = FIRST
) -> AsyncIterator[tuple[int, bytes]]:
    """Read the frames of the log that this head describes, and yield the number and the bytes of each.

    Reads from frame `start` up to, but not including, frame `stop`; without `stop`, up to the last frame that the head
    names. Frames that are appended meanwhile are not read. Checks that each frame follows the one before it; `previous`
    is the digest of the frame before `start`, or None if it is unknown. Raises `Corrupt` for damage, and `Conflict` if
    the thread is deleted or recreated meanwhile.
    """
    async for first, window in _windows(source, head, start, stop, previous):
        for number, data in enumerate(window, first):
            yield number, data


async def decoded_frames(
    source: Source, head: Head, *, start: int = 0, stop: int | None = None, previous: bytes | None = FIRST
) -> AsyncIterator[tuple[int, Frame]]:
    """Read and decode the frames of the log that this head describes, and yield the number of each and the frame.

    Reads from frame `start` up to, but not including, frame `stop`; without `stop`, up to the last frame that the head
    names. Only a few frames at a time are in memory. Checks that each frame follows the one before it; `previous` is
    the digest of the frame before `start`, or None if it is unknown. Raises `MissingBlob` if a blob that a frame refers
    to is gone, `Corrupt` for damage, and `Conflict` if the thread is deleted or recreated meanwhile.
    """
    async for first, window in _windows(source, head, start, stop, previous):
        for start in range(0, len(window), AT_ONCE):
            part = window[start : start + AT_ONCE]
            ordinary = decode_ordinary(part, source.keys)
            for place, data in enumerate(part):
                number = first + start + place
                if ordinary is None:
                    yield number, await decoded(source, head.thread_id, number, data)
                else:
                    yield number, Frame(data[PREVIOUS], data[DIGEST], *ordinary[place])


async def _windows(
    source: Source, head: Head, start: int, stop: int | None, previous: bytes | None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Read the frames of the log that this head describes, from frame `start` up to, but not including, frame `stop`;
    with None for `stop`, up to the last frame that the head names. Yield them in groups: all frames that one call of
    the store returned, with the number of the first of them.

    Checks that each frame follows the one before it, and that the last frame is the one that the head names. `previous`
    is the digest of the frame before `start`, or None if it is unknown. Raises `Corrupt` for damage, and `Conflict` if
    the thread is deleted or recreated meanwhile.
    """
    stop = head.frames if stop is None else stop
    number, window = start, _FEWEST * 4
    while number < stop:
        data = await source.read(head.thread_id, start=number, stop=min(number + window, stop))
        try:
            if not data:
                raise Corrupt(
                    f"thread {head.thread_id!r}, frame {number} is missing: the log should have {head.frames}"
                )
            for place, frame in enumerate(data, number):
                previous = link(frame, previous, f"thread {head.thread_id!r}, frame {place}")
            if number + len(data) == head.frames and data[-1][DIGEST].hex() != head.digest:
                raise Corrupt(
                    f"thread {head.thread_id!r}, frame {head.frames - 1} is not the frame that the head names as the last"
                )
        except Corrupt as broken:
            raise await _explained(source, head, broken) from broken
        yield number, data
        number += len(data)
        window = next_window(window, data)


def next_window(window: int, data: Sequence[bytes]) -> int:
    """Return how many frames to read with the next call of the store. `data` are the frames that the last call read,
    and `window` is the number of frames that it asked for.

    Assumes that the next frames are as large as these on average. The result is the number of frames that have about 2
    MiB together, but at most twice `window`.
    """
    return max(_FEWEST, min(_MOST, window * 2, _WINDOW * len(data) // max(1, sum(map(len, data)))))


async def _explained(source: Source, head: Head, broken: Corrupt) -> ClewError:
    """Return the error to raise: `Conflict` if the thread was deleted or recreated while it was read, else `broken`."""
    now = await source.head(head.thread_id)
    if now is None or now.log_id != head.log_id:
        return Conflict(head.thread_id, "it was deleted, or deleted and made again, while it was being read")
    return broken


async def state_at(source: Source, head: Head) -> Checkpoint:
    """Return the state that the entries of the log with this head add up to.

    Reading starts at the newest folded state: a frame that holds the thread's whole state up to there.
    """
    fold = Fold()
    with fitting(head.thread_id):
        async for _, frame in decoded_frames(source, head, **from_folded(head)):
            fold.push(frame.entries)
        return fold.checkpoint()


async def outline_at(source: Source, head: Head, renamed: Renamed | None = None) -> tuple[Checkpoint, bytes]:
    """Return the state that the entries of the log with this head add up to, without the parts that grow with the log,
    and a digest of the whole state.

    Left out are the messages, the facts (values that hold from a turn on), and what the model saw at the end of each
    turn. Two logs with equal digests have the same state. The memory needed does not grow with the log, unless it has
    folded states (entries with a whole state). `renamed` is a function that takes the entries of a frame; if it is
    given, the entries that it returns are used instead.
    """
    fold = Fold(outline=MessageOutline)
    async for _, frame in decoded_frames(source, head, **from_folded(head)):
        fold.push(frame.entries if renamed is None else await renamed(frame.entries))
    state, digest = fold.outline()
    return state, blake3(digest + encode_entries([FoldedState(state)]).entries).digest()


def from_folded(head: Head) -> _Start:
    """Return where to start reading a log to compute the state that it leads to: at the newest frame with a whole
    state, else at the first frame."""
    start = max(head.snapshot, 0)
    return {"start": start, "previous": None if start else FIRST}


async def check_rest(source: Source, head: Head, start: int, previous: bytes) -> None:
    """Check that the frames from number `start` on follow the frame with the digest `previous`, and lead to the one
    that the head names as the last. Raises `Corrupt` if not.

    Used when an earlier part of an encrypted log was read. Only the head is proved to be genuine, so only an unbroken
    chain of frames up to the head shows that the part belongs to this log.
    """
    async for _ in _windows(source, head, start, None, previous):
        pass


async def state_after(checkpointer: Checkpointer, thread_id: str, frames: int) -> Checkpoint:
    """Return the state of a thread after its first `frames` frames. Takes no lease and changes nothing.

    Works for every frame, not only for ends of turns. So a rewind (which takes turns back) can be undone: fork the
    state from before it. If the log was rewritten since (by `purge_rewound` or `repair`), frame numbers refer to the
    new log. Raises `ThreadNotFound`, and `InvalidInput` if the log has fewer frames.
    """
    head = await checkpointer.head(thread_id)
    if head is None or is_part(head):
        raise ThreadNotFound(thread_id)
    if not 1 <= frames <= head.frames:
        raise InvalidInput(
            f"thread {thread_id!r} has frames 1 to {head.frames}; there is no frame {frames} to go back to"
        )
    last = await checkpointer.read(thread_id, start=frames - 1, stop=frames)
    digest = last[0][DIGEST].hex() if last else ""
    if checkpointer.keys is not None:
        await check_rest(checkpointer, head, frames, bytes.fromhex(digest))
    folded = head.snapshot if head.snapshot < frames else -1
    return await state_at(checkpointer, msgspec.structs.replace(head, frames=frames, snapshot=folded, digest=digest))
