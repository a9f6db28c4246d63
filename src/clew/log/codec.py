"""Encode entries as frames, the byte strings that stores append to a thread's log, and decode them again.

docs/format.md describes the layout of a frame byte by byte. The parts of a frame and their sizes in bytes are:

    version 1 | flags 1 | random nonce 12 | digest of the frame before this one 16 | payload … | digest of this frame 16
"""

from __future__ import annotations

import os
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar, cast, get_args

import msgspec
from blake3 import blake3

from clew._runtime import forks
from clew.errors import ClewError, Corrupt, InvalidInput, NewerFormat, NotSealed, WrongKey
from clew.log import compression, weights
from clew.log.blobs import find_refs, may_spill, pack_blob, restore, spill, unpack_blob
from clew.log.checkpoint import FoldedState
from clew.log.entries import Compacted, Entry, KnownEntry, MessageAdded, UnknownEntry
from clew.log.keys import KEY_ID_SIZE, Keyring
from clew.messages import Block, Opaque

__all__ = [
    "DIGEST",
    "FIRST",
    "PREVIOUS",
    "VERSION",
    "Encoded",
    "EncodedFrame",
    "Frame",
    "Logged",
    "check_readable",
    "decode_frame",
    "encode_entries",
    "encode_frame",
    "is_sound",
    "new_nonce",
    "sealed_with",
]


VERSION = 1
DIGEST_SIZE = 16
FIRST = bytes(DIGEST_SIZE)
"""The value that a log's first frame has in place of its predecessor's digest."""

PREVIOUS = slice(14, 30)
"""The slice of a frame that holds its predecessor's digest."""
DIGEST = slice(-DIGEST_SIZE, None)
"""The slice of a frame that holds its own digest."""

_HEADER = struct.Struct("<BB12s16s")
SMALLEST = _HEADER.size + DIGEST_SIZE  # 30 and 16 bytes
PAYLOAD = slice(_HEADER.size, -DIGEST_SIZE)
COMPRESSED, _REFERS, _BODY_IN_BLOB, _SEALED = 1, 2, 4, 8
_KNOWN_FLAGS = COMPRESSED | _REFERS | _BODY_IN_BLOB | _SEALED
_LARGEST = 4 * 2**20 - 4096  # below a store's limit; a larger body goes to a blob
NONSENSE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # raised by decoding invalid msgpack

_NONCE_SIZE, _NONCES_AT_ONCE = 12, 512
_NONCE = struct.Struct(f"{_NONCE_SIZE}s")
_nonces: deque[bytes] = deque()
forks.in_child(_nonces.clear)  # parent and child must never use the same nonce

T = TypeVar("T")
Logged = Entry | FoldedState
"""Everything that a frame can hold: entries and folded states."""

_encode = msgspec.msgpack.Encoder().encode
decode_body = msgspec.msgpack.Decoder(tuple[int, list[KnownEntry | FoldedState]]).decode
"""Decodes a frame's body (its content in msgpack) and returns the frame's time and its entries."""
_decode_raw = msgspec.msgpack.Decoder(tuple[int, list[msgspec.Raw]]).decode


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """Entries encoded as the body of a frame: a msgpack array of two items, the time of encoding (in microseconds since
    1970) and the array of entries."""

    count: int
    body: bytes

    @property
    def entries(self) -> bytes:
        """The entries in msgpack, one after the other: the encoded body without what precedes the first entry, namely
        its time and the headers of its two arrays."""
        return self.body[1 + weights.NUMBERS.get(self.body[1], 1) + len(_array_header(self.count)) :]


class EncodedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame, ready to be appended to a log. `data` is the frame's bytes, `digest` is its digest, and `blobs` are the
    blobs that must be stored before the frame: their bytes by digest."""

    data: bytes
    digest: bytes
    blobs: dict[str, bytes]
    stored: int = 0
    """Number of bytes of the frame, plus those of the blob that holds its entries if they are too large for the
    frame."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame of a log after decoding; its digest was found right.

    `refs` are the digests of the blobs that the frame refers to. The blobs among these that were not given to the
    decoder are in `missing`. If there are any, `entries` is empty, because the frame cannot be decoded without its
    blobs.
    """

    previous: bytes
    digest: bytes
    time: int
    """When the entries were encoded, in microseconds since 1970.

    If the frame joins several groups of entries, it is the time at which they were joined.
    """
    entries: list[Logged]
    refs: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    stored: int = 0
    """Number of bytes of the frame, plus those of the blob that holds its entries if they are too large for the frame.

    Always 0 if the frame refers to no blobs.
    """


def encode_entries(entries: Sequence[Logged]) -> Encoded:
    """Encode entries as msgpack, so that `encode_frame` can make a frame of them. Raises `InvalidInput` if an entry
    holds a value that cannot be stored."""
    try:
        if UnknownEntry in map(type, entries):
            raws = [msgspec.Raw(entry.raw) if type(entry) is UnknownEntry else entry for entry in entries]
            return Encoded(len(entries), _encode((time.time_ns() // 1000, raws)))
        return Encoded(len(entries), _encode((time.time_ns() // 1000, entries)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{_culprit(entries)} holds a value that cannot be stored: {error}") from error


def check_readable(entries: Sequence[Logged], encoded: Encoded) -> None:
    """Raise `InvalidInput` if an entry has a field of a wrong type, such as a tag that is a number.

    Such an entry can be encoded but not decoded, so a log that holds it could never be read again. `encoded` is what
    `encode_entries` returned for these entries.
    """
    try:
        _decode_entries(encoded.body)
    except NONSENSE as error:
        kinds = ", ".join(dict.fromkeys(type(entry).__name__ for entry in entries))
        raise InvalidInput(f"{kinds} holds a value of a wrong type, so nothing is recorded: {error}") from error


_SHORT_ARRAYS = [bytes([0x90 | length]) for length in range(16)]


def _culprit(entries: Sequence[Logged]) -> str:
    """Return the class name of the first of these entries that cannot be encoded, for an error message; "an entry" if
    each can."""
    for entry in entries:
        try:
            _encode(entry)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return type(entry).__name__
    return "an entry"


def _array_header(length: int) -> bytes:
    """Return the msgpack bytes that begin an array of this length."""
    if length < 16:
        return _SHORT_ARRAYS[length]
    return b"\xdc" + length.to_bytes(2, "big") if length < 2**16 else b"\xdd" + length.to_bytes(4, "big")


def encode_frame(
    groups: Sequence[Encoded],
    *,
    previous: bytes,
    thread_id: str = "",
    number: int = 0,
    keys: Keyring | None = None,
    now: int | None = None,
    is_quick: bool = False,
) -> EncodedFrame:
    """Encode these groups of entries, each encoded by `encode_entries` before, as one frame. Large values of the
    entries are moved to blobs, which the returned object holds too.

    `previous` is the digest of the preceding frame in the log, and `number` is the number of the new frame. Every frame
    differs from all others, because it contains random bytes. With `keys` the frame is encrypted for this thread and
    number, so that it cannot be decrypted in another place. `now` is the time to record in the frame, in microseconds
    since 1970; by default it is the current time. With `is_quick` the frame is compressed in a third of the time, to 6
    % more bytes.
    """
    body = groups[0].body if len(groups) == 1 and now is None else _joined_body(groups, now)
    if len(body) > compression.ALWAYS:
        flags, payload, blobs = _pack_large(body, keys)
    else:
        compress = compression.framed.compress if is_quick else compression.framed.compress_well
        flags, payload, blobs = COMPRESSED, compress(body), {}
        if len(payload) >= len(body):
            flags, payload = 0, body
    in_blob = len(blobs[payload.hex()]) if flags & _BODY_IN_BLOB else 0
    nonce = new_nonce()
    if keys is not None:
        flags |= _SEALED
    header = _HEADER.pack(VERSION, flags, nonce, previous)
    if keys is not None:
        payload = keys.seal_frame(payload, nonce, thread_id, header + number.to_bytes(8, "big"))
    data = header + payload
    own = blake3(data).digest(DIGEST_SIZE)
    return EncodedFrame(data + own, own, blobs, len(data) + len(own) + in_blob)


def new_nonce() -> bytes:
    """Return 12 random bytes, which no other frame has: the nonce of a new frame. For speed, the bytes of 512 nonces
    are requested from the system at once."""
    while True:
        try:
            return _nonces.pop()
        except IndexError:
            _nonces.extend(chain.from_iterable(_NONCE.iter_unpack(os.urandom(_NONCE_SIZE * _NONCES_AT_ONCE))))


def _joined_body(groups: Sequence[Encoded], now: int | None) -> bytes:
    moment = time.time_ns() // 1000 if now is None else now
    array = _array_header(sum([group.count for group in groups]))
    return b"".join([b"\x92", _encode(moment), array, *[group.entries for group in groups]])


def _pack_large(body: bytes, keys: Keyring | None) -> tuple[int, bytes, dict[str, bytes]]:
    """Encode a frame's body (its entries in msgpack) of more than 64 KiB. Returns the frame's flags (bits that say
    whether the payload is compressed, and whether the body or parts of it are in blobs), its payload (the bytes between
    the frame's header and its digest) and the blobs that it needs: their bytes by digest.

    Texts and bytes of more than 65,535 bytes are moved from the body to blobs. If the rest is still too large for a
    frame, it becomes a blob too, and the payload is that blob's digest. Readers refuse a payload that is too short for
    the memory that it takes when decoded, so such a payload is padded with zeros.
    """
    flags, small = 0, body
    blobs: dict[str, bytes] = {}
    leaves = 0
    if may_spill(body):
        small, leaves = spill(body, weights.weigh(body)[1], blobs, keys)
        flags = _REFERS if blobs else 0
    payload = compression.framed.compress(small)
    shrunk = len(payload) < len(small)
    stored = SMALLEST + min(len(payload), len(small))
    if blobs:
        every = stored + sum(map(len, blobs.values()))
        weight = weights.weigh(small)[0]
        padding = max(weights.missing(weight, stored), weights.missing(weight + leaves, every))
    else:
        padding = weights.lacking(body, stored)
    if padding or shrunk:
        flags |= COMPRESSED
        payload = payload.ljust(min(len(payload), len(small)) + padding, b"\0")
    else:
        payload = small
    if len(payload) > _LARGEST:
        digest, packed = pack_blob(small, keys, len(payload))
        blobs[digest] = packed
        return flags & ~COMPRESSED | _BODY_IN_BLOB, bytes.fromhex(digest), blobs
    return flags, payload, blobs


def decode_frame(
    data: bytes, thread_id: str, number: int, blobs: Mapping[str, bytes] = {}, keys: Keyring | None = None
) -> Frame:
    """Check and decode `data`, the bytes of frame `number` of a thread. `keys` decrypt it. Raises `Corrupt`,
    `NewerFormat` or `WrongKey` if that fails. Raises `NotSealed` if the frame is not encrypted although there are
    `keys`, unless these allow plain data.

    If the returned frame names `missing` blobs, fetch them, and call this again with all blobs that the frame's `refs`
    name: `blobs` has the stored bytes of each, by digest.
    """
    own = data[DIGEST]
    if len(data) < SMALLEST or data[0] != VERSION or (flags := data[1]) & ~_KNOWN_FLAGS or not is_sound(data):
        raise _newer_or_corrupt(data, f"thread {thread_id!r}, frame {number}")
    previous, body = data[PREVIOUS], data[PAYLOAD]
    if flags & _SEALED:
        body = _open(data, thread_id, number, keys)
    elif keys is not None and not keys.allow_plain:
        raise NotSealed(f"thread {thread_id!r}, frame {number}")
    try:
        if flags & COMPRESSED:
            body = compression.framed.decompress(body)
        if flags & (_REFERS | _BODY_IN_BLOB):
            stored = len(data) + len(blobs.get(body.hex(), b"") if flags & _BODY_IN_BLOB else b"")
            body, refs, missing = _with_blobs(flags, body, blobs, keys, len(data))
            moment, entries = (0, []) if missing else _decode_entries(body)
            return Frame(previous, own, moment, entries, frozenset(refs), frozenset(missing), stored)
        if len(body) > compression.ALWAYS:
            weights.check(body, len(data))
        return Frame(previous, own, *_decode_entries(body))
    except (*NONSENSE, compression.NotCompressed, weights.TooHeavy) as error:
        raise Corrupt(
            f"thread {thread_id!r}, frame {number} passes its check and still cannot be read: {error}. Report this as a bug."
        ) from error


def is_sound(data: bytes) -> bool:
    """Return whether a frame's bytes match the digest at their end. Needs no key."""
    return len(data) >= SMALLEST and blake3(data[:-DIGEST_SIZE]).digest(DIGEST_SIZE) == data[DIGEST]


def sealed_with(data: bytes) -> str | None:
    """Return the id of the key that this frame is encrypted with, or None if it is not encrypted."""
    return data[_HEADER.size : _HEADER.size + KEY_ID_SIZE].hex() if data[1] & _SEALED else None


def _open(data: bytes, thread_id: str, number: int, keys: Keyring | None) -> bytes:
    """Return the decrypted payload (the content between header and digest) of frame `number` of a thread. `data` is the
    whole frame, which is encrypted. Raises `WrongKey` if `keys` cannot decrypt it."""
    sealed, what = data[PAYLOAD], f"thread {thread_id!r}, frame {number}"
    if keys is None:
        raise WrongKey(what, sealed[:KEY_ID_SIZE].hex())
    return keys.open_frame(sealed, data[2:14], thread_id, data[: _HEADER.size] + number.to_bytes(8, "big"), what)


def _with_blobs(
    flags: int, body: bytes, blobs: Mapping[str, bytes], keys: Keyring | None, stored: int
) -> tuple[bytes, set[str], set[str]]:
    """Put the values of blobs into a frame's body (its encoded entries), in place of references to these blobs.

    Returns three things: the whole body, the digests of all blobs that the frame refers to, and those of them that are
    not in `blobs`. If any is missing, the returned body is empty. `flags` is the frame's second byte, which says
    whether the body or values of it are in blobs. `stored` is the size of the frame in bytes. Raises `TooHeavy` if the
    body would take far more memory than the size of the frame and its blobs allows.
    """
    refs: set[str] = set()
    if flags & _BODY_IN_BLOB:
        digest = body.hex()
        refs.add(digest)
        if digest not in blobs:
            return b"", refs, refs
        body = unpack_blob(digest, blobs[digest], keys)
        stored += len(blobs[digest])
    if not flags & _REFERS:
        weights.check(body, stored)
        return body, refs, set()
    weight, places = weights.weigh(body, weights.allowed(stored))
    if weight > weights.allowed(stored):
        raise weights.TooHeavy
    found = find_refs(body, places)
    others = set(found.values()) - refs
    refs |= others
    if missing := refs - blobs.keys():
        return b"", refs, missing
    most = weights.allowed(stored + sum(len(blobs[digest]) for digest in others))
    return restore(body, weight, found, blobs, keys, most), refs, set()


def _newer_or_corrupt(data: bytes, what: str) -> ClewError:
    """Return the error to raise for a frame that cannot be decoded. `what` names the frame in the error message.

    If the frame's digest is right but its version or its flags are unknown, a newer Clew has written it: the error is
    `NewerFormat`. In all other cases it is `Corrupt`.
    """
    whole = len(data) > DIGEST_SIZE and blake3(data[:-DIGEST_SIZE]).digest(DIGEST_SIZE) == data[DIGEST]
    if whole and data[0] > VERSION:
        return NewerFormat(what, data[0], VERSION)
    if whole and data[0] == VERSION:
        return NewerFormat(f"{what} (flags {data[1]:#x})", VERSION + 1, VERSION)
    return Corrupt(f"{what} fails its check: its bytes have changed since they were written. Restore it from a copy.")


def _decode_entries(body: bytes) -> tuple[int, list[Logged]]:
    """Return the time and the entries in a frame's body, which is a msgpack array of both. The time is in microseconds
    since 1970.

    Decodes all entries at once. Only if an entry or block is of an unknown kind are they decoded one by one.
    """
    try:
        moment, known = decode_body(body)
        return moment, cast(list[Logged], known)
    except msgspec.ValidationError:
        moment, raws = _decode_raw(body)
        return moment, _each(_decode_one, raws)


def _each(decode: Callable[[msgspec.Raw], T], raws: list[msgspec.Raw]) -> list[T]:
    """Decode the items of `raws` in order with the function `decode`, and return the results. Each item is removed from
    `raws` before it is decoded, so that the encoded and the decoded items are not all in memory at once."""
    raws.reverse()
    found: list[T] = []
    while raws:
        found.append(decode(raws.pop()))
    return found


class _Kind(msgspec.Struct, array_like=True, gc=False):
    """The first field of an encoded entry, message or block, which names its kind. Decoding this class instead of the
    whole value tells the kind without decoding the rest."""

    kind: str


class _Parts(msgspec.Struct, array_like=True, gc=False):
    """The first two fields of an encoded entry or message: its kind, and `content`. Neither is decoded.

    The content of an entry is its message. The content of a message is the list of its blocks.
    """

    kind: msgspec.Raw
    content: msgspec.Raw


_decode_entry = msgspec.msgpack.Decoder(KnownEntry | FoldedState).decode
_decode_block = msgspec.msgpack.Decoder(Block).decode
_decode_kind = msgspec.msgpack.Decoder(_Kind).decode
_decode_kinds = msgspec.msgpack.Decoder(list[_Kind]).decode
_decode_parts = msgspec.msgpack.Decoder(_Parts).decode
_decode_blocks = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_KINDS = {kind.__struct_config__.tag for kind in (*get_args(KnownEntry), FoldedState)}
_WITH_MESSAGE = (MessageAdded.__struct_config__.tag, Compacted.__struct_config__.tag)


def _decode_one(raw: msgspec.Raw) -> Logged:
    """Decode one entry from its msgpack bytes.

    An entry of an unknown kind becomes an `UnknownEntry`. An invalid entry of a known kind raises
    `msgspec.ValidationError`.
    """
    try:
        kind = _decode_kind(raw).kind
    except msgspec.ValidationError:
        kind = ""
    if kind not in _KINDS:
        return UnknownEntry(bytes(raw))
    try:
        known: Logged = _decode_entry(raw)
    except msgspec.ValidationError:
        if kind not in _WITH_MESSAGE:
            raise
        return _decode_with_message(memoryview(raw))
    return known


def _decode_with_message(raw: memoryview) -> Logged:
    """Decode an entry whose message contains blocks of an unknown kind, from its msgpack bytes.

    The blocks of an unknown kind become `Opaque` blocks, which keep the content as it is; the rest of the message is
    decoded as usual.
    """
    parts = _decode_parts(raw)
    message = memoryview(parts.content)
    message_parts = _decode_parts(message)
    _decode_kinds(message_parts.content)
    blocks = tuple(_each(_decode_any_block, _decode_blocks(message_parts.content)))
    empty = _replaced(raw, parts, _replaced(message, message_parts, _array_header(0)))
    entry: Any = _decode_entry(empty)
    if type(entry) is Compacted:
        return msgspec.structs.replace(entry, summary=msgspec.structs.replace(entry.summary, content=blocks))
    return cast(Logged, msgspec.structs.replace(entry, message=msgspec.structs.replace(entry.message, content=blocks)))


def _decode_any_block(raw: msgspec.Raw) -> Block:
    try:
        known: Block = _decode_block(raw)
        return known
    except msgspec.ValidationError:
        return Opaque("clew", msgspec.msgpack.decode(raw))


def _replaced(whole: memoryview, parts: _Parts, content: bytes) -> bytes:
    """Return the msgpack bytes of an entry or a message with its second field replaced by `content`, also msgpack.
    `whole` is the bytes before that, and `parts` holds copies of the first two fields, by whose lengths the second is
    found."""
    start = {0xDC: 3, 0xDD: 5}.get(whole[0], 1) + len(memoryview(parts.kind))
    return b"".join([whole[:start], content, whole[start + len(memoryview(parts.content)) :]])
