"""Large values, kept beside the log by digest instead of in it. Pure: this module fetches and stores nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from blake3 import blake3

from clew.errors import Corrupt, WrongKey
from clew.log import compression
from clew.log.keys import KEY_ID_SIZE, Keyring

__all__ = [
    "SPILL_OVER",
    "find_refs",
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
_TEXT, _BYTES = 1, 2  # msgpack extension types: the 32-byte digest of a blob that holds text, or bytes
_LONG_LEAF = re.compile(rb"[\xdb\xc6](?:\0[^\0]|[^\0].)..", re.DOTALL)  # str 32 and bin 32
_RAW, _ZSTD, _SEALED, _TREE = b"\0", b"\1", b"\2", b"\3"


def pack_blob(data: bytes, keys: Keyring | None = None) -> tuple[str, bytes]:
    """The digest and the bytes under which a value is stored: compressed if that is smaller, sealed if there are keys."""
    small = compression.plain.compress(data)
    packed = _ZSTD + small if len(small) < len(data) else _RAW + data
    if keys is not None:
        packed = _SEALED + keys.seal_blob(packed)
    return blake3(packed).hexdigest(), packed


def pack_tree(data: bytes, refs: Collection[str], keys: Keyring | None = None) -> tuple[str, bytes]:
    """A value that points at other blobs. Their digests stand in front of it in the open, whatever the value is sealed
    with: so whoever collects garbage can follow a tree without any key."""
    digests = sorted(map(bytes.fromhex, set(refs)))
    packed = b"".join([_TREE, len(digests).to_bytes(4, "little"), *digests, pack_blob(data, keys)[1]])
    return blake3(packed).hexdigest(), packed


def tree_refs(packed: bytes) -> set[str]:
    """The blobs that a blob points at: none, unless it is a tree."""
    return {packed[place : place + 32].hex() for place in range(5, _tree_end(packed), 32)}


def _tree_end(packed: bytes) -> int:
    """Where the digests of a tree end and its value begins; 0 for any other blob."""
    if packed[:1] != _TREE:
        return 0
    end = 5 + 32 * int.from_bytes(packed[1:5], "little")
    if len(packed) < max(end, 5):
        raise Corrupt("a tree of blobs is shorter than the list of what it points at. Restore it from a copy.")
    return end


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


def spill(value: Any, blobs: dict[str, bytes], keys: Keyring | None = None) -> Any:
    """The same plain value with its large leaves moved to `blobs`, each replaced by a reference."""
    if isinstance(value, str):
        if len(value) * 4 > SPILL_OVER and len(data := value.encode()) > SPILL_OVER:
            return _refer(_TEXT, data, blobs, keys)
    elif isinstance(value, bytes):
        if len(value) > SPILL_OVER:
            return _refer(_BYTES, value, blobs, keys)
    elif isinstance(value, dict):
        return {key: spill(item, blobs, keys) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        return [spill(item, blobs, keys) for item in value]
    return value


def _refer(kind: int, data: bytes, blobs: dict[str, bytes], keys: Keyring | None) -> msgspec.msgpack.Ext:
    digest, packed = pack_blob(data, keys)
    blobs[digest] = packed
    return msgspec.msgpack.Ext(kind, bytes.fromhex(digest))


def find_refs(value: Any) -> set[str]:
    """The digests of all blobs that a value as `spill` made it points at."""
    if isinstance(value, msgspec.msgpack.Ext):
        return {bytes(value.data).hex()}
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(find_refs, items))


def restore(value: Any, blobs: Mapping[str, bytes], keys: Keyring | None = None) -> Any:
    """The inverse of `spill`."""
    if isinstance(value, msgspec.msgpack.Ext):
        digest = bytes(value.data).hex()
        data = unpack_blob(digest, blobs[digest], keys)
        if value.code == _TEXT:
            return data.decode()
        if value.code == _BYTES:
            return data
        raise Corrupt(f"a reference to blob {digest} has the unknown kind {value.code}. Upgrade Clew.")
    if isinstance(value, dict):
        return {key: restore(item, blobs, keys) for key, item in value.items()}
    if isinstance(value, list):
        return [restore(item, blobs, keys) for item in value]
    return value
