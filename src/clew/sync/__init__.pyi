"""Written by `python -m tests.sync.stub`; a test holds it against the async originals."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from clew.checkpointers import Head, HeadQuery
from clew.log import Logged
from clew.log.checkpoint import Checkpoint as Checkpoint
from clew.log.keys import Keyring
from clew.threads.redacting import Redact
from clew.threads.thread import Durability

__all__ = [
    "Checkpoint",
    "Checkpointer",
    "FileCheckpointer",
    "MemoryCheckpointer",
    "SQLiteCheckpointer",
    "Thread",
    "__version__",
    "open_checkpointer",
]

class Checkpointer:
    """Where threads live: logs of opaque frames with a head each, and content-addressed blobs.

    Promises that every store keeps, and that `clew.testing.CheckpointerContract` proves:

    - **Absent, unreachable and corrupt are three different results**: `None`, `[]` or an empty set; `Unavailable`;
      `Corrupt`. None is ever taken for another.
    - **Ids** are any text of 1 to 1024 bytes of UTF-8 without NUL. No two different ids are ever the same thread.
    - **Namespaces** share nothing, blobs included.
    - Bad input is `InvalidInput`; use after `close`, in a forked child or on a second event loop is `UsageError`.

    A store connects on first use, so that making one never fails for want of a server.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def append(
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
        - **Cancelling** an awaited append never abandons it: it settles, then the cancellation goes on."""

    def blobs(self, *, untouched_for: timedelta) -> Iterator[str]:
        """The digests of blobs that nobody has put, named or asked for during this time."""

    def close(self) -> None:
        """Let go of files and connections, after what is under way. Closing twice is no error."""

    def delete(self, thread_id: str) -> None:
        """Remove the thread, its head and its refs, durably. Its blobs stay until gc. An absent thread is no error."""

    def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        """Remove those of these blobs that are still untouched for this time: one touched since it was listed stays."""

    def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        """The blobs that are there, by digest; those that are not are left out. Bytes that do not match are `Corrupt`."""

    def head(self, thread_id: str) -> Head | None:
        """The head as of the last append, or None if there is no such thread."""

    def heads(self, query: HeadQuery = ...) -> Iterator[Head]:
        """The heads that match, in the order of the query, newest first. Each thread comes once at most; one that exists
        and matches throughout comes exactly once, also while others are being written."""

    @property
    def keys(self) -> Keyring | None: ...
    def missing_blobs(self, digests: Collection[str]) -> set[str]:
        """Which of these the store does not have. Touches those it has, so that gc leaves them alone for its grace."""

    def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Keep these bytes under their digests, durably. A digest that is not the blake3 of its bytes is `InvalidInput`
        and none is kept. A blob that is there already is touched."""

    def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        """The frames from `start` up to but without `stop`, in order; those that exist. Empty if the thread is absent."""

    def refs(self, thread_id: str) -> set[str]:
        """The digests of all blobs that this thread's frames point at directly."""

class FileCheckpointer(Checkpointer):
    """Threads in a folder of plain files, which can be copied, backed up and looked at with what every system has.

    Each append is one write and one sync of the thread's own file. Several processes may use one folder: a lock on each
    file keeps its writers apart. An append cut short by a crash is ignored by readers and removed by the next append;
    bytes that were damaged are `Corrupt`, and are never removed.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str = "") -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> FileCheckpointer:
        """`file:///absolute/dir` or `file:relative/dir`. The path is taken as it is written: nothing is decoded."""

class MemoryCheckpointer(Checkpointer):
    """Threads in this process's memory: for tests, notebooks and short-lived work. Gone with the process.

    `beside=other` shares another one's memory, as two connections to one server do.
    """

    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> MemoryCheckpointer: ...

class SQLiteCheckpointer(Checkpointer):
    """Threads in one SQLite database, in WAL mode with synchronous FULL: what is acknowledged is on the disk.

    All checkpointers of a process on the same file share one writer, so that many sessions share each fsync. Several
    processes may use one file. Network file systems are refused: WAL is not safe there.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str = "") -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> SQLiteCheckpointer:
        """`sqlite:///relative.db` or `sqlite:////absolute.db`."""

class Thread:
    """A thread that this process holds: `with Thread.open(checkpointer, "user-42") as thread: ...`

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
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def append(self, *entries: Logged) -> None:
        """Record these entries together, after all that came before.

        After `Unavailable` they are kept and go out with the next append or `flush`: do not append them again."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The state with everything appended so far."""

    def delete(self) -> None:
        """Remove the thread from the store. This object is closed by it."""

    def flush(self) -> None:
        """Return once everything appended is durable, whatever the durability."""

    def fork(self, new_id: str, *, at_turn: int | None = None) -> Head:
        """A new thread that goes on from a turn of this one; without `at_turn`, from where it is now."""

    @property
    def head(self) -> Head:
        """The head as it is on record."""

    @staticmethod
    def list(checkpointer: Checkpointer, query: HeadQuery = ...) -> Iterator[Head]:
        """The heads that match, newest first. A thread that was running when its process died is shown as interrupted."""

    @staticmethod
    def load(checkpointer: Checkpointer, thread_id: str, *, at_turn: int | None = None) -> Checkpoint:
        """The state on record, or the one it had at the end of a turn. Takes no lease and changes nothing."""

    @staticmethod
    def open(
        checkpointer: Checkpointer,
        thread_id: str,
        *,
        takeover: bool = False,
        durability: Durability = "sync",
        label: str = "",
        redact: Redact | None = None,
    ) -> Thread:
        """Open a thread to work on it; it is made if there is none. Use it as a context manager.

        `takeover=True` takes the lease even from a live holder. `durability`: with `"sync"` every append is durable when
        it returns; with `"async"` only responses, intents and outcomes are waited for, and a power cut may take the last
        other entries; with `"exit"` everything stays in memory until the block is left or `flush` is called.

        `redact` takes out what must not be on record: a function from text to text, or patterns whose matches are
        replaced. It is applied before anything is recorded."""

    def rewind(self, to_turn: int) -> None:
        """Go on from the end of an earlier turn. What came after stays in the history; what was spent stays spent."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Make this the state of the thread by appending what differs; a rewind first if the conversation was changed."""

    @property
    def thread_id(self) -> str: ...

__version__: str

def open_checkpointer(
    url: str | None = None, namespace: str = "", *, key: str | bytes | Iterable[str | bytes] | None = None
) -> Checkpointer:
    """The checkpointer that a URL names; without one, the default store. Returns at once and connects on first use.

    `key`, or `CLEW_KEY`, encrypts what is written: 32 bytes, or their hex or base64 text. Of several the first seals and
    all open.

    `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:///absolute/dir`, `file:relative/dir`, `memory://`, and the
    schemes that installed packages add."""
