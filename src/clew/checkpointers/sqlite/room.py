"""Deletes on a full disk, and returns the space to the disk.

A delete writes to the WAL (SQLite's write-ahead log), which needs disk space. On a disk that a store has filled by
itself, the WAL is full of pages that cannot be moved into the database, because the database cannot grow. So while the
store is written to, a file beside it, the reserve, takes up some space. When a delete finds the disk full, the reserve
is removed, the WAL is moved into the database, and the delete is made in small transactions. Between them the WAL is
moved again, so that it starts over and does not grow. In the end the database file is made smaller.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from clew._runtime import files
from clew._runtime.aio import Job
from clew._runtime.files import Reserve
from clew._runtime.text import size as size_text
from clew.checkpointers.checks import GIVEN_UP
from clew.checkpointers.sqlite.connection import FAULTS, ROOM_NEEDED, explain, roll_back
from clew.checkpointers.sqlite.lookups import find_id
from clew.errors import ClewError, Unavailable

__all__ = [
    "BlobDeletion",
    "Deletion",
    "ThreadDeletion",
    "finish_deletions",
    "free_room",
    "full_disk",
    "give_back",
    "pages_in_wal",
    "release_at_rest",
    "reserve_of",
]

log = logging.getLogger("clew.checkpointers.sqlite")

RESERVE = 4 * 2**20
"""Bytes of disk space that are held in reserve. The writer lets the WAL (SQLite's write-ahead log) grow to some size
before it moves pages to the database. The reserve is larger than that, because the database may grow by as much."""
DELETED = "\0deleted"
"""The namespace of threads whose deletion has begun and is not finished. It has a NUL, so no user can use this name."""
FRAMES_AT_ONCE, REFS_AT_ONCE, BLOBS_AT_ONCE = 16, 256, 4
"""The most frames, refs (a thread's references to blobs) and blobs that one transaction deletes on a full disk."""
RESTART_AT = 64
"""On a full disk, the WAL (SQLite's write-ahead log) is moved into the database once it has this many pages. Then it is
written from its start again, and does not grow."""
VACUUM_STEP = 16
"""The most pages by which one transaction makes the database file smaller."""


class Deletion(ABC):
    """The deletion of a thread or of blobs. It is done in one transaction or, on a full disk, in several small ones.

    `is_abandoned` is a function that returns whether nobody waits for the deletion any more. If it returns True when
    the deletion would begin, nothing is deleted. It is None if somebody always waits.
    """

    def __init__(self, is_abandoned: Callable[[], bool] | None) -> None:
        self._is_abandoned = is_abandoned
        self._is_given_up: bool | None = None

    def check_wanted(self) -> None:
        """Raise `Unavailable` if this deletion was given up before it began, and so deleted nothing, because its caller
        had stopped waiting for it."""
        if self._is_given_up:
            raise Unavailable(GIVEN_UP)

    def __call__(self, db: apsw.Cursor) -> None:
        """Delete at once all that this object was made for, a thread or some blobs. Does nothing if nobody waits for
        the deletion any more. Called inside a transaction."""
        if not self._gives_up():
            self._delete_all(db)

    def delete_part(self, db: apsw.Cursor) -> bool:
        """Delete a small part of the thread or of the blobs, and return True once everything is deleted. The caller
        calls this again and again, each time in a transaction of its own, until it returns True."""
        return self._gives_up() or self._delete_part(db)

    @abstractmethod
    def _delete_all(self, db: apsw.Cursor) -> None: ...

    @abstractmethod
    def _delete_part(self, db: apsw.Cursor) -> bool: ...

    def _gives_up(self) -> bool:
        if self._is_given_up is None:
            self._is_given_up = self._is_abandoned is not None and self._is_abandoned()
        return self._is_given_up


class ThreadDeletion(Deletion):
    """The deletion of one thread, which can be done in one transaction or in small parts. `where` names the database in
    errors."""

    def __init__(
        self, namespace: str, thread_id: str, where: str, is_abandoned: Callable[[], bool] | None = None
    ) -> None:
        super().__init__(is_abandoned)
        self._wanted = namespace, thread_id, where
        self._is_hidden = False

    def _delete_all(self, db: apsw.Cursor) -> None:
        thread = find_id(db, *self._wanted)
        if thread is not None:
            db.execute("DELETE FROM heads WHERE id = ?", (thread,))
            db.execute("DELETE FROM refs WHERE thread = ?", (thread,))
            db.execute("DELETE FROM frames WHERE thread = ?", (thread,))
            db.execute("DELETE FROM packs WHERE thread = ?", (thread,))

    def _delete_part(self, db: apsw.Cursor) -> bool:
        """Delete a small part of the thread, and return True once all of it is deleted.

        The first call moves the thread to the namespace `DELETED`, where nobody sees it. Its row in the table `heads`
        is deleted last, so that the row's id is not given to another thread while frames still refer to it. If this
        process dies meanwhile, the next process that writes finishes the deletion.
        """
        if self._is_hidden:
            return finish_part(db)
        thread = find_id(db, *self._wanted)
        if thread is not None:
            db.execute("UPDATE heads SET ns = ?, key = ? WHERE id = ?", (DELETED, thread.to_bytes(8), thread))
        self._is_hidden = True
        return False


class BlobDeletion(Deletion):
    """The deletion of blobs, except those that were last used after a certain moment. The function `before` returns
    this moment, in microseconds since 1970."""

    def __init__(
        self,
        namespace: str,
        digests: Sequence[bytes],
        before: Callable[[], int],
        is_abandoned: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(is_abandoned)
        self._namespace = namespace
        self._digests = digests
        self._before = before
        self._done = 0

    def _delete_all(self, db: apsw.Cursor) -> None:
        self._delete(db, self._digests)

    def _delete_part(self, db: apsw.Cursor) -> bool:
        self._delete(db, self._digests[self._done : self._done + BLOBS_AT_ONCE])
        self._done += BLOBS_AT_ONCE
        return self._done >= len(self._digests)

    def _delete(self, db: apsw.Cursor, digests: Sequence[bytes]) -> None:
        before = self._before()
        for digest in digests:
            found = db.execute(_OLD_BLOB, (self._namespace, digest, before)).fetchone()
            if found is not None:
                db.execute("DELETE FROM blobs WHERE id = ?", found)
                db.execute("DELETE FROM blob_data WHERE id = ?", found)


_OLD_BLOB = "SELECT id FROM blobs WHERE ns = ? AND digest = ? AND touched <= ?"


def finish_part(db: apsw.Cursor) -> bool:
    """Delete a small part of a thread whose deletion has begun. Called inside a transaction. Returns True, with nothing
    done, if no thread with a begun deletion is left."""
    thread = db.execute("SELECT id FROM heads WHERE ns = ? LIMIT 1", (DELETED,)).get
    if thread is None:
        return True
    for statement, most in ((_SOME_FRAMES, FRAMES_AT_ONCE), (_SOME_PACKS, 1), (_SOME_REFS, REFS_AT_ONCE)):
        db.execute(statement, {"thread": thread, "most": most})
        if db.connection.changes():
            return False
    db.execute("DELETE FROM heads WHERE id = ?", (thread,))
    return False


_SOME_FRAMES = "DELETE FROM frames WHERE id IN (SELECT id FROM frames WHERE thread = :thread LIMIT :most)"
_SOME_PACKS = """DELETE FROM packs WHERE thread = :thread
    AND number IN (SELECT number FROM packs WHERE thread = :thread LIMIT :most)"""
_SOME_REFS = """DELETE FROM refs WHERE thread = :thread
    AND digest IN (SELECT digest FROM refs WHERE thread = :thread LIMIT :most)"""


def reserve_of(store: Path) -> Reserve:
    """Return the reserve of a store: a file beside it that keeps disk space free for deletions. The file exists while
    the store is written to, and as long as there is a WAL (SQLite's write-ahead log) that could not be moved into the
    database."""
    return Reserve(Path(f"{store}-reserve"), RESERVE)


def release_at_rest(reserve: Reserve, store: Path) -> None:
    """Remove the reserve of a store, a file that keeps disk space free for deletions, if the store has no WAL (SQLite's
    write-ahead log): then all processes have closed it, and everything is in the database."""
    if not os.path.lexists(f"{store}-wal"):
        reserve.release()


def free_room(
    connection: apsw.Connection,
    store: Path,
    reserve: Reserve,
    jobs: Sequence[Job],
    transact: Callable[[apsw.Connection, list[Job]], None],
) -> None:
    """Carry out these jobs (requests that free disk space) on a full disk, then return the space to the disk. Stores an
    error in each job that fails. A `Deletion` is carried out in small transactions; any other job is passed to
    `transact`, which runs it as one transaction. `reserve` is a file that keeps some disk space free for this.
    """
    reserve.release()
    _move_wal(connection)
    for job in jobs:
        job.error = None
        try:
            if isinstance(job.work, Deletion):
                _delete_in_parts(connection, job.work)
            else:
                transact(connection, [job])
        except (ClewError, *FAULTS) as error:
            full = full_disk(error)
            if full is not None:
                job.error = _too_full(connection, full, store)
            else:
                job.error = error if isinstance(error, ClewError) else explain(error, store)
    give_back(connection, reserve)


def full_disk(error: BaseException) -> apsw.FullError | None:
    """Return the given error or its cause if that is SQLite's error for a full disk, else None."""
    return next((found for found in (error, error.__cause__) if isinstance(found, apsw.FullError)), None)


def _delete_in_parts(connection: apsw.Connection, deletion: Deletion) -> None:
    """Carry out a deletion in small transactions, each of which is on the disk before the next one begins. Moves the
    WAL (SQLite's write-ahead log) into the database between them, so that it starts over instead of growing."""
    while not _in_transaction(connection, deletion.delete_part):
        _restart_wal(connection)


def finish_deletions(connection: apsw.Connection) -> None:
    """Finish deletions in parts that another process has begun and, because it was killed, not finished. If SQLite
    reports an error, they are left to a later call."""
    try:
        while connection.execute("SELECT 1 FROM heads WHERE ns = ? LIMIT 1", (DELETED,)).get:
            _in_transaction(connection, finish_part)
            _restart_wal(connection)
    except apsw.Error as error:
        log.debug("a deletion that was broken off is not finished for now: %s", error)


def _in_transaction(connection: apsw.Connection, work: Callable[[apsw.Cursor], bool]) -> bool:
    db = connection.cursor()
    db.execute("BEGIN IMMEDIATE")
    try:
        result = work(db)
        db.execute("COMMIT")
    except BaseException:
        db.close(True)
        roll_back(connection)
        raise
    finally:
        db.close()
    return result


def give_back(connection: apsw.Connection, reserve: Reserve) -> None:
    """Make the database file smaller by the pages that are free in it, and empty the WAL (SQLite's write-ahead log).
    Does so only as far as the disk has room for it and no other process prevents it. Then create the reserve again, a
    file that keeps some disk space for later deletions."""
    try:
        free = connection.execute("PRAGMA freelist_count").get
        while free:
            connection.execute(f"PRAGMA incremental_vacuum({VACUUM_STEP})").fetchall()
            _restart_wal(connection)
            before, free = free, connection.execute("PRAGMA freelist_count").get
            if free >= before:  # the database was not made by Clew, and cannot be made smaller in this way
                break
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except apsw.Error as error:
        log.debug("the room of deleted data is not given back for now: %s", error)
    reserve.hold()


def _restart_wal(connection: apsw.Connection) -> None:
    if pages_in_wal(connection.cursor()) >= RESTART_AT:
        _move_wal(connection)


def _move_wal(connection: apsw.Connection) -> None:
    """Move the WAL (SQLite's write-ahead log) into the database. If the database cannot grow, leave that for later: a
    deletion may make it smaller."""
    with suppress(apsw.FullError):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def pages_in_wal(db: apsw.Cursor) -> int:
    """Return how many pages of the WAL (SQLite's write-ahead log) have not been moved into the database."""
    counts: Any = db.execute("PRAGMA wal_checkpoint(NOOP)").fetchone()
    return int(counts[1] - counts[2])


def _too_full(connection: apsw.Connection, error: apsw.FullError, path: Path) -> ClewError:
    """Return the error for a deletion that failed although the reserve was used. It says how much disk space to free:
    as much as the database file will grow when the WAL (SQLite's write-ahead log) is moved into it, and a little more.
    """
    pages, size = (connection.execute(f"PRAGMA {name}").get for name in ("page_count", "page_size"))
    growth = pages * size - files.size(path)
    return Unavailable(
        f"{path}: {error}: the disk is full, and a delete needs some room itself. Nothing stored was harmed. Free about "
        f"{size_text(ROOM_NEEDED + max(0, growth))} on that disk, then delete again."
    )
