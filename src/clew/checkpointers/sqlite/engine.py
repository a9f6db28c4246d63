"""The engine of a SQLite store: the connections of this process to one database file. Writes the requests of many
callers in one transaction, through one connection, and reads on OS threads."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from clew._runtime import files
from clew._runtime.aio import Job, WorkerPool, deliver, new_job, settle_all, start_thread
from clew.checkpointers.patience import TIMEOUT
from clew.checkpointers.sqlite.appends import Append, Appender, is_freeing, may_be_written_here, pages_of
from clew.checkpointers.sqlite.connection import (
    CHECKPOINT_AT_MOST,
    FAULTS,
    LockWait,
    commit,
    explain,
    is_busy,
    limit_steps,
    roll_back,
)
from clew.checkpointers.sqlite.file import Reader, StoreFile, closed_on_error
from clew.checkpointers.sqlite.packs import FULL, LEAST, PACK_AFTER, pack_logs, trim
from clew.checkpointers.sqlite.room import (
    Deletion,
    finish_deletions,
    free_room,
    full_disk,
    give_back,
    pages_in_wal,
    release_at_rest,
    reserve_of,
)
from clew.checkpointers.sqlite.schema import CHECKPOINT_AFTER, PAGE_SIZE
from clew.errors import Unavailable

__all__ = ["Engine", "open_engine"]

T = TypeVar("T")
log = logging.getLogger("clew.checkpointers.sqlite")

MAX_BATCH = 512
"""The writer thread takes no more requests into a transaction once it has this many."""
READERS = 2
"""The number of OS threads that read, each with a connection of its own."""

QUICK = 0.002
"""A commit that takes fewer seconds than this is quick. While commits are quick, an event loop commits by itself
instead of passing the work to the writer thread."""
QUICK_RUNS = 8
"""The number of quick commits in a row after which an event loop commits by itself, without the writer thread."""
SLOW_PAUSE = 50
"""If a transaction on the event loop was not quick, the loop leaves all work to the writer thread for this many times
as long as the transaction took. So slow transactions take at most a fiftieth of the loop's time."""


class Engine:
    """All connections of this process to one SQLite file, with one OS thread that writes (the writer).

    Most writes go through one queue. The writer takes everything that is in the queue, runs it as one transaction, and
    acknowledges each request after COMMIT. So the appends of many asyncio tasks share one fsync, and none waits for a
    timer. A request that fails its own check (`Conflict`, `MissingBlob`) writes nothing and does not affect the others;
    if the transaction fails, all of its requests fail.

    While commits are quick (about a millisecond), an event loop does not use the queue for its appends, but makes the
    transaction by itself: waking the writer and being woken by it takes as long as the commit, and twice as long when
    the processor is busy. A lone append then takes two thirds of the time (measured). The loop spends at most half of
    its time on this. It leaves the work to the writer if another process holds the lock. Only the writer moves pages
    from the WAL (SQLite's write-ahead log) to the database.

    While another process has locked the database, requests wait for `seconds`. Each one fails when its own time is over,
    counted from when it was made; the others wait on.
    """

    def __init__(self, path: Path, seconds: float = TIMEOUT) -> None:
        self.path = path
        self.seconds = seconds
        self._name = str(path)
        self.users = 0
        self._file = StoreFile(path)
        self._wait = LockWait(path, seconds)
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        self._handed: dict[asyncio.AbstractEventLoop, Job] = {}
        """For each event loop, the last request that it has passed to the writer thread. Until that request is done the
        loop does not write by itself, so that requests keep their order."""
        self._crowded = False
        self._quick = 0
        self._connection: apsw.Connection | None = None
        """The only connection that writes, shared by the writer thread and the event loops. With two connections, each
        would have to drop its caches after every transaction of the other."""
        self._appender = Appender()
        self._writing = threading.Lock()
        self._pages = 0
        self._is_full = False
        """Whether the disk was too full to move the WAL (SQLite's write-ahead log) to the database. Appends are refused
        until that succeeds, so that the WAL does not grow by more than the disk space held in reserve."""
        self._reserve = reserve_of(path)
        self._here_again = 0.0
        self._writer = threading.Thread(target=self._write, name="clew-sqlite-writer", daemon=True)
        self._readers = WorkerPool("clew-sqlite-reader", READERS, partial(Reader, self._file, seconds), Reader.close)
        try:
            start_thread(self._writer)
        except BaseException:
            self._readers.stop()
            raise

    async def write(self, work: Callable[[apsw.Cursor], T], loop: asyncio.AbstractEventLoop) -> T:
        """Call the function `work` with a cursor inside the next transaction. Returns the function's result when the
        transaction is on the disk. `loop` is the event loop of the caller."""
        result: T = await self.submit(work, loop)
        return result

    def submit(self, work: Append | Callable[[apsw.Cursor], Any], loop: asyncio.AbstractEventLoop) -> Awaitable[Any]:
        """Add this work to the next transaction, and return a job. `work` is an append, or a function that is called
        with a cursor; `loop` is the event loop of the caller. When the transaction is on the disk, awaiting the job
        gives the result of the work, or raises its error.

        The writer is an OS thread. If its last transaction had a single request and commits are slow, the work goes to
        the writer at once. Otherwise the work waits until the loop's other asyncio tasks have added theirs. With 64
        tasks that append at the same time, passing on each request at once makes the writer compete with the loop for
        the interpreter lock, and an append takes twice as long (measured).
        """
        job = new_job(work, loop)
        job.since = time.monotonic()
        if (gathered := self._gathered.get(loop)) is not None:
            gathered.append(job)
        elif self._crowded or self._quick >= QUICK_RUNS:
            self._gathered[loop] = [job]
            loop.call_soon(self.hand_over, loop)
        else:
            self._hand([job], loop)
        return job

    def hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the requests that were gathered for this event loop. Does it on the loop itself if commits are quick,
        otherwise passes the requests to the writer, an OS thread."""
        if (gathered := self._gathered.pop(loop, None)) and not self._write_here(gathered, loop):
            self._hand(gathered, loop)

    def _hand(self, batch: list[Job], loop: asyncio.AbstractEventLoop) -> None:
        self._handed[loop] = batch[-1]
        self._queue.put(batch)

    def _write_here(self, batch: list[Job], loop: asyncio.AbstractEventLoop) -> bool:
        """Write a batch of requests as one transaction on the event loop itself, if that does not block the loop for
        long. Returns True if this was done; each job then has its result or error. Returns False, with nothing written,
        if the writer, an OS thread, has to do it."""
        began = time.monotonic()
        if (
            self._quick < QUICK_RUNS
            or began < self._here_again
            or ((handed := self._handed.get(loop)) is not None and not handed.done())
            or not may_be_written_here(batch)
            or self._pages + pages_of(batch) > CHECKPOINT_AFTER
            or not self._writing.acquire(blocking=False)
        ):
            return False
        try:
            if self._connection is None:  # opening may take long, so the writer does it
                return False
            self._transact(self._connection, batch)
        except BaseException as error:  # noqa: BLE001 - each waiter gets it
            busy = is_busy(error.__cause__)
            told = self._told(error)
            for job in batch:
                job.error = None if busy else told
            if busy:
                return False
        finally:
            self._writing.release()
        ended = time.monotonic()
        self._here_again = ended + (ended - began) * (1 if self._quick else SLOW_PAUSE)
        settle_all(batch)
        return True

    async def read(self, work: Callable[[apsw.Cursor], T], loop: asyncio.AbstractEventLoop) -> T:
        """Call the function `work` with a cursor, on an OS thread for reads, and return its result. The function runs
        in a read transaction of its own, so that it sees one state of the database. `loop` is the event loop of the
        caller.
        """
        since = time.monotonic()

        def isolated(reader: Reader) -> T:
            try:
                connection = reader.connection_for(since)
                roll_back(connection)  # the last transaction is still open if ending it failed for lack of memory
                limit_steps(connection, self.path)
                db = connection.cursor()
                try:
                    db.execute("BEGIN")
                    return work(db)
                finally:
                    # A raised error may keep the cursor alive, and an open cursor holds on to the old state.
                    db.close(True)
                    roll_back(connection)
            except FAULTS as error:
                raise explain(error, self.path) from error

        return await self._readers.run(isolated, loop)

    def stop(self) -> None:
        """Finish the queued requests, then close every connection. Blocks until this is done. When the last connection
        of all processes closes, SQLite moves its write-ahead log into the database."""
        self._readers.stop()
        self._queue.put(None)
        self._writer.join()
        with self._writing:
            connection, self._connection = self._connection, None
        if connection is not None:
            pack_logs(connection, self._appender.appended, LEAST, LEAST)
            trim(connection)
            connection.close()
            release_at_rest(self._reserve, self.path)

    def _write(self) -> None:
        left: list[Job] = []
        more = True
        while more or left:
            batch, more = self._gather(left, more)
            left = []
            try:
                with self._writing:
                    if batch and self._connection is None:
                        self._connection = self._connect_writer(batch)
                    if batch and self._connection is not None:
                        self._transact_or_free_room(self._connection, batch)
            except BaseException as error:  # noqa: BLE001 - each waiter gets it
                told = self._told(error)
                for job in batch:
                    job.error = told
                if is_busy(told.__cause__):
                    batch, left = self._with_time_left(batch)
            deliver(batch)
            del batch
            if self._connection is not None and self._pages > CHECKPOINT_AFTER:
                with self._writing:
                    pack_logs(self._connection, self._appender.appended, PACK_AFTER, FULL)
                    self._checkpoint(self._connection)

    def _with_time_left(self, batch: list[Job]) -> tuple[list[Job], list[Job]]:
        """Divide requests that found the database locked into two lists: those that have waited as long as they may,
        and those that are to be tried again. The error is cleared from the second ones. If there is no memory for this,
        all are in the first list."""
        over: list[Job] = []
        left: list[Job] = []
        try:
            for job in batch:
                (left if self._wait.left(job.since) > 0 else over).append(job)
        except MemoryError:
            return batch, []
        for job in left:
            job.error = None
        return over, left

    def _gather(self, left: list[Job], more: bool) -> tuple[list[Job], bool]:
        """Take the requests that are in the queue, and return them after those in `left`, which are to be tried again.
        Waits for requests if there are none in `left`. The queue holds lists of requests; no further list is taken once
        there are `MAX_BATCH` requests or more. The second value returned says whether the queue may still get requests:
        it is False once `stop` was called. `more` is this value from the previous call; if False, nothing is taken."""
        batch = left
        while more and len(batch) < MAX_BATCH:
            try:
                jobs = self._queue.get(block=not batch)
            except Empty:
                break
            if jobs is None:
                more = False
                break
            try:
                batch += jobs
            except MemoryError as error:
                for job in jobs:
                    job.error = self._told(error)
                deliver(jobs)
        self._crowded = len(batch) > 1
        return batch, more

    def _transact(self, connection: apsw.Connection, batch: list[Job], *, patient: bool = False) -> None:
        """Run a batch of requests as one transaction: all appends together, then the other requests, which are
        functions, one by one. Stores each request's result, or the error that refuses it, in its job; raises if the
        whole transaction fails. With `patient`, waits while another process has locked the database; otherwise raises
        at once."""
        db = connection.cursor()
        others = [job for job in batch if type(job.work) is not Append]
        appends = [job for job in batch if type(job.work) is Append] if others else batch
        try:
            self._begin(db, batch, patient)
            self._appender.begin(db)
            self._appender.apply(db, appends)
            for job in others:
                self._appender.forget()
                job.outcome = job.work(db)
            began = time.monotonic()
            commit(db, count_pages=bool(others))
            self._quick = self._quick + 1 if time.monotonic() - began < QUICK else 0
            self._pages = _pages_left(db, self._pages) if others else self._pages + pages_of(appends)
            self._file.check()
        except BaseException as error:
            self._appender.forget()
            self._roll_back(connection, db, error)
            if isinstance(error, FAULTS):
                raise explain(error, self.path) from error
            raise
        finally:
            # A raised error may keep the cursor alive, and a connection with an open cursor does not close.
            db.close(True)

    def _begin(self, db: apsw.Cursor, batch: list[Job], patient: bool) -> None:
        """Start a write transaction. If another process has locked the database, `patient` decides: with it, wait until
        one request in the batch has no time left; without it, raise `apsw.BusyError` at once."""
        try:
            db.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            if not patient:
                raise
            with self._wait.allowed(_earliest(batch)):
                db.execute("BEGIN IMMEDIATE")

    def _roll_back(self, connection: apsw.Connection, db: apsw.Cursor, failure: BaseException) -> None:
        """Roll back a transaction that failed. If it failed for lack of memory, or cannot be rolled back, also close
        the connection; the next transaction opens another. If the connection were kept then, the transaction could stay
        open, which locks out other processes, or a setting that was meant for one statement could stay."""
        try:
            db.close(True)
            roll_back(connection)
            is_sound = not isinstance(failure, (MemoryError, apsw.NoMemError))
        except FAULTS:
            is_sound = False
        if not is_sound:
            self._connection = None
            connection.close(True)

    def _told(self, error: BaseException) -> BaseException:
        """Return the error that callers get: a `ClewError` for an error of `apsw`, and any other as it is."""
        return explain(error, self.path) if isinstance(error, FAULTS) else error

    def _transact_or_free_room(self, connection: apsw.Connection, batch: list[Job]) -> None:
        """Run a batch as one transaction, and wait while another process has locked the database. If the disk is full,
        carry out only the requests that free disk space, in small transactions and with the space held in reserve. The
        other requests fail with the error about the full disk."""
        try:
            if self._is_full:
                self._checkpoint(connection)
            if self._is_full:
                raise apsw.FullError("database or disk is full")
            self._transact(connection, batch, patient=True)
            if any(isinstance(job.work, Deletion) for job in batch) and self._reserve.is_short():
                give_back(connection, self._reserve)
        except (apsw.FullError, Unavailable) as error:
            if (full := full_disk(error)) is None:
                raise
            for job in batch:
                job.error = explain(full, self.path)
            if freeing := [job for job in batch if isinstance(job.work, Deletion) or is_freeing(job.work)]:
                self._appender.forget()
                with self._wait.allowed(_earliest(freeing)):
                    free_room(connection, self.path, self._reserve, freeing, self._transact)
                self._checkpoint(connection)

    def _checkpoint(self, connection: apsw.Connection) -> None:
        """Move pages from the WAL (SQLite's write-ahead log) to the database. Called after the last transaction was
        acknowledged, so nobody waits for it. Raises no error if this fails. If it fails because the disk is full,
        appends are refused until it succeeds."""
        self._is_full = False
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except apsw.FullError:
            self._is_full = True
            return
        except apsw.Error as error:
            log.debug("%s: the WAL is not moved to the database for now: %s", self.path, error)
        self._pages = 0

    def _connect_writer(self, batch: list[Job]) -> apsw.Connection:
        """Open the connection that writes, for the requests in `batch`. If other processes have locked the database,
        wait only until the time of the oldest request is up. Once the connection is open, a statement on it fails at
        once if another process has locked the database, unless it is run in a `with` block of `LockWait.allowed`."""
        with self._wait.allowed(_earliest(batch)):
            connection = self._file.connect_writer(self._wait)
        with self._file.explained(), closed_on_error(connection):
            finish_deletions(connection)
            self._reserve.hold()
            left = files.size(f"{self._name}-wal")  # other processes may have left pages in the WAL
        self._pages = left // PAGE_SIZE
        return connection


def _earliest(batch: Iterable[Job]) -> float:
    """Return when the first of these requests was made, by the steady clock."""
    since: float = min(job.since for job in batch)
    return since


def _pages_left(db: apsw.Cursor, pages: int) -> int:
    """Return how many pages of the WAL (SQLite's write-ahead log) are still to be moved to the database. `pages` is the
    writer's own estimate of this number.

    Called after a commit in which SQLite itself tried to move the pages if there were `CHECKPOINT_AT_MOST` or more. If
    at least that many are still there, SQLite could not move them, and their exact number is returned. Otherwise this
    returns `pages`.
    """
    left = pages_in_wal(db)
    return left if left >= CHECKPOINT_AT_MOST else pages


_engines: dict[tuple[str, int, float], Engine] = {}
_engines_lock = threading.Lock()


def open_engine(path: Path, seconds: float) -> Engine:
    """Return this process's engine (its connections and its writer) for this file, made if there is none yet, and count
    one more user of it. All checkpointers of a file share one engine, if they wait for locks for the same number of
    `seconds`: otherwise calls that may wait longer would hold up the others. Each call needs one call of
    `close_engine`."""
    key = os.path.realpath(path), os.getpid(), seconds
    with _engines_lock:
        engine = _engines.get(key)
        if engine is None:
            engine = _engines[key] = Engine(Path(key[0]), seconds)
        engine.users += 1
        return engine


def close_engine(engine: Engine) -> None:
    """Count one user of this engine less. If none is left, stop the engine: finish its requests and close its
    connections."""
    with _engines_lock:
        engine.users -= 1
        if engine.users:
            return
        _engines.pop((str(engine.path), os.getpid(), engine.seconds), None)
    engine.stop()
