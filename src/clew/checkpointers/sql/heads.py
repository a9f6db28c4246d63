"""Turns heads (small summaries of threads) into columns of a database table, for every SQL store, and appends into
column values, for the SQL stores on a server.

Thread ids, log ids, agents and parents are stored as digests of a fixed length. So they fit an index, are never empty
(which Oracle takes for NULL) and differ whenever the text differs, whatever the collation. The text itself is in the
head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from zlib import crc32

import msgspec
from blake3 import blake3

from clew import advice
from clew.checkpointers.base import is_abandoned
from clew.checkpointers.checks import NO_THREAD
from clew.checkpointers.heads import Head, due_place, micros, thread_digest, unlisted
from clew.errors import ClewError, Conflict, Corrupt, MissingBlob

__all__ = [
    "UNLIMITED",
    "Append",
    "Listing",
    "after_prefix",
    "decode_head",
    "make_append",
    "refusal",
    "tags_column",
    "text_digest",
    "title_column",
    "with_sum",
]

UNLIMITED = 2**62
"""The number that stands for "no limit" in SQL. No log is so long, and no time in microseconds so late. A sum with this
number still fits into a 64-bit integer."""
_SUM = 4
_RESIDUE = 0x2144DF1C
"""The CRC-32 of any bytes to which their own CRC-32 was appended, little-endian: it is always this number. So a stored
head is checked with one call, and not copied for that."""
_decode = msgspec.msgpack.Decoder(Head).decode


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The arguments of one call of `Checkpointer.append` as values for SQL. Each frame, and each ref (digest of a
    blob), becomes a row of its own. The other fields select or fill the row of the thread's head, except for `id` (the
    thread's id as text) and `size` (the bytes of frames and head together), which are not stored."""

    id: str
    """The thread id as text, for errors."""
    space: bytes
    key: bytes
    log: bytes
    at: int
    frames: Sequence[bytes]
    refs: Sequence[bytes]
    """Digests of the blobs that the append needs, sorted, so that all appends lock blobs in the same order."""
    thread_id: bytes
    status: str
    agent: bytes
    parent: bytes | None
    created: int
    updated: int
    due: int | None
    """What `due_place` makes of the head: None unless the thread is in the queue of the workers."""
    title: bytes
    tags: bytes
    head: bytes
    """The whole head as msgpack, followed by its CRC-32, little-endian."""
    size: int
    """The number of bytes of the frames and the head together, in total."""
    is_abandoned: Callable[[], bool] | None = None
    """Returns whether nobody waits for the append any more; None if that cannot be known."""


def make_append(
    space: bytes, thread_id: str, frames: Sequence[bytes], at: int, head: Head, refs: Collection[str], encoded: bytes
) -> Append:
    """Convert the arguments of `Checkpointer.append` into values for SQL. `at` is the number of frames that the log
    must have before, `refs` are the digests of the blobs that the frames refer to, and `encoded` is the head as
    msgpack. `space` is the namespace in the form in which the store keeps it."""
    return Append(
        id=thread_id,
        space=space,
        key=thread_digest(thread_id),
        log=text_digest(head.log_id),
        at=at,
        frames=frames,
        refs=sorted({bytes.fromhex(digest) for digest in refs}) if refs else (),
        thread_id=thread_id.encode(),
        status=head.status,
        agent=text_digest(head.agent),
        parent=text_digest(head.parent[0]) if head.parent else None,
        created=micros(head.created_at),
        updated=micros(head.updated_at),
        due=due_place(head),
        title=title_column(head.title),
        tags=tags_column(head.tags),
        head=with_sum(encoded),
        size=sum(map(len, frames)) + len(encoded),
        is_abandoned=is_abandoned.get(),
    )


def title_column(title: str) -> bytes:
    """Return the value of the title column: the title in a form that is searched without regard to case."""
    return title.casefold().encode()


def tags_column(tags: dict[str, str]) -> bytes:
    """Return the value of the tags column: all tags in one value, in which tags are searched as substrings. Bytes that
    never occur in UTF-8 separate the tags, so a search finds whole tags only."""
    return b"".join([b"\xff%b\xfe%b\xff" % (name.encode(), value.encode()) for name, value in tags.items()])


def with_sum(encoded: bytes) -> bytes:
    """Return an encoded head with its CRC-32 appended: the form in which heads are stored."""
    return encoded + crc32(encoded).to_bytes(_SUM, "little")


def text_digest(text: str) -> bytes:
    """Return a 16-byte digest of this text, for columns that are only compared for equality. Digests of short texts are
    cached. Those of long texts are not, because the cache would take too much memory."""
    return _short_digest(text) if len(text) <= _SHORT else blake3(text.encode()).digest(16)


_SHORT = 256


@functools.lru_cache(4096)
def _short_digest(text: str) -> bytes:
    return blake3(text.encode()).digest(16)


def after_prefix(prefix: str) -> tuple[bytes, bytes]:
    """Return the range of all texts that start with this prefix, as two values in bytes. The range begins with the
    first value and ends just before the second. The prefix must not be empty."""
    encoded = prefix.encode()
    return encoded, encoded[:-1] + bytes([encoded[-1] + 1])  # UTF-8 has no byte FF


def refusal(append: Append, ends: int | None, *, same_log: bool, missing: Collection[bytes]) -> ClewError | None:
    """Return the error that this append must raise, or None if it may be written.

    `ends` is the number of frames that the log has now, or None if the thread does not exist. `same_log` is False if
    the thread was deleted and made again since the caller read it. `missing` are the digests of blobs that the append
    refers to and the store does not have. Call this only if the log does not already hold the append.
    """
    if ends is None:
        if append.at > 0 or not append.frames:
            return Conflict(append.id, NO_THREAD)
    elif not same_log:
        return Conflict(append.id, "the thread was deleted and made again; this is another log")
    elif ends != append.at:
        return Conflict(append.id, f"its log ends at frame {ends}, not {append.at}")
    return MissingBlob({digest.hex() for digest in missing}, thread_id=append.id) if missing else None


def decode_head(data: object, thread_id: str, where: str) -> Head:
    """Decode a stored head. Raises `Corrupt` if its checksum does not match or it cannot be decoded. The thread id and
    `where`, the name of the store, are for the error."""
    if not isinstance(data, bytes) or crc32(data) != _RESIDUE:
        raise _damage(thread_id, where, "fails its check")
    try:
        return _decode(data[:-_SUM])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damage(thread_id, where, f"does not decode: {error}") from error


def _damage(thread_id: str, where: str, what: str) -> Corrupt:
    return Corrupt(
        f"the head of thread {thread_id!r} in {where} {what}. Restore a copy, or save its log as a new thread: "
        f"{advice.repair(thread_id)}"
    )


class Listing:
    """Decodes the heads of a listing of threads. It skips damaged heads and remembers them, so that all sound heads are
    listed before `end` raises an error for the damaged ones."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._damaged: list[Corrupt] = []

    def sound(self, rows: Iterable[Sequence[object]]) -> Iterator[Head]:
        """Yield the heads of these rows, and skip the damaged ones, for which `end` raises an error later. Each row is
        a stored head and its thread id."""
        for data, thread_id in rows:
            try:
                yield decode_head(data, _text(thread_id), self._where)
            except Corrupt as error:
                self._damaged.append(error)

    def end(self) -> None:
        """Raise `Corrupt` if any head of the listing was damaged. Call it after the last row."""
        if self._damaged:
            raise unlisted(self._damaged)


def _text(thread_id: object) -> str:
    return thread_id.decode(errors="replace") if isinstance(thread_id, bytes) else str(thread_id)
