"""From a store's frames to a thread's state: checked link by link, started at the newest folded state."""

from __future__ import annotations

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.errors import Corrupt, MissingBlob, ThreadNotFound
from clew.log import Fold, Frame, decode_frame, is_kept
from clew.threads.sizes import LogSize

__all__ = ["Loaded", "load", "read_frames"]


class Loaded(msgspec.Struct, frozen=True):
    """A thread as it is on record."""

    head: Head
    fold: Fold
    data: list[bytes] = []
    frames: list[Frame] = []

    def size(self) -> LogSize:
        """How large the log is, for one who goes on writing it."""
        snapshot = len(self.data[0]) if self.head.snapshot >= 0 else 0
        tail = list(zip(self.data, self.frames, strict=True))[1 if snapshot else 0 :]
        kept = sum(len(data) * sum(map(is_kept, frame.entries)) / len(frame.entries) for data, frame in tail)
        return LogSize(sum(map(len, self.data)) - snapshot, snapshot, snapshot + kept)


async def load(checkpointer: Checkpointer, thread_id: str) -> Loaded:
    """The state on record, or `ThreadNotFound`. Takes no lease and changes nothing."""
    head = await checkpointer.head(thread_id)
    while head is not None:
        start = max(head.snapshot, 0)
        data = await checkpointer.read(thread_id, start=start, stop=head.frames)
        frames = await _decode(checkpointer, thread_id, data, start)
        broken = _broken_link(head, start, frames)
        if broken is None:
            fold = Fold()
            for frame in frames:
                fold.push(frame.entries)
            return Loaded(head, fold, data, frames)
        again = await checkpointer.head(thread_id)
        if again is not None and again.log_id == head.log_id:
            raise Corrupt(f"thread {thread_id!r}, {broken}. Restore it from a copy.")
        head = again  # it was deleted, and perhaps made again, between the two reads
    raise ThreadNotFound(thread_id)


async def read_frames(checkpointer: Checkpointer, head: Head) -> list[Frame]:
    """Every frame of the log this head describes, checked."""
    data = await checkpointer.read(head.thread_id, stop=head.frames)
    frames = await _decode(checkpointer, head.thread_id, data, 0)
    if broken := _broken_link(head, 0, frames):
        raise Corrupt(f"thread {head.thread_id!r}, {broken}. Restore it from a copy.")
    return frames


async def _decode(checkpointer: Checkpointer, thread_id: str, data: list[bytes], start: int) -> list[Frame]:
    frames = [decode_frame(frame, thread_id, number) for number, frame in enumerate(data, start)]
    while missing := frozenset().union(*(frame.missing for frame in frames if frame.missing)):
        blobs = await checkpointer.get_blobs(missing.union(*(frame.refs for frame in frames if frame.missing)))
        if absent := missing - blobs.keys():
            raise MissingBlob(absent, thread_id=thread_id)
        for place, frame in enumerate(frames):
            if frame.missing:
                frames[place] = decode_frame(data[place], thread_id, start + place, blobs)
    return frames


def _broken_link(head: Head, start: int, frames: list[Frame]) -> str | None:
    """What is wrong with these frames as the end of the log this head describes; None if all links hold."""
    if start + len(frames) != head.frames:
        return f"frame {start + len(frames)} is missing: the log should have {head.frames} frames"
    for place in range(1, len(frames)):
        if frames[place].previous != frames[place - 1].digest:
            return f"frame {start + place} does not follow the frame before it"
    if frames and frames[-1].digest.hex() != head.digest:
        return f"frame {head.frames - 1} is not the one that its head names as the last"
    if start == 0 and frames and any(frames[0].previous):
        return "frame 0 follows a frame that is not there"
    return None
