"""`Thread`: one durable piece of work, opened by one process at a time, written once over the narrow waist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Self, get_args

import msgspec

from clew._runtime.aio import settle
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.errors import InvalidInput, LeaseLost, Unavailable, UsageError
from clew.log import (
    Checkpoint,
    Compacted,
    Fold,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallStarted,
    Rewound,
    StatusChanged,
    StepIntent,
    StepOutcome,
    ToolIntent,
    ToolOutcome,
    fold,
)
from clew.log.trees import NAMING, named_trees
from clew.messages import Assistant
from clew.threads.diff import difference
from clew.threads.heads import is_hidden
from clew.threads.leases import RENEW_AFTER, check_free, is_live, new_lease
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
from clew.threads.trees import check_trees
from clew.threads.writer import LogWriter

__all__ = ["Durability", "Thread"]

log = logging.getLogger("clew.threads")

Durability = Literal["sync", "async", "exit"]

PAGE = 50
TRIES = 200
"""How often a lease is tried for while others write: each time from where the log has got to since."""


class Thread:
    """A thread that this process holds: `async with Thread.open(checkpointer, "user-42") as thread: ...`

    While it is open nobody else can append to it. Leaving the block gives the lease back; a process that dies is
    replaced at once on the same machine, and after 30 seconds from another. Whoever was replaced gets `LeaseLost` at
    its next append and changes nothing. If the store is `Unavailable` when the block is left, the thread stays open
    with all it holds: call `flush`, or leave it to the lease.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        thread_id: str,
        *,
        takeover: bool,
        durability: Durability,
        label: str,
        redact: Redact | None,
    ) -> None:
        if durability not in get_args(Durability):
            raise InvalidInput(f"durability is one of {', '.join(get_args(Durability))}, not {durability!r}")
        self._checkpointer = checkpointer
        self._thread_id = thread_id
        self._takeover = takeover
        self._durability = durability
        self._label = label
        self._redact = redactor(redact)
        self._writer: LogWriter | None = None
        self._closed = False
        self._background: set[asyncio.Task[None]] = set()

    @classmethod
    def open(
        cls,
        checkpointer: Checkpointer,
        thread_id: str,
        *,
        takeover: bool = False,
        durability: Durability = "sync",
        label: str = "",
        redact: Redact | None = None,
    ) -> Thread:
        """Open a thread to work on it; it is made if there is none. Use it as an async context manager.

        `takeover=True` takes the lease even from a live holder. `durability`: with `"sync"` every append is durable when
        it returns; with `"async"` only what something is about to depend on is waited for (model calls, responses, intents,
        outcomes, statuses), and a power cut may take the last other entries; with `"exit"` everything stays in memory until
        the block is left or `flush` is called.

        `redact` takes out what must not be on record: a function from text to text, or patterns whose matches are
        replaced. It is applied before anything is recorded.
        """
        return cls(checkpointer, thread_id, takeover=takeover, durability=durability, label=label, redact=redact)

    @staticmethod
    async def load(checkpointer: Checkpointer, thread_id: str, *, at_turn: int | None = None) -> Checkpoint:
        """The state on record, or the one it had at the end of a turn. Takes no lease and changes nothing."""
        loaded = await load(checkpointer, thread_id)
        state = loaded.state
        if state.status == "running" and not is_live(loaded.head.lease):
            state = msgspec.structs.replace(state, status="interrupted")
        if at_turn is None:
            return state
        forking.check_turn(thread_id, state, at_turn)
        return fold([Rewound(turn=at_turn)], state)

    @staticmethod
    async def list(checkpointer: Checkpointer, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        """The heads that match, newest first. A thread that was running when its process died is shown as interrupted."""
        statuses = query.statuses()
        asked = query
        if statuses is not None and "interrupted" in statuses:
            asked = msgspec.structs.replace(asked, status=tuple({*statuses, "running"}))
        left = query.limit
        if left == 0:
            return
        async for stored in _paged(checkpointer, asked):
            head = msgspec.structs.replace(stored, status="interrupted") if _crashed(stored) else stored
            if query.matches(head) and not is_hidden(head):
                yield head
                left = None if left is None else left - 1
                if left == 0:  # here, for one step further on may be another page
                    return

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
                writer.accept([StatusChanged("interrupted")])
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
        """Let go without another word: what is not durable yet is dropped, and the lease is left to run out. For whoever
        could not leave the block because the store was `Unavailable`, and does not want to wait for it. One that is not open
        is left as it is."""
        if self._writer is None:
            return
        self._writer.drop()
        self._end()

    @property
    def thread_id(self) -> str:
        return self._thread_id

    @property
    def head(self) -> Head:
        """The head as it is on record."""
        return self._open_writer().head

    @property
    def checkpoint(self) -> Checkpoint:
        """The state with everything appended so far."""
        return self._open_writer().fold.checkpoint()

    @property
    def lost(self) -> LeaseLost | None:
        """What tells that another process has taken the thread over, as far as it is known: it is looked for at each append
        and each renewal."""
        return self._open_writer().lost

    @property
    def messages(self) -> int:
        """How many messages the history holds, which costs nothing to ask: the place of the next one."""
        return self._open_writer().fold.messages

    async def append(self, *entries: Logged) -> None:
        """Record these entries together, after all that came before.

        After `Unavailable` they are kept and go out with the next append or `flush`: do not append them again.
        """
        writer = self._writer or self._open_writer()
        if not NAMING.isdisjoint(map(type, entries)):
            await check_trees(self._checkpointer, named_trees(entries), self._thread_id)
        through = writer.accept(self.redacted(entries))
        if self._durability == "sync" or (self._durability == "async" and any(map(_is_barrier, entries))):
            await writer.flush(through)
        elif self._durability == "async":
            self._spawn(self._flush_behind(writer))

    async def renew(self) -> None:
        """Make sure that the thread is still ours: `LeaseLost` if it is not. A holder that slept past its lease, with its
        machine say, does this before it does anything that cannot be undone."""
        await self._open_writer().renew()

    def hold(self, *entries: Logged) -> None:
        """Take these in, after all that came before, without waiting: they go out with what is appended or flushed next.

        For entries that something durable is about to follow anyway, so that both cost one write. Snapshots of files
        cannot be held: they are checked first, which takes a look into the store.
        """
        if named_trees(entries):
            raise UsageError("a snapshot of files cannot be held. Append it.")
        self._open_writer().accept(self.redacted(entries))

    @property
    def durability(self) -> Durability:
        return self._durability

    def redacted(self, entries: Sequence[Logged]) -> Sequence[Logged]:
        """These entries as they would be on record."""
        return entries if self._redact is None else self._redact(entries)

    async def flush(self) -> None:
        """Return once everything appended is durable, whatever the durability."""
        await self._open_writer().flush()

    async def save(self, checkpoint: Checkpoint) -> None:
        """Make this the state of the thread by appending what differs; a rewind first if the conversation was changed.

        All that the checkpoint holds is on record then, or `InvalidInput` names what cannot be, and nothing is saved. What
        the record holds beyond it stays: messages that were rewound are still part of the history, and what was spent
        was spent. The thread's status is `interrupted` after the block if the checkpoint says `running`.
        """
        entries = difference(self._thread_id, self.checkpoint, checkpoint)
        if entries:
            await self.append(*entries)

    async def rewind(self, to_turn: int) -> None:
        """Go on from the end of an earlier turn. What came after stays in the history; what was spent stays spent."""
        forking.check_turn(self._thread_id, self.checkpoint, to_turn)
        await self.append(Rewound(turn=to_turn))
        log.info("thread %r: rewound to turn %d", self._thread_id, to_turn)

    async def fork(self, new_id: str, *, at_turn: int | None = None) -> Head:
        """A new thread that goes on from a turn of this one; without `at_turn`, from where it is now."""
        await self.flush()
        return await forking.fork(self._checkpointer, self._thread_id, self.checkpoint, new_id, at_turn)

    async def delete(self, *, purge: bool = False) -> None:
        """Remove the thread from the store; with `purge`, also its large values that no other thread has, at once.

        This object is closed by it.
        """
        await self.flush()
        self._end()
        if purge:
            await Thread.purge(self._checkpointer, self._thread_id)
        else:
            await self._checkpointer.delete(self._thread_id)
        log.info("thread %r: deleted", self._thread_id)

    async def _take_lease(self) -> LogWriter:
        """Append a marker that names us at the position just read: of two who try one gets `Conflict`."""
        loaded = await or_new(load(self._checkpointer, self._thread_id), self._thread_id, "running")
        for _ in range(TRIES):
            if not self._takeover:
                check_free(loaded.head)
            lease = new_lease(self._label)
            writer = LogWriter(self._checkpointer, loaded.head, Fold(loaded.state), lease, loaded.size)
            try:
                await writer.flush(writer.accept([LeaseTaken(str(lease.owner), lease.token)]))
            except LeaseLost:
                loaded = await or_new(catch_up(self._checkpointer, loaded), self._thread_id, "running")
                continue
            except asyncio.CancelledError:
                await settle(self._give_back(writer))
                raise
            self._tell_of_lease(loaded.head, writer)
            return writer
        raise Unavailable(
            f"thread {self._thread_id!r} moved on {TRIES} times while its lease was tried for. Try again."
        )

    async def _give_back(self, writer: LogWriter) -> None:
        """Whoever was cancelled while it took the lease may hold it: let it go, so that nobody waits for it."""
        try:
            writer.accept([StatusChanged("interrupted")])
            await writer.release()
        except (LeaseLost, Unavailable) as error:
            log.info("thread %r: %s", self._thread_id, error)

    def _tell_of_lease(self, before: Head, writer: LogWriter) -> None:
        turn = writer.fold.turns
        if not before.frames:
            log.debug("thread %r: new", self._thread_id)
        elif before.lease is None:
            log.info("thread %r: resumed at turn %d", self._thread_id, turn)
        elif is_live(before.lease):
            log.warning("thread %r: taken over from %s at turn %d", self._thread_id, before.lease.owner, turn)
        else:
            owner = before.lease.owner
            log.info("thread %r: its last holder, %s, is gone; resumed at turn %d", self._thread_id, owner, turn)

    async def _keep_lease(self, writer: LogWriter) -> None:
        """Renew while nothing else is written, for example while a tool runs for long."""
        pause = RENEW_AFTER.total_seconds()
        while not writer.lost and writer.lease is not None:
            await asyncio.sleep(pause)
            idle = (datetime.now(UTC) - writer.head.updated_at).total_seconds()
            if idle < 0 or idle >= pause / 2:
                try:
                    await writer.renew()
                except Unavailable as error:
                    log.warning("thread %r: its lease could not be renewed: %s", self._thread_id, error)
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
        self._writer = None
        for task in self._background:
            task.cancel()

    def _open_writer(self) -> LogWriter:
        if self._closed:
            raise UsageError(f"thread {self._thread_id!r} is closed. Open it again with Thread.open.")
        if self._writer is None:
            raise UsageError(f"thread {self._thread_id!r} is not open. Write: async with Thread.open(...) as thread")
        return self._writer


async def _paged(checkpointer: Checkpointer, query: HeadQuery) -> AsyncIterator[Head]:
    """As many heads as are asked for, page by page: how many of them a reader will leave out is not known before."""
    if query.limit is not None:
        query = msgspec.structs.replace(query, limit=max(query.limit, PAGE))
    while True:
        last, count = None, 0
        async for head in checkpointer.heads(query):
            last, count = head, count + 1
            yield head
        if last is None or query.limit is None or count < query.limit:
            return
        query = query.after(last)


def _crashed(head: Head) -> bool:
    """Running with nobody alive to run it."""
    return head.status == "running" and not is_live(head.lease)


def _is_barrier(entry: Logged) -> bool:
    """Whether what happens next must not happen before this is durable."""
    if isinstance(entry, MessageAdded):
        return isinstance(entry.message, Assistant)
    return isinstance(
        entry, Compacted | ModelCallStarted | StatusChanged | StepIntent | StepOutcome | ToolIntent | ToolOutcome
    )
