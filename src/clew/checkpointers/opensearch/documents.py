"""Encodes and decodes the documents of threads in OpenSearch. No requests are made here.

Bytes are base64 in JSON, which takes a third more space on the wire and in the translog (the write-ahead log of the
cluster); on disk, compression removes that. Fields that are only searched are cut to a size that an index accepts. So a
search may also find threads that do not match, and the caller checks each result.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import msgspec

from clew.checkpointers.heads import Head, due_place, micros, thread_key
from clew.checkpointers.packed.log import Log, Tail
from clew.checkpointers.packed.packs import Index, checksum, split_frames, split_refs
from clew.errors import Corrupt

__all__ = [
    "HEAD",
    "LOG",
    "State",
    "fold_title",
    "read_bytes",
    "read_head",
    "read_log",
    "tag_word",
    "thread_document",
    "word",
]

HEAD = "head"
"""The field of a thread's document that holds its head."""
LOG = "head,contents,tail"
"""The fields of a thread's document that hold its head, the list of its packs, and its newest frames."""
State = tuple[int, int]
"""The sequence number and the primary term of a document, which change with every write. A write can be made on
condition that they have not changed."""
_LONGEST = 2000
"""The most characters of an agent's name, a tag or a parent's id that can be searched. An index accepts words of up to
32766 bytes."""
_LONGEST_TITLE = 8000
"""The most characters of a title that can be searched."""
_SUM = 4


def thread_document(ns: str, head: Head, encoded: bytes, tail: Tail) -> dict[str, Any]:
    """Build a thread's document: fields of the head for searches, the whole head with its CRC-32, the list of packs
    (stored groups of older frames), and the newest frames. `encoded` is the head as msgpack; `tail` has the list of
    packs and the frames that are not in a pack. `ns` identifies the namespace."""
    joined = b"".join(tail.frames)
    sizes = tuple(map(len, tail.frames))
    refs = b"".join(map(bytes.fromhex, tail.refs))
    contents = Index(tail.packs, sizes, refs, checksum(joined), tail.rewritten)
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
    if head.due is not None:
        document["due"] = due_place(head)
    if head.parent is not None:
        document["parent"] = word(head.parent[0])
    return document


def word(value: str) -> str:
    """Return a value as the index holds it for searches: its first 2000 characters at most. Different long values may
    give the same result."""
    return value[:_LONGEST]


def tag_word(name: str, value: str) -> str:
    return word(f"{name}={value}")


def fold_title(title: str) -> tuple[str, bool]:
    """Return a title as the index holds it for searches: casefolded, and its first 8000 characters at most. The second
    value returned is True if it was cut."""
    folded = title.casefold()
    return folded[:_LONGEST_TITLE], len(folded) > _LONGEST_TITLE


def read_head(source: Mapping[str, Any], key: str, where: str) -> Head:
    """Decode and check the head in a thread's document. `source` has the document's fields, `key` is the hash of the
    thread's id, and `where` names the store in errors. Raises `Corrupt` if the head is damaged or of another thread."""
    try:
        head = _decode_head(_unsealed(source, "head"))
    except (ValueError, msgspec.MsgspecError) as error:
        raise _damaged(key, where, f"its head: {error}") from error
    if thread_key(head.thread_id) != key:
        raise _damaged(key, where, "it is of another thread")
    return head


def read_log(state: State, source: Mapping[str, Any], key: str, where: str) -> Log[State]:
    """Decode and check a thread's whole document. Returns a `Log`: the newest frames, and the list of the packs (stored
    groups of older frames). `state` is the document's sequence number and primary term, `source` has its fields, `key`
    is the hash of the thread's id, and `where` names the store in errors. Raises `Corrupt` if the document is
    damaged."""
    head = read_head(source, key, where)
    try:
        contents = _decode_contents(_unsealed(source, "contents"))
        joined = read_bytes(source, "tail")
        if checksum(joined) != contents.sum or len(joined) != sum(contents.sizes):
            raise ValueError("its newest frames fail their check")
        if sum(pack.frames for pack in contents.packs) + len(contents.sizes) != head.frames:
            raise ValueError("its head and its contents differ in the number of frames")
    except (ValueError, msgspec.MsgspecError) as error:
        raise _damaged(key, where, str(error)) from error
    tail = Tail(contents.packs, split_frames(joined, contents.sizes), split_refs(contents.refs), contents.rewritten)
    return Log(state, head.log_id, head.frames, tail)


def read_bytes(source: Mapping[str, Any], field: str) -> bytes:
    """Decode the base64 text in a field of a document, and return the bytes. Raises `ValueError` if the field is
    missing or not base64."""
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
_decode_contents = msgspec.msgpack.Decoder(Index).decode
