"""What a PostgreSQL store asks its server, beside appends."""

from __future__ import annotations

from clew.checkpointers._postgres_schema import BUCKET
from clew.checkpointers._postgres_values import (
    BYTES,
    BYTES_LIST,
    NUMBER,
    Statement,
    bytes_list,
    number,
)
from clew.checkpointers._sql_heads import MOST, tags_column, title_column
from clew.checkpointers.heads import HeadQuery, micros

__all__ = ["Statements"]


class Statements:
    """The statements of a store in this schema."""

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
            "SELECT h.head, h.thread_id FROM unnest($2) WITH ORDINALITY u (key, n) "
            "JOIN {schema}.clew_heads h ON h.ns = $1 AND h.key = u.key ORDER BY u.n",
            *(BYTES, BYTES_LIST),
        )
        self.refs = make(
            "SELECT string_agg(r.digest, '') FROM {schema}.clew_refs r "
            "JOIN {schema}.clew_heads h ON h.id = r.thread WHERE h.ns = $1 AND h.key = $2",
            *(BYTES, BYTES),
        )
        self.delete = make("SELECT {schema}.clew_delete($1, $2)", BYTES, BYTES)
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
        """The heads that a query with a limit lists, in order."""
        conditions, types, values = _conditions(namespace, query)
        sql = (
            f"SELECT head, thread_id FROM {self._heads} WHERE {conditions} "  # noqa: S608
            f"ORDER BY {_ORDER[query.order]} LIMIT ${len(types) + 1}"
        )
        return Statement(sql.encode(), (*types, NUMBER)), [*values, _limit(query)]

    def listed_keys(self, namespace: bytes, query: HeadQuery) -> tuple[Statement, list[bytes]]:
        """Only their keys, one after the other in one value: all of one moment, however many."""
        conditions, types, values = _conditions(namespace, query)
        sql = (
            f"SELECT string_agg(key, '' ORDER BY {_ORDER[query.order]}) FROM (SELECT * FROM {self._heads} "  # noqa: S608
            f"WHERE {conditions} ORDER BY {_ORDER[query.order]} LIMIT ${len(types) + 1}) found"
        )
        return Statement(sql.encode(), (*types, NUMBER)), [*values, _limit(query)]


_ORDER = {"updated": "bucket DESC, updated DESC, key DESC", "created": "created DESC, key DESC"}


def _limit(query: HeadQuery) -> bytes:
    return number(MOST if query.limit is None else min(query.limit, MOST))


def _conditions(namespace: bytes, query: HeadQuery) -> tuple[str, list[int], list[bytes]]:
    """What `HeadQuery.matches` decides, decided by the server."""
    where = ["ns = $1"]
    types = [BYTES]
    values = [namespace]

    def add(condition: str, *given: tuple[int, bytes]) -> None:
        names = [f"${len(types) + place}" for place in range(1, len(given) + 1)]
        where.append(condition.format(*names))
        types.extend(kind for kind, _ in given)
        values.extend(value for _, value in given)

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
