"""The narrow waist: all that a store has to do for Clew, and everything it promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from clew.checkpointers.heads import Head, HeadQuery
from clew.log.keys import Keyring

__all__ = ["MAX_APPEND", "MAX_FRAME", "MAX_ID", "Checkpointer", "is_absent"]

MAX_ID = 1024
"""The longest thread id, in bytes of UTF-8."""
MAX_FRAME = 4 * 2**20
"""The largest frame, in bytes. Larger values are blobs."""
MAX_APPEND = 16 * 2**20
"""The most bytes of frames in one append. Longer copies go in parts."""


class Checkpointer(ABC):
    """Where threads live: logs of opaque frames with a head each, and content-addressed blobs.

    Promises that every store keeps, and that `clew.testing.CheckpointerContract` proves:

    - **Absent, unreachable and corrupt are three different results**: `None`, `[]` or an empty set; `Unavailable`;
      `Corrupt`. None is ever taken for another.
    - **Ids** are any text of 1 to 1024 bytes of UTF-8 without NUL. No two different ids are ever the same thread.
    - **Namespaces** share nothing, blobs included.
    - Bad input is `InvalidInput`; use after `close`, in a forked child or on a second event loop is `UsageError`.

    A store connects on first use, so that making one never fails for want of a server.
    """

    keys: Keyring | None = None
    """What threads in this store are sealed with. Stores themselves never look inside a frame or a blob."""
    place: str = ""
    """Names the store and the namespace, the same in every process of this machine; empty if no other process has it."""
    own_files: tuple[Path, ...] = ()
    """The files and folders on this machine that are the store itself: never part of anybody's workspace."""

    @abstractmethod
    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        """Write these frames from number `at` on, these refs and this head, as one.

        - **Durable**: when it returns, all of it survives a power cut. Half of it is never visible.
        - **Conditional**: the log must end at `at` and have the head's `log_id`, else `Conflict` and nothing is written.
          A thread that does not exist ends at 0 and takes the `log_id` it is given; `at=0` on a log that has
          frames is a conflict.
        - **Idempotent**: if this very log already holds exactly these frames at `at`, the call succeeds and changes
          nothing. So after `Unavailable` the same call may always be made again.
        - **No frames** is a legal append: it replaces the head alone, under the same condition, of a thread that exists.
        - A ref to a blob that the store does not have is `MissingBlob`, and nothing is written. Naming a blob touches it.
        - **Cancelling** an awaited append never abandons it: it settles, then the cancellation goes on.
        """

    @abstractmethod
    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        """The frames from `start` up to but without `stop`, in order; those that exist. Empty if the thread is absent."""

    @abstractmethod
    async def head(self, thread_id: str) -> Head | None:
        """The head as of the last append, or None if there is no such thread."""

    @abstractmethod
    def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        """The heads that match, in the order of the query, newest first. Each thread comes once at most; one that exists
        and matches throughout comes exactly once, also while others are being written. A damaged head is `Corrupt`: raise it
        once the others have come, where that can be."""

    @abstractmethod
    async def refs(self, thread_id: str) -> set[str]:
        """The digests of all blobs that this thread's frames point at directly."""

    @abstractmethod
    async def delete(self, thread_id: str) -> None:
        """Remove the thread, its head and its refs, durably. Its blobs stay until gc. An absent thread is no error."""

    @abstractmethod
    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Keep these bytes under their digests, durably. A digest that is not the blake3 of its bytes is `InvalidInput`
        and none is kept. A blob that is there already is touched."""

    @abstractmethod
    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        """The blobs that are there, by digest; those that are not are left out. Bytes that do not match are `Corrupt`."""

    @abstractmethod
    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        """Which of these the store does not have. Touches those it has, so that gc leaves them alone for its grace."""

    @abstractmethod
    def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        """The digests of blobs that nobody has put, named or asked for during this time."""

    @abstractmethod
    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        """Remove those of these blobs that are still untouched for this time: one touched since it was listed stays."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of files and connections, after what is under way. Closing twice is no error."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def is_absent(store: Checkpointer) -> bool:
    """Whether the store's file or folder is surely not there yet. Where that cannot be told, the store itself says what is
    wrong."""
    place = next(iter(store.own_files), None)
    try:
        if place is not None:
            place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
