"""The pool of connections of one event loop to one MySQL store. It commits waiting appends together, and reconnects.

Appends that wait at the same time share one transaction. If a connection breaks, calls keep trying to connect until the
store's `timeout` has passed since then. So a restart of the server that takes less time is only a pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from clew._runtime.aio import Calls, Job, new_job
from clew.checkpointers.checks import has_ended
from clew.checkpointers.mysql import schema, statements
from clew.checkpointers.mysql.address import Address
from clew.checkpointers.mysql.wire import LOST, TOO_LARGE, Connection, Failure, connect
from clew.checkpointers.patience import Patience
from clew.checkpointers.sql.engines import Engines
from clew.checkpointers.sql.heads import Append
from clew.errors import ClewError, Corrupt, InvalidInput, Unavailable

__all__ = ["Engine", "engines"]

log = logging.getLogger("clew.checkpointers.mysql")

T = TypeVar("T")

RESENDS = 10
"""The most times that one call is repeated, after its first attempt, because the connection broke or another
transaction was in conflict."""
WRITERS = 2
"""The most append transactions that run at once: while one waits for the disk, the next is prepared."""
MAX_BATCH, MAX_BYTES = 64, 2**19
"""The most appends in one transaction, and the most bytes that they have in total. An append that is larger by itself
has a transaction of its own."""
LEAST_PACKET = 4 * 2**20
"""The smallest value, in bytes, that Clew accepts for the server's setting `max_allowed_packet`. That setting limits
the size of one message. This value is MySQL's default since 5.6; only a frame of several MiB needs more."""


class Engine:
    """All connections of one event loop to one MySQL store, shared by the checkpointers of all namespaces in it.

    Appends to all threads go into one queue. Appends that wait at the same time are sent as one transaction, which is
    one round trip and one wait for the disk. At most one append to a thread runs at a time, so that none overtakes
    another. Every call is idempotent, appends included, so it may be repeated after a broken connection.
    """

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.loop = loop
        self.users = 0
        self._patience = Patience(f"MySQL at {address.name}", address.timeout)
        self._prefix = address.prefix.encode()
        self._appends: deque[Job] = deque()
        self._busy_threads: set[tuple[bytes, bytes]] = set()
        self._batches = 0
        self._woken = False
        self._calls = Calls()
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(address.connections)
        self._preparing = asyncio.Lock()
        self._ready = False
        self._lost_at: float | None = None

    # Requests

    async def submit(self, append: Append) -> None:
        """Queue an append for the next transaction, and return once it is durable. If this raises `Unavailable`, the
        append may or may not have been written. If it raises any other error, nothing of the append was written."""
        job = new_job(append, self.loop)
        self._appends.append(job)
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self._look)
        await self._patience.finish(job)

    async def write(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Call `work` with an open connection and return its result. After a temporary failure `work` is called again,
        so it must be safe to repeat. If the caller is cancelled, its cancellation is raised only after the work has
        succeeded or finally failed."""
        return await self._calls.settle(self._patience.limit(self._try(work)))

    async def read(self, statement: bytes) -> Any:
        """Run a query and return its rows, each as a tuple. If the caller is cancelled, it stops waiting at once; the
        answer is read in the background and dropped."""

        async def work(connection: Connection) -> Any:
            [result] = await connection.run(statement)
            return result.rows

        return await self._calls.hear(self._patience.limit(self._try(work)))

    async def stop(self) -> None:
        """Finish all pending requests, then close every connection."""
        self._look()
        await self._calls.drain()
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.leave()

    # Appends

    def _look(self) -> None:
        """Start transactions for the queued appends, but let at most two (`WRITERS`) run at once. `submit`, which
        queues an append, schedules this to run after all asyncio tasks that are ready. So the appends of many tasks go
        out together."""
        self._woken = False
        while self._batches < WRITERS and (batch := self._gather()):
            self._batches += 1
            self._calls.start(self._write(batch))

    def _gather(self) -> list[Job]:
        """Take the next batch of appends from the queue: at most one per thread, and none to a thread with an append
        that still runs. The batch is sorted by namespace and thread key, the order in which all processes lock threads,
        so that no two deadlock."""
        batch: list[Job] = []
        later: deque[Job] = deque()
        size = 0
        while self._appends and len(batch) < MAX_BATCH and size < MAX_BYTES:
            job = self._appends.popleft()
            if has_ended(job):  # given up while it waited
                continue
            place = job.work.space, job.work.key
            if batch and size + job.work.size > MAX_BYTES:
                self._appends.appendleft(job)
                break
            if place in self._busy_threads:
                later.append(job)
                continue
            self._busy_threads.add(place)
            batch.append(job)
            size += job.work.size
        later.extend(self._appends)
        self._appends = later
        batch.sort(key=lambda job: (job.work.space, job.work.key))
        return batch

    async def _write(self, batch: list[Job]) -> None:
        appends = [job.work for job in batch]
        try:
            work = self._try(lambda connection: statements.write(connection, self._prefix, appends))
            outcomes = await self._patience.limit(work)
            for job, outcome in zip(batch, outcomes, strict=True):
                job.error = outcome
        except BaseException as error:  # noqa: BLE001 - handed to the waiters, whatever it is
            for job in batch:
                job.error = error
        self._batches -= 1
        self._busy_threads.difference_update([(append.space, append.key) for append in appends])
        for job in batch:
            job.settle()
        self._look()

    # Connections

    async def _try(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Call `work` with an open connection and return its result. After a temporary failure, call it again, at most
        10 times (`RESENDS`). Raises a Clew error if it still fails, or fails in a way that is not temporary."""
        attempt = 0
        while True:
            if attempt:  # a random pause, so that two conflicting transactions do not retry in step
                await asyncio.sleep(random.uniform(0, 0.01 * attempt))  # noqa: S311 - a pause, no secret
            async with self._room:
                connection = self._idle.pop() if self._idle else await self._connect()
                try:
                    return await work(connection)
                except Failure as failure:
                    if failure.code in _READ_ONLY:
                        connection.close()
                    if not connection.open:
                        self._lose()
                    if failure.code not in _AGAIN or attempt == RESENDS:
                        raise self._explain(failure) from failure
                    attempt += 1
                except BaseException:  # the connection may be in the middle of a transaction
                    connection.close()
                    raise
                finally:
                    if connection.open:
                        self._idle.append(connection)

    def _lose(self) -> None:
        """Close all idle connections after one connection broke, because they usually broke with it. Also note the
        present time as the one at which the server was lost, unless such a time is noted already."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        if self._lost_at is None:
            self._lost_at = self.loop.time()

    async def _connect(self) -> Connection:
        connection = await self._reach()
        try:
            async with self._preparing:
                if not self._ready:
                    await self._prepare(connection)
                    self._ready = True
        except BaseException as error:
            connection.close()
            if isinstance(error, Failure):
                raise self._explain(error) from error
            raise
        self._lost_at = None
        return connection

    async def _reach(self) -> Connection:
        pause = 0.05
        while True:
            try:
                return await connect(self.address, self._patience)
            except Failure as failure:
                if not self._ready or self._lost_at is None or self.loop.time() > self._lost_at + self.address.timeout:
                    raise self._explain(failure) from None
                log.debug("%s: not there yet: %s", self.address.name, failure)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def _prepare(self, connection: Connection) -> None:
        name = self.address.name
        settings = b"SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog"
        [[_, [(flush, binlog, sync_binlog)]]] = await connection.run(settings)
        if connection.packet < LEAST_PACKET:
            raise InvalidInput(
                f"{name} has max_allowed_packet = {connection.packet}. Clew needs {LEAST_PACKET} at least, and 16M for the "
                "largest frames."
            )
        if flush != 1:
            log.warning(
                _WARNING, name, f"innodb_flush_log_at_trx_commit = {flush}", "innodb_flush_log_at_trx_commit = 1"
            )
        if binlog and sync_binlog != 1:  # a server with a binary log recovers from that log
            log.warning(_WARNING, name, f"sync_binlog = {sync_binlog}", "sync_binlog = 1")
        await schema.prepare(connection, self.address.prefix, f"the store {self.address.prefix}* in {name}")

    def _explain(self, failure: Failure) -> ClewError:
        """Return the Clew error for a failed statement or connection. It says what happened, on which server, and what
        to do."""
        what = f"MySQL at {self.address.name}: {failure}"
        if failure.code in _CORRUPT:
            return Corrupt(f"{what}. The server found its data damaged: restore a copy.")
        return Unavailable(f"{what}. {_HINTS.get(failure.code, 'Try again')}.")


_WARNING = "%s runs with %s: what it acknowledges can be lost when its machine stops. Set %s for anything that matters."
_READ_ONLY = frozenset((1290, 1792, 1836, 3100))
_AGAIN = frozenset((LOST, 1020, 1062, 1205, 1213, 1317, *_READ_ONLY))
"""Error codes after which a call is repeated: the connection broke, another transaction was in the way or created the
thread first, or the server has become a standby."""
_CORRUPT = frozenset((126, 127, 145, 1034, 1194, 1195, 1712, 1877))
_HINTS = {
    1205: "Another transaction holds a lock for long, such as that of a backup. Try again when it has ended",
    LOST: "It cannot be reached, or the connection broke. Check that it runs, then try again",
    TOO_LARGE: "Set max_allowed_packet to 16M or more: a frame has up to 4 MiB, and needs up to twice that as text",
    1040: "The server has no connection left. Raise max_connections, or open fewer (connections=… in the URL)",
    1044: "Grant this user all rights on the database",
    1045: "Check the user and the password",
    1049: "Create the database first: CREATE DATABASE",
    1142: "Grant this user the missing rights, or let a user who may create tables open the store once",
    1146: "The store's tables are gone. Restore them, or close the store and open it again to make new ones",
    1290: "It is a standby that takes no writes. Connect to the primary",
    1665: "Set binlog_format to ROW or MIXED",
    1114: "The server has no room left. Nothing stored was harmed",
}


engines: Engines[Address, Engine] = Engines(Engine)
