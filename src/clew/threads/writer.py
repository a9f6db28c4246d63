"""`LogWriter`: encode entries as frames and append them to a store, one append at a time, without losing any."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from clew._runtime.aio import settle
from clew._runtime.clock import Moment, now
from clew._runtime.telemetry import is_listened_to, span
from clew.checkpointers import Checkpointer, Head, Lease
from clew.errors import Conflict, LeaseLost, Unavailable, UsageError
from clew.log import (
    FIRST,
    Encoded,
    Fold,
    FoldedState,
    LeaseTaken,
    Logged,
    check_readable,
    count_kept,
    encode_entries,
    encode_frame,
)
from clew.log.trees import NAMING, named_trees
from clew.threads.heads import head_of
from clew.threads.leases import has_ended, renewed, time_left

__all__ = ["LogSize", "LogWriter", "Round", "round_of"]


log = logging.getLogger("clew.threads")
_TRIES = 5


class _Append(msgspec.Struct, frozen=True, gc=False):
    """One append, with its frames and head, as it is sent to the store.

    The writer keeps it until the store confirms it, so that exactly the same append can be sent again.
    """

    frames: list[bytes]
    head: Head
    blobs: dict[str, bytes]
    refs: Collection[str]
    through: int
    size: LogSize
    made: Moment
    """When the head was made. If the append succeeds, the lease counts as renewed at this moment."""


class LogWriter:
    """Turns entries into frames and heads, and appends them in order.

    Entries that arrive during an append go into the next frame together. While other writers of the same event loop are
    appending, the frames of all of them are encoded in one go. After `Unavailable` the outcome of an append is unknown,
    so exactly the same append is sent again before any other: stores promise that this is safe. A `Conflict` means that
    another process appended; from then on every call raises `LeaseLost`. A cancelled call first waits until the append
    in progress has succeeded or failed.
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
        """The head as it was last written to the store."""
        self.fold = fold
        self.lease: Lease | None = lease
        self.lost: LeaseLost | None = None
        self.on_lost: set[Callable[[], None]] = set()
        """Functions that are called once, as soon as it is known that another process has taken over."""
        self.named = asyncio.Event()
        """Set once `lost` names the process that has taken over, or the store could not be asked for its name."""
        self._held = Moment(0.0, 0.0)
        """When the lease was last renewed for certain. From this moment on it lasts `LEASE_TIME`."""
        self._proofs = 0
        """How many appends have shown that this process still has the lease."""
        self._checkpointer = checkpointer
        self._size = size
        self._buffer: list[Encoded] = []
        self._trees: set[str] = set()
        self._kept = 0
        self._accepted = 0
        self._durable = 0
        self.unreachable_since: float | None = None
        """When the first failed append since the last successful one began, as a value of `time.monotonic`. Counts only
        failures because the store was `Unavailable`. None if there was none."""
        self._unsettled: _Append | None = None
        self._dropped = False
        self._writing = False
        self._waiting: list[asyncio.Future[None]] = []

    def accept(self, entries: Sequence[Logged]) -> int:
        """Take in entries, in order, to be written by the next `flush`.

        Returns how many entries this writer has taken in since it was made, which is the `through` to give to `flush`.
        Raises `InvalidInput` and takes none if one of them cannot be stored. Raises `LeaseLost` if another process has
        taken over.
        """
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
        """Return once the first `through` entries that this writer ever accepted, by default all, are durable.

        With `renew`, make at least one append, of the head alone if there are no entries. Only one append runs at a
        time: other callers wait for it and then check again whether they still need one. If that append raises
        `Unavailable`, the waiting callers raise it too, so that all of them together wait no longer than one call of
        the store takes to give up.
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
        """Append all entries that `accept` has taken in and that are not written yet. If it is not known whether the
        append before took effect, send that one again instead.

        Without entries, append the head alone. Writes nothing if `drop` discards the entries before they are sent.
        Raises `LeaseLost` if another process has taken over.
        """
        cancelled: asyncio.CancelledError | None = None
        began = time.monotonic()
        together = round_of(asyncio.get_running_loop())
        together.writing += 1
        self._writing = True
        try:
            append = self._unsettled
            is_repeated = append is not None
            if append is not None:
                log.info("thread %r: sending an unacknowledged append again", append.head.thread_id)
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
                made = Moment.now()
                append = _Append([], self._next_head(), {}, (), self._accepted, self._size, made)
            if append.blobs or is_listened_to():
                await self._send_in_a_span(append)
            else:
                await self._send(append)
            self.head, self._durable, self._size = append.head, append.through, append.size
            self._unsettled = self.unreachable_since = None
            if append.frames or not self.has_run_out or self.fold.status != "running":
                self._held = append.made
                self._proofs += not is_repeated  # a repeated append may have been written long ago
        except Conflict as conflict:
            raise await self._lose() from conflict
        except (Unavailable, asyncio.CancelledError) as error:
            failure = error.__cause__ if isinstance(error, asyncio.CancelledError) else error
            if isinstance(failure, Unavailable):
                self.unreachable_since = began if self.unreachable_since is None else self.unreachable_since
                self._wake(failure)
            raise
        finally:
            self._writing = False
            together.writing -= 1
            if self._waiting:
                self._wake()
            if cancelled is not None:
                raise cancelled

    def drop(self) -> None:
        """Discard all entries that were accepted and are not in an append that is already under way. After that append,
        this writer writes nothing more."""
        self._buffer = []
        self._unsettled = None
        self._dropped = True

    @property
    def has_run_out(self) -> bool:
        """Whether the lease may have ended, by the clock of this machine, so that another process may have taken it."""
        return self.lease is not None and has_ended(self._held)

    @property
    def lease_left(self) -> float:
        """For how many seconds the lease is certain to last on, by the clock of this machine; 0.0 if it may have
        ended."""
        return time_left(self._held)

    async def renew(self) -> None:
        """Extend the lease by one append: of the entries that are not written yet, or of the head alone if there are
        none.

        If the lease of a running thread may have ended already, another process may be taking it right now. Then an
        entry that takes the lease again is appended. Such an entry moves the end of the log, and an append succeeds
        only at the current end, so only one of the two processes succeeds. An append of the head alone does not move
        the end, so both could succeed. Raises `LeaseLost` if another process has taken over, and `Unavailable` if every
        try takes longer than the lease lasts.
        """
        if not self.has_run_out or self.fold.status != "running":
            await self.flush(renew=True)
        tries = 0
        while self.lease is not None and self.has_run_out and self.fold.status == "running":
            if tries == _TRIES:
                raise Unavailable(f"thread {self.head.thread_id!r}: an append takes longer than the lease lasts")
            await self.flush(self.accept([LeaseTaken(str(self.lease.owner), self.lease.token)]))
            tries += 1

    async def fence(self) -> None:
        """Make sure that this process still has the lease: make an append, of the head alone if nothing waits to be
        written, and return when the store has accepted it. Raises `LeaseLost` if another process has taken over."""
        done = self._proofs
        if self._writing:  # that append began before this call, so it proves nothing
            done += 1
        while self._proofs <= done and self.lease is not None:
            await self.renew()

    async def release(self) -> None:
        """Give the lease back, in one append with the entries that are not written yet.

        Nothing can be written after this.
        """
        self.lease = None
        await self.flush()
        while self.head.lease is not None:
            await self.flush(renew=True)

    async def _send_in_a_span(self, append: _Append) -> None:
        """Store an append's blobs, then send the append, within a telemetry span.

        Used only if the append has blobs or telemetry is on.
        """
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

    def _wake(self, error: Unavailable | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if turn.done():
                continue
            if error is None:
                turn.set_result(None)
            else:
                turn.set_exception(error)

    async def _lose(self) -> LeaseLost:
        """Make the `LeaseLost` error after another process appended, keep it in `lost`, and return it. Entries that are
        not written yet never will be.

        First calls the functions that were registered in the set `on_lost`, because the work of this process has to
        stop now. Only then asks the store who has taken over, which may take long.
        """
        self.lost = lost = LeaseLost(self.head.thread_id, "another process")
        for tell in tuple(self.on_lost):
            tell()
        await settle(self._name_holder(lost))
        return lost

    async def _name_holder(self, lost: LeaseLost) -> None:
        """Ask the store which process has taken over, and put its name into this error. If the store cannot be reached,
        the error still says "another process"."""
        try:
            head = await self._checkpointer.head(self.head.thread_id)
        except Unavailable:
            pass
        else:
            if head is None:
                lost.name_holder("a process that deleted it")
            else:
                lost.name_holder(str(head.lease.owner) if head.lease else "another writer")
        finally:
            self.named.set()
        log.info("%s", lost)

    def _gather(self) -> None:
        """Prepare an append of all accepted entries.

        Does nothing if there are none, or if an append is already prepared.
        """
        if self._buffer and self._unsettled is None:
            self._unsettled = self._next_append(is_crowded=round_of(asyncio.get_running_loop()).writing > 1)
            self._buffer, self._kept, self._trees = [], 0, set()

    def _next_append(self, *, is_crowded: bool) -> _Append:
        """Encode all accepted entries as one frame, and return the append of it. `is_crowded` says that other writers
        of the same event loop are appending too; then a quicker compression is used.

        Adds a second frame with the folded state (the thread's whole state) if that is worth its size: readers can
        start there, and need not read the frames before it.
        """
        made = Moment.now()
        number, keys, thread_id = self.head.frames, self._checkpointer.keys, self.head.thread_id
        previous = bytes.fromhex(self.head.digest) or FIRST
        frame = encode_frame(
            self._buffer,
            previous=previous,
            thread_id=thread_id,
            number=number,
            keys=keys,
            is_quick=self._checkpointer.is_hasty or is_crowded,
        )
        size = self._size.grown(len(frame.data), self._kept / (self._accepted - self._durable))
        frames, blobs, snapshot = [frame.data], frame.blobs, self.head.snapshot
        if size.may_pay():
            state = encode_entries([FoldedState(self.fold.checkpoint())])
            folded = encode_frame([state], previous=frame.digest, thread_id=thread_id, number=number + 1, keys=keys)
            if size.pays(folded.stored):
                frames.append(folded.data)
                blobs = blobs | folded.blobs
                snapshot = self.head.frames + 1
                frame, size = folded, LogSize(snapshot=folded.stored, kept=folded.stored)
            else:
                size = msgspec.structs.replace(size, snapshot=folded.stored)
        head = self._next_head(frames=number + len(frames), digest=frame.digest.hex(), snapshot=snapshot)
        refs = {*blobs, *self._trees} if self._trees else blobs
        return _Append(frames, head, blobs, refs, self._accepted, size, made)

    def _next_head(self, **changes: Any) -> Head:
        moment = now()
        lease = None if self.lease is None else renewed(self.lease, moment)
        encrypted = self._checkpointer.keys is not None
        return head_of(self.fold, self.head, encrypted=encrypted, lease=lease, updated_at=moment, **changes)


class Round:
    """Collects functions that the writers of one event loop want to run, such as the encoding of frames, and runs them
    together in one callback of that event loop."""

    def __init__(self) -> None:
        self.writing = 0
        """Number of writers whose append is in progress. A writer that is the only one does not wait for others."""
        self._asked: list[tuple[Callable[[], None], asyncio.Future[None]]] = []

    def join(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Run the function `work` in the next callback of the event loop, together with the work of other writers.

        The returned future finishes when the work is done, or with the error it raised. If the future is cancelled
        before the work begins, the work is not done.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._asked:
            loop.call_soon(self._work_through)
        self._asked.append((work, turn))
        return turn

    def _work_through(self) -> None:
        """Run all functions that were given to `join` since the last time, and finish the future that it returned for
        each: with None, or with the error that the function raised.

        A signal may cancel a future while its function runs. Then the result is dropped, and the other functions still
        run.
        """
        asked, self._asked = self._asked, []
        for work, turn in asked:
            if turn.done():
                continue
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the caller of `join` gets it
                if not turn.done():
                    turn.set_exception(error)
            else:
                if not turn.done():
                    turn.set_result(None)


_rounds: dict[asyncio.AbstractEventLoop, Round] = {}


def round_of(loop: asyncio.AbstractEventLoop) -> Round:
    """Return the `Round` that all writers of this event loop share."""
    found = _rounds.get(loop)
    if found is None:
        for other in list(_rounds):
            if other.is_closed():
                _rounds.pop(other, None)
        found = _rounds[loop] = Round()
    return found


RATIO = 4
"""A folded state is written to the log once the frames before it that readers can then skip have more than this many
times its size.

A folded state is the thread's whole state, at which readers start instead of at the first frame. With this rule, folded
states make a log longer by at most a quarter.
"""
LARGE, LARGE_RATIO = 4 * 2**20, 32
"""A folded state of more than `LARGE` bytes is written only if readers can then skip `LARGE_RATIO` times its size. Such
a state does not fit in a frame, and even a reader that reads a log in pieces, in little memory, has to read it as a
whole."""
LEAST = 64 * 1024
"""No folded state is written to the log until readers can skip more than this many bytes of frames.

Every reader reads so few bytes quickly.
"""


class LogSize(msgspec.Struct, frozen=True, gc=False):
    """Sizes in bytes of a thread's log and of its whole state, by which `may_pay` and `pays` decide when to write that
    state (the folded state) to the log, so that readers can start there."""

    since: int = 0
    """Bytes of the frames after the newest folded state in the log."""
    snapshot: int = 0
    """Bytes of the folded state when it was last encoded, whether it was written or not."""
    kept: float = 0.0
    """Estimate of the bytes that a folded state would have now.

    Grows with every frame, by that share of the frame's bytes whose content stays in the state.
    """

    def grown(self, size: int, kept: float) -> LogSize:
        """Return the sizes of the log and its state after one more frame of `size` bytes.

        `kept` is how much of the frame adds to the thread's state: 1 if all of its content does, 0 if nothing does.
        """
        return LogSize(self.since + size, self.snapshot, self.kept + size * kept)

    def may_pay(self) -> bool:
        """Return whether it may be worth writing the thread's whole state to the log now. The state takes space there,
        but readers can start at it and skip all frames before it.

        This is a cheap guess, because encoding a large state to learn its size is expensive. When it is encoded, `pays`
        decides.
        """
        return self.since > LEAST and self.pays(max(self.snapshot, self.kept / 2))

    def pays(self, snapshot: float) -> bool:
        """Return whether to write the thread's whole state, `snapshot` bytes when encoded, to the log: whether readers
        who start there can skip more than 4 times its size in frames, or 32 times if it has more than 4 MiB."""
        return self.since > snapshot * (RATIO if snapshot <= LARGE else LARGE_RATIO)
