"""Makes the SQL statements of a MySQL store, and writes its appends."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from clew._runtime.batches import batches
from clew.checkpointers.heads import ORDERS, HeadQuery, micros
from clew.checkpointers.mysql.wire import Connection, fill, literal, literals
from clew.checkpointers.sql.heads import (
    UNLIMITED,
    Append,
    after_prefix,
    refusal,
    tags_column,
    text_digest,
    title_column,
)
from clew.errors import ClewError

__all__ = ["NOW", "Statements", "write"]

NOW = b"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""An SQL expression for the current time in microseconds since 1970, by the server's clock."""

_ORDER = {name: f"{name} DESC, thread_key DESC".encode() for name in ORDERS}


def _index(query: HeadQuery) -> bytes:
    """Return the index hint for the SQL statement that lists the heads of a query, or empty bytes if it needs none.

    A query with a cursor, which asks for a page after the first, needs a hint. With it, the server reads the index from
    where the page begins. Without it, the server reads from the newest head on, and drops all heads before the page. A
    query for a prefix of ids or for a parent thread needs no hint even then: there are indexes for these two, which the
    server finds by itself.

    A query for the queue of the workers always needs the hint: only in its index are the queued threads together.
    """
    if query.order == "due":
        return b" FORCE INDEX (by_due)"
    is_later = query.cursor is not None and not query.prefix and query.parent is None
    return b" FORCE INDEX (by_%b)" % query.order.encode() if is_later else b""


class Statements:
    """The SQL statements of one namespace of a store, except for appends, which `write` makes. Each method returns SQL
    with the values filled in."""

    def __init__(self, prefix: str, space: bytes) -> None:
        self._prefix = prefix.encode()
        self._space = space

    def _fill(self, statement: bytes, *values: bytes | str | int | None) -> bytes:
        return fill(statement.replace(b"@", self._prefix), *values)

    def read(self, key: bytes, start: int, stop: int) -> bytes:
        return self._fill(
            b"SELECT h.id, h.log, h.frames, f.data FROM @heads h LEFT JOIN @frames f ON f.thread = h.id "
            b"AND f.number >= %b AND f.number < %b WHERE h.space = %b AND h.thread_key = %b ORDER BY f.number",
            *(start, stop, self._space, key),
        )

    def head(self, key: bytes) -> bytes:
        return self._fill(b"SELECT head FROM @heads WHERE space = %b AND thread_key = %b", self._space, key)

    def heads(self, keys: Sequence[bytes]) -> bytes:
        where = fill(b"space = %b AND thread_key IN (", self._space) + literals(keys) + b")"
        return self._fill(b"SELECT head, thread_id FROM @heads WHERE ") + where

    def listing(self, query: HeadQuery) -> bytes:
        return self._listing(b"head, thread_id", query)

    def listed_keys(self, query: HeadQuery) -> bytes:
        return self._listing(b"thread_key", query)

    def _listing(self, columns: bytes, query: HeadQuery) -> bytes:
        limit = UNLIMITED if query.limit is None else min(query.limit, UNLIMITED)
        selected = b"SELECT %b FROM %bheads%b WHERE " % (columns, self._prefix, _index(query))
        return selected + b"%b ORDER BY %b LIMIT %d" % (self._conditions(query), _ORDER[query.order], limit)

    def _conditions(self, query: HeadQuery) -> bytes:
        """Return the WHERE clause that selects the heads that match a query, with the values filled in."""
        where = [fill(b"space = %b", self._space)]
        if query.order == "due":
            where.append(b"due IS NOT NULL")
        if query.prefix:
            where.append(fill(b"thread_id >= %b AND thread_id < %b", *after_prefix(query.prefix)))
        if (statuses := query.statuses()) is not None:
            where.append(b"status IN (%b)" % (literals([status.encode() for status in statuses]) or b"NULL"))
        if query.agent is not None:
            where.append(fill(b"agent = %b", text_digest(query.agent)))
        if query.parent is not None:
            where.append(fill(b"parent = %b", text_digest(query.parent)))
        if query.title:
            where.append(fill(b"LOCATE(%b, title) > 0", title_column(query.title)))
        for name, value in query.tags.items():
            where.append(fill(b"LOCATE(%b, tags) > 0", tags_column({name: value})))
        if query.updated_after is not None:
            where.append(fill(b"updated >= %b", micros(query.updated_after)))
        if query.updated_before is not None:
            where.append(fill(b"updated < %b", micros(query.updated_before)))
        if (start := query.start()) is not None:
            moment, key = start
            column = query.order.encode()
            below = b"%b <= %d AND (%b < %d OR thread_key < %b)"
            where.append(below % (column, moment, column, moment, literal(bytes.fromhex(key))))
        return b" AND ".join(where)

    def refs(self, key: bytes) -> bytes:
        return self._fill(
            b"SELECT r.digest FROM @refs r JOIN @heads h ON h.id = r.thread WHERE h.space = %b AND h.thread_key = %b",
            *(self._space, key),
        )

    def version(self, key: bytes) -> bytes:
        return self._fill(b"SELECT id, head FROM @heads WHERE space = %b AND thread_key = %b", self._space, key)

    def delete(self, key: bytes, log: int, head: bytes | None) -> Sequence[bytes]:
        """Return the SQL statements of a transaction that deletes a thread. It deletes only if the thread's row has the
        number `log`, which the database gives to each new log, and the stored head `head`. If `head` is None, the
        stored head is not compared. The transaction first locks the thread's row, as appends do. Its last statement but
        one deletes the row, and so shows whether the thread was deleted."""
        find = b"SELECT id INTO @%bthread FROM %bheads WHERE space = %b AND thread_key = %b AND id = %d%b FOR UPDATE"
        gone = b"DELETE FROM %b%b WHERE %b = @%bthread"
        prefix = self._prefix
        unchanged = b"" if head is None else b" AND head = " + literal(head)
        return (
            b"BEGIN",
            b"SET @%bthread = NULL" % prefix,
            find % (prefix, prefix, literal(self._space), literal(key), log, unchanged),
            gone % (prefix, b"frames", b"thread", prefix),
            gone % (prefix, b"refs", b"thread", prefix),
            gone % (prefix, b"heads", b"id", prefix),
            b"COMMIT",
        )

    def put(self, digests: Sequence[bytes]) -> bytes:
        """Return an SQL statement that adds a row for each of these blobs, before the data of the blobs is written.
        Rows that exist already are marked as just used. The statement locks the rows, so that only one of several
        transactions writes the data."""
        rows = b",".join([b"(%b,%b,%b)" % (literal(self._space), literal(digest), NOW) for digest in digests])
        return b"INSERT INTO %bblobs VALUES %b ON DUPLICATE KEY UPDATE touched = %b" % (self._prefix, rows, NOW)

    def put_data(self, parts: Sequence[tuple[bytes, int, bytes]]) -> bytes:
        rows = b",".join([fill(b"(%b,%b,%b,%b)", self._space, *part) for part in parts])
        return b"INSERT IGNORE INTO %bblob_data VALUES %b" % (self._prefix, rows)

    def get(self, digests: Sequence[bytes]) -> bytes:
        return self._some(b"SELECT digest, data FROM @blob_data WHERE ", digests) + b" ORDER BY digest, part"

    def lock(self, digests: Sequence[bytes]) -> bytes:
        return self._some(b"SELECT digest FROM @blobs WHERE ", digests) + b" FOR UPDATE"

    def touch(self, digests: Sequence[bytes]) -> bytes:
        return self._some(b"UPDATE @blobs SET touched = " + NOW + b" WHERE ", digests)

    def here(self, digests: Sequence[bytes]) -> bytes:
        return self._some(b"SELECT digest FROM @blobs WHERE ", digests)

    def untouched(self, after: bytes, grace: int, limit: int) -> bytes:
        return self._fill(
            b"SELECT digest FROM @blobs WHERE space = %b AND digest > %b AND touched <= " + NOW + b" - %b "
            b"ORDER BY digest LIMIT %b",
            *(self._space, after, grace, limit),
        )

    def sweep(self, digests: Sequence[bytes], grace: int) -> bytes:
        where = fill(b"b.touched <= " + NOW + b" - %b AND b.space = %b AND b.digest IN (", grace, self._space)
        gone = b"DELETE b, d FROM %bblobs b JOIN %bblob_data d ON d.space = b.space AND d.digest = b.digest WHERE "
        return gone % (self._prefix, self._prefix) + where + literals(digests) + b")"

    def _some(self, statement: bytes, digests: Sequence[bytes]) -> bytes:
        where = fill(b"space = %b AND digest IN (", self._space) + literals(digests) + b")"
        return statement.replace(b"@", self._prefix) + where


MAX_FRAMES, MAX_BYTES = 16, 2**18
"""The most frames that an ordinary append has, and the most bytes of its frames and head together. An ordinary append
also names no blobs. It takes a single round trip."""
MAX_REFS = 1000
"""The most refs (digests of blobs that an append needs) in one SQL statement."""
PACKET = 2**20
"""About how many bytes of frames are sent to the server in one message. A single frame that is larger is sent alone."""

_COLUMNS = ("frames", "created", "updated", "due", "thread_id", "status", "agent", "parent", "title", "tags", "head")
_INSERT = f"INTO %bheads (space, thread_key, log, {', '.join(_COLUMNS)}) VALUES ({', '.join(['%b'] * 14)})".encode()
_UPDATE = (
    f"UPDATE %bheads SET id = LAST_INSERT_ID(id), {', '.join(f'{name} = %b' for name in _COLUMNS)} "  # noqa: S608 - our column names
    "WHERE space = %b AND thread_key = %b AND log = %b AND frames = %b"
).encode()
_NO_ID = b"DO LAST_INSERT_ID(0)"
_FRAME = b"INSERT INTO %bframes SELECT LAST_INSERT_ID(), %d, %b FROM DUAL WHERE LAST_INSERT_ID() > 0"


async def write(connection: Connection, prefix: bytes, appends: Sequence[Append]) -> list[ClewError | None]:
    """Write these appends. Returns one value per append, in order: None if it is stored, or the error that says why
    nothing of it was written.

    The appends must be to different threads. They must be sorted by namespace and thread key, the order in which all
    processes lock threads. Small appends without blobs share one transaction. All other appends, and those that the
    transaction did not write, follow one by one.
    """
    groups = [_statements(prefix, append) if _is_ordinary(append) else [] for append in appends]
    written = [False] * len(appends)
    if any(groups):
        _, *results = await connection.run(b"BEGIN", *[one for group in groups for one in group], b"COMMIT")
        rest = iter(results)
        written = [[next(rest).found for _ in group][1:2] == [1] for group in groups]
    return [
        None if done else await _write_slowly(connection, prefix, append)
        for append, done in zip(appends, written, strict=True)
    ]


def _is_ordinary(append: Append) -> bool:
    return not append.refs and len(append.frames) <= MAX_FRAMES and append.size <= MAX_BYTES


def _statements(prefix: bytes, append: Append) -> list[bytes]:
    frames = enumerate(append.frames, start=append.at)
    return [
        _NO_ID,
        b"INSERT IGNORE " + _insert(prefix, append) if append.at == 0 and append.frames else _update(prefix, append),
        *[_FRAME % (prefix, number, literal(frame)) for number, frame in frames],
    ]


def _insert(prefix: bytes, append: Append) -> bytes:
    return _INSERT % (prefix, *map(literal, (append.space, append.key, append.log, *_row(append))))


def _update(prefix: bytes, append: Append) -> bytes:
    return _UPDATE % (prefix, *map(literal, (*_row(append), append.space, append.key, append.log, append.at)))


def _row(append: Append) -> tuple[bytes | str | int | None, ...]:
    return append.at + len(append.frames), *[getattr(append, name) for name in _COLUMNS[1:]]


async def _write_slowly(connection: Connection, prefix: bytes, append: Append) -> ClewError | None:
    """Write one append in a transaction of its own: lock its blobs and its thread, check both, then write. Returns None
    if the whole append is stored, or the error that says why nothing was written."""
    statements = Statements(prefix.decode(), append.space)
    look = b"SELECT id, log, frames FROM %bheads WHERE space = %b AND thread_key = %b FOR UPDATE"
    found = await connection.run(
        b"BEGIN",
        *[statements.lock(part) for part in batches(append.refs, MAX_REFS)],
        *[statements.touch(part) for part in batches(append.refs, MAX_REFS)],
        look % (prefix, literal(append.space), literal(append.key)),
    )
    here = {digest for result in found[1:-1] for (digest,) in result.rows}
    thread, log, ends = found[-1].rows[0] if found[-1].rows else (None, append.log, None)
    if (
        ends is not None
        and log == append.log
        and ends != append.at
        and await _is_there(connection, prefix, thread, append)
    ):
        await connection.run(b"ROLLBACK")
        return None
    refused = refusal(append, ends, same_log=log == append.log, missing=set(append.refs) - here)
    if refused is not None:
        await connection.run(b"ROLLBACK")
        return refused
    head = b"INSERT " + _insert(prefix, append) if thread is None else _update(prefix, append)
    changes = [head, *_frames(prefix, append), *_refs(prefix, append), b"COMMIT"]
    for packet in batches(changes, size=len, largest=PACKET):
        await connection.run(*packet)
    return None


async def _is_there(connection: Connection, prefix: bytes, thread: int, append: Append) -> bool:
    """Return whether the thread's log already holds exactly the frames of this append, at the append's position: then
    it was written before. False for an append without frames. `prefix` begins the names of the tables, and `thread` is
    the id of the thread's row. The server sends only digests of its frames, to compare."""
    if not append.frames:
        return False
    ask = b"SELECT SHA2(data, 256) FROM %bframes WHERE thread = %d AND number >= %d AND number < %d ORDER BY number"
    stop = append.at + len(append.frames)
    [result] = await connection.run(ask % (prefix, thread, append.at, stop))
    given = [hashlib.sha256(frame).hexdigest() for frame in append.frames]
    return [_text(digest) for (digest,) in result.rows] == given


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


def _frames(prefix: bytes, append: Append) -> Iterator[bytes]:
    numbered = enumerate(append.frames, start=append.at)
    for part in batches(numbered, size=lambda frame: len(frame[1]), largest=PACKET):
        rows = b",".join([fill(b"(LAST_INSERT_ID(),%b,%b)", number, frame) for number, frame in part])
        yield b"INSERT INTO %bframes VALUES %b" % (prefix, rows)


def _refs(prefix: bytes, append: Append) -> Iterator[bytes]:
    for part in batches(append.refs, MAX_REFS):
        rows = b",".join([b"(LAST_INSERT_ID(),%b)" % literal(digest) for digest in part])
        yield b"INSERT IGNORE INTO %brefs VALUES %b" % (prefix, rows)
