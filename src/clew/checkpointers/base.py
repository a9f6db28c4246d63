"""Defines `Checkpointer`, the base class of all stores: the methods that each store implements, and the promises they
keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from clew.checkpointers.heads import Head, HeadQuery
from clew.log.keys import Keyring

__all__ = [
    "MAX_APPEND",
    "MAX_FRAME",
    "MAX_HEAD",
    "MAX_ID",
    "Checkpointer",
    "frees_room",
    "is_abandoned",
    "is_absent",
]

MAX_ID = 1024
"""The longest thread id, in bytes of UTF-8."""
MAX_FRAME = 4 * 2**20
"""The most bytes that one frame may have. Larger values are stored as blobs."""
MAX_APPEND = 16 * 2**20
"""The most bytes that the frames of one append may have together."""
MAX_HEAD = 2**16
"""The most bytes that a head may have, encoded as msgpack. Listings read many heads at once, so each must be small."""

frees_room: ContextVar[bool] = ContextVar("frees_room", default=False)
"""A caller sets this to True while it makes an append that has to come before the deletion of the thread. A store that
keeps some disk space in reserve may use it for such an append, so that a thread can be deleted on a full disk."""
is_abandoned: ContextVar[Callable[[], bool] | None] = ContextVar("is_abandoned", default=None)
"""A caller sets this to a function that returns whether nobody waits any more for the append or the deletion that it
makes. The service does so, because its clients give up after a while. A store that has waited, for a lock or in a queue,
calls the function right before it writes, possibly on another OS thread. If it returns True, the store writes nothing and
raises `Unavailable`. `checks.check_wanted` does this."""


class Checkpointer(ABC):
    """A store of threads. Each thread has a log, which is a list of frames (bytes that the store never looks inside),
    and a head, which is a small summary. Blobs are larger values, each stored under its digest. A ref is the digest of
    a blob that a thread refers to.

    Every store keeps these promises, and `clew.testing.CheckpointerContract` tests them:

    - **Absent, unreachable and corrupt are three different results.** Absent is `None`, `[]` or an empty set; unreachable
      raises `Unavailable`; corrupt raises `Corrupt`. A store never reports one of them as another.
    - **Every call ends.** Without progress (no answer, no byte) for some seconds, 10 by default in the stores of this
      package, it raises `Unavailable`. That includes the time in which it waits for other calls, and the time in which a
      cancelled append finishes.
    - **Ids** are any text of 1 to 1024 bytes of UTF-8 without NUL. Two different ids never name the same thread.
    - **Namespaces** divide a store. They share nothing, not even blobs.
    - Bad input raises `InvalidInput`. Use after `close`, in a forked child or on a second event loop raises `UsageError`.

    Blobs are deleted only by garbage collection (gc), and only if they were not touched for a grace period. A blob is
    touched when it is put, given as a ref to an append, or asked for with `missing_blobs`. A store connects on first
    use, so constructing one does not need a running server.
    """

    is_hasty: bool = False
    """Whether callers should compress frames quickly instead of well, because an append to this store takes so little
    time."""
    place: str = ""
    """A text that identifies the store and its namespace. It is the same in every process on this machine. Empty if no
    other process can open the same store, as with a store in memory."""
    own_files: tuple[Path, ...] = ()
    """The files and folders on this machine that make up the store. Workspace snapshots leave them out."""

    @property
    def keys(self) -> Keyring | None:
        """The keys that encrypt threads in this store; None if they are not encrypted. Frames and blobs are encrypted
        before they are given to the store, which never looks inside them. `SealedCheckpointer` gives a store its keys."""
        return None

    @abstractmethod
    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        """Add frames to the end of a thread's log, add refs, and replace its head, in one atomic step. `refs` are the
        digests of the blobs that the frames refer to; `at` is the number of frames before the append.

        - **Durable**: when the call returns, everything written survives a power cut. A partial append is never visible.
        - **Conditional**: the log must have exactly `at` frames, and the id that the head names as `log_id` (random, chosen
          at the first append). Otherwise the call raises `Conflict` and writes nothing. A thread that does not exist has
          0 frames and takes the `log_id` it is given. `at=0` on a log that has frames is a conflict.
        - **Idempotent**: a repeated append is no conflict. If the log with this `log_id` already holds exactly these
          frames at `at`, the call succeeds and changes nothing. So after `Unavailable` the same call can always be
          repeated.
        - **No frames** is a legal append to a thread that exists: it replaces only the head, under the same condition.
        - **A broken connection**: the store may repeat the append by itself within the call. So `Conflict` says that the
          append is not in the log when the call ends. It may have been there until another call deleted the thread or
          replaced the head. An append without frames may replace the head twice. An append that creates a thread may
          create it again if another call deletes the thread before the append has ended.
        - A ref to a blob that the store does not have raises `MissingBlob`, and nothing is written. Each ref touches its
          blob: the blob's time of last use is set to now.
        - **Cancelling** an awaited append does not abandon it: the append finishes first, then the cancellation is raised.
        """

    @abstractmethod
    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Return the frames from number `start` up to, not including, `stop`, in order; without `stop`, up to the end
        of the log. Frames are numbered from 0; numbers past the end are ignored. Returns an empty list if the thread
        does not exist."""

    @abstractmethod
    async def head(self, thread_id: str) -> Head | None:
        """Return the head that the last append wrote, or None if the thread does not exist."""

    @abstractmethod
    def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        """Yield the heads that match the query, sorted by the time that `query.order` names, newest first;
        in the order `due`, earliest first.

        While others write, these promises hold:

        - Each thread is yielded at most once.
        - A thread that exists and matches during the whole listing is yielded, even if it is written meanwhile.
        - Each head that is yielded was written by an append, and matches the query. If the thread is written during the
          listing, its head may be the one from before or the one from after.
        - **With a limit**, all heads are in order. So `query.after(last)`, where `last` is the last head of a page,
          goes on right after that page: no thread is in two pages, and a thread that is not written meanwhile is in
          one. A thread that is written between two pages moves to the front in the order `updated`, and may then be in
          neither page; in the order `created`, no thread is missed. In the order `due`, a thread that is queued again or
          whose lease is renewed between two pages may be in neither page, too.
        - **Without a limit**, a store may read the heads in parts, each of 500 or more and each in order. A thread that
          is written meanwhile may come in a later part than its new time would put it. All other heads are in order.
        - **In the order `due`**, a listing costs in proportion to the queued threads that it looks at, and not to all
          threads: workers ask for it about once a second.

        A damaged head raises `Corrupt`, where possible only after all sound heads have been yielded.
        """

    @abstractmethod
    async def refs(self, thread_id: str) -> set[str]:
        """Return the digests of all blobs that this thread refers to: all that were given as `refs` to its appends.
        Returns an empty set if the thread does not exist."""

    @abstractmethod
    async def delete(self, thread_id: str) -> None:
        """Delete a thread: its log, its head and its references to blobs. When the call returns, the deletion survives
        a power cut. The blobs themselves stay until garbage collection deletes them. Does nothing if the thread does
        not exist."""

    @abstractmethod
    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs under their digests. When the call returns, they survive a power cut. Raises `InvalidInput` and
        stores nothing if a digest is not the blake3 of its bytes. A blob that is already stored is touched: its time of
        last use is set to now."""

    @abstractmethod
    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        """Return the stored blobs by digest. Blobs that the store does not have are left out. Raises `Corrupt` if stored
        bytes do not match their digest."""

    @abstractmethod
    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        """Return the digests of the given blobs that the store does not have. The blobs that it has are touched: their
        time of last use is set to now, so that garbage collection spares them for its grace period."""

    @abstractmethod
    def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        """Yield the digests of blobs that were not touched for at least this time. A blob is touched when it is put,
        given as a ref to an append, or asked for with `missing_blobs`.

        Garbage collection then reads `heads`, and deletes the yielded blobs to which no listed thread refers. So if a
        store lists threads from an index apart from the threads themselves, this method first makes sure that no thread
        is missing from the index, and raises an error if it cannot.
        """

    @abstractmethod
    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        """Delete these blobs, except those that were touched within the time `untouched_for`, counted back from now. A
        blob is touched when it is put, given as a ref to an append, or asked for with `missing_blobs`. So a blob that
        is touched after the method `blobs` has listed it stays."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for calls under way, then close files and connections. Closing twice does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def is_absent(store: Checkpointer) -> bool:
    """Return True if the store keeps its data in a file or folder on this machine and that does not exist yet. Returns
    False for a store without files of its own. Also returns False if the file system does not let us look: using the
    store then raises the actual error."""
    place = next(iter(store.own_files), None)
    try:
        if place is not None:
            place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
