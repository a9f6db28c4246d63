"""The documents of a store, to and from what they mean. Pure.

Bytes are base64 in JSON, so a third more on the wire and in the translog; the codec of the index takes that back on disk.
What is only searched by is cut to a size that an index takes, so a search may find too much: who asks looks again.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from blake3 import blake3

from clew.checkpointers.heads import Head, micros, thread_key
from clew.checkpointers.packed.format import Pack
from clew.errors import Corrupt

__all__ = [
    "HEAD",
    "LOG",
    "Log",
    "fold_title",
    "read_bytes",
    "read_head",
    "read_log",
    "tag_word",
    "thread_document",
    "word",
]

HEAD = "head"
"""The fields of a thread that hold its head."""
LOG = "head,contents,tail"
"""Those that hold all of it."""
_LONGEST = 2000
"""Characters of a value that are searched by: an index takes words of 32766 bytes."""
_LONGEST_TITLE = 8000
_SUM = 4


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    """What a thread's document says of its frames and refs."""

    packs: tuple[Pack, ...]
    sizes: tuple[int, ...]
    """Of the frames in the tail."""
    refs: bytes
    """Those in the tail, 32 bytes each."""
    sum: bytes
    """Of the tail."""
    rewritten: int
    """Bytes of tail written since the last pack was made."""


class Log(NamedTuple):
    """A thread as its document tells it."""

    state: tuple[int, int]
    """The sequence number and the primary term of the document: a write on condition of them is the commit."""
    log_id: str
    frames: int
    packs: tuple[Pack, ...]
    tail: list[bytes]
    refs: list[str]
    """Those in the tail."""
    rewritten: int

    @property
    def size(self) -> int:
        return sum(map(len, self.tail)) + 32 * len(self.refs) + 128 * len(self.packs) + 1024


def thread_document(
    ns: str,
    head: Head,
    encoded: bytes,
    packs: tuple[Pack, ...],
    tail: Sequence[bytes],
    refs: Sequence[str],
    rewritten: int,
) -> dict[str, Any]:
    """A thread's document: the head in fields to search by, and all of it sealed with its sum."""
    joined = b"".join(tail)
    sizes = tuple(map(len, tail))
    contents = _Contents(packs, sizes, b"".join(map(bytes.fromhex, refs)), blake3(joined).digest(16), rewritten)
    folded, cut = fold_title(head.title)
    document: dict[str, Any] = {
        "ns": ns,
        "key": thread_key(head.thread_id),
        "id": head.thread_id,
        "status": head.status,
        "agent": word(head.agent),
        "tags": [tag_word(name, value) for name, value in head.tags.items()],
        "title": head.title[:_LONGEST_TITLE],
        "folded": folded,
        "cut": cut,
        "updated": micros(head.updated_at),
        "created": micros(head.created_at),
        "head": _sealed(encoded),
        "contents": _sealed(_encode(contents)),
        "tail": joined,
    }
    if head.parent is not None:
        document["parent"] = word(head.parent[0])
    return document


def word(value: str) -> str:
    """A value as it is searched by: equal values have equal ones."""
    return value[:_LONGEST]


def tag_word(name: str, value: str) -> str:
    return word(f"{name}={value}")


def fold_title(title: str) -> tuple[str, bool]:
    """A title as text in it is searched for, and whether it goes on beyond that."""
    folded = title.casefold()
    return folded[:_LONGEST_TITLE], len(folded) > _LONGEST_TITLE


def read_head(source: Mapping[str, Any], key: str, where: str) -> Head:
    """The head in a thread's document, checked."""
    try:
        head = _decode_head(_unsealed(source, "head"))
    except (ValueError, msgspec.MsgspecError) as error:
        raise _damaged(key, where, f"its head: {error}") from error
    if thread_key(head.thread_id) != key:
        raise _damaged(key, where, "it is of another thread")
    return head


def read_log(state: tuple[int, int], source: Mapping[str, Any], key: str, where: str) -> tuple[Head, Log]:
    """All that a thread's document holds, checked."""
    head = read_head(source, key, where)
    try:
        contents = _decode_contents(_unsealed(source, "contents"))
        joined = read_bytes(source, "tail")
        if blake3(joined).digest(16) != contents.sum or len(joined) != sum(contents.sizes):
            raise ValueError("its newest frames fail their check")
        if sum(pack.frames for pack in contents.packs) + len(contents.sizes) != head.frames:
            raise ValueError("its head and its contents differ in the number of frames")
    except (ValueError, msgspec.MsgspecError) as error:
        raise _damaged(key, where, str(error)) from error
    tail, at = [], 0
    for size in contents.sizes:
        tail.append(joined[at : at + size])
        at += size
    refs = [contents.refs[at : at + 32].hex() for at in range(0, len(contents.refs), 32)]
    return head, Log(state, head.log_id, head.frames, contents.packs, tail, refs, contents.rewritten)


def read_bytes(source: Mapping[str, Any], field: str) -> bytes:
    """The bytes in a field; `ValueError` if they are not there."""
    value = source.get(field)
    if not isinstance(value, str):
        raise ValueError(f"it has no {field}")
    return binascii.a2b_base64(value, strict_mode=True)


def _sealed(data: bytes) -> bytes:
    return data + crc32(data).to_bytes(_SUM, "little")


def _unsealed(source: Mapping[str, Any], field: str) -> bytes:
    sealed = read_bytes(source, field)
    data = sealed[:-_SUM]
    if len(sealed) < _SUM or crc32(data).to_bytes(_SUM, "little") != sealed[-_SUM:]:
        raise ValueError(f"its {field} fails its check")
    return data


def _damaged(key: str, where: str, reason: str) -> Corrupt:
    return Corrupt(
        f"the document of the thread with the key {key} in {where} is damaged: {reason}. Restore it from a copy."
    )


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_contents = msgspec.msgpack.Decoder(_Contents).decode
