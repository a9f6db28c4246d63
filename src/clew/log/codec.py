"""Frames: entries as bytes, and back. docs/format.md describes the layout byte by byte.

version 1 | flags 1 | nonce 12 | predecessor's digest 16 | payload … | own digest 16
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from blake3 import blake3

from clew.errors import ClewError, Corrupt, InvalidInput, NewerFormat
from clew.log import compression
from clew.log.blobs import SPILL_OVER, find_refs, may_spill, pack_blob, restore, spill, unpack_blob
from clew.log.checkpoint import FoldedState
from clew.log.entries import Compacted, Entry, KnownEntry, MessageAdded, UnknownEntry
from clew.messages import Block

__all__ = [
    "DIGEST_SIZE",
    "FIRST",
    "VERSION",
    "EncodedFrame",
    "Frame",
    "Logged",
    "decode_frame",
    "decode_frames",
    "encode_entry",
    "encode_frame",
]

VERSION = 1
DIGEST_SIZE = 16
FIRST = bytes(DIGEST_SIZE)
"""The predecessor's digest of a log's first frame."""

_HEADER = struct.Struct("<BB12s16s")
_SMALLEST = _HEADER.size + DIGEST_SIZE
_COMPRESSED, _REFERS, _BODY_IN_BLOB = 1, 2, 4
_KNOWN_FLAGS = _COMPRESSED | _REFERS | _BODY_IN_BLOB
_LARGEST = 4 * 2**20 - 4096  # below a store's limit; a larger body goes to a blob
_KEPT = (bytes, bytearray, memoryview, datetime)  # what msgpack says itself

Logged = Entry | FoldedState
"""What a log holds."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[KnownEntry | FoldedState]]).decode
_decode_raw = msgspec.msgpack.Decoder(tuple[int, list[msgspec.Raw]]).decode


class EncodedFrame(msgspec.Struct, frozen=True):
    """A frame ready to be appended, and the blobs that must be put before it."""

    data: bytes
    digest: bytes
    blobs: dict[str, bytes]


class Frame(msgspec.Struct, frozen=True):
    """A frame that passed its check. While it misses blobs it has no entries yet."""

    previous: bytes
    digest: bytes
    time: int
    """When it was written, microseconds since 1970."""
    entries: list[Logged]
    refs: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()


def encode_entry(entry: Logged) -> msgspec.Raw:
    """One entry ready for a frame; here, before anything else is touched, a value that cannot be stored is refused."""
    try:
        return msgspec.Raw(entry.raw if type(entry) is UnknownEntry else _encode(entry))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{type(entry).__name__} holds a value that cannot be stored: {error}") from error


def encode_frame(
    entries: Sequence[msgspec.Raw], *, previous: bytes, nonce: bytes | None = None, now: int | None = None
) -> EncodedFrame:
    """These encoded entries as one frame after the one with this digest. The nonce makes every frame different."""
    flags = 0
    blobs: dict[str, bytes] = {}
    moment = time.time_ns() // 1000 if now is None else now
    body = _encode((moment, entries))
    if len(body) > SPILL_OVER and may_spill(body):
        small = spill(msgspec.msgpack.decode(body), blobs)
        if blobs:
            flags |= _REFERS
            body = _encode(small)
    payload = compression.framed.compress(body)
    if len(payload) < len(body):
        flags |= _COMPRESSED
    else:
        payload = body
    if len(payload) > _LARGEST:
        digest, packed = pack_blob(body)
        blobs[digest] = packed
        payload = bytes.fromhex(digest)
        flags = flags & ~_COMPRESSED | _BODY_IN_BLOB
    data = _HEADER.pack(VERSION, flags, os.urandom(12) if nonce is None else nonce, previous) + payload
    own = blake3(data).digest(DIGEST_SIZE)
    return EncodedFrame(data + own, own, blobs)


def decode_frame(data: bytes, thread_id: str, number: int, blobs: Mapping[str, bytes] | None = None) -> Frame:
    """The entries of a frame. If it misses blobs, fetch those and call again with all that it refers to."""
    _check(data, thread_id, number)
    body = data[_HEADER.size : -DIGEST_SIZE]
    if data[1] & _COMPRESSED:
        body = compression.framed.decompress(body, _name(thread_id, number))
    return _read(data, body, thread_id, number, {} if blobs is None else blobs)


def decode_frames(frames: Sequence[bytes], thread_id: str, start: int = 0) -> list[Frame]:
    """A stretch of a log at once, from frame `start` on: decompressed on all cores."""
    bodies: list[bytes | memoryview] = []
    squeezed: list[int] = []
    for place, data in enumerate(frames):
        _check(data, thread_id, start + place)
        bodies.append(data[_HEADER.size : -DIGEST_SIZE])
        if data[1] & _COMPRESSED:
            squeezed.append(place)
    whole = compression.framed.decompress_all(
        [bodies[place] for place in squeezed], lambda found: _name(thread_id, start + squeezed[found])
    )
    for place, body in zip(squeezed, whole, strict=True):
        bodies[place] = body
    return [_read(frames[place], body, thread_id, start + place, {}) for place, body in enumerate(bodies)]


def _name(thread_id: str, number: int) -> str:
    return f"thread {thread_id!r}, frame {number}"


def _check(data: bytes, thread_id: str, number: int) -> None:
    """Refuse bytes that are not as they were written, or that this version cannot read."""
    sound = (
        len(data) >= _SMALLEST
        and data[0] == VERSION
        and not data[1] & ~_KNOWN_FLAGS
        and blake3(data[:-DIGEST_SIZE]).digest(DIGEST_SIZE) == data[-DIGEST_SIZE:]
    )
    if not sound:
        raise _newer_or_corrupt(data, _name(thread_id, number))


def _read(data: bytes, body: bytes | memoryview, thread_id: str, number: int, blobs: Mapping[str, bytes]) -> Frame:
    """What a frame that passed its check says, given its body as it was before compression."""
    flags, previous, own = data[1], data[14:30], data[-DIGEST_SIZE:]
    try:
        if not flags & (_BODY_IN_BLOB | _REFERS):
            return Frame(previous, own, *_decode_entries(body))
        refs: set[str] = set()
        if flags & _BODY_IN_BLOB:
            digest = bytes(body).hex()
            refs.add(digest)
            if digest not in blobs:
                return Frame(previous, own, 0, [], frozenset(refs), frozenset(refs))
            body = unpack_blob(digest, blobs[digest])
        if flags & _REFERS:
            tree = msgspec.msgpack.decode(body)
            refs |= find_refs(tree)
            if missing := refs - blobs.keys():
                return Frame(previous, own, 0, [], frozenset(refs), frozenset(missing))
            body = _encode(restore(tree, blobs))
        return Frame(previous, own, *_decode_entries(body), frozenset(refs))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        name = _name(thread_id, number)
        raise Corrupt(f"{name} passes its check and still cannot be read ({error}). Report this as a bug.") from error


def _newer_or_corrupt(data: bytes, what: str) -> ClewError:
    """A frame of a newer format says so in its first two bytes, and its last ones prove that it is whole."""
    whole = len(data) > DIGEST_SIZE and blake3(data[:-DIGEST_SIZE]).digest(DIGEST_SIZE) == data[-DIGEST_SIZE:]
    if whole and data[0] > VERSION:
        return NewerFormat(what, data[0], VERSION)
    if whole and data[0] == VERSION:
        return NewerFormat(f"{what} (flags {data[1]:#x})", VERSION + 1, VERSION)
    return Corrupt(f"{what} fails its check: its bytes have changed since they were written. Restore it from a copy.")


def _decode_entries(body: bytes | memoryview) -> tuple[int, list[Logged]]:
    """All entries at once; one by one only if a kind among them is not known here."""
    try:
        moment, known = _decode(body)
        return moment, cast(list[Logged], known)
    except msgspec.ValidationError:
        moment, raws = _decode_raw(body)
        return moment, [_decode_one(bytes(raw)) for raw in raws]


_decode_known = msgspec.msgpack.Decoder(KnownEntry | FoldedState).decode
_decode_block = msgspec.msgpack.Decoder(Block).decode
_WITH_MESSAGE = (MessageAdded.__struct_config__.tag, Compacted.__struct_config__.tag)


def _decode_one(raw: bytes) -> Logged:
    try:
        known: Logged = _decode_known(raw)
        return known
    except msgspec.ValidationError:
        plain = msgspec.msgpack.decode(raw)
        if isinstance(plain, list) and plain and plain[0] in _WITH_MESSAGE:
            plain[1][1] = [_known_block(block) for block in plain[1][1]]
            message: Logged = msgspec.convert(plain, KnownEntry, builtin_types=_KEPT)
            return message
        return UnknownEntry(raw)


def _known_block(plain: Any) -> Any:
    """A block of a kind that is not known here becomes an opaque one: the message around it stays a message."""
    try:
        _decode_block(_encode(plain))
    except msgspec.ValidationError:
        return ["opaque", "clew", plain]
    return plain
