"""Frames: entries as bytes, and back. docs/format.md describes the layout byte by byte.

version 1 | flags 1 | nonce 12 | predecessor's digest 16 | payload … | own digest 16
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast, get_args

import msgspec
from blake3 import blake3

from clew.errors import ClewError, Corrupt, InvalidInput, NewerFormat, WrongKey
from clew.log import compression, nonces
from clew.log.blobs import SPILL_OVER, find_refs, may_spill, pack_blob, restore, spill, unpack_blob
from clew.log.checkpoint import FoldedState
from clew.log.entries import Compacted, Entry, KnownEntry, MessageAdded, UnknownEntry
from clew.log.keys import KEY_ID_SIZE, Keyring
from clew.messages import Block

__all__ = [
    "DIGEST_SIZE",
    "FIRST",
    "VERSION",
    "Encoded",
    "EncodedFrame",
    "Frame",
    "Logged",
    "decode_frame",
    "decode_frames",
    "encode_entries",
    "encode_frame",
]

VERSION = 1
DIGEST_SIZE = 16
FIRST = bytes(DIGEST_SIZE)
"""The predecessor's digest of a log's first frame."""

_HEADER = struct.Struct("<BB12s16s")
_SMALLEST = _HEADER.size + DIGEST_SIZE  # 30 and 16
_COMPRESSED, _REFERS, _BODY_IN_BLOB, _SEALED = 1, 2, 4, 8
_KNOWN_FLAGS = _COMPRESSED | _REFERS | _BODY_IN_BLOB | _SEALED
_AT_ONCE = 128
_LARGEST = 4 * 2**20 - 4096  # below a store's limit; a larger body goes to a blob
_KEPT = (bytes, bytearray, memoryview, datetime)  # what msgpack says itself

Logged = Entry | FoldedState
"""What a log holds."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[KnownEntry | FoldedState]]).decode
_decode_raw = msgspec.msgpack.Decoder(tuple[int, list[msgspec.Raw]]).decode


class Encoded(msgspec.Struct, frozen=True):
    """Entries as msgpack, one after the other."""

    count: int
    data: bytes


class EncodedFrame(msgspec.Struct, frozen=True):
    """A frame ready to be appended, and the blobs that must be put before it."""

    data: bytes
    digest: bytes
    blobs: dict[str, bytes]


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame that passed its check. While it misses blobs it has no entries yet."""

    previous: bytes
    digest: bytes
    time: int
    """When it was written, microseconds since 1970."""
    entries: list[Logged]
    refs: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()


def encode_entries(entries: Sequence[Logged]) -> Encoded:
    """Entries ready for a frame; here, before anything else is touched, a value that cannot be stored is refused."""
    try:
        data = _encode([msgspec.Raw(entry.raw) if type(entry) is UnknownEntry else entry for entry in entries])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{_culprit(entries)} holds a value that cannot be stored: {error}") from error
    return Encoded(len(entries), data[len(_array_header(len(entries))) :])


def _culprit(entries: Sequence[Logged]) -> str:
    """The kind of the entry that cannot be encoded."""
    for entry in entries:
        try:
            _encode(entry)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return type(entry).__name__
    return "an entry"


def _array_header(length: int) -> bytes:
    """How msgpack begins an array."""
    if length < 16:
        return bytes([0x90 | length])
    return b"\xdc" + length.to_bytes(2, "big") if length < 2**16 else b"\xdd" + length.to_bytes(4, "big")


def encode_frame(
    groups: Sequence[Encoded],
    *,
    previous: bytes,
    thread_id: str = "",
    number: int = 0,
    keys: Keyring | None = None,
    now: int | None = None,
) -> EncodedFrame:
    """These entries as one frame after the one with this digest. A random nonce makes every frame different.

    With keys it is sealed for this thread and number, and opens nowhere else.
    """
    flags = 0
    blobs: dict[str, bytes] = {}
    moment = time.time_ns() // 1000 if now is None else now
    array = _array_header(sum([group.count for group in groups]))
    body = b"".join([b"\x92\xcf", moment.to_bytes(8, "big"), array, *[group.data for group in groups]])
    if len(body) > SPILL_OVER and may_spill(body):
        small = spill(msgspec.msgpack.decode(body), blobs, keys)
        if blobs:
            flags |= _REFERS
            body = _encode(small)
    payload = compression.framed.compress(body)
    if len(payload) < len(body):
        flags |= _COMPRESSED
    else:
        payload = body
    if len(payload) > _LARGEST:
        digest, packed = pack_blob(body, keys)
        blobs[digest] = packed
        payload = bytes.fromhex(digest)
        flags = flags & ~_COMPRESSED | _BODY_IN_BLOB
    nonce = nonces.nonce()
    if keys is not None:
        flags |= _SEALED
    header = _HEADER.pack(VERSION, flags, nonce, previous)
    if keys is not None:
        payload = keys.seal_frame(payload, nonce, thread_id, header + number.to_bytes(8, "big"))
    data = header + payload
    own = blake3(data).digest(DIGEST_SIZE)
    return EncodedFrame(data + own, own, blobs)


def decode_frame(
    data: bytes, thread_id: str, number: int, blobs: Mapping[str, bytes] = {}, keys: Keyring | None = None
) -> Frame:
    """The entries of a frame. If it misses blobs, fetch those and call again with all that it refers to."""
    own = data[-DIGEST_SIZE:]
    if (
        len(data) < _SMALLEST
        or data[0] != VERSION
        or (flags := data[1]) & ~_KNOWN_FLAGS
        or blake3(data[:-DIGEST_SIZE]).digest(DIGEST_SIZE) != own
    ):
        raise _newer_or_corrupt(data, f"thread {thread_id!r}, frame {number}")
    previous, body = data[14:30], data[30:-DIGEST_SIZE]
    if flags & _SEALED:
        body = _open(data, thread_id, number, keys)
    try:
        if flags & _COMPRESSED:
            body = compression.framed.decompress(body)
        if flags > _COMPRESSED:
            body, refs, missing = _with_blobs(flags, body, blobs, keys)
            moment, entries = (0, []) if missing else _decode_entries(body)
            return Frame(previous, own, moment, entries, frozenset(refs), frozenset(missing))
        moment, entries = _decode_entries(body)
        return Frame(previous, own, moment, entries)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, compression.NotCompressed) as error:
        raise Corrupt(
            f"thread {thread_id!r}, frame {number} passes its check and still cannot be read: {error}. Report this as a bug."
        ) from error


def decode_frames(frames: Sequence[bytes], thread_id: str, start: int = 0, keys: Keyring | None = None) -> list[Frame]:
    """A stretch of a log, from frame `start` on. Ordinary frames are taken many at a time, all others one by one."""
    found: list[Frame] = []
    for first in range(0, len(frames), _AT_ONCE):
        part = frames[first : first + _AT_ONCE]
        try:
            found += _decode_ordinary(part)
        except (_NotOrdinary, compression.NotCompressed, msgspec.MsgspecError):
            numbered = enumerate(part, start + first)
            found += [decode_frame(data, thread_id, number, keys=keys) for number, data in numbered]
    return found


class _NotOrdinary(Exception):
    """Among these frames is one that needs a closer look."""


def _decode_ordinary(frames: Sequence[bytes]) -> list[Frame]:
    """Frames that are sound, compressed, and nothing else."""
    for data in frames:
        if (
            len(data) < _SMALLEST
            or data[0] != VERSION
            or data[1] != _COMPRESSED
            or blake3(data[:-DIGEST_SIZE]).digest(DIGEST_SIZE) != data[-DIGEST_SIZE:]
        ):
            raise _NotOrdinary
    bodies = compression.framed.decompress_many([data[30:-DIGEST_SIZE] for data in frames])
    found: list[Frame] = []
    for data, body in zip(frames, bodies, strict=True):
        moment, entries = _decode(body)
        found.append(Frame(data[14:30], data[-DIGEST_SIZE:], moment, cast(list[Logged], entries)))
    return found


def _open(data: bytes, thread_id: str, number: int, keys: Keyring | None) -> bytes:
    """The payload of a sealed frame."""
    sealed, what = data[30:-DIGEST_SIZE], f"thread {thread_id!r}, frame {number}"
    if keys is None:
        raise WrongKey(what, sealed[:KEY_ID_SIZE].hex())
    return keys.open_frame(sealed, data[2:14], thread_id, data[:30] + number.to_bytes(8, "big"), what)


def _with_blobs(
    flags: int, body: bytes, blobs: Mapping[str, bytes], keys: Keyring | None
) -> tuple[bytes, set[str], set[str]]:
    """The body with what it refers to in its place; all that it refers to; and what of that is missing."""
    refs: set[str] = set()
    if flags & _BODY_IN_BLOB:
        digest = body.hex()
        refs.add(digest)
        if digest not in blobs:
            return b"", refs, refs
        body = unpack_blob(digest, blobs[digest], keys)
    if flags & _REFERS:
        tree = msgspec.msgpack.decode(body)
        refs |= find_refs(tree)
        if missing := refs - blobs.keys():
            return b"", refs, missing
        body = _encode(restore(tree, blobs, keys))
    return body, refs, set()


def _newer_or_corrupt(data: bytes, what: str) -> ClewError:
    """A frame of a newer format says so in its first two bytes, and its last ones prove that it is whole."""
    whole = len(data) > DIGEST_SIZE and blake3(data[:-DIGEST_SIZE]).digest(DIGEST_SIZE) == data[-DIGEST_SIZE:]
    if whole and data[0] > VERSION:
        return NewerFormat(what, data[0], VERSION)
    if whole and data[0] == VERSION:
        return NewerFormat(f"{what} (flags {data[1]:#x})", VERSION + 1, VERSION)
    return Corrupt(f"{what} fails its check: its bytes have changed since they were written. Restore it from a copy.")


def _decode_entries(body: bytes) -> tuple[int, list[Logged]]:
    """All entries at once; one by one only if a kind among them is not known here."""
    try:
        moment, known = _decode(body)
        return moment, cast(list[Logged], known)
    except msgspec.ValidationError:
        moment, raws = _decode_raw(body)
        return moment, [_decode_one(bytes(raw)) for raw in raws]


_decode_block = msgspec.msgpack.Decoder(Block).decode
_KINDS = {kind.__struct_config__.tag for kind in (*get_args(KnownEntry), FoldedState)}
_WITH_MESSAGE = (MessageAdded.__struct_config__.tag, Compacted.__struct_config__.tag)


def _decode_one(raw: bytes) -> Logged:
    """An entry of a kind that is not known here is carried through; one of a known kind must make sense."""
    plain = msgspec.msgpack.decode(raw)
    match plain:
        case [kind, [role, [*blocks], *rest], *more] if kind in _WITH_MESSAGE:
            plain = [kind, [role, [_known_block(block) for block in blocks], *rest], *more]
        case [str(kind), *_] if kind in _KINDS:
            pass
        case _:
            return UnknownEntry(raw)
    known: Logged = msgspec.convert(plain, KnownEntry | FoldedState, builtin_types=_KEPT)
    return known


def _known_block(plain: Any) -> Any:
    """A block of a kind that is not known here becomes an opaque one: the message around it stays a message."""
    try:
        _decode_block(_encode(plain))
    except msgspec.ValidationError:
        return ["opaque", "clew", plain]
    return plain
