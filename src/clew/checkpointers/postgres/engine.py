"""The pool of connections of one event loop to one PostgreSQL store. It commits waiting appends together, and
reconnects.

Appends that wait at the same time share one transaction. If a connection breaks, calls keep trying to connect until the
store's `timeout` has passed since then. So a restart of the server that takes less time is only a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from psycopg import pq

from clew._runtime.aio import Job, new_job
from clew.checkpointers.checks import has_ended
from clew.checkpointers.patience import Patience
from clew.checkpointers.postgres.address import Address
from clew.checkpointers.postgres.schema import DETAILS, VERSION, lock_and_create
from clew.checkpointers.postgres.statements import Append, AppendStatements, outcomes
from clew.checkpointers.postgres.values import Statement
from clew.checkpointers.postgres.wire import LATE, LOST, Connection, Failure, connect, rows_of
from clew.checkpointers.sql.engines import Engines
from clew.errors import ClewError, Corrupt, InvalidInput, NewerFormat, Unavailable

__all__ = ["Engine", "engines"]

log = logging.getLogger("clew.checkpointers.postgres")

RESENDS = 3
"""The most times that one statement is sent again, after its first sending, because the connection broke or another
transaction was in conflict."""
WRITERS = 3
"""The most append transactions that run at once: while one waits for the disk, the next is prepared."""
MAX_BATCH, MAX_BYTES = 32, 4 * 2**20
"""`MAX_BATCH` is the most appends in one transaction. Once the appends in a transaction have `MAX_BYTES` bytes in
total, no further one is added. The limits are small so that the next transaction is prepared while one runs."""
OLDEST = 13_00_00
"""The oldest supported version of the server, as PostgreSQL numbers it. PostgreSQL 13 is the first with incremental
sort, which keeps a listing by update time fast."""

Done = Callable[["pq.abc.PGresult | None", "ClewError | None"], None]


class _Request:
    """A statement that waits for a connection or for its answer. `values` are the values of its parameters. `done` is
    called once, with the result or the error. If `is_wanted()` returns False before the statement is sent, the
    statement is dropped and `done` is not called."""

    __slots__ = ("done", "is_wanted", "resends", "statement", "values")

    def __init__(
        self,
        statement: Statement,
        values: Sequence[bytes | None],
        done: Done,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.statement = statement
        self.values = values
        self.done = done
        self.is_wanted = is_wanted
        self.resends = RESENDS


class Engine:
    """All connections of one event loop to one PostgreSQL store, shared by the checkpointers of all namespaces in it.

    Appends to all threads go into one queue. Appends that wait at the same time are sent as one statement, which is one
    round trip, one transaction and one wait for the disk. At most one append to a thread runs at a time, so that none
    overtakes another. Every statement is idempotent, appends included, so it may be sent again after a broken
    connection.

    The connections are kept here and not by psycopg_pool, which was measured with the same statements and a commit to
    disk for each transaction. If appends share transactions in the same way, psycopg_pool takes 1.2 to 1.8 times the
    processor time of the client for each append, and makes 0.73 to 1.16 times as many appends a second as this class,
    with 1 to 64 threads. With a transaction for each append, it makes 0.19 to 0.25 times as many with 64 threads. These
    are the ranges of four rounds beside other programs on the same disk; on an idle machine both may be equally fast.
    """

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.users = 0
        self.loop = loop
        self._patience = Patience(f"PostgreSQL at {address.name}", address.timeout)
        self._statements = AppendStatements(address.schema)
        self._requests: deque[_Request] = deque()
        self._appends: deque[Job] = deque()
        self._busy_threads: set[tuple[bytes, bytes]] = set()
        self._batches = 0
        self._appended_last = False
        self._crowded = False
        self._open: dict[Connection, None] = {}
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._woken = False
        self._ready = False
        self._lost_at: float | None = None
        self._grow_after = 0.0
        self._drained: asyncio.Future[None] | None = None

    # Requests

    async def submit(self, append: Append) -> None:
        """Queue an append for the next transaction, and return once it is durable. If this raises `Unavailable`, the
        append may or may not have been written. If it raises any other error, nothing of the append was written."""
        job = new_job(append, self.loop)
        self._appends.append(job)
        if self._crowded or not self._idle:
            self._wake()
        else:
            self._dispatch()
        await self._patience.finish(job)

    async def write(self, statement: Statement, *values: bytes | None) -> pq.abc.PGresult:
        """Run a statement in a transaction of its own and return its result. If the caller is cancelled, its
        cancellation is raised only after the statement has succeeded or finally failed."""
        job = new_job(None, self.loop)

        def done(result: pq.abc.PGresult | None, error: ClewError | None) -> None:
            job.outcome, job.error = result, error
            job.settle()

        self._requests.append(_Request(statement, values, done, lambda: not job.done()))
        self._wake()
        result: pq.abc.PGresult = await self._patience.finish(job)
        return result

    async def read(self, statement: Statement, *values: bytes | None) -> list[list[bytes | None]]:
        """Run a statement and return its rows. If the caller is cancelled, it stops waiting at once; an answer that
        still comes is dropped."""
        answer: asyncio.Future[list[list[bytes | None]]] = self.loop.create_future()

        def done(result: pq.abc.PGresult | None, error: ClewError | None) -> None:
            if answer.done():
                return
            if result is not None:
                answer.set_result(rows_of(result))
            elif error is not None:
                answer.set_exception(error)

        self._requests.append(_Request(statement, values, done, lambda: not answer.done()))
        self._wake()
        return await self._patience.limit(answer)

    async def stop(self) -> None:
        """Finish all pending requests, then close every connection. If the server is silent for too long, closes the
        connections all the same: by then every call has raised `Unavailable`."""
        if self._under_way():
            self._drained = self.loop.create_future()
            with suppress(Unavailable):
                await self._patience.limit(self._drained)
        self._requests.clear()
        self._appends.clear()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()

    def _under_way(self) -> bool:
        return bool(self._requests or self._appends or len(self._idle) < len(self._open))

    # Dispatch

    def _wake(self) -> None:
        """Arrange that the queued requests are sent once all asyncio tasks that are ready have run, so that the appends
        of many tasks go out together. There is one exception: if a connection is idle, `submit` sends a single append
        at once, without this method."""
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._woken = False
        self._dispatch()

    def _dispatch(self) -> None:
        while self._idle and (request := self._next()) is not None:
            self._begin(self._idle.pop(), request)
        if not self._idle:
            self._grow()
        if self._drained is not None and not self._drained.done() and not self._under_way():
            self._drained.set_result(None)

    def _next(self) -> _Request | None:
        """Return the next request to send, or None if there is none. Appends come first, but never twice in a row while
        another request waits."""
        while self._requests and not self._requests[0].is_wanted():
            self._requests.popleft()
        appends_first = not (self._requests and self._appended_last)
        self._appended_last = False
        if appends_first and self._appends and self._batches < WRITERS and (batch := self._gather()):
            self._appended_last = True
            return self._request(batch)
        return self._requests.popleft() if self._requests else None

    def _gather(self) -> list[Job]:
        """Take the next batch of appends from the queue and return their jobs (a job is an append whose caller waits):
        at most one per thread, and none to a thread with an append that still runs. The batch is sorted by namespace
        and thread key, the order in which all processes lock threads, so that no two deadlock."""
        batch: list[Job] = []
        later: deque[Job] = deque()
        size = 0
        while self._appends and len(batch) < MAX_BATCH and (not batch or size < MAX_BYTES):
            job = self._appends.popleft()
            if has_ended(job):  # given up while it waited
                continue
            if job.work.place in self._busy_threads:
                later.append(job)
                continue
            self._busy_threads.add(job.work.place)
            batch.append(job)
            size += job.work.size
        later.extend(self._appends)
        self._appends = later
        self._crowded = len(batch) > 1
        if self._crowded:
            batch.sort(key=lambda job: job.work.place)
        return batch

    def _request(self, batch: list[Job]) -> _Request:
        appends = [job.work for job in batch]
        self._batches += 1

        def done(result: pq.abc.PGresult | None, error: ClewError | None) -> None:
            self._batches -= 1
            self._busy_threads.difference_update([append.place for append in appends])
            if result is not None:
                for job, outcome in zip(batch, outcomes(appends, result.get_value(0, 0)), strict=True):
                    job.error = outcome
                    job.settle()
            else:
                for job in batch:
                    job.error = error
                    job.settle()

        statement, values = self._statements.make(appends)
        return _Request(statement, values, done)

    def _begin(self, connection: Connection, request: _Request) -> None:
        def done(result: pq.abc.PGresult | None, failure: Failure | None) -> None:
            if failure is not None and failure.code == _READ_ONLY:
                self._lose(connection)
                connection.close()
            elif connection.open:
                self._idle.append(connection)
            if failure is None:
                request.done(result, None)
            elif failure.code in _AGAIN and request.resends:
                request.resends -= 1
                self._requests.appendleft(request)
            else:
                request.done(None, self._explain(failure))
            self._dispatch()

        connection.start(request.statement, request.values, done)

    # Connections

    def _grow(self) -> None:
        """Start to open more connections to the server if requests wait, until the maximum number (the option
        `connections` of the store) is open."""
        wanted = len(self._requests) + (1 if self._appends and self._batches < WRITERS else 0)
        most = self.address.connections if self._ready else 1
        room = most - len(self._open) - len(self._connecting)
        if (self._open or self._connecting) and self.loop.time() < self._grow_after:
            return
        for _ in range(min(wanted - len(self._connecting), room)):
            task = self.loop.create_task(self._connect())
            self._connecting.add(task)
            task.add_done_callback(self._connected)

    async def _connect(self) -> None:
        while True:
            connection = await self._reach()
            try:
                if not self._ready:
                    await self._prepare(connection)
                    self._ready = True
            except BaseException as error:
                connection.close()
                if isinstance(error, Failure):
                    raise self._explain(error) from error
                raise
            if connection.open:
                self._open[connection] = None
                self._idle.append(connection)
                self._lost_at = None
                return

    def _connected(self, task: asyncio.Task[None]) -> None:
        """Send waiting requests after an attempt to connect has ended. If the attempt failed, and no other connection
        is open or being opened, all waiting calls fail with its error. If the attempt failed, but there is such another
        connection, no further attempt begins for a second."""
        self._connecting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._grow_after = self.loop.time() + 1
            if not self._open and not self._connecting:
                self._fail_all(error)
            elif not isinstance(error, ClewError):
                log.error("%s: connecting failed: %r", self.address.name, error)
        self._dispatch()

    def _fail_all(self, error: BaseException) -> None:
        """Report this error to all callers with waiting requests or appends, because the server cannot be reached."""
        known = error if isinstance(error, ClewError) else Unavailable(f"PostgreSQL at {self.address.name}: {error!r}")
        requests, self._requests = self._requests, deque()
        appends, self._appends = self._appends, deque()
        for request in requests:
            request.done(None, known)
        for job in appends:
            job.error = known
            job.settle()

    async def _reach(self) -> Connection:
        pause = 0.05
        while True:
            try:
                return await connect(self.address.conninfo, self.loop, self._patience, self._lose)
            except Failure as failure:
                if not self._ready or self._lost_at is None or self.loop.time() > self._lost_at + self.address.timeout:
                    raise self._explain(failure) from None
                log.debug("%s: not there yet: %s", self.address.name, failure)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _lose(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._lost_at is None:
            self._lost_at = self.loop.time()

    async def _prepare(self, connection: Connection) -> None:
        """Create the store's tables and functions unless they exist, and add to older ones what they lack. Raises
        `InvalidInput` if the server is too old, `NewerFormat` if a newer Clew made the store, and `Corrupt` if the store
        does not say its version. Logs a warning if the server does not sync to its disk."""
        schema, where = self.address.schema, f"the schema {self.address.schema!r} of {self.address.name}"
        details = Statement(DETAILS.format(schema=schema).encode(), ())
        [[exists, fsync, server]] = rows_of(await connection.run(details, ()))
        if int.from_bytes(server or b"") < OLDEST:
            raise InvalidInput(f"{self.address.name} is older than PostgreSQL 13, the oldest that Clew works with.")
        if fsync == b"\0":
            log.warning(
                "%s runs with fsync = off: what it acknowledges can be lost, and the database with it, when its machine "
                "stops. Set fsync = on for anything that matters.",
                self.address.name,
            )
        version = Statement(f'SELECT max(version)::bigint FROM "{schema}".clew_meta'.encode(), ())  # noqa: S608 - a checked schema
        found = None if exists == b"\0" else rows_of(await connection.run(version, ()))[0][0]
        if exists == b"\0" or (found is not None and int.from_bytes(found) < VERSION):
            await connection.run(Statement(lock_and_create(schema).encode()), ())
            [[found]] = rows_of(await connection.run(version, ()))
        if found is None:
            raise Corrupt(f"{where} does not say which version it has. Restore a copy.")
        if int.from_bytes(found) > VERSION:
            raise NewerFormat(where, int.from_bytes(found), VERSION)
        log.debug("%s: opened", where)

    def _explain(self, failure: Failure) -> ClewError:
        """Return the Clew error for a failed statement or connection. It says what happened, on which server, and what
        to do."""
        what = f"PostgreSQL at {self.address.name}: {failure}"
        if failure.code in _CORRUPT:
            return Corrupt(f"{what}. The server found its data damaged: restore a copy.")
        if failure.code in _GONE and not self._ready:
            return InvalidInput(
                f"{what}. The schema {self.address.schema!r} holds tables of another program, or a part of a store. "
                "Give Clew a schema of its own: ?schema=…"
            )
        return Unavailable(f"{what}. {_HINTS.get(failure.code) or _HINTS.get(failure.code[:2]) or 'Try again'}.")


_READ_ONLY = "25006"
_AGAIN = frozenset((LOST, "40001", "40P01", _READ_ONLY))
_CORRUPT = frozenset(("XX001", "XX002"))
_GONE = frozenset(("42P01", "42P07", "42723", "42883", "42703"))
_HINTS = {
    LOST: "It cannot be reached, or the connection broke. Check that it runs, then try again",
    LATE: "It is overloaded or cut off. Try again later",
    _READ_ONLY: "It is a standby that takes no writes. Connect to the primary (target_session_attrs=read-write)",
    "42501": "Grant this role the missing rights, or let a role that may create tables open the store once",
    "42P01": "The store's tables are gone. Restore them, or close the store and open it again to make new ones",
    "42883": "The store's functions are gone. Restore them, or close the store and open it again to make new ones",
    "55P03": "Another program keeps the store's tables locked, such as a backup. Try again when it has ended",
    "3F000": "The store's schema is gone. Restore it, or close the store and open it again to make a new one",
    "28": "Check the user, the password and what pg_hba.conf allows",
    "3D": "Create the database first: createdb",
    "53": "The server has no room left: connections, memory or disk. Nothing stored was harmed",
}


engines: Engines[Address, Engine] = Engines(Engine)
