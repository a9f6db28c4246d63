"""What the statements of the PostgreSQL store do, written in Python: a model of the SQL in `schema.py` and `statements.py`.

The model knows the statements by their text. If that SQL changes, `PINNED` no longer matches, and the simulation stops until
somebody has brought the model up to date. The contract of all stores runs on the model too (`test_model.py`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from blake3 import blake3

from clew.checkpointers.postgres.schema import BUCKET, DETAILS, VERSION, lock_and_create
from clew.checkpointers.postgres.statements import AppendStatements, Statements
from clew.checkpointers.postgres.values import number_list, numbers_of
from tests.simulation.postgres.tables import Refused, Row, Tables, Transaction

__all__ = ["PINNED", "SCHEMA", "Rows", "answer", "fingerprint"]

SCHEMA = "clew"
PINNED = "72ad2c363430f0664b0e0744b2e3dd78"
"""The digest of all SQL that this module models. Change it only together with the model."""

Values = Sequence[bytes | None]
Rows = list[list[bytes | None]]
Now = Callable[[], int]
"""The server's clock, in microseconds since 1970."""

_VERSION = 170002
_KNOWN = Statements(SCHEMA)
_FUNCTION = re.compile(rf'SELECT "{SCHEMA}"\.(clew_\w+)\(')
_LISTING = re.compile(
    rf'SELECT head, thread_id FROM "{SCHEMA}"\.clew_heads WHERE (?P<where>.+) ORDER BY (?P<order>.+) LIMIT \$(?P<limit>\d+)'
)
_KEYS = re.compile(
    rf"SELECT string_agg\(key, '' ORDER BY .+\) FROM \(SELECT \* FROM \"{SCHEMA}\"\.clew_heads "
    r"WHERE (?P<where>.+) ORDER BY (?P<order>.+) LIMIT \$(?P<limit>\d+)\) found"
)


def fingerprint() -> str:
    """Return the digest of the SQL that this module models, as it is now."""
    fixed = [value.sql for value in vars(_KNOWN).values() if not isinstance(value, str)]
    appends = [value.sql for value in vars(AppendStatements(SCHEMA)).values()]
    return blake3(b"\0".join([lock_and_create(SCHEMA).encode(), *fixed, *appends])).hexdigest(16)


async def answer(tables: Tables, sql: bytes, values: Values, now: Now, step: Callable[[], Awaitable[None]]) -> Rows:
    """Run one statement in a transaction of its own, and return its rows. `step` is awaited where the server may lose time.
    Raises `Refused` for an error, after the transaction was rolled back."""
    if not tables.exists or sql == lock_and_create(SCHEMA).encode():
        return _prepare(tables, sql)
    if (call := _FUNCTION.match(sql.decode())) is None:
        await step()
        return _select(tables, sql.decode(), values, now)
    transaction = Transaction(tables)
    try:
        rows = await _FUNCTIONS[call[1]](_Call(transaction, now, step), values)
        await step()
        transaction.commit()
    finally:
        transaction.rollback()
    return rows


def _prepare(tables: Tables, sql: bytes) -> Rows:
    if sql == lock_and_create(SCHEMA).encode():
        tables.exists = True
        return []
    if sql == DETAILS.format(schema=SCHEMA).encode():
        return [[b"\0", b"\1", _number(_VERSION)]]
    raise Refused("42P01", f"the tables do not exist: {sql.decode()[:60]}")


# Statements that only read: each sees one moment


def _select(tables: Tables, sql: str, values: Values, now: Now) -> Rows:
    if sql == DETAILS.format(schema=SCHEMA):
        return [[b"\1", b"\1", _number(_VERSION)]]
    if sql == f'SELECT max(version)::bigint FROM "{SCHEMA}".clew_meta':
        return [[_number(VERSION)]]
    if (listing := _LISTING.fullmatch(sql)) is not None:
        return [[row["head"], row["thread_id"]] for row in _found(tables, listing, values)]
    if (listing := _KEYS.fullmatch(sql)) is not None:
        return [[b"".join(row["key"] for row in _found(tables, listing, values)) or None]]
    return _SELECTS[sql](tables, values, now)


def _read(tables: Tables, values: Values, now: Now) -> Rows:
    head = tables.rows.get(("heads", (values[0], values[1])))
    if head is None:
        return []
    fixed = [_number(head["id"]), _number(head["frames"])]
    frames = tables.rows.get(("frames", head["id"]), {"data": {}})["data"]
    first, last = _int(values[2]), _int(values[3])
    return [[*fixed, frames[place]] for place in sorted(frames) if first <= place < last] or [[*fixed, None]]


def _head(tables: Tables, values: Values, now: Now) -> Rows:
    head = tables.rows.get(("heads", (values[0], values[1])))
    return [] if head is None else [[head["head"]]]


def _heads(tables: Tables, values: Values, now: Now) -> Rows:
    found = [tables.rows.get(("heads", (values[0], key))) for key in _list(values[1])]
    return [[head["head"], head["thread_id"]] for head in found if head is not None]


def _refs(tables: Tables, values: Values, now: Now) -> Rows:
    head = tables.rows.get(("heads", (values[0], values[1])))
    refs = tables.rows.get(("refs", head["id"])) if head is not None else None
    return [[b"".join(sorted(refs["digests"])) if refs else None]]


def _version(tables: Tables, values: Values, now: Now) -> Rows:
    head = tables.rows.get(("heads", (values[0], values[1])))
    return [] if head is None else [[_number(head["id"]), head["head"]]]


def _get(tables: Tables, values: Values, now: Now) -> Rows:
    found = [tables.rows.get(("blobs", (values[0], digest))) for digest in _list(values[1])]
    return [[blob["digest"], blob["data"]] for blob in found if blob is not None]


def _untouched(tables: Tables, values: Values, now: Now) -> Rows:
    before = now() - _int(values[2])
    found = sorted(
        row["digest"]
        for row in tables.of("blobs")
        if row["ns"] == values[0] and row["digest"] > (values[1] or b"") and row["touched"] <= before
    )
    return [[digest] for digest in found[: _int(values[3])]]


_SELECTS: dict[str, Callable[[Tables, Values, Now], Rows]] = {
    _KNOWN.read.sql.decode(): _read,
    _KNOWN.head.sql.decode(): _head,
    _KNOWN.heads.sql.decode(): _heads,
    _KNOWN.refs.sql.decode(): _refs,
    _KNOWN.get.sql.decode(): _get,
    _KNOWN.version.sql.decode(): _version,
    _KNOWN.untouched.sql.decode(): _untouched,
}


def _found(tables: Tables, listing: re.Match[str], values: Values) -> list[Row]:
    """Return the heads that a listing selects, in its order, up to its limit."""
    columns = [part.split()[0] for part in listing["order"].split(", ")]
    tests = [_test(condition, values) for condition in listing["where"].split(" AND ")]
    found = [row for row in tables.of("heads") if all(test(row) for test in tests)]
    found.sort(key=lambda row: [row[column] for column in columns], reverse=True)
    return found[: _int(values[int(listing["limit"]) - 1])]


def _test(condition: str, values: Values) -> Callable[[Row], bool]:
    """Return one condition of a listing's WHERE clause as a function of a row."""

    def given(place: str) -> Any:
        return values[int(place.lstrip("$")) - 1] or b""

    if condition == "due IS NOT NULL":
        return lambda row: row["due"] is not None
    match condition.replace("(", " ").replace(")", " ").replace(",", " ").split():
        case [column, "=", "ANY", place]:
            allowed = _list(given(place))
            return lambda row: row[column] in allowed
        case ["position", place, "IN", column, ">", "0"]:
            return lambda row: given(place) in row[column]
        case [first, second, "<", one, other]:
            limit = _int(given(one)), given(other)
            return lambda row: (row[first], row[second]) < limit
        case [column, sign, place]:
            compare = {"=": "__eq__", "<": "__lt__", "<=": "__le__", ">=": "__ge__"}[sign]
            value = _int(given(place)) if column in ("updated", "bucket") else given(place)
            return lambda row: row[column] is not None and getattr(row[column], compare)(value)
    raise AssertionError(f"the simulated server does not know this condition: {condition}")


# Functions: each is one transaction


class _Call:
    """A call of an SQL function: its transaction, the server's clock, and `step`, which is awaited between statements."""

    def __init__(self, transaction: Transaction, now: Now, step: Callable[[], Awaitable[None]]) -> None:
        self.transaction = transaction
        self.now = now
        self.step = step


async def _touch(call: _Call, spaces: Sequence[bytes], digests: Sequence[bytes]) -> list[int]:
    """Return the positions, from 1, of the blobs that do not exist. The others are touched."""
    now, missing = call.now(), []
    for place, key in enumerate(zip(spaces, digests, strict=True), start=1):
        touched = await call.transaction.change("blobs", key, lambda row: True, lambda row: {**row, "touched": now})
        if touched is None:
            missing.append(place)
    return missing


async def _clew_touch(call: _Call, values: Values) -> Rows:
    return [[number_list(await _touch(call, _list(values[0]), _list(values[1])))]]


async def _clew_delete(call: _Call, values: Values) -> Rows:
    ns, key, *version = values

    def is_seen(row: Row) -> bool:
        if not version:  # a deletion as older versions of Clew make it
            return True
        return row["id"] == _int(version[0]) and version[1] in (None, row["head"])

    old = await call.transaction.change("heads", (ns, key), is_seen, lambda row: None)
    if old is None:
        return []
    await call.step()
    call.transaction.put("refs", old["id"], None)
    call.transaction.put("frames", old["id"], None)
    return [[b""]]


async def _clew_put(call: _Call, values: Values) -> Rows:
    now = call.now()
    for digest, data in zip(_list(values[1]), _list(values[2]), strict=True):
        key = values[0], digest
        row = {"ns": values[0], "digest": digest, "data": data, "touched": now}
        there = await call.transaction.insert("blobs", key, row)
        if there is not None:
            call.transaction.put("blobs", key, {**there, "touched": now})
    return [[b""]]


async def _clew_sweep(call: _Call, values: Values) -> Rows:
    before = call.now() - _int(values[2])
    for digest in _list(values[1]):
        await call.transaction.change(
            "blobs", (values[0], digest), lambda row: row["touched"] <= before, lambda row: None
        )
    return [[b""]]


async def _clew_append_one(call: _Call, values: Values) -> Rows:
    ns, key, log, at, *columns, frame = values
    row = _columns(ns, key, log, *columns)
    old = await _advance(call, row, _int(at), 1)
    if old is None:
        return await _append(call, [(row, _int(at), [frame or b""])], [], [])
    await call.step()
    _add_frames(call, old["id"], _int(at), [frame or b""])
    return [[None]]


async def _clew_append(call: _Call, values: Values) -> Rows:
    counts, frames = numbers_of(values[4] or b""), _list(values[15])
    rows = [
        _columns(*one)
        for one in zip(
            *(_list(value) for value in values[:3]),
            *(_list(value) for value in values[5:9]),
            *(_list(value) for value in values[9:15]),
            strict=True,
        )
    ]
    appends, first = [], 0
    for row, at, count in zip(rows, numbers_of(values[3] or b""), counts, strict=True):
        appends.append((row, at, frames[first : first + count]))
        first += count
    return await _append(call, appends, numbers_of(values[16] or b""), _list(values[17]))


async def _append(
    call: _Call, appends: list[tuple[Row, int, list[bytes]]], owners: list[int], refs: list[bytes]
) -> Rows:
    missing = await _touch(call, [appends[owner - 1][0]["ns"] for owner in owners], refs) if refs else []
    lacking = {owners[place - 1] for place in missing}
    outcomes = []
    for place, (row, at, frames) in enumerate(appends, start=1):
        await call.step()
        thread, outcome = await _write(call, row, at, frames, place in lacking)
        if thread is not None:
            _add_frames(call, thread, at, frames)
            mine = {digest for owner, digest in zip(owners, refs, strict=True) if owner == place}
            if mine:
                old = call.transaction.get("refs", thread)
                call.transaction.put("refs", thread, {"digests": mine | (old["digests"] if old else set())})
        outcomes.append(outcome)
    refused = any(outcome != -1 for outcome in outcomes)
    return [[number_list(outcomes + missing) if refused else None]]


async def _write(call: _Call, row: Row, at: int, frames: list[bytes], lacks: bool) -> tuple[int | None, int]:
    """Write the head of one append. Returns the id of its thread if it was written, else None, and the outcome code."""
    key = row["ns"], row["key"]
    while True:
        if not lacks and (old := await _advance(call, row, at, len(frames))) is not None:
            return old["id"], -1
        await call.step()
        head = call.transaction.get("heads", key)
        if head is None:
            if at > 0 or not frames:
                return None, -2
            if lacks:
                return None, -4
            if await call.transaction.insert("heads", key, {**row, "frames": len(frames)}) is None:
                made = call.transaction.get("heads", key)
                assert made is not None
                return made["id"], -1
        elif head["log_id"] != row["log_id"]:
            return None, -3
        elif head["frames"] != at:
            there = call.transaction.get("frames", head["id"]) or {"data": {}}
            same = [there["data"].get(at + place) == frame for place, frame in enumerate(frames)]
            is_held = bool(frames) and at + len(frames) <= head["frames"] and all(same)
            return None, -1 if is_held else head["frames"]
        elif lacks:
            return None, -4


async def _advance(call: _Call, row: Row, at: int, count: int) -> Row | None:
    """Replace the head of an append if its log ends at `at`. Returns the old head, or None if it was not replaced."""
    return await call.transaction.change(
        "heads",
        (row["ns"], row["key"]),
        lambda old: bool(old["log_id"] == row["log_id"] and old["frames"] == at),
        lambda old: {**old, **row, "thread_id": old["thread_id"], "frames": at + count},
    )


def _add_frames(call: _Call, thread: int, at: int, frames: list[bytes]) -> None:
    there = call.transaction.get("frames", thread) or {"data": {}}
    new = {at + place: frame for place, frame in enumerate(frames)}
    if new.keys() & there["data"].keys():
        raise Refused("23505", "duplicate key value violates unique constraint")
    call.transaction.put("frames", thread, {"data": there["data"] | new})


def _columns(*values: bytes | None) -> Row:
    names = (
        *("ns", "key", "log_id", "thread_id", "status", "agent"),
        *("parent", "created", "updated", "due", "title", "tags", "head"),
    )
    row: Row = dict(zip(names, values, strict=True))
    row["created"], row["updated"] = _int(row["created"]), _int(row["updated"])
    row["due"] = None if row["due"] is None else _int(row["due"])
    row["bucket"] = row["updated"] >> BUCKET
    return row


_FUNCTIONS: dict[str, Callable[[_Call, Values], Awaitable[Rows]]] = {
    "clew_append": _clew_append,
    "clew_append_one": _clew_append_one,
    "clew_delete": _clew_delete,
    "clew_put": _clew_put,
    "clew_sweep": _clew_sweep,
    "clew_touch": _clew_touch,
}


# Values in PostgreSQL's binary format


def _number(value: int) -> bytes:
    return struct.pack(">q", value)


def _int(value: bytes | None) -> int:
    return int.from_bytes(value or b"", signed=True)


def _list(value: bytes | None) -> list[Any]:
    """Decode a bytea[] of one dimension. An element may be None."""
    value = value or b""
    dimensions = struct.unpack_from(">i", value)[0]
    found: list[bytes | None] = []
    place = 20
    for _ in range(struct.unpack_from(">i", value, 12)[0] if dimensions else 0):
        (length,) = struct.unpack_from(">i", value, place)
        place += 4
        found.append(None if length < 0 else value[place : place + length])
        place += max(length, 0)
    return found
