"""The bell of a PostgreSQL store: NOTIFY, and LISTEN on a connection of its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import psycopg
from psycopg import sql

from clew.checkpointers.postgres.address import Address

__all__ = ["hear"]

log = logging.getLogger("clew.checkpointers.postgres")


async def hear(address: Address, channel: str) -> AsyncIterator[None]:
    """Yield once when the server was told to notify this process, and then whenever it does. Raises `psycopg.Error` when
    the connection breaks.

    Ends at once if a pooler is between this process and the server. It would give the server's connection to another
    client after the LISTEN, and no notification would come here.
    """
    async with await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True) as connection:
        row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
        if row is None or row[0] != connection.info.backend_pid:
            log.info("%s: behind a pooler: workers look for threads, and are not told of them", address.name)
            return
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        while True:
            yield
            async for _ in connection.notifies(stop_after=1):
                pass
