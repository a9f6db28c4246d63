"""Large values, kept beside the log by digest instead of in it. Pure: this module fetches and stores nothing."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence

from blake3 import blake3

from clew.errors import Corrupt, WrongKey
from clew.log import compression, weights
from clew.log.keys import KEY_ID_SIZE, Keyring
from clew.log.weights import Place

__all__ = [
    "SPILL_OVER",
    "blob_key",
    "find_refs",
    "is_tree",
    "may_spill",
    "pack_blob",
    "pack_tree",
    "restore",
    "spill",
    "tree_refs",
    "unpack_blob",
]

SPILL_OVER = 2**16 - 1
"""Text and bytes longer than this go to blobs. It is the most that msgpack's 16-bit lengths can say."""
_TEXT, _BYTES = b"\xc7\x20\x01", b"\xc7\x20\x02"
"""How a reference to a blob of text, or of bytes, begins: a msgpack extension of type 1 or 2. Its 32-byte digest follows."""
_STR_32, _BIN_32 = 0xDB, 0xC6
_LONG_LEAF = re.compile(rb"[\xdb\xc6](?:\0[^\0]|[^\0].)..", re.DOTALL)  # str 32 and bin 32
_RAW, _ZSTD, _SEALED, _TREE = b"\0", b"\1", b"\2", b"\3"
_COUNTS = struct.Struct("<II")
_REFS = 1 + _COUNTS.size


def pack_blob(data: bytes, keys: Keyring | None = None, least: int = 0) -> tuple[str, bytes]:
    """The digest and the bytes under which a value is stored: compressed if that is smaller, sealed if there are keys.

    If they are to be `least` bytes at least, they are padded."""
    small = compression.plain.compress(data)
    packed = _ZSTD + small if len(small) < len(data) or len(data) < least else _RAW + data
    packed = packed.ljust(least, b"\0")
    if keys is not None:
        packed = _SEALED + keys.seal_blob(packed)
    return blake3(packed).hexdigest(), packed


def pack_tree(
    data: bytes, trees: Sequence[str] = (), leaves: Sequence[str] = (), keys: Keyring | None = None
) -> tuple[str, bytes]:
    """A value that points at other blobs, at trees and at leaves, which point no further. Their digests stand in front of
    it in the open and in this order, whatever the value is sealed with: so whoever collects garbage can follow a tree
    without any key, and whoever seals it anew need not understand the value."""
    digests = map(bytes.fromhex, (*trees, *leaves))
    packed = b"".join([_TREE, _COUNTS.pack(len(trees), len(leaves)), *digests, pack_blob(data, keys)[1]])
    return blake3(packed).hexdigest(), packed


def is_tree(packed: bytes) -> bool:
    return packed[:1] == _TREE


def tree_refs(packed: bytes) -> tuple[list[str], list[str]]:
    """The trees and the leaves that a blob points at, in their order: none, unless it is a tree."""
    if not is_tree(packed):
        return [], []
    trees, end = _COUNTS.unpack_from(packed, 1)[0], _tree_end(packed)
    refs = [packed[place : place + 32].hex() for place in range(_REFS, end, 32)]
    return refs[:trees], refs[trees:]


def _tree_end(packed: bytes) -> int:
    """Where the digests of a tree end and its value begins; 0 for any other blob."""
    if not is_tree(packed):
        return 0
    end = _REFS + 32 * sum(_COUNTS.unpack_from(packed, 1)) if len(packed) >= _REFS else _REFS
    if len(packed) < end:
        raise Corrupt("a tree of blobs is shorter than the list of what it points at. Restore it from a copy.")
    return end


def blob_key(packed: bytes) -> str | None:
    """The id of the key that a blob is sealed with, or None if it is plain."""
    start = _tree_end(packed)
    return packed[start + 1 : start + 1 + KEY_ID_SIZE].hex() if packed[start : start + 1] == _SEALED else None


def unpack_blob(digest: str, packed: bytes, keys: Keyring | None = None) -> bytes:
    packed = packed[_tree_end(packed) :]
    if packed[:1] == _SEALED:
        if keys is None:
            raise WrongKey(f"blob {digest}", packed[1 : 1 + KEY_ID_SIZE].hex())
        packed = keys.open_blob(packed[1:], f"blob {digest}")
    if packed[:1] == _RAW:
        return packed[1:]
    if packed[:1] == _ZSTD:
        try:
            return compression.plain.decompress(packed[1:])
        except compression.NotCompressed as error:
            raise Corrupt(f"blob {digest} cannot be decompressed: {error}. Restore it from a copy.") from error
    raise Corrupt(f"blob {digest} is packed in a way that this version does not know. Upgrade Clew, or restore it.")


def may_spill(body: bytes) -> bool:
    """Whether msgpack may hold a leaf over the limit: one is marked by a 32-bit length, which nothing shorter has."""
    return any(
        SPILL_OVER < int.from_bytes(body[found.start() + 1 : found.end()], "big") <= len(body) - found.end()
        for found in _LONG_LEAF.finditer(body)
    )


def spill(
    body: bytes, places: Iterable[Place], blobs: dict[str, bytes], keys: Keyring | None = None
) -> tuple[bytes, int]:
    """The same body with its large leaves moved to `blobs`, each replaced by a reference; and what those leaves weigh.
    `weigh` finds the places."""
    parts: list[bytes] = []
    done = weight = 0
    for at, start, stop in places:
        if stop - start > SPILL_OVER and body[at] in (_STR_32, _BIN_32):
            value, text = body[start:stop], body[at] == _STR_32
            digest, packed = pack_blob(value, keys)
            blobs[digest] = packed
            weight += len(value) + weights.weigh_leaf(value, text)
            parts += body[done:at], _TEXT if text else _BYTES, bytes.fromhex(digest)
            done = stop
    return b"".join([*parts, body[done:]]), weight


def find_refs(body: bytes, places: Iterable[Place]) -> dict[Place, str]:
    """The digests of the blobs that a body as `spill` made it points at, and where it does."""
    refs: dict[Place, str] = {}
    for place in places:
        at, start, stop = place
        if len(body) < stop:
            raise Corrupt("a reference to a blob is cut short. Restore it from a copy.")
        if body[at] in (_STR_32, _BIN_32):
            continue
        if body[at : at + 3] not in (_TEXT, _BYTES):
            raise Corrupt(f"a reference to a blob has the unknown kind {body[start]}. Upgrade Clew.")
        refs[place] = body[start + 1 : stop].hex()
    return refs


def restore(
    body: bytes, weight: int, refs: Mapping[Place, str], blobs: Mapping[str, bytes], keys: Keyring | None, most: int
) -> bytes:
    """The inverse of `spill`, for a body of this weight; `TooHeavy` if it would weigh more than `most`."""
    values: dict[str, bytes] = {}
    parts: list[bytes] = []
    done = 0
    for (at, _, stop), digest in refs.items():
        if digest not in values:
            values[digest] = unpack_blob(digest, blobs[digest], keys)
        value, text = values[digest], body[at : at + 3] == _TEXT
        weight += len(value) + weights.weigh_leaf(value, text)
        if weight > most:
            raise weights.TooHeavy
        parts += body[done:at], bytes([_STR_32 if text else _BIN_32]) + len(value).to_bytes(4, "big"), value
        done = stop
    return b"".join([*parts, body[done:]])
