"""One connection to PostgreSQL, driven by callbacks of the event loop. It runs one statement at a time.

It uses libpq (`psycopg.pq`) directly, which parses, runs and forgets a statement in a single round trip. asyncpg needs
a second round trip or a named statement, and a transaction pooler breaks named statements. psycopg's cursors do the
same as this module, but slower. The time of an INSERT through a function was measured without waiting for the disk. If
asyncpg with named statements takes 1, this module takes 0.98, a psycopg cursor 1.4, and asyncpg without named
statements 1.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import pq

from clew.checkpointers.patience import Patience, Waiting, unsent
from clew.checkpointers.postgres.values import Statement

__all__ = [
    "LATE",
    "LOST",
    "Connection",
    "Failure",
    "connect",
    "rows_of",
]

LOST, LATE = "", "HYT00"
"""Values of `Failure.code` that the server does not send. `LOST`: the connection broke or could not be made. `LATE`:
the answer did not come in time."""

_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Failure(Exception):
    """Raised if a statement or a connection failed. `code` is the server's SQLSTATE or one of two constants: `LOST`
    (the connection broke or could not be made) or `LATE` (no answer came in time). With these two it is unknown whether
    the statement ran."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


Done = Callable[["pq.abc.PGresult | None", "Failure | None"], None]


class Connection:
    """An open connection, which runs one statement at a time. When it finds that it is broken, whether idle or busy, it
    calls the function `lost` once, with itself as the argument."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        loop: asyncio.AbstractEventLoop,
        patience: Patience,
        lost: Callable[[Connection], None],
    ) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._loop = loop
        self._patience = patience.part(lambda: unsent(self._fd))
        self._lost = lost
        self._done: Done | None = None
        self._results: list[pq.abc.PGresult] = []
        self._waiting: Waiting | None = None
        self._fd = self._pg.socket
        self._writing = False
        self._open = True
        self._pg.nonblocking = 1
        loop.add_reader(self._fd, self._readable)

    def start(self, statement: Statement, values: Sequence[bytes | None], done: Done) -> None:
        """Send a statement with the values of its parameters, and return without waiting. The event loop later calls
        `done(result, failure)`, one of which is None. If no bytes move for as long as the store's `timeout`, the
        connection is closed, and the failure has the code `LATE`."""
        self._done = done
        self._waiting = self._patience.enter(self._give_up)
        try:
            if statement.types is None:
                self._pg.send_query(statement.sql)
            else:
                self._pg.send_query_params(statement.sql, values, statement.types, [1] * len(values), 1)
            self._flush()
        except psycopg.Error as error:
            self._loop.call_soon(self._fail, str(error))

    async def run(self, statement: Statement, values: Sequence[bytes | None]) -> pq.abc.PGresult:
        """Send a statement with the values of its parameters, and return its result. Raises `Failure` if it fails or if
        no bytes move for as long as the store's `timeout`. Do not cancel this call: the connection stays busy until the
        answer has come."""
        answer: asyncio.Future[pq.abc.PGresult] = self._loop.create_future()

        def done(result: pq.abc.PGresult | None, failure: Failure | None) -> None:
            if answer.done():
                return
            if result is not None:
                answer.set_result(result)
            else:
                answer.set_exception(failure or Failure(LOST, "lost"))

        self.start(statement, values, done)
        return await answer

    @property
    def open(self) -> bool:
        return self._open

    def close(self) -> None:
        """Close the connection at once. A statement that is running gets no answer: the function `done`, to which the
        answer would be passed, is not called."""
        self._idle()
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            if self._writing:
                self._loop.remove_writer(self._fd)
            self._pg.finish()

    def _flush(self) -> None:
        more = self._pg.flush() == 1
        if more and not self._writing:
            self._loop.add_writer(self._fd, self._writable)
        elif self._writing and not more:
            self._loop.remove_writer(self._fd)
        self._writing = more

    def _writable(self) -> None:
        self._patience.moved()
        try:
            self._flush()
        except psycopg.Error as error:
            self._fail(str(error))

    def _readable(self) -> None:
        pg = self._pg
        self._patience.moved()
        try:
            pg.consume_input()
            if self._writing:
                self._flush()
            while (done := self._done) is not None and not pg.is_busy():
                result = pg.get_result()
                if result is None:
                    return self._answer(done)
                self._results.append(result)
        except psycopg.Error as error:
            return self._fail(str(error))
        if pg.status != pq.ConnStatus.OK:
            self._fail("the connection is gone")
        return None

    def _answer(self, done: Done) -> None:
        """Call `done`, the caller's function, with the complete answer: with a result or a failure. If the server has
        ended the connection, close the connection on this side too, and pass `done` a failure with the code `LOST`."""
        results = self._results
        bad = next((result for result in results if result.status not in _OK), None)
        if bad is not None:
            failure = _failure(bad)
            if self._pg.status != pq.ConnStatus.OK or failure.code.startswith("57P"):
                return self._fail(str(failure))
            self._idle()
            done(None, failure)
        elif not results:
            self._fail("the server ended the connection")
        else:
            self._idle()
            done(results[-1], None)
        return None

    def _idle(self) -> None:
        self._done = None
        self._results = []
        if self._waiting is not None:
            self._patience.leave(self._waiting)
            self._waiting = None

    def _give_up(self) -> None:
        self._fail(f"no answer for {self._patience.seconds:g} s", LATE)

    def _fail(self, why: str, code: str = LOST) -> None:
        """Close a broken connection, call the function that the owner of the connection passed as `lost` when it was
        opened, and report the failure to the caller of the running statement, if there is one. `why` and `code` say in
        the failure what happened. The statement may or may not have taken effect."""
        if not self._open:
            return
        done = self._done
        self.close()
        self._lost(self)
        if done is not None:
            done(None, Failure(code, " ".join(why.split())))


async def connect(
    conninfo: str, loop: asyncio.AbstractEventLoop, patience: Patience, lost: Callable[[Connection], None]
) -> Connection:
    """Open a connection. `conninfo` is libpq's connection string, and `loop` the running event loop. `patience` is the
    store's `Patience` object: it limits how long connecting, and later each statement, may go without progress. If the
    connection breaks later, `lost` is called with the connection. Raises `Failure` if the server cannot be reached or
    refuses the connection, and `Unavailable` if it does not answer."""
    try:
        connection = await patience.part().limit(psycopg.AsyncConnection.connect(conninfo, autocommit=True))
    except psycopg.Error as error:
        raise Failure(LOST, " ".join(str(error).split())) from None
    return Connection(connection, loop, patience, lost)


def _failure(result: pq.abc.PGresult) -> Failure:
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return Failure(code.decode("ascii", "replace"), message.decode(errors="replace"))


def rows_of(result: pq.abc.PGresult) -> list[list[bytes | None]]:
    columns = range(result.nfields)
    return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]
