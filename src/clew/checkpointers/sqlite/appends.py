"""Writes the appends of one transaction: each is checked by itself, then all are written together.

`apsw` releases the interpreter lock at every statement, and on a busy event loop each release costs a thread switch. So
a batch takes few statements whatever its size, and the length of a log is remembered as long as no other process
writes. With 64 asyncio tasks that append at the same time, this halves the time of an append (measured).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import apsw
import msgspec

from clew._runtime.aio import Job
from clew.checkpointers.checks import GIVEN_UP, NO_THREAD
from clew.checkpointers.sqlite.packs import frames_of
from clew.checkpointers.sqlite.schema import PAGE_SIZE
from clew.errors import ClewError, Conflict, Corrupt, MissingBlob, Unavailable

__all__ = ["Append", "Appender", "is_freeing", "may_be_written_here", "now", "pages_of", "touch"]

REMEMBERED = 10_000
"""The most logs whose length an `Appender` remembers. If there are more when a transaction starts, it forgets all of
them."""
ROWS = 64
"""The most rows that one INSERT statement inserts."""
MOST_HERE, MOST_BYTES_HERE = 64, 2**20
"""The largest transaction that an event loop makes by itself, without the writer thread. It has at most 64 appends,
which refer to at most 64 blobs in all, and their frames and heads have at most 1 MiB together."""

_HEAD_COLUMNS = (
    "id",
    "ns",
    "key",
    "log_id",
    "frames",
    "thread_id",
    "status",
    "agent",
    "parent",
    "created",
    "updated",
    "head",
    "title",
    "tags",
    "due",
)
_CREATED = _HEAD_COLUMNS[4:].index("created")
_CHANGING = tuple(name for name in _HEAD_COLUMNS[4:] if name != "created")  # setting it too writes one more page
_INSERT_HEADS = f"INSERT INTO heads ({', '.join(_HEAD_COLUMNS)}) VALUES "  # noqa: S608 - our column names
_OR_UPDATE = f" ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}"

_INSERT_FRAMES = "INSERT INTO frames (thread, number, data) VALUES "
_NEXT_ID = """SELECT 1 + max(coalesce((SELECT max(id) FROM heads), 0), coalesce((SELECT max(thread) FROM packs), 0))"""
"""SQL for the id of the next new row in `heads`: higher than all ids in `heads` and `packs`. If a process with an older
version of Clew deletes a thread, the thread's packs stay, so its id must not be used again."""


class Append(msgspec.Struct, frozen=True, gc=False):
    """One append to a thread, converted to values for SQL: the frames to add, the digests of the blobs that they refer
    to (`refs`), the number of frames that the log must have before (`at`), and the columns of the thread's new head."""

    thread_id: str
    namespace: str
    key: bytes
    log_id: str
    at: int
    frames: Sequence[bytes]
    refs: Sequence[bytes]
    row: tuple[Any, ...]
    """The values of the columns of the table `heads` that come after `log_id`, in the order of the table."""
    size: int
    """Bytes of the frames and the encoded head together."""
    frees_room: bool
    """Whether this append prepares the deletion of its thread, so that on a full disk it may use the reserved space."""
    is_abandoned: Callable[[], bool] | None
    """Returns whether nobody waits for this append any more, so that it must not be written. None if that cannot be."""


class _Log(msgspec.Struct, gc=False):
    """What an `Appender` knows about one thread's log. `id` is the id of the thread's row in the table `heads`.
    `frames` is the number of frames in the log, including those that are checked but not yet written. `key` is the hash
    of the thread's id."""

    id: int
    frames: int
    log_id: str
    key: bytes
    created: int


class Appender:
    """Checks and writes appends inside transactions of one connection. Between transactions it remembers how many
    frames each log has. So nothing else may write through its connection; if something does, `forget` must be called.
    """

    def __init__(self) -> None:
        self._logs: dict[tuple[str, bytes], _Log | None] = {}
        self.appended: dict[int, int] = {}
        """For each log, by the id of its row in the table `heads`: about how many bytes were appended to it through this
        connection since its frames were last packed. `pack_logs` brings the numbers up to date when it packs frames."""
        self._next_id: int | None = None
        self._version: int | None = None

    def forget(self) -> None:
        """Drop everything that is remembered about logs. Must be called after a transaction that failed or that wrote
        something other than appends."""
        self._logs.clear()
        self._next_id = None

    def begin(self, db: apsw.Cursor) -> None:
        """Prepare for a transaction: drop everything that is remembered about logs if another connection has written
        since the last transaction, or if more than `REMEMBERED` logs are remembered."""
        if len(self.appended) > REMEMBERED:
            self.appended.clear()
        version = db.execute("PRAGMA data_version").get
        if version != self._version or len(self._logs) > REMEMBERED:
            self.forget()
            self._version = version

    def apply(self, db: apsw.Cursor, jobs: Sequence[Job]) -> None:
        """Check and write the appends of these jobs. A job is a request whose caller waits; its `work` is an `Append`.
        An append that is refused writes nothing: its error is stored in the job's `error`, and the others are written.
        """
        heads: dict[int, tuple[Any, ...]] = {}
        frames: list[tuple[int, int, bytes]] = []
        refs: list[tuple[int, bytes]] = []
        created: dict[int, int] = {}
        for job in jobs:
            append: Append = job.work
            if append.is_abandoned is not None and append.is_abandoned():
                job.error = Unavailable(GIVEN_UP)
                continue
            log = self._logs.get((append.namespace, append.key))
            if log is None or log.frames != append.at or log.log_id != append.log_id or append.refs:
                try:
                    log = self._check(db, append, frames)
                except ClewError as error:
                    job.error = error
                    continue
            if log is not None:
                heads[log.id] = (log.id, append.namespace, log.key, append.log_id, *append.row)
                if log.created != append.row[_CREATED]:
                    log.created = created[log.id] = append.row[_CREATED]
                for frame in append.frames:
                    frames.append((log.id, log.frames, frame))
                    log.frames += 1
                self.appended[log.id] = self.appended.get(log.id, 0) + append.size
                if append.refs:
                    refs += [(log.id, digest) for digest in append.refs]
        _write(db, _INSERT_HEADS, list(heads.values()), _OR_UPDATE)
        for thread, moment in created.items():
            db.execute("UPDATE heads SET created = ? WHERE id = ?", (moment, thread))
        _write(db, _INSERT_FRAMES, frames)
        _write(db, "INSERT OR IGNORE INTO refs VALUES ", refs)

    def _check(self, db: apsw.Cursor, append: Append, waiting: list[tuple[int, int, bytes]]) -> _Log | None:
        """Return the log that this append extends, or None if the log already holds exactly the frames of this append
        at the same position. Raises `Conflict` or `MissingBlob` if the append may not be written.

        `waiting` are the rows of frames of earlier appends that are not inserted yet. If the append is not at the end
        of the log, stored frames have to be compared with it; then this first inserts the rows in `waiting` and empties
        that list.
        """
        log = self._find(db, append.namespace, append.key)
        at, frames = append.at, append.frames
        if log is None:
            if at > 0 or not frames:
                raise Conflict(append.thread_id, NO_THREAD)
        elif log.log_id != append.log_id:
            raise Conflict(append.thread_id, "the thread was deleted and made again; this is another log")
        elif log.frames != at:
            _write(db, _INSERT_FRAMES, waiting)
            waiting.clear()
            if frames and at < log.frames and frames_of(db, log.id, at, at + len(frames)) == list(frames):
                return None
            raise Conflict(append.thread_id, f"its log ends at frame {log.frames}, not {at}")
        if append.refs and (missing := touch(db, append.namespace, append.refs)):
            raise MissingBlob({digest.hex() for digest in missing}, thread_id=append.thread_id)
        if log is None:
            log = self._logs[append.namespace, append.key] = _Log(
                self._new_id(db), 0, append.log_id, append.key, append.row[_CREATED]
            )
        return log

    def _find(self, db: apsw.Cursor, namespace: str, key: bytes) -> _Log | None:
        try:
            return self._logs[namespace, key]
        except KeyError:
            log = self._logs[namespace, key] = _read_log(db, namespace, key)
            return log

    def _new_id(self, db: apsw.Cursor) -> int:
        if self._next_id is None:
            self._next_id = int(db.execute(_NEXT_ID).get)
        new_id, self._next_id = self._next_id, self._next_id + 1
        return new_id


def _read_log(db: apsw.Cursor, namespace: str, key: bytes) -> _Log | None:
    row = db.execute(
        "SELECT id, frames, log_id, created FROM heads WHERE ns = ? AND key = ?", (namespace, key)
    ).fetchone()
    if row is not None and not isinstance(row[1], int):
        raise Corrupt(f"thread {key.hex()} does not say how many frames it has. Restore a copy.")
    return None if row is None else _Log(row[0], row[1], row[2], key, row[3])


def _write(db: apsw.Cursor, insert: str, rows: Sequence[tuple[Any, ...]], then: str = "") -> None:
    """Insert rows, at most `ROWS` with each statement. `insert` is the statement up to VALUES, `then` is what follows
    the values. Because of the limit there are few different statements, and `apsw` keeps all of them prepared."""
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        db.execute(_statement(insert, len(part[0]), len(part), then), list(chain.from_iterable(part)))


@functools.lru_cache(4 * ROWS)
def _statement(insert: str, columns: int, rows: int, then: str) -> str:
    values = f"({', '.join('?' * columns)})"
    return f"{insert}{', '.join([values] * rows)}{then}"


def touch(db: apsw.Cursor, namespace: str, digests: Sequence[bytes]) -> list[bytes]:
    """Touch these blobs: set their time of last use to now. Returns the digests of blobs that do not exist."""
    moment = now()
    missing = []
    for digest in digests:
        db.execute("UPDATE blobs SET touched = ? WHERE ns = ? AND digest = ?", (moment, namespace, digest))
        if not db.connection.changes():
            missing.append(digest)
    return missing


def now() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1000


def may_be_written_here(batch: list[Job]) -> bool:
    """Return whether an event loop may write these requests itself, instead of passing them to the writer, an OS
    thread. That is so if all of them are appends, few and small, and none of them belongs to the deletion of a
    thread."""
    size = refs = 0
    for job in batch:
        work = job.work
        if type(work) is not Append or work.frees_room:
            return False
        size += work.size
        refs += len(work.refs)
    return len(batch) <= MOST_HERE and refs <= MOST_HERE and size <= MOST_BYTES_HERE


def is_freeing(work: object) -> bool:
    """Return whether this request is an append that takes a thread's lease in order to delete the thread. Such an
    append is carried out even on a full disk, because the deletion then frees space."""
    return type(work) is Append and work.frees_room


def pages_of(appends: list[Job]) -> int:
    """Estimate how many pages of the database all of these appends change together. The estimate is less than the sum
    of the estimates for each append, because appends to different threads share some pages."""
    size: int = sum([job.work.size for job in appends])
    return 3 + len(appends) // 4 + size // PAGE_SIZE
