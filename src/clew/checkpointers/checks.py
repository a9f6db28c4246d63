"""Checks that every store makes before it does anything, so that bad input raises the same error on all of them."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import msgspec
from blake3 import blake3

from clew._runtime import forks
from clew._runtime.aio import Job
from clew.checkpointers.base import MAX_APPEND, MAX_FRAME, MAX_HEAD, MAX_ID, is_abandoned
from clew.checkpointers.heads import ORDERS, STATUSES, Head, HeadQuery
from clew.errors import Corrupt, InvalidInput, Unavailable, UsageError

__all__ = [
    "GIVEN_UP",
    "NO_THREAD",
    "Guard",
    "WaysOut",
    "check_append",
    "check_blobs",
    "check_digests",
    "check_grace",
    "check_namespace",
    "check_query",
    "check_range",
    "check_stored_blob",
    "check_thread_id",
    "check_wanted",
    "fitting",
    "has_ended",
    "too_large",
]

GIVEN_UP = "the caller gave up before this was carried out; nothing was written"
"""What `Unavailable` says if a write was left out because nobody waits for it any more."""
NO_THREAD = "the thread does not exist, so the append must have frames and be at position 0"
"""The reason that a `Conflict` gives if the append is to a thread that does not exist, and cannot be its first one."""


def _lacked_memory(error: BaseException | None) -> bool:
    """Return whether this error, or an error that caused it, says that memory ran out. SQLite has an error class of its
    own for this. It is recognised by its name, so that this module does not need the SQLite library."""
    while error is not None and not isinstance(error, MemoryError) and type(error).__name__ != "NoMemError":
        error = error.__cause__
    return error is not None


def check_wanted(ask: Callable[[], bool] | None = None) -> None:
    """Raise `Unavailable` if nobody waits any more for the append or the deletion that is about to be written. `ask`
    returns whether that is so; by default, the function is taken from the context variable `is_abandoned`."""
    ask = ask or is_abandoned.get()
    if ask is not None and ask():
        raise Unavailable(GIVEN_UP)


def has_ended(job: Job) -> bool:
    """Return whether a queued append, whose `Append` is `job.work`, need not be written: its job has ended already, or
    nobody waits for it any more. In the latter case the job ends here, with `Unavailable`."""
    ask = job.work.is_abandoned
    if ask is not None and not job.done() and ask():
        job.error = Unavailable(GIVEN_UP)
        job.settle()
    return job.done()


def too_large(thread_id: str) -> Unavailable:
    """Return the error `Unavailable` for a thread that cannot be read because this process gets too little memory."""
    return Unavailable(
        f"thread {thread_id!r} does not fit into the memory that this process gets; nothing stored was harmed. Give the "
        "process more memory, or read the thread in parts: a range of frames, a page of turns."
    )


@contextmanager
def fitting(thread_id: str) -> Iterator[None]:
    """Raise `Unavailable`, with a text about memory, if the `with` block, which reads this thread, fails for lack of
    memory. Any other error passes unchanged."""
    try:
        yield
    except (MemoryError, Unavailable) as error:
        if not _lacked_memory(error):
            raise
        raise too_large(thread_id) from error.with_traceback(None)  # a traceback would keep what was read in memory


class WaysOut(NamedTuple):
    """Texts for the errors with which a `Guard` refuses the use of an object, such as a store. Three of them tell the
    user what to do instead: `closed` if the object is closed, `child` if it was made in the parent of this forked
    process, and `loop` if it was first used on another event loop. `made` is the word for how the object was made, such
    as "opened", to say in which process that happened."""

    made: str = "opened"
    closed: str = "Open it again with open_checkpointer or its class."
    child: str = "Open a checkpointer of its own in the child."
    loop: str = "Open one checkpointer for each event loop: every asyncio.run has its own, and clew.sync too."


_OF_STORES = WaysOut()


class Guard:
    """Refuses use of an object where it cannot work: after it was closed, in a forked child process, or on a second
    event loop. The object's methods call `enter` first. `what` names the object in errors, and `ways` has the texts
    that tell the user what to do instead."""

    __slots__ = ("_closed", "_generation", "_loop", "_pid", "_ways", "_what")

    def __init__(self, what: str, ways: WaysOut = _OF_STORES) -> None:
        self._what = what
        self._ways = ways
        self._pid = os.getpid()
        self._generation = forks.generation
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def is_inherited(self) -> bool:
        """True if this process is a forked child and the guarded object was made in its parent, to which it belongs."""
        return forks.generation != self._generation

    def enter(self) -> asyncio.AbstractEventLoop:
        """Check that the guarded object may be used now, and return the running event loop. The first call binds the
        object to that loop.

        Raises `UsageError`, with the reason, if the object is closed, was made in the parent of this forked process, or
        is bound to another event loop, or if no loop is running.
        """
        if self._closed:
            raise UsageError(f"{self._what} is closed. {self._ways.closed}")
        if forks.generation != self._generation:
            raise UsageError(
                f"{self._what} was {self._ways.made} in process {self._pid} and this is its forked child {os.getpid()}. "
                f"{self._ways.child}"
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(f"{self._what} must be used from a running asyncio event loop.") from None
        if loop is not self._loop:
            if self._loop is not None:
                raise UsageError(f"{self._what} was first used on another event loop. {self._ways.loop}")
            self._loop = loop
        return loop

    def close(self, *, on_any_loop: bool = False) -> bool:
        """Mark the guarded object as closed. Returns True if the caller now has to close the object's files and
        connections.

        Returns False if there is nothing to close. There are three such cases: the object was closed before; it belongs
        to a parent process; it was first used on another event loop that is closed by now, which ended its connections.
        Raises `UsageError`, and marks nothing, if it was first used on another event loop that is not closed. With
        `on_any_loop`, for an object whose connections belong to no event loop, loops are not compared.
        """
        first = not self._closed and not self.is_inherited
        elsewhere = first and not on_any_loop and self._loop not in (None, asyncio.get_running_loop())
        if elsewhere and self._loop is not None and not self._loop.is_closed():
            raise UsageError(f"{self._what} is in use on another event loop that still runs. Close it there.")
        self._closed = True
        return first and not elsewhere


def check_thread_id(thread_id: str) -> None:
    if not isinstance(thread_id, str):
        raise InvalidInput(f"a thread id is text, not {type(thread_id).__name__}")
    _check_id(thread_id)


@functools.lru_cache(4096)
def _check_id(thread_id: str) -> None:
    _check_text("a thread id", thread_id)
    if not thread_id:
        raise InvalidInput("a thread id cannot be empty. Any text names a thread, for example 'user-42'.")


def check_namespace(namespace: str) -> None:
    if not isinstance(namespace, str):
        raise InvalidInput(f"a namespace is text, not {type(namespace).__name__}")
    _check_text("a namespace", namespace)


def _check_text(what: str, text: str) -> None:
    size = _check_utf8(what, text)
    if size > MAX_ID:
        raise InvalidInput(f"{what} is at most {MAX_ID} bytes of UTF-8; this one has {size}: {text[:40]!r}…")
    if "\0" in text:
        raise InvalidInput(f"{what} cannot hold NUL characters: {text!r}")


def _check_utf8(what: str, text: str) -> int:
    """Return the size of this text in bytes of UTF-8. Raises `InvalidInput`, which calls the text `what`, if UTF-8
    cannot encode it."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} must be text that UTF-8 can hold; {text!r} has lone surrogates") from None


def check_append(thread_id: str, frames: Sequence[bytes], at: int, head: Head, refs: Collection[str]) -> bytes:
    """Check the arguments of `Checkpointer.append`, and return the head encoded as msgpack. Raises `InvalidInput` if an
    argument is wrong. The head is encoded here because a head that cannot be encoded is bad input too, and because most
    stores write the encoded form."""
    check_thread_id(thread_id)
    lease = head.lease
    if (
        at < 0
        or head.thread_id != thread_id
        or head.frames != at + len(frames)
        or head.status not in STATUSES
        or head.created_at.tzinfo is None
        or head.updated_at.tzinfo is None
        or (lease is not None and lease.expires_at.tzinfo is None)
        or (head.due is not None and head.due.tzinfo is None)
        or sum(map(len, frames)) > MAX_FRAME
    ):
        _check_slowly(thread_id, frames, at, head)
    try:
        encoded = _encode(head)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidInput(f"thread {thread_id!r}: its head has a value that no store can hold: {error}") from None
    if len(encoded) > MAX_HEAD:
        raise InvalidInput(
            f"thread {thread_id!r}: its head has {len(encoded)} bytes, the limit is {MAX_HEAD}. Shorten its title or tags."
        )
    if refs:
        check_digests(refs)
    return encoded


def _check_slowly(thread_id: str, frames: Sequence[bytes], at: int, head: Head) -> None:
    """Find out what is wrong with the arguments of an append that did not pass the quick check in `check_append`, and
    raise `InvalidInput` with the reason. Returns if nothing is wrong, which can happen: the quick check compares the
    size of all frames together with the limit for a single frame."""
    if at < 0:
        raise InvalidInput(f"thread {thread_id!r}: a position is 0 or more, not {at}")
    if head.thread_id != thread_id:
        raise InvalidInput(f"the head belongs to thread {head.thread_id!r}, but the append is to {thread_id!r}")
    if head.frames != at + len(frames):
        raise InvalidInput(
            f"thread {thread_id!r}: the head says {head.frames} frames, but {at} + {len(frames)} are {at + len(frames)}"
        )
    if head.status not in STATUSES:
        raise InvalidInput(f"thread {thread_id!r}: {head.status!r} is not a status. Use one of {', '.join(STATUSES)}.")
    times = [head.created_at, head.updated_at, head.due, None if head.lease is None else head.lease.expires_at]
    if any(moment is not None and moment.tzinfo is None for moment in times):
        raise InvalidInput(f"thread {thread_id!r}: times in a head need a time zone, for example datetime.now(UTC)")
    for number, frame in enumerate(frames, start=at):
        if len(frame) > MAX_FRAME:
            raise InvalidInput(
                f"thread {thread_id!r}: frame {number} has {len(frame)} bytes, the limit is {MAX_FRAME}. "
                "Put large values in blobs."
            )
    if (total := sum(map(len, frames))) > MAX_APPEND:
        raise InvalidInput(
            f"thread {thread_id!r}: the append has {total} bytes, the limit is {MAX_APPEND}. Append in parts."
        )


def check_range(thread_id: str, start: int, stop: int | None) -> None:
    check_thread_id(thread_id)
    if start < 0 or (stop is not None and stop < 0):
        raise InvalidInput(f"thread {thread_id!r}: frames are numbered from 0; {start} to {stop} is not a range")


def check_digests(digests: Collection[str]) -> None:
    for digest in digests:
        if len(digest) != 64 or not _HEX.issuperset(digest):
            raise InvalidInput(f"{digest[:80]!r} is not a digest. A digest is a blake3 in 64 lower-case hex digits.")


_HEX = frozenset("0123456789abcdef")
_encode = msgspec.msgpack.Encoder().encode


def check_blobs(blobs: Mapping[str, bytes]) -> None:
    check_digests(blobs)
    for digest, data in blobs.items():
        if blake3(data).hexdigest() != digest:
            raise InvalidInput(
                f"blob {digest}: the {len(data)} bytes given do not have this blake3. Nothing was stored."
            )


def check_stored_blob(digest: str, data: bytes, where: str) -> None:
    """Raise `Corrupt` if `data`, the stored bytes of a blob, do not match its digest, or are not even bytes. `where`
    names the store in the error."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise Corrupt(f"blob {digest} in {where}: what is stored is not bytes. Restore it from a copy.")
    if blake3(data).hexdigest() != digest:
        raise Corrupt(
            f"blob {digest} in {where}: its {len(data)} stored bytes fail their check. Restore it from a copy."
        )


def check_grace(untouched_for: timedelta) -> None:
    if untouched_for < timedelta(0):
        raise InvalidInput(f"untouched_for cannot be negative: {untouched_for}")


_MOST_TAGS = 1000


def check_query(query: HeadQuery) -> None:
    query.start()
    if query.limit is not None and query.limit < 0:
        raise InvalidInput(f"the limit of a listing is 0 or more, not {query.limit}")
    texts = (query.prefix, query.agent or "", query.parent or "", query.title, *query.tags, *query.tags.values())
    size = sum(_check_utf8("text in a query", text) for text in texts)
    if size > MAX_HEAD or len(query.tags) > _MOST_TAGS:
        raise InvalidInput(
            f"a query has up to {MAX_HEAD} bytes of text and {_MOST_TAGS} tags, because no head has more; this one has "
            f"{size} and {len(query.tags)}"
        )
    if query.order not in ORDERS:
        raise InvalidInput(f"{query.order!r} is not an order. Use one of {', '.join(ORDERS)}.")
    for status in query.statuses() or ():
        if status not in STATUSES:
            raise InvalidInput(f"{status!r} is not a status. Use one of {', '.join(STATUSES)}.")
    for moment in (query.updated_after, query.updated_before):
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput("times in a query need a time zone, for example datetime.now(UTC)")
