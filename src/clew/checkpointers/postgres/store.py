"""The PostgreSQL checkpointer. Every append is durable, and any number of processes and machines can share a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from clew._runtime.batches import batches
from clew.checkpointers.base import Checkpointer, is_abandoned
from clew.checkpointers.bells import Bell, bell_name
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
from clew.checkpointers.heads import Head, HeadQuery, due_place, grace_micros, micros, thread_digest
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.postgres.statements import Append, Statements
from clew.checkpointers.postgres.values import Statement, bytes_list, number, numbers_of
from clew.checkpointers.sql.deletion import delete_thread
from clew.checkpointers.sql.heads import decode_head, tags_column, title_column, with_sum
from clew.checkpointers.sql.listing import list_heads
from clew.checkpointers.sql.reads import Stretch, read_frames
from clew.errors import MissingExtra

if TYPE_CHECKING:
    from clew.checkpointers.postgres.engine import Engine

__all__ = ["PostgresCheckpointer"]

_DIGEST = 32

_PAGE = 500
"""The most digests that one query fetches when the method `blobs` lists blobs."""
_PUT_BYTES, _PUT_MOST, _GET_MOST, _TOUCH_MOST = 8 * 2**20, 1000, 64, 5000
"""The most that one statement handles, in the order of the names: total bytes of blobs to put (a larger blob goes
alone), number of blobs to put, number of blobs to get, and number of blobs to touch (mark as just used)."""


@explains_lack_of_memory()
class PostgresCheckpointer(Checkpointer, Bell):
    """Keeps threads in one schema of a PostgreSQL database. The schema is created on first use.

    An append is one round trip and one transaction. Its `synchronous_commit` is on, even if the server's default is
    off. Appends that many asyncio tasks make at the same time share a transaction. All checkpointers of one event loop
    on the same store share connections. No state is kept in a database session, so a pooler in transaction mode may
    stand between Clew and the server. If the server restarts, calls wait for it. A call without progress for `timeout`
    seconds raises `Unavailable`.
    """

    is_hasty: bool = True

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        schema: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Open the store at a URL of the form `postgresql://user:password@host:5432/database`.

        `namespace` selects a part of the store that shares nothing with its other namespaces. `schema` is the database
        schema that holds the store (default `clew`). `connections` is the maximum number of connections (default 8).
        `timeout` is the number of seconds without progress after which a call raises `Unavailable` (default 10). The
        last three may also be options of the URL.
        """
        check_namespace(namespace)
        try:
            from clew.checkpointers.postgres.address import parse
            from clew.checkpointers.postgres.engine import engines
        except ImportError as error:
            raise MissingExtra("the PostgreSQL store", "postgres") from error
        self._address = parse(url, schema, connections, timeout)
        self._engines = engines
        self._space = namespace.encode()
        self._where = f"{self._address.name}, schema {self._address.schema}"
        self.place = f"postgresql:{self._address.name}?schema={self._address.schema}#{namespace}"
        self._guard = Guard(f"the PostgreSQL checkpointer of {self._where}")
        self._statements = Statements(self._address.schema)
        self._engine: Engine | None = None
        self._channel = bell_name(self._address.schema, namespace)

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> PostgresCheckpointer:
        """Open the store at a URL of the form `postgresql://user:password@host:5432/database?schema=clew`. All options
        of libpq (PostgreSQL's client library) may be added to the URL. `namespace` selects a separate part of the
        store."""
        return cls(url, namespace)

    def __repr__(self) -> str:
        return f"<PostgresCheckpointer {self.place}>"

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        engine = self._use()
        encoded = check_append(thread_id, frames, at, head, refs)
        append = Append(
            thread_id,
            (self._space, thread_digest(thread_id)),
            head.log_id.encode(),
            at,
            frames,
            [bytes.fromhex(digest) for digest in set(refs)] if refs else (),
            (
                thread_id.encode(),
                head.status.encode(),
                head.agent.encode(),
                head.parent[0].encode() if head.parent else None,
                micros(head.created_at),
                micros(head.updated_at),
                due_place(head),
                title_column(head.title),
                tags_column(head.tags),
                with_sum(encoded),
            ),
            sum(map(len, frames)) + len(encoded),
            is_abandoned.get(),
        )
        await engine.submit(append)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        engine = self._use()
        check_range(thread_id, start, stop)
        key = thread_digest(thread_id)

        async def fetch(first: int, last: int) -> Stretch | None:
            rows = await engine.read(self._statements.read, self._space, key, number(first), number(last))
            frames = [data for _, _, data in rows if data is not None]
            return Stretch(rows[0][0], int.from_bytes(rows[0][1] or b""), frames) if rows else None

        return await read_frames(fetch, thread_id, self._where, start, stop)

    async def head(self, thread_id: str) -> Head | None:
        engine = self._use()
        check_thread_id(thread_id)
        rows = await engine.read(self._statements.head, self._space, thread_digest(thread_id))
        return decode_head(rows[0][0], thread_id, self._where) if rows else None

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        engine = self._use()
        check_query(query)

        async def select(wanted: HeadQuery) -> Sequence[Sequence[bytes | None]]:
            statement, values = self._statements.listing(self._space, wanted)
            return await engine.read(statement, *values)

        async def select_keys(wanted: HeadQuery) -> list[bytes]:
            statement, values = self._statements.listed_keys(self._space, wanted)
            [[keys]] = await engine.read(statement, *values)
            return _digests_of(keys)

        async def select_by_keys(keys: Sequence[bytes]) -> Sequence[Sequence[bytes | None]]:
            return await engine.read(self._statements.heads, self._space, bytes_list(keys))

        async for head in list_heads(
            query, self._where, select=select, select_keys=select_keys, select_by_keys=select_by_keys
        ):
            yield head

    async def refs(self, thread_id: str) -> set[str]:
        engine = self._use()
        check_thread_id(thread_id)
        [[digests]] = await engine.read(self._statements.refs, self._space, thread_digest(thread_id))
        return {digest.hex() for digest in _digests_of(digests)}

    async def delete(self, thread_id: str) -> None:
        engine = self._use()
        check_thread_id(thread_id)
        check_wanted()
        key = thread_digest(thread_id)

        async def look() -> tuple[bytes, bytes] | None:
            rows = await engine.read(self._statements.version, self._space, key)
            return (rows[0][0] or b"", rows[0][1] or b"") if rows else None

        async def delete(log: bytes, head: bytes | None) -> bool:
            result = await engine.write(self._statements.delete, self._space, key, log, head)
            return result.ntuples > 0

        await delete_thread(look, delete)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        engine = self._use()
        check_blobs(blobs)
        for part in batches(sorted(blobs), _PUT_MOST, size=lambda digest: len(blobs[digest]), largest=_PUT_BYTES):
            digests = bytes_list([bytes.fromhex(digest) for digest in part])
            data = bytes_list([blobs[digest] for digest in part])
            await engine.write(self._statements.put, self._space, digests, data)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        engine = self._use()
        check_digests(digests)
        found: dict[str, bytes] = {}
        for part in batches([bytes.fromhex(digest) for digest in dict.fromkeys(digests)], _GET_MOST):
            for digest, data in await engine.read(self._statements.get, self._space, bytes_list(part)):
                name = (digest or b"").hex()
                check_stored_blob(name, data or b"", self._where)
                found[name] = data or b""
        return found

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        engine = self._use()
        check_digests(digests)
        missing: set[str] = set()
        for part in batches(sorted({bytes.fromhex(digest) for digest in digests}), _TOUCH_MOST):
            result = await engine.write(self._statements.touch, bytes_list([self._space] * len(part)), bytes_list(part))
            missing |= {part[place - 1].hex() for place in numbers_of(result.get_value(0, 0) or b"")}
        return missing

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        engine = self._use()
        check_grace(untouched_for)
        last = b""
        while True:
            rows = await engine.read(
                self._statements.untouched, self._space, last, number(grace_micros(untouched_for)), number(_PAGE)
            )
            for row in rows:
                last = row[0] or b""
                yield last.hex()
            if len(rows) < _PAGE:
                return

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        engine = self._use()
        check_digests(digests)
        check_grace(untouched_for)
        for part in batches(sorted({bytes.fromhex(digest) for digest in digests}), _PUT_MOST):
            await engine.write(
                self._statements.sweep, self._space, bytes_list(part), number(grace_micros(untouched_for))
            )

    async def ring(self) -> None:
        await self._use().read(Statement(f"SELECT pg_notify('{self._channel}', '')".encode(), ()))

    def hear(self) -> AsyncIterator[None]:
        from clew.checkpointers.postgres.bell import hear  # with the driver, which an extra brings

        return hear(self._address, self._channel)

    async def close(self) -> None:
        if self._guard.close() and self._engine is not None:
            engine, self._engine = self._engine, None
            await self._engines.close(engine)

    def _use(self) -> Engine:
        loop = self._guard.enter()
        if self._engine is None:
            self._engine = self._engines.open(self._address, loop)
        return self._engine


def _digests_of(joined: bytes | None) -> list[bytes]:
    joined = joined or b""
    return [joined[start : start + _DIGEST] for start in range(0, len(joined), _DIGEST)]
