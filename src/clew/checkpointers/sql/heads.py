"""Heads as columns of a database, for all of them; and an append as rows, for those that keep text only as bytes.

Ids, logs, agents and parents are compared by digests of one length: so they fit an index, are never empty (which is NULL to
Oracle) and differ whenever a letter differs, whatever the collation. The text itself is in the head.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from zlib import crc32

import msgspec
from blake3 import blake3

from clew import advice
from clew.checkpointers.heads import Head, micros, thread_digest, unlisted
from clew.errors import ClewError, Conflict, Corrupt, MissingBlob

__all__ = [
    "MOST",
    "Append",
    "Listing",
    "after_prefix",
    "decode_head",
    "make_append",
    "mark",
    "refusal",
    "tags_column",
    "title_column",
    "with_sum",
]

MOST = 2**62
"""A number that a database's integers hold, with room to add and subtract, and that no log and no clock reaches."""
_SUM = 4
_decode = msgspec.msgpack.Decoder(Head).decode


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One append as the waist defines it, ready for SQL."""

    id: str
    """The thread's id; the rest are columns."""
    space: bytes
    key: bytes
    log: bytes
    at: int
    frames: Sequence[bytes]
    refs: Sequence[bytes]
    """In the order in which blobs are locked."""
    thread_id: bytes
    status: str
    agent: bytes
    parent: bytes | None
    created: int
    updated: int
    title: bytes
    tags: bytes
    head: bytes
    """The whole head: msgpack and its CRC-32, little-endian."""
    size: int
    """Bytes of the frames and the head."""


def make_append(
    space: bytes, thread_id: str, frames: Sequence[bytes], at: int, head: Head, refs: Collection[str], encoded: bytes
) -> Append:
    """`encoded` is the head as `check_append` returns it."""
    return Append(
        id=thread_id,
        space=space,
        key=thread_digest(thread_id),
        log=mark(head.log_id),
        at=at,
        frames=frames,
        refs=sorted({bytes.fromhex(digest) for digest in refs}) if refs else (),
        thread_id=thread_id.encode(),
        status=head.status,
        agent=mark(head.agent),
        parent=mark(head.parent[0]) if head.parent else None,
        created=micros(head.created_at),
        updated=micros(head.updated_at),
        title=title_column(head.title),
        tags=tags_column(head.tags),
        head=with_sum(encoded),
        size=sum(map(len, frames)) + len(encoded),
    )


def title_column(title: str) -> bytes:
    """A title as it is searched."""
    return title.casefold().encode()


def tags_column(tags: dict[str, str]) -> bytes:
    """Tags as they are searched: between bytes that UTF-8 never has, so that each is found as a whole or not at all."""
    return b"".join([b"\xff%b\xfe%b\xff" % (name.encode(), value.encode()) for name, value in tags.items()])


def with_sum(encoded: bytes) -> bytes:
    """A head as it is kept: its msgpack, and the CRC-32 of that."""
    return encoded + crc32(encoded).to_bytes(_SUM, "little")


@functools.lru_cache(4096)
def mark(text: str) -> bytes:
    """What stands for this text where it is only compared."""
    return blake3(text.encode()).digest(16)


def after_prefix(prefix: str) -> tuple[bytes, bytes]:
    """Texts that start with this prefix are at or after the first of these, and before the second."""
    encoded = prefix.encode()
    return encoded, encoded[:-1] + bytes([encoded[-1] + 1])  # UTF-8 has no byte FF


def refusal(append: Append, ends: int | None, *, same_log: bool, missing: Collection[bytes]) -> ClewError | None:
    """Why nothing of this append may be written to a log that ends here; None if all of it may. `ends` is None where there
    is no such log. Whether it is there already is for the caller to find out first."""
    if ends is None:
        if append.at > 0 or not append.frames:
            return Conflict(append.id, f"there is no such log to go on from frame {append.at}")
    elif not same_log:
        return Conflict(append.id, "the thread was deleted and made again; this is another log")
    elif ends != append.at:
        return Conflict(append.id, f"its log ends at frame {ends}, not {append.at}")
    return MissingBlob({digest.hex() for digest in missing}, thread_id=append.id) if missing else None


def decode_head(data: object, thread_id: str, where: str) -> Head:
    """Decode a stored head. Raises `Corrupt` unless it is bytes with a matching checksum."""
    whose, way_out = f"thread {thread_id!r}", f"{_WAY_OUT} {advice.repair(thread_id)}"
    if not isinstance(data, bytes) or with_sum(encoded := data[:-_SUM]) != data:
        raise Corrupt(f"the head of {whose} in {where} fails its check. {way_out}")
    try:
        return _decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the head of {whose} in {where} does not decode: {error}. {way_out}") from error


_WAY_OUT = "Restore a copy, or save its log as a new thread:"


class Listing:
    """Decodes the heads of a listing. Damaged ones are no reason to hide the others: `end` names them, once those have
    come."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._damaged: list[Corrupt] = []

    def sound(self, rows: Iterable[Sequence[object]]) -> Iterator[Head]:
        """The heads of rows of a head and the id of its thread, but for the damaged ones."""
        for data, thread_id in rows:
            try:
                yield decode_head(data, _text(thread_id), self._where)
            except Corrupt as error:
                self._damaged.append(error)

    def end(self) -> None:
        if self._damaged:
            raise unlisted(self._damaged)


def _text(thread_id: object) -> str:
    return thread_id.decode(errors="replace") if isinstance(thread_id, bytes) else str(thread_id)
