"""What a MySQL store asks its server, beside appends."""

from __future__ import annotations

from collections.abc import Sequence

from clew.checkpointers._mysql_wire import fill, literal, literals
from clew.checkpointers._sql_heads import MOST, after_prefix, mark, tags_column, title_column
from clew.checkpointers.heads import HeadQuery, micros

__all__ = ["NOW", "Statements"]

NOW = b"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""Microseconds since 1970, by the server's clock."""

_ORDER = {"updated": b"updated DESC, thread_key DESC", "created": b"created DESC, thread_key DESC"}


class Statements:
    """The statements of one namespace in the tables with this prefix."""

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
        return self._fill(b"SELECT thread_key, head, thread_id FROM @heads WHERE ") + where

    def listing(self, query: HeadQuery) -> bytes:
        return self._listing(b"head, thread_id", query)

    def listed_keys(self, query: HeadQuery) -> bytes:
        return self._listing(b"thread_key", query)

    def _listing(self, columns: bytes, query: HeadQuery) -> bytes:
        limit = MOST if query.limit is None else min(query.limit, MOST)
        selected = b"SELECT %b FROM %bheads WHERE " % (columns, self._prefix)
        return selected + b"%b ORDER BY %b LIMIT %d" % (self._conditions(query), _ORDER[query.order], limit)

    def _conditions(self, query: HeadQuery) -> bytes:
        """What `HeadQuery.matches` decides, decided by the server."""
        where = [fill(b"space = %b", self._space)]
        if query.prefix:
            where.append(fill(b"thread_id >= %b AND thread_id < %b", *after_prefix(query.prefix)))
        if (statuses := query.statuses()) is not None:
            where.append(b"status IN (%b)" % (literals([status.encode() for status in statuses]) or b"NULL"))
        if query.agent is not None:
            where.append(fill(b"agent = %b", mark(query.agent)))
        if query.parent is not None:
            where.append(fill(b"parent = %b", mark(query.parent)))
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

    def delete(self, key: bytes) -> Sequence[bytes]:
        """A transaction that locks the head first, as appends do."""
        find = b"SELECT id INTO @%bthread FROM %bheads WHERE space = %b AND thread_key = %b FOR UPDATE"
        gone = b"DELETE FROM %b%b WHERE %b = @%bthread"
        prefix = self._prefix
        return (
            b"BEGIN",
            b"SET @%bthread = NULL" % prefix,
            find % (prefix, prefix, literal(self._space), literal(key)),
            gone % (prefix, b"frames", b"thread", prefix),
            gone % (prefix, b"refs", b"thread", prefix),
            gone % (prefix, b"heads", b"id", prefix),
            b"COMMIT",
        )

    def put(self, digests: Sequence[bytes]) -> bytes:
        """Blobs of which the data follows, or is there already. Holds their locks, so that one of many writes the data."""
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
