"""Read every frame of a log, also the damaged ones, with what is wrong with each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

import msgspec

from clew.checkpointers import Checkpointer
from clew.errors import ClewError, Corrupt, MissingBlob, NewerFormat, WrongKey
from clew.log import DIGEST, FIRST, PREVIOUS, FoldedState, Frame, decode_frame, is_sound, sealed_with
from clew.threads.reader import next_window

__all__ = ["DAMAGE", "Problem", "Seen", "get_blobs", "is_snapshot", "scan"]

_CHUNK = 64
"""Number of frames to read from the store at first. Their sizes decide how many are read then."""
_GIVE_UP = 8
"""If the length of the log is unknown, reading stops after this many frames in a row that could not be read."""
DAMAGE = (Corrupt, NewerFormat)
"""The errors that say that stored bytes are not as they were written."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a thread, in words. Names the frame by number or the blob by digest.

    If neither is set, the problem is in the head.
    """

    what: str
    frame: int | None = None
    blob: str | None = None

    def __str__(self) -> str:
        frame = f"frame {self.frame}" if self.frame is not None else ""
        blob = f"blob {self.blob}" if self.blob is not None else ""
        return f"{', '.join(filter(None, (frame, blob))) or 'head'}: {self.what}"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of a log as it was found in the store, with everything that is wrong with it."""

    number: int
    problems: tuple[Problem, ...] = ()
    frame: Frame | None = None
    """The decoded frame, or None if it could not be read."""
    digest: bytes | None = None
    """The frame's own digest, which the next frame should name as its predecessor's. None if it is unknown."""
    refs: frozenset[str] = frozenset()
    error: ClewError | None = None
    sealed: bool = False
    follows: bool = True
    """False if the predecessor that the frame names, by its digest, is not the frame before it."""

    @property
    def sound(self) -> bool:
        """True if this frame could be decoded and follows the frame before it."""
        return self.frame is not None and self.follows


def is_snapshot(frame: Frame) -> bool:
    """Return whether reading a log can start at this frame, because it holds a folded state (the thread's state at this
    point) and nothing else."""
    return len(frame.entries) == 1 and isinstance(frame.entries[0], FoldedState)


class _Raw(NamedTuple):
    """A frame as it was read from the store: its number, its bytes, and what went wrong.

    If all is well, `error` is None. If the frame cannot be read, `data` is None. Both are set if the frame itself can
    be read and the damage lies elsewhere, such as between it and the frame before it.
    """

    number: int
    data: bytes | None
    error: ClewError | None


async def scan(checkpointer: Checkpointer, thread_id: str, count: int | None) -> AsyncIterator[Seen]:
    """Yield every frame of a log, with what is wrong with it.

    A damaged frame is yielded too, and does not stop the others. `count` is the number of frames that the log should
    have. If it is None, frames are read up to the log's end.
    """
    previous: bytes | None = FIRST
    async for number, data, error in _raw_frames(checkpointer, thread_id, count):
        seen = await _look_at(checkpointer, thread_id, number, data, error)
        link = None if data is None or seen.digest is None else data[PREVIOUS]
        if previous is not None and link is not None and link != previous:
            broken = Problem("it does not follow the frame before it", frame=number)
            seen = msgspec.structs.replace(seen, problems=(*seen.problems, broken), follows=False)
        previous = seen.digest
        yield seen


async def _raw_frames(checkpointer: Checkpointer, thread_id: str, count: int | None) -> AsyncIterator[_Raw]:
    start, window = 0, _CHUNK
    while count is None or start < count:
        stop = start + window if count is None else min(start + window, count)
        overlap = 1 if start else 0  # so that damage between two chunks is found too
        try:
            chunk = (await checkpointer.read(thread_id, start=start - overlap, stop=stop))[overlap:]
            found = [_Raw(number, data, None) for number, data in enumerate(chunk, start)]
            window = next_window(window, chunk)
        except DAMAGE as error:
            if window > _CHUNK:  # look for the damage in smaller parts
                window = _CHUNK
                continue
            found = await _one_by_one(checkpointer, thread_id, start, stop, error, known=count is not None)
        for raw in found:
            yield raw
        if len(found) < stop - start:
            return
        start = stop


async def _one_by_one(
    checkpointer: Checkpointer, thread_id: str, start: int, stop: int, blame: ClewError, *, known: bool
) -> list[_Raw]:
    """Read the frames from `start` up to, but not including, `stop` one at a time, because reading them together failed
    with the error `blame`. Return one item for each frame: its bytes, or the error of reading it.

    If every single read succeeds, the last item gets the error `blame`, so that the damage is reported all the same. If
    the log's length is not known (`known` is False), failed reads at the end are left out: the log ends before them.
    """
    found: list[_Raw] = []
    failed = 0
    for number in range(start, stop):
        try:
            one = await checkpointer.read(thread_id, start=number, stop=number + 1)
            if not one:
                break
            between = await _damage_before(checkpointer, thread_id, number) if number else None
            found.append(_Raw(number, one[0], between))
            failed = 0
        except DAMAGE as error:
            found.append(_Raw(number, None, error))
            failed += 1
            if failed >= _GIVE_UP and not known:
                break
    if not known:
        del found[len(found) - failed :]
    if found and all(raw.error is None for raw in found):
        found[-1] = found[-1]._replace(error=blame)
    return found


async def _damage_before(checkpointer: Checkpointer, thread_id: str, number: int) -> ClewError | None:
    """Read a frame together with the one before it, and return the error that this raises, or None if it raises none.

    So damage between the two is found, where stores may keep records. None if the frame before cannot be read alone.
    """
    try:
        await checkpointer.read(thread_id, start=number - 1, stop=number)
    except DAMAGE:
        return None
    try:
        await checkpointer.read(thread_id, start=number - 1, stop=number + 1)
    except DAMAGE as error:
        return error
    return None


async def _look_at(
    checkpointer: Checkpointer, thread_id: str, number: int, data: bytes | None, error: ClewError | None
) -> Seen:
    """Decode one frame with the blobs it refers to, and return it with everything that is wrong with it.

    `data` is the frame as read from the store, or None. `error` is the error of reading it, if there was one.
    """
    problems = [] if error is None else [Problem(str(error), frame=number)]
    if data is None:
        return Seen(number=number, problems=tuple(problems), error=error)
    refs: frozenset[str] = frozenset()
    frame: Frame | None = None
    blobs: dict[str, bytes] = {}
    try:
        frame = decode_frame(data, thread_id, number, keys=checkpointer.keys)
        while frame.missing:
            refs |= frame.refs
            missing = sorted(refs - blobs.keys())
            found, damaged = await get_blobs(checkpointer, missing)
            blobs |= found
            if absent := set(missing) - found.keys():
                for digest in sorted(absent):
                    what = damaged.get(digest, "it is not in the store")
                    problems.append(Problem(what, frame=number, blob=digest))
                error = error or MissingBlob(absent, thread_id=thread_id)
                frame = None
                break
            frame = decode_frame(data, thread_id, number, blobs, checkpointer.keys)
    except WrongKey as wrong:
        error, frame = wrong, None
        if wrong.key_id is None:
            problems.append(Problem(str(wrong), frame=number))
    except DAMAGE as damage:
        error, frame = damage, None
        problems.append(Problem(str(damage), frame=number))
    return Seen(
        number=number,
        problems=tuple(problems),
        frame=frame,
        digest=frame.digest if frame is not None else _own_digest(data),
        refs=refs if frame is None else refs | frame.refs,
        error=error,
        sealed=len(data) > 1 and sealed_with(data) is not None,
    )


def _own_digest(data: bytes) -> bytes | None:
    """Return the digest at the end of a frame that cannot be decoded, or None if it does not match the frame's bytes."""
    return data[DIGEST] if is_sound(data) else None


async def get_blobs(checkpointer: Checkpointer, digests: Collection[str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read these blobs. Return the bytes of each intact blob, and what is wrong with each damaged blob, both by digest.

    Missing blobs are in neither dictionary.
    """
    try:
        return await checkpointer.get_blobs(digests), {}
    except DAMAGE as error:
        if len(digests) == 1:
            return {}, dict.fromkeys(digests, str(error))
    blobs: dict[str, bytes] = {}
    damaged: dict[str, str] = {}
    for digest in digests:
        found, wrong = await get_blobs(checkpointer, [digest])
        blobs |= found
        damaged |= wrong
    return blobs, damaged
