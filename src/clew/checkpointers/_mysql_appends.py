"""How appends are written: as a rule one round trip for all that are waiting, each with its condition in the statement.

An ordinary append is an INSERT or an UPDATE that finds a row only where the log ends at the right frame and leaves its id in
LAST_INSERT_ID(); then come INSERTs of frames that do nothing if there is no id. So the server decides, and nothing has to be
asked first. An append that found no row, and one with refs or much data, is looked into with the thread's row locked.

A server whose client is gone may go on with the statements it has, up to the COMMIT. So none of them may depend on what was
sent to the client: ROW_COUNT() does, it is -1 after an answer that could not be sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from clew.checkpointers._mysql_statements import Statements
from clew.checkpointers._mysql_wire import Connection, fill, literal
from clew.checkpointers._sql_heads import Append, refusal
from clew.errors import ClewError

__all__ = ["write"]

MAX_FRAMES, MAX_BYTES = 16, 2**18
"""What an ordinary append has at most."""
PACKET = 2**20
"""About how many bytes of frames go in one packet, where each alone is smaller."""

_COLUMNS = ("frames", "created", "updated", "thread_id", "status", "agent", "parent", "title", "tags", "head")
_INSERT = f"INTO %bheads (space, thread_key, log, {', '.join(_COLUMNS)}) VALUES ({', '.join(['%b'] * 13)})".encode()
_UPDATE = (
    f"UPDATE %bheads SET id = LAST_INSERT_ID(id), {', '.join(f'{name} = %b' for name in _COLUMNS)} "  # noqa: S608
    "WHERE space = %b AND thread_key = %b AND log = %b AND frames = %b"
).encode()
_NO_ID = b"DO LAST_INSERT_ID(0)"
_FRAME = b"INSERT INTO %bframes SELECT LAST_INSERT_ID(), %d, %b FROM DUAL WHERE LAST_INSERT_ID() > 0"


async def write(connection: Connection, prefix: bytes, appends: Sequence[Append]) -> list[ClewError | None]:
    """Write these, which are of different threads and in the order in which all processes lock them; for each, None or the
    reason why nothing of it was written."""
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
    """Lock the blobs it names and its thread, look, and write."""
    statements = Statements(prefix.decode(), append.space)
    look = b"SELECT id, log, frames FROM %bheads WHERE space = %b AND thread_key = %b FOR UPDATE"
    found = await connection.run(
        b"BEGIN",
        *[statements.lock(part) for part in _parts(append.refs)],
        *[statements.touch(part) for part in _parts(append.refs)],
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
    for packet in _packets([head, *_frames(prefix, append), *_refs(prefix, append), b"COMMIT"]):
        await connection.run(*packet)
    return None


async def _is_there(connection: Connection, prefix: bytes, thread: int, append: Append) -> bool:
    """Whether the log holds these very frames. The server compares digests, so that no frame has to come here."""
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
    rows: list[bytes] = []
    size = 0
    for number, frame in enumerate(append.frames, start=append.at):
        if rows and size + len(frame) > PACKET:
            yield b"INSERT INTO %bframes VALUES %b" % (prefix, b",".join(rows))
            rows, size = [], 0
        rows.append(fill(b"(LAST_INSERT_ID(),%b,%b)", number, frame))
        size += len(frame)
    if rows:
        yield b"INSERT INTO %bframes VALUES %b" % (prefix, b",".join(rows))


def _refs(prefix: bytes, append: Append) -> Iterator[bytes]:
    for part in _parts(append.refs):
        rows = b",".join([b"(LAST_INSERT_ID(),%b)" % literal(digest) for digest in part])
        yield b"INSERT IGNORE INTO %brefs VALUES %b" % (prefix, rows)


def _packets(statements: Sequence[bytes]) -> Iterator[list[bytes]]:
    """As few packets as hold these, none larger than it must be."""
    packet: list[bytes] = []
    for statement in statements:
        if packet and sum(map(len, packet)) + len(statement) > PACKET:
            yield packet
            packet = []
        packet.append(statement)
    yield packet


def _parts(digests: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [digests[start : start + 1000] for start in range(0, len(digests), 1000)]
