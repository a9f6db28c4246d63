"""The MySQL and MariaDB checkpointer. Every append is durable, and any number of processes and machines can share a
store."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from clew._runtime.batches import batches
from clew.checkpointers.base import Checkpointer
from clew.checkpointers.checks import (
    Guard,
    check_append,
    check_blobs,
    check_digests,
    check_grace,
    check_namespace,
    check_query,
    check_range,
    check_stored_blob,
    check_thread_id,
    check_wanted,
)
from clew.checkpointers.heads import Head, HeadQuery, grace_micros, thread_digest
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.sql.deletion import delete_thread
from clew.checkpointers.sql.heads import decode_head, make_append, text_digest
from clew.checkpointers.sql.listing import list_heads
from clew.checkpointers.sql.reads import Stretch, read_frames
from clew.errors import MissingExtra

if TYPE_CHECKING:
    from clew.checkpointers.mysql.engine import Engine
    from clew.checkpointers.mysql.wire import Connection, Result

__all__ = ["MySQLCheckpointer"]

_PAGE = 500
"""The most digests that one query fetches when the method `blobs` lists blobs."""
_PART = 2**20
"""The most bytes of a blob that one row holds: a larger blob has several rows. Also about the most bytes of blobs in
one statement."""
_PUT_BYTES, _PUT_MOST, _GET_MOST, _TOUCH_MOST = 8 * 2**20, 1000, 64, 5000
"""The most that one transaction handles, in the order of the names: total bytes of blobs to put (a larger blob goes
alone), number of blobs to put, number of blobs to get, and number of blobs to touch (mark as just used)."""


@explains_lack_of_memory()
class MySQLCheckpointer(Checkpointer):
    """Keeps threads in tables of one MySQL or MariaDB database. The tables are created on first use.

    An append is one round trip and one transaction. It takes two or more round trips if it names blobs, or has more
    than 16 frames or 256 KiB. Appends that many asyncio tasks make at the same time share a transaction. All
    checkpointers of one event loop on the same store share connections. An append is durable once it returns if the
    server has `innodb_flush_log_at_trx_commit` at 1, its default; otherwise a warning is logged. If the server
    restarts, calls wait for it. A call without progress for `timeout` seconds raises `Unavailable`.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        prefix: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Open the store at a URL of the form `mysql://user:password@host:3306/database`.

        `namespace` selects a part of the store that shares nothing with its other namespaces. `prefix` is the text with
        which the names of all its tables start (default `clew_`). `connections` is the maximum number of connections
        (default 8). `timeout` is how many seconds a call may go without progress (default 10). The last three may also
        be options of the URL.
        """
        check_namespace(namespace)
        try:
            from clew.checkpointers.mysql.address import parse
            from clew.checkpointers.mysql.engine import engines
            from clew.checkpointers.mysql.statements import Statements
        except ImportError as error:
            raise MissingExtra("the MySQL store", "mysql") from error
        self._address = parse(url, prefix, connections, timeout)
        self._engines = engines
        self._space = text_digest(namespace)
        self._where = f"{self._address.name}, tables {self._address.prefix}*"
        self.place = f"mysql:{self._address.name}?prefix={self._address.prefix}#{namespace}"
        self._guard = Guard(f"the MySQL checkpointer of {self._where}")
        self._statements = Statements(self._address.prefix, self._space)
        self._engine: Engine | None = None

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> MySQLCheckpointer:
        """Open the store at a URL of the form `mysql://user:password@host:3306/database?prefix=clew_&connections=8`.

        For TLS add `ssl=true`, and `ssl_ca`, `ssl_cert`, `ssl_key` or `ssl_verify` where needed. `unix_socket=path`
        connects to a Unix socket instead of the host.
        """
        return cls(url, namespace)

    def __repr__(self) -> str:
        return f"<MySQLCheckpointer {self.place}>"

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        engine = self._use()
        encoded = check_append(thread_id, frames, at, head, refs)
        await engine.submit(make_append(self._space, thread_id, frames, at, head, refs, encoded))

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        engine = self._use()
        check_range(thread_id, start, stop)
        key = thread_digest(thread_id)

        async def fetch(first: int, last: int) -> Stretch | None:
            rows = await engine.read(self._statements.read(key, first, last))
            return Stretch(rows[0][:2], rows[0][2], [row[3] for row in rows if row[3] is not None]) if rows else None

        return await read_frames(fetch, thread_id, self._where, start, stop)

    async def head(self, thread_id: str) -> Head | None:
        engine = self._use()
        check_thread_id(thread_id)
        rows = await engine.read(self._statements.head(thread_digest(thread_id)))
        return decode_head(rows[0][0], thread_id, self._where) if rows else None

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        engine = self._use()
        check_query(query)

        async def select_keys(wanted: HeadQuery) -> list[bytes]:
            return [key for (key,) in await engine.read(self._statements.listed_keys(wanted))]

        async for head in list_heads(
            query,
            self._where,
            select=lambda wanted: engine.read(self._statements.listing(wanted)),
            select_keys=select_keys,
            select_by_keys=lambda keys: engine.read(self._statements.heads(keys)),
        ):
            yield head

    async def refs(self, thread_id: str) -> set[str]:
        engine = self._use()
        check_thread_id(thread_id)
        rows = await engine.read(self._statements.refs(thread_digest(thread_id)))
        return {digest.hex() for (digest,) in rows}

    async def delete(self, thread_id: str) -> None:
        engine = self._use()
        check_thread_id(thread_id)
        check_wanted()
        key = thread_digest(thread_id)

        async def look() -> tuple[int, bytes] | None:
            rows = await engine.read(self._statements.version(key))
            return rows[0] if rows else None

        async def delete(log: int, head: bytes | None) -> bool:
            *_, deleted, _ = await self._write(engine, *self._statements.delete(key, log, head))
            return deleted.found > 0

        await delete_thread(look, delete)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        engine = self._use()
        check_blobs(blobs)
        for part in batches(sorted(blobs), _PUT_MOST, size=lambda digest: len(blobs[digest]), largest=_PUT_BYTES):
            await self._put(engine, {bytes.fromhex(digest): blobs[digest] for digest in part})

    async def _put(self, engine: Engine, blobs: dict[bytes, bytes]) -> None:
        async def work(connection: Connection) -> None:
            await connection.run(b"BEGIN", self._statements.put(list(blobs)))
            for rows in batches(_rows_of(blobs), size=lambda row: len(row[2]), largest=_PART):
                await connection.run(self._statements.put_data(rows))
            await connection.run(b"COMMIT")

        await engine.write(work)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        engine = self._use()
        check_digests(digests)
        found: dict[str, bytes] = {}
        for part in batches([bytes.fromhex(digest) for digest in dict.fromkeys(digests)], _GET_MOST):
            rows = await engine.read(self._statements.get(part))
            for digest, pieces in itertools.groupby(rows, lambda row: row[0]):
                data = b"".join([piece for _, piece in pieces])
                check_stored_blob(digest.hex(), data, self._where)
                found[digest.hex()] = data
        return found

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        engine = self._use()
        check_digests(digests)
        missing: set[str] = set()
        for part in batches(sorted({bytes.fromhex(digest) for digest in digests}), _TOUCH_MOST):
            missing |= {digest.hex() for digest in part} - await self._touch(engine, part)
        return missing

    async def _touch(self, engine: Engine, digests: Sequence[bytes]) -> set[str]:
        """Touch these blobs (mark them as just used), then return the digests of those that exist. Touching first keeps
        gc, which deletes blobs unused for long, from deleting a blob that is reported as present."""
        _, here = await self._write(engine, self._statements.touch(digests), self._statements.here(digests))
        return {digest.hex() for (digest,) in here.rows}

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        engine = self._use()
        check_grace(untouched_for)
        last = b""
        while True:
            rows = await engine.read(self._statements.untouched(last, grace_micros(untouched_for), _PAGE))
            for (last,) in rows:
                yield last.hex()
            if len(rows) < _PAGE:
                return

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        engine = self._use()
        check_digests(digests)
        check_grace(untouched_for)
        for part in batches(sorted({bytes.fromhex(digest) for digest in digests}), _PUT_MOST):
            await self._write(engine, self._statements.sweep(part, grace_micros(untouched_for)))

    async def _write(self, engine: Engine, *statements: bytes) -> list[Result]:
        return await engine.write(lambda connection: connection.run(*statements))

    async def close(self) -> None:
        if self._guard.close() and self._engine is not None:
            engine, self._engine = self._engine, None
            await self._engines.close(engine)

    def _use(self) -> Engine:
        loop = self._guard.enter()
        if self._engine is None:
            self._engine = self._engines.open(self._address, loop)
        return self._engine


def _rows_of(blobs: dict[bytes, bytes]) -> Iterator[tuple[bytes, int, bytes]]:
    """Split each blob into stretches of at most 1 MiB (`_PART`). Yields a row for each stretch: the blob's digest, the
    number of the stretch in its blob, counted from 0, and its bytes. An empty blob is one row with no bytes."""
    for digest, data in blobs.items():
        for part, start in enumerate(range(0, max(1, len(data)), _PART)):
            yield digest, part, data[start : start + _PART]
