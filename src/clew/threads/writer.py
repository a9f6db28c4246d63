"""One writer's end of a log: entries in, frames out, one append at a time, nothing lost when a store stumbles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime

import msgspec

from clew._runtime.telemetry import is_listened_to, span
from clew.checkpointers import Checkpointer, Head, Lease
from clew.errors import Conflict, LeaseLost, UsageError
from clew.log import (
    FIRST,
    Encoded,
    Fold,
    FoldedState,
    Logged,
    check_readable,
    count_kept,
    encode_entries,
    encode_frame,
)
from clew.log.trees import NAMING, named_trees
from clew.threads.leases import renewed

__all__ = ["LogSize", "LogWriter", "Round", "round_of"]


log = logging.getLogger("clew.threads")


class _Append(msgspec.Struct, frozen=True, gc=False):
    """What is sent to the store: kept until it is known to have arrived, so that it can be sent again as it was."""

    frames: list[bytes]
    head: Head
    blobs: dict[str, bytes]
    refs: Collection[str]
    through: int
    size: LogSize


class LogWriter:
    """Turns entries into frames and heads, and appends them in order.

    Entries that arrive while an append is under way go together into the next frame. While other writers of the event
    loop have one under way, frames are made in a row with theirs. If the outcome of an append is not known
    (`Unavailable`) the very same append is made again before anything else: stores promise that this is safe. A
    `Conflict` means that another holder moved the log on: from then on every call is `LeaseLost`. Cancelling abandons
    nothing: what is under way settles, then the cancellation goes on.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        head: Head,
        fold: Fold,
        lease: Lease,
        size: LogSize,
    ) -> None:
        self.head = head
        """The head on record."""
        self.fold = fold
        self.lease: Lease | None = lease
        self.lost: LeaseLost | None = None
        self._checkpointer = checkpointer
        self._size = size
        self._buffer: list[Encoded] = []
        self._trees: set[str] = set()
        self._kept = 0
        self._accepted = 0
        self._durable = 0
        self._unsettled: _Append | None = None
        self._dropped = False
        self._writing = False
        self._waiting: list[asyncio.Future[None]] = []

    def accept(self, entries: Sequence[Logged]) -> int:
        """Take entries in, in order; all of them or, if one cannot be stored, none. Returns what to wait for."""
        if self.lost:
            raise self.lost
        encoded = encode_entries(entries)
        check_readable(entries, encoded)
        self.fold.push(entries)
        self._buffer.append(encoded)
        if not NAMING.isdisjoint(map(type, entries)):
            self._trees |= named_trees(entries)
        self._kept += count_kept(entries)
        self._accepted += len(entries)
        return self._accepted

    async def flush(self, through: int | None = None, *, renew: bool = False) -> None:
        """Return once everything accepted up to here is durable; with `renew`, after one append at least, if need be of the
        head alone.

        One append at a time: whoever comes second waits for the first, and then looks again whether there is still need.
        """
        through = self._accepted if through is None else through
        cancelled: asyncio.CancelledError | None = None
        try:
            while renew or self._durable < through:
                renew = False
                if self.lost:
                    raise self.lost
                if self._dropped:
                    raise UsageError(
                        f"thread {self.head.thread_id!r} was abandoned before this was written. Open and append again."
                    )
                if not self._writing:
                    await self._write()
                    continue
                turn = asyncio.get_running_loop().create_future()
                self._waiting.append(turn)
                try:
                    await turn
                except asyncio.CancelledError as error:
                    cancelled = error
        finally:
            if cancelled is not None:
                raise cancelled

    async def _write(self) -> None:
        """One append, unless all of it is dropped before its turn comes."""
        cancelled: asyncio.CancelledError | None = None
        together = round_of(asyncio.get_running_loop())
        together.writing += 1
        self._writing = True
        try:
            append = self._unsettled
            if append is not None:
                log.info("thread %r: sending what was not acknowledged", append.head.thread_id)
            elif self._buffer:
                if together.writing > 1:
                    try:
                        await together.join(self._gather)
                    except asyncio.CancelledError as error:
                        cancelled = error
                self._gather()
                append = self._unsettled
                if append is None:
                    return
            else:
                head = self._next_head(self.head.frames, self.head.digest, self.head.snapshot)
                append = _Append([], head, {}, (), self._accepted, self._size)
            if append.blobs or is_listened_to():
                await self._send_in_a_span(append)
            else:
                await self._send(append)
            self.head, self._durable, self._size = append.head, append.through, append.size
            self._unsettled = None
        except Conflict as conflict:
            raise await self._lose() from conflict
        finally:
            self._writing = False
            together.writing -= 1
            if self._waiting:
                self._wake()
            if cancelled is not None:
                raise cancelled

    def drop(self) -> None:
        """Nothing more is written here but what is on its way to the store."""
        self._buffer = []
        self._unsettled = None
        self._dropped = True

    async def renew(self) -> None:
        """Extend the lease: with what is pending if there is any, else with a head alone."""
        await self.flush(renew=True)

    async def release(self) -> None:
        """Give the lease back, in one append with what is pending. Nothing can be written after this."""
        self.lease = None
        await self.flush()
        while self.head.lease is not None:
            await self.flush(renew=True)

    async def _send_in_a_span(self, append: _Append) -> None:
        """With its blobs; for the ordinary append, to which nobody listens, this is a detour."""
        with span("clew.append", thread_id=append.head.thread_id) as current:
            size, entries = sum(map(len, append.frames)), append.through - self._durable
            current.set(frames=len(append.frames), bytes=size, entries=entries)
            try:
                if append.blobs:
                    await self._checkpointer.put_blobs(append.blobs)
                await self._send(append)
            except Conflict as conflict:
                raise await self._lose() from conflict

    def _send(self, append: _Append) -> Awaitable[None]:
        head = append.head
        return self._checkpointer.append(
            head.thread_id, append.frames, at=self.head.frames, head=head, refs=append.refs
        )

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    async def _lose(self) -> LeaseLost:
        """Another writer moved the log on: whatever we still hold is void, and is never written."""
        head = await self._checkpointer.head(self.head.thread_id)
        holder = (
            "somebody who deleted it" if head is None else str(head.lease.owner) if head.lease else "another writer"
        )
        self.lost = LeaseLost(self.head.thread_id, holder)
        log.info("%s", self.lost)
        return self.lost

    def _gather(self) -> None:
        """Make an append of what was accepted; if nothing was, or it is made, there is nothing to do."""
        if self._buffer and self._unsettled is None:
            self._unsettled = self._next_append()
            self._buffer, self._kept, self._trees = [], 0, set()

    def _next_append(self) -> _Append:
        """All that has gathered, as a frame; with it the folded state, when the log has grown enough to pay for one."""
        number, keys, thread_id = self.head.frames, self._checkpointer.keys, self.head.thread_id
        previous = bytes.fromhex(self.head.digest) or FIRST
        frame = encode_frame(self._buffer, previous=previous, thread_id=thread_id, number=number, keys=keys)
        size = self._size.grown(len(frame.data), self._kept / (self._accepted - self._durable))
        frames, blobs, snapshot = [frame.data], frame.blobs, self.head.snapshot
        if size.may_pay():
            state = encode_entries([FoldedState(self.fold.checkpoint())])
            folded = encode_frame([state], previous=frame.digest, thread_id=thread_id, number=number + 1, keys=keys)
            if size.pays(len(folded.data)):
                frames.append(folded.data)
                blobs = blobs | folded.blobs
                snapshot = self.head.frames + 1
                frame, size = folded, LogSize(snapshot=len(folded.data), kept=len(folded.data))
            else:
                size = msgspec.structs.replace(size, snapshot=len(folded.data))
        head = self._next_head(self.head.frames + len(frames), frame.digest.hex(), snapshot)
        refs = {*blobs, *self._trees} if self._trees else blobs
        return _Append(frames, head, blobs, refs, self._accepted, size)

    def _next_head(self, frames: int, digest: str, snapshot: int) -> Head:
        now = datetime.now(UTC)
        fold = self.fold
        return Head(
            thread_id=self.head.thread_id,
            frames=frames,
            log_id=self.head.log_id,
            status=fold.status,
            lease=None if self.lease is None else renewed(self.lease, now),
            snapshot=snapshot,
            digest=digest,
            agent=fold.agent,
            title=fold.title if self._checkpointer.keys is None else "",
            model=fold.model,
            turns=fold.turns,
            input_tokens=fold.input_tokens,
            output_tokens=fold.output_tokens,
            cost_usd=fold.cost_usd,
            created_at=self.head.created_at,
            updated_at=now,
            parent=fold.parent,
            tags=fold.tags,
        )


class Round:
    """The work that one event loop's writers ask for until it comes to it."""

    def __init__(self) -> None:
        self.writing = 0
        """How many writers have an append under way: one that is alone has nobody to wait for."""
        self._asked: list[tuple[Callable[[], None], asyncio.Future[None]]] = []

    def join(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Do this together with what others ask for in this turn of the loop. When what is returned is done, so is the work,
        or it failed with that error. Once that is cancelled the work is left alone, unless it has begun."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._asked:
            loop.call_soon(self._work_through)
        self._asked.append((work, turn))
        return turn

    def _work_through(self) -> None:
        """A signal may cancel a turn in the middle of its work: nobody is to be told then, and the others get their turn."""
        asked, self._asked = self._asked, []
        for work, turn in asked:
            if turn.done():
                continue
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - whoever asked gets it
                if not turn.done():
                    turn.set_exception(error)
            else:
                if not turn.done():
                    turn.set_result(None)


_rounds: dict[asyncio.AbstractEventLoop, Round] = {}


def round_of(loop: asyncio.AbstractEventLoop) -> Round:
    """The round that all writers of this event loop share."""
    found = _rounds.get(loop)
    if found is None:
        for other in list(_rounds):
            if other.is_closed():
                _rounds.pop(other, None)
        found = _rounds[loop] = Round()
    return found


RATIO = 4
"""A folded state is written once the bytes it spares a reader are this many times its own: at most a quarter more."""
LEAST = 64 * 1024
"""Bytes that every reader reads soon enough: no folded state is written for fewer."""


class LogSize(msgspec.Struct, frozen=True, gc=False):
    """How large the end of a log is, and how large its state may be: in bytes of frames."""

    since: int = 0
    """Frames after the newest folded state."""
    snapshot: int = 0
    """The folded state when it was last written, or tried."""
    kept: float = 0.0
    """An estimate of all that the state keeps: it grows with the log, unless the log holds much that a fold drops."""

    def grown(self, size: int, kept: float) -> LogSize:
        """With one more frame, of which this share stays in the state."""
        return LogSize(self.since + size, self.snapshot, self.kept + size * kept)

    def may_pay(self) -> bool:
        """Whether it is worth finding out: encoding a state costs as much as it is large, so a guess comes first."""
        return self.since > LEAST and self.since > RATIO * max(self.snapshot, self.kept / 2)

    def pays(self, snapshot: int) -> bool:
        return self.since > RATIO * snapshot
