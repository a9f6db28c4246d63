"""One connection to MySQL or MariaDB, which sends several statements in one round trip, with values as literals.

MySQL's binary protocol takes one statement at a time, and a stored procedure needs a right that managed services often
withhold. So this module uses neither: it joins several statements into one text. The database session is set to read
strings as bytes with backslash escapes, whatever the server's defaults, so that a literal is exactly the bytes it
stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncmy
from asyncmy.constants import CLIENT
from asyncmy.cursors import Cursor

from clew.checkpointers.mysql.address import Address, tls_context
from clew.checkpointers.patience import Patience, unsent
from clew.errors import Unavailable

__all__ = ["LOST", "TOO_LARGE", "Connection", "Failure", "Result", "connect", "fill", "literal", "literals"]

LOST, TOO_LARGE = 2013, -2
"""Values of `Failure.code`. `LOST`: the connection broke or could not be made. `TOO_LARGE`: the statement is too large
for the server."""

_SESSION = (
    b"SET NAMES binary, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    b"SESSION time_zone = '+00:00', SESSION autocommit = 1",
    b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
_LOST = frozenset(
    (0, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2055)
)
"""Error codes which mean that a connection is gone or was never made. 1927 is MariaDB's "connection was killed"."""


class Failure(Exception):
    """Raised if a statement or a connection failed. `code` is the server's error code or one of two constants: `LOST`
    (the connection broke or could not be made), `TOO_LARGE` (the statement has more bytes than the server accepts)."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class Result(NamedTuple):
    """The result of one statement. `rows` are the rows of a query, empty for any other statement. `found` is the number
    of rows that the statement returned or matched."""

    found: int
    rows: Sequence[tuple[Any, ...]]


class _Cursor(Cursor):
    """A cursor that ignores the server's warnings. The driver's own cursor fetches them in another round trip and logs them,
    with the data that they quote."""

    async def _show_warnings(self, conn: Any) -> None:
        return


class Connection:
    """An open connection to a MySQL server. Call its method `run` only when the call before it has ended."""

    def __init__(self, connection: Any, patience: Patience) -> None:
        self._connection = connection
        self._patience = patience.part(self._sign)
        self.open = True
        self.packet = 2**20
        """The server's setting `max_allowed_packet`: the largest message that it accepts, in bytes. `connect` sets it.
        """

    async def run(self, *statements: bytes) -> list[Result]:
        """Send these statements in one round trip and return the result of each. If one fails, this raises `Failure`:
        the statements after it are not run, and the transaction that is open is rolled back."""
        text = b";".join(statements)
        if len(text) + 1 > self.packet:
            await self._roll_back()
            raise Failure(TOO_LARGE, f"a statement has {len(text)} bytes, but max_allowed_packet is {self.packet}")
        try:
            return await self._patience.limit(self._talk(text))
        except (asyncmy.errors.MySQLError, OSError) as error:
            failure = _failure(error)
            if failure.code == LOST:
                self.close()
            else:
                await self._roll_back()
            raise failure from None
        except BaseException:
            self.close()
            raise

    async def _talk(self, text: bytes) -> list[Result]:
        cursor = self._connection.cursor(_Cursor)
        await cursor.execute(text)
        results = [Result(cursor.rowcount, await cursor.fetchall() if cursor.description else ())]
        while await cursor.nextset():
            results.append(Result(cursor.rowcount, await cursor.fetchall() if cursor.description else ()))
        return results

    async def _roll_back(self) -> None:
        try:
            await self._patience.limit(self._connection.rollback())
        except (asyncmy.errors.MySQLError, OSError):
            self.close()
        except BaseException:
            self.close()
            raise

    def _sign(self) -> object:
        """Return a value that changes while bytes are sent or received. The connection's `Patience`, which ends calls
        without progress, compares this value with an earlier one."""
        protocol = self._connection._proto
        if protocol is None or protocol.transport is None:
            return None
        transport = protocol.transport
        waiting = transport.get_write_buffer_size(), unsent(transport.get_extra_info("socket"))
        return protocol.length, protocol.pos, waiting

    def close(self) -> None:
        """Close the connection at once, without telling the server."""
        if self.open:
            self.open = False
            self._connection.close()

    async def leave(self) -> None:
        """Tell the server that the connection ends, and close it, so that the server does not log a broken connection."""
        if self.open:
            self.open = False
            try:
                await self._patience.limit(self._connection.ensure_closed())
            except Unavailable:
                self._connection.close()


async def connect(address: Address, patience: Patience) -> Connection:
    """Open a connection and set up its database session. `patience` is the store's `Patience` object: it limits how
    long connecting, and later each statement, may go without progress. Raises `Failure` if the server cannot be reached
    or refuses the connection, and `Unavailable` if it does not answer."""
    tls = tls_context(address)
    try:
        made = await patience.part().limit(
            asyncmy.connect(
                host=address.host,
                port=address.port,
                user=address.user or None,
                password=address.password,
                database=address.database,
                unix_socket=address.unix_socket,
                ssl=tls,
                connect_timeout=address.timeout,
                client_flag=CLIENT.FOUND_ROWS,
                autocommit=None,
                program_name="clew",
            )
        )
    except (asyncmy.errors.MySQLError, OSError, RuntimeError) as error:  # RuntimeError: the socket is already closed
        raise _failure(error) from None
    connection = Connection(made, patience)
    try:
        [*_, [_, [(connection.packet,)]]] = await connection.run(*_SESSION, b"SELECT @@max_allowed_packet")
    except BaseException:
        connection.close()
        raise
    return connection


def _failure(error: BaseException) -> Failure:
    if isinstance(error, asyncmy.errors.MySQLError) and error.args and isinstance(error.args[0], int):
        code = LOST if error.args[0] in _LOST else error.args[0]
        return Failure(code, " ".join(str(part) for part in error.args[1:]) or type(error).__name__)
    return Failure(LOST, str(error) or type(error).__name__)


def literal(value: bytes | str | int | None) -> bytes:
    """Return a value as the text of an SQL literal, with quotes and escapes where needed."""
    match value:
        case bytes():
            return b"'%b'" % value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
        case str():
            return literal(value.encode())
        case None:
            return b"NULL"
        case _:
            return b"%d" % value


def literals(values: Sequence[bytes]) -> bytes:
    """Return values as SQL literals separated by commas, for the inside of `IN (...)`."""
    return b",".join([literal(value) for value in values])


def fill(statement: bytes, *values: bytes | str | int | None) -> bytes:
    """Return the statement with each `%b` in it replaced by the next of the values, in order, as an SQL literal."""
    return statement % tuple([literal(value) for value in values])
