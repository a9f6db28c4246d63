"""`Thread`: one durable piece of work, which one process at a time may open and append to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Literal, Self, get_args

import msgspec

from clew._runtime.aio import settle
from clew._runtime.clock import now
from clew.checkpointers import Checkpointer, Head
from clew.errors import InvalidInput, LeaseLost, Unavailable, UsageError
from clew.log import (
    Checkpoint,
    Fold,
    LeaseTaken,
    Logged,
    Present,
    Rewound,
    fold,
    is_barrier,
)
from clew.log.trees import NAMING, named_trees
from clew.threads.diff import difference
from clew.threads.heads import left_as, listed
from clew.threads.inbox import Post, new_posts, post, remove
from clew.threads.leases import RENEW_AFTER, Takeover, give_up, is_live, new_lease, takes_over_from, wait_until_free
from clew.threads.ops import fork as forking
from clew.threads.ops.copy import copy, copy_all
from clew.threads.ops.export import export, import_
from clew.threads.ops.gc import gc
from clew.threads.ops.prune import prune
from clew.threads.ops.purge import purge, purge_rewound
from clew.threads.ops.rekey import rekey
from clew.threads.ops.repair import repair
from clew.threads.ops.verify import verify, verify_all
from clew.threads.reader import catch_up, load, or_new
from clew.threads.redact import Redact, redactor
from clew.threads.takeover import Predecessor
from clew.threads.trees import check_trees
from clew.threads.writer import LogWriter

__all__ = ["Durability", "Thread"]

log = logging.getLogger("clew.threads")

Durability = Literal["sync", "async", "exit"]

TRIES = 200
"""How often to try to take a lease, at most, while other processes write. Each try starts from the current end of the
log."""


class Thread:
    """A thread that this process holds: `async with Thread.open(checkpointer, "user-42") as thread: ...`

    While it is open, no other process can append to it. Leaving the block gives the lease back. If the process dies,
    another process can take over at once on the same machine. On another machine it can do so once it has seen, for 30
    seconds by its own clock, that the lease is not renewed. A process whose lease was taken over gets `LeaseLost` at its
    next append and changes nothing. If the store is `Unavailable` when the block is left, the thread stays open with all
    its entries: call `flush`, or let the lease expire.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        thread_id: str,
        *,
        takeover: Takeover,
        durability: Durability,
        label: str,
        redact: Redact | None,
        wait: float | None,
    ) -> None:
        if durability not in get_args(Durability):
            raise InvalidInput(f"durability must be one of {', '.join(get_args(Durability))}, not {durability!r}")
        self._checkpointer = checkpointer
        self._thread_id = thread_id
        self._takeover = takeover
        self._wait = wait
        self._durability = durability
        self._label = label
        self._redact = redactor(redact)
        self._writer: LogWriter | None = None
        self._closed = False
        self._predecessor: Predecessor | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._position = 0

    @classmethod
    def open(
        cls,
        checkpointer: Checkpointer,
        thread_id: str,
        *,
        takeover: Takeover = False,
        durability: Durability = "sync",
        label: str = "",
        redact: Redact | None = None,
        wait: float | None = None,
    ) -> Thread:
        """Open a thread to work on it, and create it if it does not exist. Use it as an async context manager.

        Raises `ThreadBusy` if a live process holds the thread. If the lease of another process has expired by the clock
        of this machine, but the process may still be alive, entering the block first waits to see whether it renews the
        lease. That takes at most as long as a lease lasts, 30 seconds, and logs a warning. `wait` is the most seconds
        to wait: if more could be needed, raises `ThreadBusy` at once. With None, waits as long as needed.

        `takeover=True` takes the lease at once, even from a live holder. `takeover` can also be a function that gets the
        lease and decides. `label` says what this process does; errors and listings show it with the process's pid.

        `durability` says when entries are durable. With `"sync"`, when `append` returns. With `"async"`, `append` waits
        only for entries that something is about to depend on (the start of a model call, a response, the start and the
        outcome of a tool call or of a step in it, a status), and a power cut may lose the last other entries. With
        `"exit"`, everything stays in memory until the block is left or `flush` is called.

        `redact` removes text that must not be on record: a function from text to text, or patterns whose matches are
        replaced. It is applied before anything is recorded.
        """
        return cls(
            checkpointer, thread_id, takeover=takeover, durability=durability, label=label, redact=redact, wait=wait
        )

    @staticmethod
    async def load(checkpointer: Checkpointer, thread_id: str, *, at_turn: int | None = None) -> Checkpoint:
        """Return the state of a thread, now or at the end of turn `at_turn`. Takes no lease and changes nothing.

        Raises `ThreadNotFound` if there is no such thread, and `InvalidInput` if there is no such turn.
        """
        loaded = await load(checkpointer, thread_id)
        state = loaded.state
        # is_crashed(head) would not do: the head of a copy has the status interrupted while its log says running.
        if state.status == "running" and not is_live(loaded.head.lease):
            state = msgspec.structs.replace(state, status="interrupted")
        if at_turn is None:
            return state
        forking.check_turn(thread_id, state, at_turn)
        return fold([Rewound(turn=at_turn)], state)

    list = staticmethod(listed)
    verify = staticmethod(verify)
    verify_all = staticmethod(verify_all)
    repair = staticmethod(repair)
    prune = staticmethod(prune)
    gc = staticmethod(gc)
    purge = staticmethod(purge)
    purge_rewound = staticmethod(purge_rewound)
    rekey = staticmethod(rekey)
    copy = staticmethod(copy)
    copy_all = staticmethod(copy_all)
    export = staticmethod(export)
    import_ = staticmethod(import_)
    post = staticmethod(post)

    async def __aenter__(self) -> Self:
        if self._writer is not None or self._closed:
            raise UsageError(f"thread {self._thread_id!r} was opened before. Call Thread.open again.")
        self._writer = await self._take_lease()
        self._spawn(self._keep_lease(self._writer))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed:
            return
        writer = self._open_writer()
        try:
            if writer.fold.status == "running":
                writer.accept([left_as(writer.fold, writer.head)])
            self._forget_predecessor()
            await settle(writer.release())
        except LeaseLost:
            self._end()
            if error is None:
                raise
        except asyncio.CancelledError:
            self._end()
            raise
        else:
            self._end()

    def abandon(self) -> None:
        """Close the thread without writing: drop entries that are not durable yet, and let the lease expire.

        For a thread that could not be closed because the store was `Unavailable`. Does nothing if the thread is not
        open.
        """
        if self._writer is None:
            return
        if self._writer.lease is not None:
            give_up(self._writer.lease)
        self._writer.drop()
        self._end()

    @property
    def thread_id(self) -> str:
        return self._thread_id

    @property
    def head(self) -> Head:
        """The thread's head as it was last written to the store."""
        return self._open_writer().head

    @property
    def position(self) -> int:
        """The number of frames (appends) in the thread's log after the last append of this process, also once the
        thread is closed."""
        return self._position if self._writer is None else self._writer.head.frames

    @property
    def unreachable_since(self) -> float | None:
        """Since when the store has been `Unavailable`, as a time of `time.monotonic`: the time at which the first
        failed write began. None if no write has failed in this way since the last one that succeeded."""
        return self._open_writer().unreachable_since

    @property
    def checkpoint(self) -> Checkpoint:
        """The thread's state with everything appended so far, whether it is durable yet or not."""
        return self._open_writer().fold.checkpoint()

    @property
    def present(self) -> Present:
        """The part of the state that a run needs for its next model or tool call, such as the messages that the model
        sees, the tool calls of a turn that is not done, the newest snapshot of the files, usage and cost. Making it
        does not take longer as the log grows."""
        return self._open_writer().fold.present()

    @property
    def on_lost(self) -> set[Callable[[], None]]:
        """Functions that are called, without arguments, as soon as it is known that another process has taken over."""
        return self._open_writer().on_lost

    @property
    def lost(self) -> LeaseLost | None:
        """The `LeaseLost` error if it is known that another process has taken over, else None. It becomes known at the
        next append or renewal of the lease."""
        return self._open_writer().lost

    async def until_named(self) -> None:
        """Wait until the `LeaseLost` error in the attribute `lost` names the process that has taken over, or until it
        is certain that the name cannot be found out."""
        await self._open_writer().named.wait()

    @property
    def messages(self) -> int:
        """Number of messages in the history, which is also the index that the next message will have there. Cheap to
        read."""
        return self._open_writer().fold.messages

    async def append(self, *entries: Logged) -> None:
        """Record these entries together, after all earlier ones. The `durability` given to `open` says when they are
        durable.

        After `Unavailable` they are kept and are sent with the next append or `flush`: do not append them again. Raises
        `LeaseLost` if another process has taken over.
        """
        writer = self._writer or self._open_writer()
        if not NAMING.isdisjoint(map(type, entries)):
            await check_trees(self._checkpointer, named_trees(entries), self._thread_id)
        through = writer.accept(self.redacted(entries))
        if self._durability == "sync" or (self._durability == "async" and any(map(is_barrier, entries))):
            await writer.flush(through)
        elif self._durability == "async":
            self._spawn(self._flush_behind(writer))

    async def renew(self) -> None:
        """Extend the lease. Raises `LeaseLost` if another process has taken over.

        Call this after a pause that may have outlasted the lease, such as the machine's sleep, before doing anything
        that cannot be undone.
        """
        await self._open_writer().renew()

    @property
    def has_run_out(self) -> bool:
        """Whether this process has not renewed its lease in time, by the clock of this machine, so that another process
        may have taken the thread. Then nothing may be done that cannot be undone before `renew` has succeeded."""
        return self._open_writer().has_run_out

    @property
    def lease_left(self) -> float:
        """For how many seconds the lease is certain to last on if it is not renewed, by the clock of this machine. 0.0 if
        it may have ended."""
        return self._open_writer().lease_left

    async def fence(self) -> None:
        """Return once the store has confirmed, by an append begun after this call, that this process still holds the
        thread. Raises `LeaseLost` if another process has taken over.

        No process takes the thread within the next 30 seconds, unless it asks for a takeover.
        """
        await self._open_writer().fence()

    async def outwait_predecessor(self) -> bool:
        """If the thread was taken from another process without waiting (`takeover=True`), wait until the lease of that
        process must have ended. By then that process has noticed the takeover, unless it is frozen. Return True after
        such a wait.

        The takeover may have been made by this process, or by an earlier holder that was stopped since. Returns False
        at once if there was no takeover, if the thread had no lease at the takeover, if the holder of that lease was
        certainly gone, or if that lease must have ended by now.
        """
        if self._predecessor is None:
            return False
        waited = await self._predecessor.outwait()
        self._forget_predecessor()
        return waited

    def _forget_predecessor(self) -> None:
        """If the thread was taken over from another process and the lease of that process must have ended, remove the
        name of that process from the thread's state with the next append."""
        if self._predecessor is not None and self._predecessor.is_gone:
            self._open_writer().accept([self._predecessor.forget()])
            self._predecessor = None

    def hold(self, *entries: Logged) -> None:
        """Take these entries into the thread's state now, and write them to the store with the next append or flush.

        Use this for entries that another append follows at once, so that both cost one write. Raises `UsageError` for
        file snapshots, because `append` must check first that the store has them.
        """
        if named_trees(entries):
            raise UsageError("hold() does not take file snapshots. Record them with append().")
        self._open_writer().accept(self.redacted(entries))

    @property
    def durability(self) -> Durability:
        return self._durability

    def redacted(self, entries: Sequence[Logged]) -> Sequence[Logged]:
        """Return these entries as they would be recorded: changed by the `redact` that the thread was opened with."""
        return entries if self._redact is None else self._redact(entries)

    async def posts(self) -> tuple[Post, ...]:
        """Return what others have posted to the thread's inbox and is not on record here yet, oldest first. To take a
        post in, append what it says together with its `read`, so that it is never taken in twice."""
        writer = self._open_writer()
        return await new_posts(self._checkpointer, writer.head, writer.fold.inbox_read)

    async def flush(self) -> None:
        """Return once everything appended is durable, whichever durability the thread was opened with."""
        await self._open_writer().flush()

    async def save(self, checkpoint: Checkpoint) -> None:
        """Make this checkpoint the state of the thread, by appending entries for what differs.

        If the checkpoint lacks messages of the conversation, the thread is first taken back (rewound) to the last
        message that both have. Raises `InvalidInput`, and saves nothing, if a part of the checkpoint cannot be
        recorded; the error names that part. What the log has in addition to the checkpoint stays: rewound messages are
        still part of the history, and spend does not shrink. If the checkpoint's status is `running`, the thread's
        status becomes `interrupted` once it is closed.
        """
        entries = difference(self._thread_id, self.checkpoint, checkpoint)
        if entries:
            await self.append(*entries)

    async def rewind(self, to_turn: int) -> None:
        """Continue from the end of turn `to_turn`. Later messages stay in the history, and what was spent stays spent.
        Raises `InvalidInput` if there is no such turn."""
        forking.check_turn(self._thread_id, self.checkpoint, to_turn)
        await self.append(Rewound(turn=to_turn))
        log.info("thread %r: rewound to turn %d", self._thread_id, to_turn)

    async def fork(self, new_id: str, *, at_turn: int | None = None) -> Head:
        """Create the thread `new_id`, which continues from the end of turn `at_turn` of this thread, by default the
        current turn. Returns the new thread's head.

        Raises `Conflict` if a thread with that id exists, and `InvalidInput` if there is no such turn.
        """
        await self.flush()
        return await forking.fork(self._checkpointer, self._thread_id, self.checkpoint, new_id, at_turn)

    async def delete(self, *, purge: bool = False) -> None:
        """Delete the thread from the store and close this object.

        With `purge`, also deletes at once the blobs that no other thread needs. Otherwise they stay until the next gc.
        """
        await self.flush()
        self._end()
        if purge:
            await Thread.purge(self._checkpointer, self._thread_id)
        else:
            await remove(self._checkpointer, self._thread_id)
        log.info("thread %r: deleted", self._thread_id)

    async def _take_lease(self) -> LogWriter:
        """Take the lease by appending an entry that names this process at the end of the log.

        Returns the thread's writer. If another process appends first, tries again from the new end, at most `TRIES`
        times in all; then raises `Unavailable`. Waits until no live process can hold the lease, or raises `ThreadBusy`;
        if the thread was opened with `takeover=True`, takes the lease without this.
        """
        loaded = await or_new(load(self._checkpointer, self._thread_id), self._thread_id, "running")
        for _ in range(TRIES):
            takes_over = takes_over_from(loaded.head.lease, self._takeover)
            if not takes_over:
                await wait_until_free(self._checkpointer, loaded.head, self._wait)
            lease = new_lease(self._label)
            writer = LogWriter(self._checkpointer, loaded.head, Fold(loaded.state), lease, loaded.size)
            replaced = Predecessor.of(loaded.head) if takes_over else None
            taken: list[Logged] = [
                LeaseTaken(str(lease.owner), lease.token),
                *([replaced.record()] if replaced else []),
            ]
            try:
                await writer.flush(writer.accept(taken))
            except LeaseLost:
                loaded = await or_new(catch_up(self._checkpointer, loaded), self._thread_id, "running")
                continue
            except asyncio.CancelledError:
                await settle(self._give_back(writer))
                raise
            if replaced:
                self._predecessor = replaced.counted_from_now(loaded.head)
            else:
                self._predecessor = Predecessor.recorded(self._thread_id, loaded.state)
            self._tell_of_lease(loaded.head, writer, is_takeover=replaced is not None)
            return writer
        raise Unavailable(
            f"thread {self._thread_id!r} was changed by others {TRIES} times while its lease was requested. Try again."
        )

    async def _give_back(self, writer: LogWriter) -> None:
        """Give back the lease after `_take_lease` was cancelled: the append that takes the lease may have succeeded all
        the same.

        So nobody has to wait for the lease to expire.
        """
        try:
            writer.accept([left_as(writer.fold, writer.head)])
            await writer.release()
        except (LeaseLost, Unavailable) as error:
            log.info("thread %r: %s", self._thread_id, error)

    def _tell_of_lease(self, before: Head, writer: LogWriter, *, is_takeover: bool) -> None:
        turn = writer.fold.turns
        if not before.frames:
            log.debug("thread %r: new", self._thread_id)
        elif before.lease is None:
            log.info("thread %r: resumed at turn %d", self._thread_id, turn)
        elif is_takeover:
            log.warning("thread %r: taken over from %s at turn %d", self._thread_id, before.lease.owner, turn)
        else:
            owner = before.lease.owner
            log.info("thread %r: its last holder, %s, is gone; resumed at turn %d", self._thread_id, owner, turn)

    async def _keep_lease(self, writer: LogWriter) -> None:
        """Run as long as the thread is open: every 10 seconds, renew the lease if nothing was appended in the last 5
        seconds, for example because a tool runs for a long time. After a failed renewal, try again 2 seconds later."""
        usual = pause = RENEW_AFTER.total_seconds()
        while not writer.lost and writer.lease is not None:
            await asyncio.sleep(pause)
            pause = usual
            idle = (now() - writer.head.updated_at).total_seconds()
            if idle < 0 or idle >= usual / 2 or writer.has_run_out:
                try:
                    await writer.renew()
                except Unavailable as error:
                    log.warning("thread %r: its lease could not be renewed: %s", self._thread_id, error)
                    pause = usual / 5
                except LeaseLost:
                    return

    async def _flush_behind(self, writer: LogWriter) -> None:
        try:
            await writer.flush()
        except (Unavailable, LeaseLost) as error:
            log.warning("thread %r: not yet durable: %s", self._thread_id, error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _end(self) -> None:
        self._closed = True
        self._position = self.position
        self._writer = None
        for task in self._background:
            task.cancel()

    def _open_writer(self) -> LogWriter:
        if self._closed:
            raise UsageError(f"thread {self._thread_id!r} is closed. Open it again with Thread.open.")
        if self._writer is None:
            raise UsageError(f"thread {self._thread_id!r} is not open. Write: async with Thread.open(...) as thread")
        return self._writer
