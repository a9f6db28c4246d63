"""A log read from end to end, checked link by link, in memory for a few frames at a time: from a store or from a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import Protocol

from blake3 import blake3

from clew.checkpointers import Head
from clew.errors import ClewError, Conflict, Corrupt, MissingBlob
from clew.log import (
    DIGEST,
    EMPTY,
    FIRST,
    PREVIOUS,
    Checkpoint,
    Fold,
    Frame,
    Logged,
    decode_frame,
    encode_entries,
    is_sound,
)
from clew.log.keys import Keyring

__all__ = ["Progress", "Source", "decoded", "fingerprint", "frames", "link", "state_at"]

Progress = Callable[[int, int | None], None]
"""Told how many steps are done, and of how many if that is known."""

_WINDOW = 4 * 2**20  # bytes to have in memory at once, as far as the frames before allow a guess
_MOST, _FEWEST = 128, 4


class Source(Protocol):
    """What a thread can be read from: any checkpointer, and a `.clew` file."""

    @property
    def keys(self) -> Keyring | None: ...
    async def head(self, thread_id: str) -> Head | None: ...
    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]: ...
    async def refs(self, thread_id: str) -> set[str]: ...
    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]: ...


def link(data: bytes, previous: bytes | None, what: str) -> bytes:
    """The digest of this frame; `Corrupt` if it fails its check or does not follow the one before it. Needs no key."""
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
    """The frames of the log that this head describes, with their numbers. `previous` is the digest before the first.

    The log may grow meanwhile: what is read is the part that the head knows of.
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
                    f"thread {head.thread_id!r}, frame {head.frames - 1} is not the one that its head names as the last"
                )
        except Corrupt as broken:
            raise await _explained(source, head, broken) from broken
        for frame in data:
            yield number, frame
            number += 1
        window = max(_FEWEST, min(_MOST, window * 2, _WINDOW * len(data) // sum(map(len, data))))


async def _explained(source: Source, head: Head, broken: Corrupt) -> ClewError:
    """A thread that was deleted and made again between two reads is not a damaged one."""
    now = await source.head(head.thread_id)
    if now is None or now.log_id != head.log_id:
        return Conflict(head.thread_id, "it was deleted, or deleted and made again, while it was being read")
    return broken


async def decoded(source: Source, thread_id: str, number: int, data: bytes) -> Frame:
    """The frame with its large values in their place."""
    frame = decode_frame(data, thread_id, number, keys=source.keys)
    blobs: dict[str, bytes] = {}
    while frame.missing:
        blobs |= await source.get_blobs(frame.missing)
        if absent := frame.missing - blobs.keys():
            raise MissingBlob(absent, thread_id=thread_id)
        frame = decode_frame(data, thread_id, number, blobs, source.keys)
    return frame


async def state_at(source: Source, head: Head) -> Checkpoint:
    """The state that the log of this head folds to, from its newest folded state on."""
    start = max(head.snapshot, 0)
    fold = Fold(EMPTY)
    async for number, data in frames(source, head, start=start, previous=None if start else FIRST):
        fold.push((await decoded(source, head.thread_id, number, data)).entries)
    return fold.checkpoint()


def fingerprint(entry: Logged) -> bytes:
    """Equal for entries that are stored as the same bytes: a NaN among the values is equal to itself here."""
    return blake3(encode_entries([entry]).entries).digest()
