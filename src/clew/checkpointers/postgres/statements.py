"""Makes the SQL statements of a PostgreSQL store, for reads, listings, blobs and appends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from clew.checkpointers.checks import NO_THREAD
from clew.checkpointers.heads import HeadQuery, micros
from clew.checkpointers.postgres.schema import BUCKET
from clew.checkpointers.postgres.values import (
    BYTES,
    BYTES_LIST,
    NUMBER,
    NUMBER_LIST,
    Statement,
    bytes_list,
    number,
    number_list,
    numbers_of,
)
from clew.checkpointers.sql.heads import UNLIMITED, tags_column, title_column
from clew.errors import ClewError, Conflict, MissingBlob

__all__ = ["Append", "AppendStatements", "Statements", "outcomes"]


class Statements:
    """The SQL statements of a store whose tables are in one database schema. Statements for appends are not among them:
    `AppendStatements` makes those."""

    def __init__(self, schema: str) -> None:
        def make(sql: str, *types: int) -> Statement:
            return Statement(sql.format(schema=f'"{schema}"').encode(), types)

        self.read = make(
            "SELECT h.id, h.frames, f.data FROM {schema}.clew_heads h "
            "LEFT JOIN {schema}.clew_frames f ON f.thread = h.id AND f.number >= $3 AND f.number < $4 "
            "WHERE h.ns = $1 AND h.key = $2 ORDER BY f.number",
            *(BYTES, BYTES, NUMBER, NUMBER),
        )
        self.head = make("SELECT head FROM {schema}.clew_heads WHERE ns = $1 AND key = $2", BYTES, BYTES)
        self.heads = make(
            "SELECT h.head, h.thread_id FROM unnest($2) u (key) "
            "JOIN {schema}.clew_heads h ON h.ns = $1 AND h.key = u.key",
            *(BYTES, BYTES_LIST),
        )
        self.refs = make(
            "SELECT string_agg(r.digest, '') FROM {schema}.clew_refs r "
            "JOIN {schema}.clew_heads h ON h.id = r.thread WHERE h.ns = $1 AND h.key = $2",
            *(BYTES, BYTES),
        )
        self.version = make("SELECT id, head FROM {schema}.clew_heads WHERE ns = $1 AND key = $2", BYTES, BYTES)
        self.delete = make(
            "SELECT {schema}.clew_delete($1, $2) FROM (SELECT 1 FROM {schema}.clew_heads "
            "WHERE ns = $1 AND key = $2 AND id = $3 AND ($4 IS NULL OR head = $4) FOR UPDATE) seen",
            *(BYTES, BYTES, NUMBER, BYTES),
        )
        self.put = make("SELECT {schema}.clew_put($1, $2, $3)", BYTES, BYTES_LIST, BYTES_LIST)
        self.get = make(
            "SELECT digest, data FROM {schema}.clew_blobs WHERE ns = $1 AND digest = ANY ($2)", BYTES, BYTES_LIST
        )
        self.touch = make("SELECT {schema}.clew_touch($1, $2)", BYTES_LIST, BYTES_LIST)
        self.untouched = make(
            "SELECT digest FROM {schema}.clew_blobs WHERE ns = $1 AND digest > $2 AND "
            "touched <= (SELECT {schema}.clew_now()) - $3 ORDER BY digest LIMIT $4",
            *(BYTES, BYTES, NUMBER, NUMBER),
        )
        self.sweep = make("SELECT {schema}.clew_sweep($1, $2, $3)", BYTES, BYTES_LIST, NUMBER)
        self._heads = f'"{schema}".clew_heads'

    def listing(self, namespace: bytes, query: HeadQuery) -> tuple[Statement, list[bytes]]:
        """Return an SQL statement that selects the heads that match a query, in the query's order, and the values of
        the statement's parameters."""
        conditions, types, values = _conditions(namespace, query)
        sql = (
            f"SELECT head, thread_id FROM {self._heads} WHERE {conditions} "  # noqa: S608 - a checked schema, our columns
            f"ORDER BY {_ORDER[query.order]} LIMIT ${len(types) + 1}"
        )
        return Statement(sql.encode(), (*types, NUMBER)), [*values, _limit(query)]

    def listed_keys(self, namespace: bytes, query: HeadQuery) -> tuple[Statement, list[bytes]]:
        """Return an SQL statement that selects the keys (hashes of the ids) of threads whose heads match a query, in
        the query's order, and the values of the statement's parameters. The server returns all keys joined into one
        value, so that even a very long listing is as of one moment."""
        conditions, types, values = _conditions(namespace, query)
        sql = (
            f"SELECT string_agg(key, '' ORDER BY {_ORDER[query.order]}) FROM (SELECT * FROM {self._heads} "  # noqa: S608 - a checked schema, our columns
            f"WHERE {conditions} ORDER BY {_ORDER[query.order]} LIMIT ${len(types) + 1}) found"
        )
        return Statement(sql.encode(), (*types, NUMBER)), [*values, _limit(query)]


_ORDER = {
    "updated": "bucket DESC, updated DESC, key DESC",
    "created": "created DESC, key DESC",
    "due": "due DESC, key DESC",
}


def _limit(query: HeadQuery) -> bytes:
    return number(UNLIMITED if query.limit is None else min(query.limit, UNLIMITED))


def _conditions(namespace: bytes, query: HeadQuery) -> tuple[str, list[int], list[bytes]]:
    """Return the WHERE clause that selects the heads that match a query, the types of the parameters in the clause (as
    PostgreSQL's type numbers), and their values."""
    where = ["ns = $1"]
    types = [BYTES]
    values = [namespace]

    def add(condition: str, *given: tuple[int, bytes]) -> None:
        names = [f"${len(types) + place}" for place in range(1, len(given) + 1)]
        where.append(condition.format(*names))
        types.extend(kind for kind, _ in given)
        values.extend(value for _, value in given)

    if query.order == "due":
        where.append("due IS NOT NULL")
    if query.prefix:
        prefix = query.prefix.encode()
        after = prefix[:-1] + bytes([prefix[-1] + 1])  # UTF-8 has no byte FF
        add("thread_id >= {} AND thread_id < {}", (BYTES, prefix), (BYTES, after))
    if (statuses := query.statuses()) is not None:
        add("status = ANY ({})", (BYTES_LIST, bytes_list([status.encode() for status in statuses])))
    if query.agent is not None:
        add("agent = {}", (BYTES, query.agent.encode()))
    if query.parent is not None:
        add("parent = {}", (BYTES, query.parent.encode()))
    if query.title:
        add("position({} IN title) > 0", (BYTES, title_column(query.title)))
    for tag in query.tags.items():
        add("position({} IN tags) > 0", (BYTES, tags_column(dict((tag,)))))
    if query.updated_after is not None:
        moment = micros(query.updated_after)
        add("updated >= {} AND bucket >= {}", (NUMBER, number(moment)), (NUMBER, number(moment >> BUCKET)))
    if query.updated_before is not None:
        moment = micros(query.updated_before)
        add("updated < {} AND bucket <= {}", (NUMBER, number(moment)), (NUMBER, number(moment >> BUCKET)))
    if (start := query.start()) is not None:
        moment, key = start
        add(
            f"({query.order}, key) < ({{}}, {{}})",
            (NUMBER, number(moment)),
            (BYTES, bytes.fromhex(key)),
        )
        if query.order == "updated":
            add("bucket <= {}", (NUMBER, number(moment >> BUCKET)))
    return " AND ".join(where), types, values


_TYPES_OF_ONE = (
    *(BYTES, BYTES, BYTES, NUMBER, BYTES, BYTES, BYTES, BYTES),
    *(NUMBER, NUMBER, NUMBER, BYTES, BYTES, BYTES, BYTES),
)
_TYPES = (
    *(BYTES_LIST, BYTES_LIST, BYTES_LIST, NUMBER_LIST, NUMBER_LIST),
    *(BYTES_LIST, BYTES_LIST, BYTES_LIST, BYTES_LIST, NUMBER_LIST, NUMBER_LIST, NUMBER_LIST),
    *(BYTES_LIST, BYTES_LIST, BYTES_LIST),
    *(BYTES_LIST, NUMBER_LIST, BYTES_LIST),
)


class Append(msgspec.Struct, frozen=True, gc=False):
    """One append to a thread, with its values ready for SQL: the frames to add, the digests of the blobs that they
    refer to (refs), the number of frames that the log must have before (`at`), and the thread's new head."""

    thread_id: str
    place: tuple[bytes, bytes]
    """Two values that identify the thread: its namespace, and its key, which is a digest of the thread id."""
    log_id: bytes
    at: int
    frames: Sequence[bytes]
    refs: Sequence[bytes]
    row: tuple[Any, ...]
    """The values of the head's columns, beginning with the thread id, in the order of the parameters of the SQL
    function for appends."""
    size: int
    """The number of bytes of the frames and the head together."""
    is_abandoned: Callable[[], bool] | None = None
    """Returns whether nobody waits for the append any more; None if that cannot be known."""


class AppendStatements:
    """Makes the SQL statements that write appends to a store in one schema."""

    def __init__(self, schema: str) -> None:
        self._one = _call(schema, "clew_append_one", _TYPES_OF_ONE)
        self._many = _call(schema, "clew_append", _TYPES)

    def make(self, appends: Sequence[Append]) -> tuple[Statement, Sequence[bytes | None]]:
        """Return one SQL statement that writes all these appends, and the values of its parameters. The appends must be
        to different threads, and sorted by `place` (namespace and thread key)."""
        append = appends[0]
        if len(appends) == 1 and len(append.frames) == 1 and not append.refs:
            row = append.row
            times = number(row[4]), number(row[5]), None if row[6] is None else number(row[6])
            columns = (*row[:4], *times, *row[7:])
            place = (*append.place, append.log_id, number(min(append.at, UNLIMITED)))
            return self._one, (*place, *columns, append.frames[0])
        return self._many, _values(appends)


def _call(schema: str, function: str, types: tuple[int, ...]) -> Statement:
    places = ", ".join(f"${place}" for place in range(1, len(types) + 1))
    return Statement(f'SELECT "{schema}".{function}({places})'.encode(), types)


def _values(appends: Sequence[Append]) -> list[bytes]:
    ids, statuses, agents, parents, created, updated, due, titles, tags, heads = zip(
        *[a.row for a in appends], strict=True
    )
    refs = _refs(appends)
    return [
        bytes_list([append.place[0] for append in appends]),
        bytes_list([append.place[1] for append in appends]),
        bytes_list([append.log_id for append in appends]),
        number_list([min(append.at, UNLIMITED) for append in appends]),
        number_list([len(append.frames) for append in appends]),
        bytes_list(ids),
        bytes_list(statuses),
        bytes_list(agents),
        bytes_list(parents),
        number_list(created),
        number_list(updated),
        number_list(due),
        bytes_list(titles),
        bytes_list(tags),
        bytes_list(heads),
        bytes_list([frame for append in appends for frame in append.frames]),
        number_list([owner for owner, _ in refs]),
        bytes_list([digest for _, digest in refs]),
    ]


def outcomes(appends: Sequence[Append], answer: bytes | None) -> list[ClewError | None]:
    """Decode the server's answer to the statement that wrote these appends. Returns one value per append, in order:
    None if it is stored, or the error that says why nothing of it was written. If `answer` is None, all are stored."""
    if answer is None:
        return [None] * len(appends)
    numbers = numbers_of(answer)
    refs = _refs(appends)
    missing = [refs[place - 1] for place in numbers[len(appends) :]]
    return [
        _outcome(append, code, [digest for owner, digest in missing if owner == place])
        for place, (append, code) in enumerate(zip(appends, numbers, strict=False), start=1)
    ]


def _outcome(append: Append, code: int, missing: Sequence[bytes]) -> ClewError | None:
    match code:
        case -1:
            return None
        case -2:
            return Conflict(append.thread_id, NO_THREAD)
        case -3:
            return Conflict(append.thread_id, "the thread was deleted and made again; this is another log")
        case -4:
            return MissingBlob({digest.hex() for digest in missing}, thread_id=append.thread_id)
        case ends:
            return Conflict(append.thread_id, f"its log ends at frame {ends}, not {append.at}")


def _refs(appends: Sequence[Append]) -> list[tuple[int, bytes]]:
    """Return a pair for each ref (the digest of a blob that an append needs): the position of its append in `appends`,
    counted from 1, and the ref. The pairs are in the order in which all writers lock blobs: by namespace, then by
    digest."""
    refs = [(append.place[0], digest, owner) for owner, append in enumerate(appends, start=1) for digest in append.refs]
    return [(owner, digest) for _, digest, owner in sorted(refs)]
