"""Blobs: large values that are stored beside the log under their digest. Pure: nothing is fetched or stored here.

Converts a blob, or a tree (a blob that points at other blobs), to the bytes that are stored, and back. Moves large
values of a frame's body (its encoded entries) to blobs, and back.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence

from blake3 import blake3

from clew.errors import Corrupt, NotSealed, WrongKey
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
"""Texts and bytes of more than this many bytes are moved from a frame to blobs.

It is the largest length that msgpack writes in 16 bits.
"""
_TEXT, _BYTES = b"\xc7\x20\x01", b"\xc7\x20\x02"
"""The first bytes of a reference, which stands in a frame for a text or for bytes that are stored as a blob.

They begin a msgpack extension of type 1 for text, 2 for bytes. The 32-byte digest of the blob follows.
"""
_STR_32, _BIN_32 = 0xDB, 0xC6
_LONG_LEAF = re.compile(rb"[\xdb\xc6](?:\0[^\0]|[^\0].)..", re.DOTALL)  # str 32 and bin 32
_RAW, _ZSTD, _SEALED, _TREE = b"\0", b"\1", b"\2", b"\3"
_COUNTS = struct.Struct("<II")
_REFS = 1 + _COUNTS.size


def pack_blob(data: bytes, keys: Keyring | None = None, least: int = 0) -> tuple[str, bytes]:
    """Return the name of a blob and its bytes as they are stored: the value `data`, compressed if that is smaller, and
    encrypted if there are `keys`. The name is the digest (blake3 in hex) of the stored bytes.

    If the bytes before encryption are fewer than `least`, zeros are added up to that length. This is needed for values
    that take much memory when decoded: readers refuse them if they are stored in too few bytes.
    """
    small = compression.plain.compress(data)
    packed = _ZSTD + small if len(small) < len(data) or len(data) < least else _RAW + data
    packed = packed.ljust(least, b"\0")
    if keys is not None:
        packed = _SEALED + keys.seal_blob(packed)
    return blake3(packed).hexdigest(), packed


def pack_tree(
    data: bytes, trees: Sequence[str] = (), leaves: Sequence[str] = (), keys: Keyring | None = None
) -> tuple[str, bytes]:
    """Return the name of a tree and its bytes as they are stored. A tree is a blob that has a value of its own, `data`,
    and points at other blobs. Its name is the digest (blake3 in hex) of the stored bytes.

    `trees` and `leaves` are the digests of these other blobs: trees may point at further blobs, leaves may not. In the
    stored bytes, these digests come first, in this order and never encrypted. The value follows, encrypted if there are
    `keys`. So the cleanup of unused blobs (gc) finds the blobs below a tree without a key, and the value can be
    encrypted with another key without being understood.
    """
    digests = map(bytes.fromhex, (*trees, *leaves))
    packed = b"".join([_TREE, _COUNTS.pack(len(trees), len(leaves)), *digests, pack_blob(data, keys)[1]])
    return blake3(packed).hexdigest(), packed


def is_tree(packed: bytes) -> bool:
    return packed[:1] == _TREE


def tree_refs(packed: bytes) -> tuple[list[str], list[str]]:
    """Return the digests that a tree lists: first those of trees, then those of leaves, each in order.

    A tree is a blob that points at others, and a leaf points at none. Both lists are empty for a blob that is not a
    tree.
    """
    if not is_tree(packed):
        return [], []
    trees, end = _COUNTS.unpack_from(packed, 1)[0], _tree_end(packed)
    refs = [packed[place : place + 32].hex() for place in range(_REFS, end, 32)]
    return refs[:trees], refs[trees:]


def _tree_end(packed: bytes) -> int:
    """Return the offset at which the digests in a tree end and its value begins. A tree is a blob with the digests of
    other blobs in front of a value of its own.

    Returns 0 if the blob is not a tree. Raises `Corrupt` if it ends before its last digest.
    """
    if not is_tree(packed):
        return 0
    end = _REFS + 32 * sum(_COUNTS.unpack_from(packed, 1)) if len(packed) >= _REFS else _REFS
    if len(packed) < end:
        raise Corrupt("a tree of blobs is shorter than the list of what it points at. Restore it from a copy.")
    return end


def blob_key(packed: bytes) -> str | None:
    """Return the id of the key that a blob is encrypted with, or None if it is not encrypted."""
    start = _tree_end(packed)
    return packed[start + 1 : start + 1 + KEY_ID_SIZE].hex() if packed[start : start + 1] == _SEALED else None


def unpack_blob(digest: str, packed: bytes, keys: Keyring | None = None) -> bytes:
    """Return the value of a stored blob, decrypted with one of `keys` if it is encrypted. `packed` is the blob as it is
    stored, and `digest` is its name, for error messages.

    Raises `WrongKey` if the blob cannot be decrypted, and `Corrupt` if it is damaged. Raises `NotSealed` if the blob is
    not encrypted although there are `keys`, unless these allow plain data.
    """
    packed = packed[_tree_end(packed) :]
    if packed[:1] == _SEALED:
        if keys is None:
            raise WrongKey(f"blob {digest}", packed[1 : 1 + KEY_ID_SIZE].hex())
        packed = keys.open_blob(packed[1:], f"blob {digest}")
    elif keys is not None and not keys.allow_plain:
        raise NotSealed(f"blob {digest}")
    if packed[:1] == _RAW:
        return packed[1:]
    if packed[:1] == _ZSTD:
        try:
            return compression.plain.decompress(packed[1:])
        except compression.NotCompressed as error:
            raise Corrupt(f"blob {digest} cannot be decompressed: {error}. Restore it from a copy.") from error
    raise Corrupt(f"blob {digest} is packed in a way that this version does not know. Upgrade Clew, or restore it.")


def may_spill(body: bytes) -> bool:
    """Return False if a frame's body (its entries in msgpack) surely contains no text or bytes of more than 65,535
    bytes (`SPILL_OVER`). If this returns True, it may contain one.

    Searches for 32-bit lengths, which only such long values have.
    """
    return any(
        SPILL_OVER < int.from_bytes(body[found.start() + 1 : found.end()], "big") <= len(body) - found.end()
        for found in _LONG_LEAF.finditer(body)
    )


def spill(
    body: bytes, places: Iterable[Place], blobs: dict[str, bytes], keys: Keyring | None = None
) -> tuple[bytes, int]:
    """Move texts and bytes of more than 65,535 bytes (`SPILL_OVER`) out of a frame's body, and leave references to
    blobs in their places.

    The body is the frame's entries in msgpack. `places` are the positions of large values in it, each as three offsets:
    of the value's first byte, of its content, and of its end. Each moved value is added to `blobs`: the bytes to store,
    by their digest, encrypted if there are `keys`. Returns the shorter body, and an estimate of the memory in bytes
    that the moved values take when decoded.
    """
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
    """Return the references to blobs in a frame's body (its entries in msgpack): the digest of each blob, by the
    position of the reference. Such a reference stands for a large value that was moved from the frame to a blob.

    `places` are the positions at which references may stand, as `weigh` returns them for this body: each is three
    offsets, of the value's first byte, of its content, and of its end. Raises `Corrupt` if a reference is cut short or
    of an unknown kind.
    """
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
    """Return a frame's body (its entries in msgpack) with large values put back in place of the references to blobs
    that stand for them. This undoes `spill`.

    `refs` has the digest of the blob for each position of a reference in the body. `blobs` has the stored bytes of each
    blob, by digest; `keys` decrypt them. `weight` is the number of bytes of memory that the body takes without these
    values. Raises `TooHeavy` if body and values together would take more than `most` bytes of memory.
    """
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
