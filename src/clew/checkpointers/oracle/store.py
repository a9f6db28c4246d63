"""The Oracle Database checkpointer. Every append is durable, and any number of processes and machines can share a
store."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from clew._runtime.aio import Calls
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
from clew.checkpointers.oracle import address
from clew.checkpointers.oracle.sql import VERSION, Statements
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.patience import Patience
from clew.checkpointers.sql.heads import Append, Listing, decode_head, make_append, refusal, text_digest
from clew.checkpointers.sql.listing import sorted_part
from clew.checkpointers.sql.reads import Stretch, read_frames
from clew.errors import ClewError, Corrupt, MissingExtra, NewerFormat, Unavailable

__all__ = ["OracleCheckpointer"]

T = TypeVar("T")
log = logging.getLogger("clew.checkpointers.oracle")

_INLINE = 32_000
"""The most bytes that are passed to PL/SQL as a plain value. A larger value goes into a temporary LOB (large object)
first, which takes two round trips."""
_PAGE, _GET_MOST, _TOUCH_MOST = 100, 16, 1000
"""The most that one statement handles, in the order of the names: heads to fetch, blobs to fetch, and blobs to touch
(mark as just used) or delete."""


@explains_lack_of_memory()
class OracleCheckpointer(Checkpointer):
    """Keeps threads in the tables of one user of an Oracle Database, 12c or later. The tables are created on first use.

    An append is one PL/SQL block and one round trip, or three round trips with more than 32 KB of frames. If a
    connection breaks, a new one is opened and the call is repeated once; if that fails too, it raises `Unavailable`. A
    round trip that takes longer than `timeout` seconds raises `Unavailable` too.
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
        """Open the store at a URL of the form `oracle://user:password@host:1521/service`.

        `namespace` selects a part of the store that shares nothing with its other namespaces. `prefix` is the text with
        which the names of all its tables start (default `clew_`). `connections` is the maximum number of connections
        (default 8). `timeout` is the number of seconds without progress after which a call raises `Unavailable`
        (default 10). The last three may also be options of the URL.
        """
        check_namespace(namespace)
        try:
            import oracledb
        except ImportError as error:
            raise MissingExtra("the Oracle store", "oracle") from error
        self._driver = oracledb
        self._address = address.parse(url, prefix, connections, timeout)
        self._space = text_digest(namespace)
        self._where = f"{self._address.name}, tables {self._address.prefix}*"
        self.place = f"oracle:{self._address.name}?prefix={self._address.prefix}#{namespace}"
        self._guard = Guard(f"the Oracle checkpointer of {self._where}")
        self._patience = Patience(f"Oracle at {self._address.name}", self._address.timeout)
        self._statements = Statements(self._address.prefix)
        self._pool: Any = None
        self._calls: Calls | None = None
        self._preparing = asyncio.Lock()
        self._ready = False
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> OracleCheckpointer:
        """Open the store at a URL of the form `oracle://user:password@host:1521/service`.

        With a wallet: `oracle://user:password@/?dsn=alias&config_dir=…&wallet_location=…`. Other options are `prefix`
        (the start of the names of all tables), `connections` (the most connections), `timeout` (the seconds without
        progress after which a call fails), and the driver's `protocol=tcps`, `wallet_password` and
        `ssl_server_dn_match`. `namespace` selects a separate part of the store.
        """
        return cls(url, namespace)

    def __repr__(self) -> str:
        return f"<OracleCheckpointer {self.place}>"

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        calls = self._use()
        encoded = check_append(thread_id, frames, at, head, refs)
        append = make_append(self._space, thread_id, frames, at, head, refs, encoded)
        turn = self._turns.setdefault(thread_id, asyncio.Lock())
        await calls.settle(self._patience.limit(self._append(append, turn)))

    async def _append(self, append: Append, turn: asyncio.Lock) -> None:
        """Write one append, or raise the error that says why nothing of it was written. `turn` is a lock that all
        appends to the same thread take, so that only one runs at a time and none overtakes another."""
        data = b"".join([part for frame in append.frames for part in (struct.pack(">i", len(frame)), frame)])

        async def work(connection: Any) -> dict[str, Any]:
            return await self._run(
                connection,
                self._statements.append,
                {
                    "b_space": append.space,
                    "b_key": append.key,
                    "b_log": append.log,
                    "b_at": append.at,
                    "b_count": len(append.frames),
                    "b_data": data,
                    "b_ref_count": len(append.refs),
                    "b_refs": b"".join(append.refs),
                    "b_created": append.created,
                    "b_updated": append.updated,
                    "b_due": append.due,
                    "b_thread_id": append.thread_id,
                    "b_status": append.status,
                    "b_agent": append.agent,
                    "b_parent": append.parent,
                    "b_head": append.head,
                },
                b_done=int,
                b_ends=int,
                b_same=int,
                b_missing=bytes,
            )

        async with turn:
            check_wanted()
            found = await self._try(work)
        if found["b_done"] != 1:
            ends, missing = found["b_ends"], list(_digests_of(found["b_missing"]))
            refused = refusal(append, ends, same_log=found["b_same"] == 1, missing=missing)
            raise refused or Corrupt(f"thread {append.id!r}: {self._where} refused an append without a reason.")

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        calls = self._use()
        check_range(thread_id, start, stop)
        binds = self._thread(thread_id)

        async def fetch(first: int, last: int) -> Stretch | None:
            rows = await self._rows(calls, self._statements.read, {**binds, "b_first": first, "b_last": last})
            frames = [data or b"" for _, _, _, pos, data in rows if pos is not None]
            return Stretch(rows[0][:2], rows[0][2], frames) if rows else None

        return await read_frames(fetch, thread_id, self._where, start, stop)

    async def head(self, thread_id: str) -> Head | None:
        calls = self._use()
        check_thread_id(thread_id)
        rows = await self._rows(calls, self._statements.head, self._thread(thread_id))
        return decode_head(rows[0][0], thread_id, self._where) if rows else None

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        calls = self._use()
        check_query(query)
        keys = [key for (key,) in await self._rows(calls, *self._statements.listed_keys(self._space, query))]
        listing = Listing(self._where)
        page: list[Head] = []
        for part in batches(keys, _PAGE):
            rows = await self._rows(calls, self._statements.heads(len(part)), self._binds_of(part))
            page += sorted_part(listing.sound([row for _, *row in rows]), query)
            if query.limit is None:
                for head in page:
                    yield head
                page.clear()
            elif len(page) >= query.limit:
                break
        for head in sorted_part(page[: query.limit], query):
            yield head
        listing.end()

    async def refs(self, thread_id: str) -> set[str]:
        calls = self._use()
        check_thread_id(thread_id)
        rows = await self._rows(calls, self._statements.refs, self._thread(thread_id))
        return {digest.hex() for (digest,) in rows}

    async def delete(self, thread_id: str) -> None:
        calls = self._use()
        check_thread_id(thread_id)
        check_wanted()
        await self._write(calls, self._statements.delete, self._thread(thread_id))

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        calls = self._use()
        check_blobs(blobs)
        for digest in sorted(blobs):
            binds = {"b_space": self._space, "b_digest": bytes.fromhex(digest), "b_data": blobs[digest]}
            await self._write(calls, self._statements.put, binds)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        calls = self._use()
        check_digests(digests)
        found: dict[str, bytes] = {}
        for part in batches([bytes.fromhex(digest) for digest in dict.fromkeys(digests)], _GET_MOST):
            for digest, data in await self._rows(calls, self._statements.blobs(len(part)), self._binds_of(part)):
                check_stored_blob(digest.hex(), data or b"", self._where)
                found[digest.hex()] = data or b""
        return found

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        calls = self._use()
        check_digests(digests)
        missing: set[str] = set()
        for part in batches(sorted({bytes.fromhex(digest) for digest in digests}), _TOUCH_MOST):
            found = await self._write(calls, self._statements.touch, self._refs_of(part), b_missing=bytes)
            missing |= {digest.hex() for digest in _digests_of(found["b_missing"])}
        return missing

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        calls = self._use()
        check_grace(untouched_for)
        binds = {"b_space": self._space, "b_last": b"\0", "b_grace": grace_micros(untouched_for)}
        while rows := await self._rows(calls, self._statements.untouched, binds):
            for (digest,) in rows:
                yield digest.hex()
            binds["b_last"] = rows[-1][0]

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        calls = self._use()
        check_digests(digests)
        check_grace(untouched_for)
        for part in batches(sorted({bytes.fromhex(digest) for digest in digests}), _TOUCH_MOST):
            await self._write(
                calls, self._statements.sweep, {**self._refs_of(part), "b_grace": grace_micros(untouched_for)}
            )

    async def close(self) -> None:
        if self._guard.close() and self._calls is not None:
            await self._calls.drain()
            if self._pool is not None:
                try:
                    await self._patience.limit(self._pool.close(force=True))
                except Unavailable as error:  # every call has its answer or its error; nothing is lost
                    log.warning("%s: the connections could not be closed in an orderly way: %s", self._where, error)

    # Bound values

    def _thread(self, thread_id: str) -> dict[str, Any]:
        return {"b_space": self._space, "b_key": thread_digest(thread_id)}

    def _binds_of(self, keys: Sequence[bytes]) -> dict[str, Any]:
        return {"b_space": self._space, **{f"b_k{place}": key for place, key in enumerate(keys)}}

    def _refs_of(self, digests: Sequence[bytes]) -> dict[str, Any]:
        return {"b_space": self._space, "b_ref_count": len(digests), "b_refs": b"".join(digests)}

    # The driver

    def _use(self) -> Calls:
        self._guard.enter()
        if self._calls is None:
            self._calls = Calls()
        return self._calls

    async def _write(self, calls: Calls, block: str, binds: dict[str, Any], **outs: type) -> dict[str, Any]:
        work = self._try(lambda connection: self._run(connection, block, binds, **outs))
        return await calls.settle(self._patience.limit(work))

    async def _rows(self, calls: Calls, statement: str, binds: dict[str, Any]) -> list[tuple[Any, ...]]:
        async def work(connection: Any) -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.outputtypehandler = self._as_bytes
                await cursor.execute(statement, binds)
                rows: list[tuple[Any, ...]] = await cursor.fetchall()
                self._patience.moved()
                return rows

        return await calls.hear(self._patience.limit(self._try(work)))

    async def _run(self, connection: Any, block: str, binds: dict[str, Any], **outs: type) -> dict[str, Any]:
        """Run a PL/SQL block and return its output values by name. `binds` are the input values. `outs` names the
        output values with their types, `int` or `bytes`."""
        given: dict[str, Any] = {}
        for name, value in binds.items():
            large = isinstance(value, bytes) and len(value) > _INLINE
            given[name] = await connection.createlob(self._driver.DB_TYPE_BLOB, value) if large else value
        with connection.cursor() as cursor:
            said = {
                name: cursor.var(self._driver.DB_TYPE_RAW, size=32_767)
                if kind is bytes
                else cursor.var(self._driver.DB_TYPE_NUMBER)
                for name, kind in outs.items()
            }
            await cursor.execute(block, {**given, **said})
            values = {name: variable.getvalue() for name, variable in said.items()}
        self._patience.moved()
        return {
            name: int(value) if outs[name] is int and value is not None else value for name, value in values.items()
        }

    def _as_bytes(self, cursor: Any, column: Any) -> Any:
        """Tell the driver, which calls this for each column of a result, how to fetch the column. For BLOBs, returns a
        variable with which their bytes come together with the rows; by default the driver fetches each BLOB separately.
        Returns None for any other column, to fetch it as usual."""
        if column.type_code is self._driver.DB_TYPE_BLOB:
            return cursor.var(self._driver.DB_TYPE_LONG_RAW, arraysize=cursor.arraysize)
        return None

    async def _try(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Call `work` with a connection of the pool and return its result. After a temporary failure, call it once
        more. Raises a Clew error if it still fails, or fails in another way."""
        try:
            return await self._once(work)
        except self._driver.Error as error:
            if not _may_help_again(error):
                raise self._explain(error) from error
        try:
            return await self._once(work)
        except self._driver.Error as error:
            raise self._explain(error) from error

    async def _once(self, work: Callable[[Any], Awaitable[T]]) -> T:
        if self._pool is None:
            self._pool = self._driver.create_pool_async(**self._address.settings)
        async with self._pool.acquire() as connection:
            connection.call_timeout = int(self._address.timeout * 1000)
            if not self._ready:
                async with self._preparing:
                    await self._prepare(connection)
                self._ready = True
            return await work(connection)

    async def _prepare(self, connection: Any) -> None:
        """Create the store's tables unless they exist, and add to older ones what they lack. Raises
        `NewerFormat` if a newer Clew made them, and `Corrupt` if the store does not say its version."""
        version = await self._version(connection)
        if version is None:
            for step in self._statements.definitions:
                await self._run(connection, self._statements.definition(step), {})
            version = await self._version(connection)
        if version is not None and version < VERSION:
            for step in self._statements.upgrades:
                await self._run(connection, self._statements.definition(step), {})
            version = await self._version(connection)
        if version is None:
            raise Corrupt(f"{self._where} does not say which version it has. Restore a copy.")
        if version > VERSION:
            raise NewerFormat(self._where, version, VERSION)

    async def _version(self, connection: Any) -> int | None:
        with connection.cursor() as cursor:
            try:
                await cursor.execute(self._statements.version)
            except self._driver.DatabaseError as error:
                if _code(error) == "ORA-00942":
                    return None
                raise
            rows = await cursor.fetchall()
        return int(rows[0][0]) if rows else None

    def _explain(self, error: Exception) -> ClewError:
        """Return the Clew error for an error of the driver. It says what happened, on which server, and what to do."""
        code = _code(error)
        what = f"Oracle at {self._address.name}: {str(error).partition(chr(10))[0]}"
        if code in _CORRUPT:
            return Corrupt(f"{what}. The server found its data damaged: restore a copy.")
        return Unavailable(f"{what}. {_HINTS.get(code, 'Check that it can be reached, then try again')}.")


_CORRUPT = frozenset(("ORA-01578", "ORA-26040", "ORA-08102"))
_AGAIN = frozenset(("ORA-00001", "ORA-00060", "ORA-04068", "ORA-08177", "ORA-16000", "DPY-1001", "DPY-4011"))
"""Error codes after which a call is repeated: another transaction was in the way or created the same thread or blob
first, or the connection was lost."""
_HINTS = {
    "ORA-00942": "The store's tables are gone. Restore them, or close the store and open it again to make new ones",
    "ORA-01017": "Check the user and the password",
    "ORA-01031": "Grant this user CREATE TABLE, or let a user who may create tables open the store once",
    "ORA-01536": "Give this user a quota on its tablespace",
    "ORA-01653": "The tablespace is full. Nothing stored was harmed",
    "ORA-01950": "Give this user a quota on its tablespace",
    "ORA-16000": "It is a standby that takes no writes. Connect to the primary",
    "DPY-4024": "It is overloaded or cut off. Try again later",
}


def _code(error: Exception) -> str:
    return str(getattr(error.args[0], "full_code", "")) if error.args else ""


def _may_help_again(error: Exception) -> bool:
    return _code(error) in _AGAIN or bool(error.args and getattr(error.args[0], "isrecoverable", False))


def _digests_of(joined: bytes | None) -> Iterator[bytes]:
    joined = joined or b""
    return (joined[start : start + 32] for start in range(0, len(joined), 32))
