"""Decodes the frames of a thread, together with the blobs that they refer to."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

import msgspec

from clew._runtime.aio import settle
from clew.checkpointers import Head
from clew.errors import MissingBlob
from clew.log import Frame, Logged, decode_frame
from clew.log.keys import Keyring

__all__ = ["IncompleteFrame", "Source", "decoded", "fill", "one_by_one"]

_LARGE = 2**17
"""A frame counts as large if it has this number of bytes, together with its blobs. It may unpack to fifty times as much,
and take seconds to decode."""


class Source(Protocol):
    """Anything that a thread can be read from: a checkpointer or a `.clew` file."""

    @property
    def keys(self) -> Keyring | None: ...
    async def head(self, thread_id: str) -> Head | None: ...
    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]: ...
    async def refs(self, thread_id: str) -> set[str]: ...
    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]: ...


class IncompleteFrame(msgspec.Struct, frozen=True):
    """A frame that cannot be decoded before the blobs that it refers to are fetched. Once it is decoded, its entries
    are added to the list `entries`."""

    number: int
    data: bytes
    frame: Frame
    entries: list[Logged]


def one_by_one(
    data: list[bytes], thread_id: str, start: int, keys: Keyring | None, lacking: list[IncompleteFrame]
) -> list[list[Logged]]:
    """Decode these frames of a thread, given as bytes, and return the entries of each. `start` is the number that the
    first of these frames has in the log. `keys` decrypt encrypted frames.

    A frame whose blobs must be fetched first is added to the list `lacking`, and its list of entries stays empty until
    `fill` has decoded it.
    """
    found = []
    for number, part in enumerate(data, start):
        frame = decode_frame(part, thread_id, number, keys=keys)
        found.append(frame.entries)
        if frame.missing:
            lacking.append(IncompleteFrame(number, part, frame, frame.entries))
    return found


async def fill(source: Source, thread_id: str, lacking: list[IncompleteFrame]) -> None:
    """Fetch the blobs that the frames in `lacking` need, decode these frames, and add the entries of each to its own
    list.

    Repeats for frames that turn out to need more blobs. Raises `MissingBlob` if a blob is not in the store.
    """
    while missing := frozenset().union(*[each.frame.missing for each in lacking]):
        blobs = await source.get_blobs(missing.union(*[each.frame.refs for each in lacking]))
        if absent := missing - blobs.keys():
            raise MissingBlob(absent, thread_id=thread_id)
        frames = [await _decode(each.data, thread_id, each.number, blobs, source.keys) for each in lacking]
        for each, frame in zip(lacking, frames, strict=True):
            each.entries.extend(frame.entries)
        lacking = [
            msgspec.structs.replace(each, frame=frame)
            for each, frame in zip(lacking, frames, strict=True)
            if frame.missing
        ]


async def decoded(source: Source, thread_id: str, number: int, data: bytes) -> Frame:
    """Decode frame `number` of a thread, given as bytes. Fetches the blobs that it refers to.

    Raises `MissingBlob` if one of these blobs is not in the store.
    """
    blobs: dict[str, bytes] = {}
    frame = await _decode(data, thread_id, number, blobs, source.keys)
    while frame.missing:
        blobs |= await source.get_blobs(frame.missing)
        if absent := frame.missing - blobs.keys():
            raise MissingBlob(absent, thread_id=thread_id)
        frame = await _decode(data, thread_id, number, blobs, source.keys)
    return frame


async def _decode(data: bytes, thread_id: str, number: int, blobs: dict[str, bytes], keys: Keyring | None) -> Frame:
    """Decode frame `number` of a thread, given as bytes. `blobs` has blobs that the frame refers to, by digest. If the
    frame and the blobs are large, this is done on another OS thread, so that the event loop can do other work
    meanwhile."""
    if len(data) + sum(map(len, blobs.values())) < _LARGE:
        return decode_frame(data, thread_id, number, blobs, keys)
    return await settle(asyncio.to_thread(decode_frame, data, thread_id, number, blobs, keys))
