"""Both sides of a takeover, in which a process takes a thread's lease from another process: the old holder stops its
work, and the new one waits until the old one must have stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Protocol

import msgspec

from clew.checkpointers import Head
from clew.errors import LeaseLost, Unavailable
from clew.log import Checkpoint, StateSet
from clew.threads.leases import LEASE_TIME, is_over, lease_time

__all__ = ["Predecessor", "until_cut_off", "until_lost", "without_predecessor"]

log = logging.getLogger("clew.threads")

_REPLACED = "clew:replaced"
"""The key in a thread's state under which the predecessor's name is kept until its lease has ended. So a process that
goes on after the one that took over was stopped knows of it too."""


def without_predecessor(state: Checkpoint) -> Checkpoint:
    """Return this state of a thread without the name of the process from which the thread was taken over last."""
    facts = tuple(fact for fact in state.facts if (fact.kind, fact.key) != ("state", _REPLACED))
    return msgspec.structs.replace(state, facts=facts)


class Predecessor(msgspec.Struct, frozen=True):
    """A process that held a thread when this process took the thread over, and that may still be at work."""

    thread_id: str
    owner: str
    ends: float
    """When the lease of that process ends at the latest, by `time.monotonic`. By then that process has noticed that it
    was replaced, unless it is frozen."""

    @classmethod
    def of(cls, head: Head) -> Predecessor | None:
        """Return the process from which this process has just taken the thread over. `head` is the thread's head from
        before the takeover; its lease names the process.

        Returns None if the head has no lease, or if the lease's holder is certainly gone.
        """
        if head.lease is None or is_over(head.lease):
            return None
        return cls(head.thread_id, str(head.lease.owner), time.monotonic() + lease_time(head))

    @classmethod
    def recorded(cls, thread_id: str, state: Checkpoint) -> Predecessor | None:
        """Return the predecessor that the thread's state names, or None if it names none. It is a process from which an
        earlier holder took the thread over, and which may still be at work.

        Nobody here knows how much of the lease of that process is left, because clocks of other machines are not
        trusted. So its lease is assumed to end a whole `LEASE_TIME` (30 seconds) from now.
        """
        owner = state.state.get(_REPLACED)
        return cls(thread_id, str(owner), time.monotonic() + LEASE_TIME.total_seconds()) if owner else None

    def record(self) -> StateSet:
        """Return the entry that keeps the name of this predecessor, the process from which the thread was taken over,
        in the thread's state. The append that takes the lease must contain the entry."""
        return StateSet(_REPLACED, self.owner)

    def forget(self) -> StateSet:
        """Return the entry that removes this predecessor, the process from which the thread was taken over, from the
        thread's state. Append the entry only after the predecessor's lease has ended: until then, the next process that
        takes the thread has to know that the predecessor may still be at work."""
        return StateSet(_REPLACED, None)

    def counted_from_now(self, head: Head) -> Predecessor:
        """Return this predecessor (the process from which the thread was taken over) with the end of its lease counted
        from now. `head` has the lease. The predecessor may have renewed it until the append that took the thread
        over."""
        return msgspec.structs.replace(self, ends=time.monotonic() + lease_time(head))

    @property
    def is_gone(self) -> bool:
        """Whether, by this machine's clock, the lease of this predecessor, the process from which the thread was taken
        over, must have ended by now."""
        return time.monotonic() >= self.ends

    async def outwait(self) -> bool:
        """Wait until the lease of this predecessor, the process from which the thread was taken over, must have ended.
        Return True after the wait, or False at once if the lease must have ended already."""
        left = self.ends - time.monotonic()
        if left <= 0:
            return False
        log.warning(
            "thread %r: it was taken over from %s, which may still be at work. Waiting %.0f s for the end of its lease.",
            self.thread_id,
            self.owner,
            left,
        )
        await asyncio.sleep(left)
        return True


class _Held(Protocol):
    """The part of an open `Thread` that `until_lost` needs, to stop the code in its `with` block once another process
    has taken the thread over. From then on `lost` is the error; the functions in `on_lost` are called at that
    moment."""

    @property
    def lost(self) -> LeaseLost | None: ...

    @property
    def on_lost(self) -> set[Callable[[], None]]: ...

    async def until_named(self) -> None: ...


class _Leased(Protocol):
    """What the function `until_cut_off` needs of an open `Thread`. That function stops a block of code once the lease
    has ended because the store could not be reached. So it has to know how long the lease lasts, and since when the
    store has been unreachable."""

    @property
    def thread_id(self) -> str: ...

    @property
    def has_run_out(self) -> bool: ...

    @property
    def lease_left(self) -> float: ...

    @property
    def unreachable_since(self) -> float | None: ...


class until_lost:  # noqa: N801 - used like a function, as asyncio.timeout is
    """Run a block for as long as this process holds the thread: `async with until_lost(thread): ...`

    As soon as it is known that another process has taken over, the block is cancelled, and `LeaseLost` is raised where
    the block ends. Otherwise the block would go on, inside a tool for example, until it next writes.
    """

    def __init__(self, thread: _Held) -> None:
        self._thread = thread
        self._has_stopped = False
        self._lost: LeaseLost | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        assert self._task is not None  # noqa: S101 - it has begun
        self._loop = asyncio.get_running_loop()
        self._cancelling = self._task.cancelling()
        if self._thread.lost:
            raise self._thread.lost
        self._on_lost = self._thread.on_lost
        self._on_lost.add(self._tell)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_lost.discard(self._tell)
        task, self._task = self._task, None
        if not self._has_stopped or task is None:
            return
        is_only_ours = task.uncancel() <= self._cancelling
        if is_only_ours and self._lost and kind is not None and issubclass(kind, asyncio.CancelledError):
            await self._thread.until_named()
            raise self._lost from error

    def _tell(self) -> None:
        # Cancel in the next round of the event loop and not at once: perhaps it is the block's own append that has just
        # failed, and then the block raises the error itself.
        self._lost = self._thread.lost
        self._loop.call_soon(self._stop)

    def _stop(self) -> None:
        if self._task is not None and not self._has_stopped:
            self._has_stopped = True
            self._task.cancel()


_PAUSE = 0.1
"""Seconds at least between two looks at a lease that is about to end, or that has ended and is being renewed for the first
time."""


@asynccontextmanager
async def until_cut_off(thread: _Leased) -> AsyncIterator[None]:
    """Run a block for as long as this process holds the thread by its own clock: `async with until_cut_off(thread): ...`

    The block is cancelled, and `Unavailable` is raised, when the lease ends because it could not be renewed: the store
    cannot be reached from here. Another process may reach it and take the thread at that moment, and this process would
    not learn of it.

    A process that wakes up after the end of its lease renews it first. If that succeeds, the block goes on.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        if not thread.has_run_out or thread.unreachable_since is None:
            timer = loop.call_later(max(thread.lease_left, _PAUSE), look)
        else:
            limit.reschedule(loop.time())

    try:
        async with asyncio.timeout(None) as limit:
            look()
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unavailable(
            f"thread {thread.thread_id!r}: the store could not be reached until the lease of this process had ended. "
            "Another process may have taken the thread, so the work that was under way was stopped."
        ) from None
