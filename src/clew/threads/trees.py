"""Keep trees of blobs, such as file snapshots, from gc until a thread names them, and copy them to another store.

A tree is a blob that points at other blobs. gc deletes only blobs that were not used for some time. To touch a blob is
to set the time of its last use, which the store keeps, to now.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Sequence

from clew.checkpointers import Checkpointer
from clew.errors import Corrupt, MissingBlob
from clew.log.blobs import blob_key, is_tree, pack_blob, pack_tree, tree_refs, unpack_blob
from clew.log.keys import Keyring
from clew.threads.frames import Source
from clew.threads.ops.gc import below

__all__ = ["TreeMover", "check_trees", "keep_trees", "note_fresh"]

_LEAVES = 8
"""Number of leaves (blobs that point at no others) to read at once, at most. Each may have a few megabytes."""
_AT_ONCE = 8 * 2**20
"""Number of bytes of blobs to gather before they are stored together."""


_FRESH = 3600.0
_fresh: weakref.WeakKeyDictionary[Checkpointer, dict[str, float]] = weakref.WeakKeyDictionary()
"""For each store, a dictionary from the digest of a tree to the time at which the tree was last known to be complete
and safe from gc. A tree is a blob that points at others.
"""


def note_fresh(checkpointer: Checkpointer, root: str) -> None:
    """Remember that a tree was just written or checked with all its blobs. A tree is a blob that points at other blobs;
    `root` is its digest.

    For an hour, an append that names this tree then need not check all its blobs again.
    """
    now = time.monotonic()
    known = _fresh.setdefault(checkpointer, {})
    for old in [digest for digest, noted in known.items() if now - noted > _FRESH]:
        del known[old]
    known[root] = now


async def check_trees(checkpointer: Checkpointer, roots: Collection[str], thread_id: str) -> None:
    """Raise `MissingBlob` unless all blobs of these trees are in the store. A tree is a blob that points at other
    blobs, such as a file snapshot; `roots` are the trees' digests.

    Of trees that were written or checked within the last hour, only the root is checked. For all blobs of the other
    trees, the time after which gc may delete them is renewed, so that they stay until an append names the trees.
    `thread_id` names the thread in the error.
    """
    now = time.monotonic()
    known = _fresh.get(checkpointer, {})
    fresh = {root for root in roots if now - known.get(root, -_FRESH) < _FRESH}
    if fresh and (missing := await checkpointer.missing_blobs(fresh)):
        raise MissingBlob(missing, thread_id=thread_id)
    await keep_trees(checkpointer, set(roots) - fresh, thread_id)


async def keep_trees(checkpointer: Checkpointer, roots: Collection[str], thread_id: str) -> None:
    """Touch these trees and every blob that they point at, so that gc leaves them alone until an append names the
    trees.

    To touch a blob is to renew the time after which gc may delete it. Call this before a thread names a tree that was
    not just written. Raises `MissingBlob` if blobs are gone; `thread_id` names the thread in the error.
    """
    if roots:
        missing = await checkpointer.missing_blobs(await below(checkpointer, roots))
        if missing:
            raise MissingBlob(missing, thread_id=thread_id)


class TreeMover:
    """Copies trees of blobs from a source to wherever the function `put` stores blobs. A tree is a blob that points at
    other blobs, such as a file snapshot.

    Each blob is copied once, and after all blobs that it points at. Blobs are encrypted with the target's keys.
    """

    def __init__(
        self, source: Source, keys: Keyring | None, put: Callable[[dict[str, bytes]], Awaitable[None]], thread_id: str
    ) -> None:
        """Prepare to copy trees (blobs that point at other blobs) from `source`; `move` copies them.

        `keys` are the keys of the target. A blob that is already encrypted as the target wants it is copied byte for
        byte. `put` is called with blobs to store, as bytes by digest. `thread_id` names the thread in errors.
        """
        self._source = source
        self._keys = keys
        self._put = put
        self._thread_id = thread_id
        self._names: dict[str, str] = {}
        self._gathered: dict[str, bytes] = {}
        self._size = 0

    async def move(self, roots: Collection[str]) -> dict[str, str]:
        """Copy these trees (blobs that point at other blobs), with all blobs that they point at, from the source to the
        target. `roots` are their digests in the source. Returns, for each of them, the digest that the tree has in the
        target."""
        for root in roots:
            if root not in self._names:
                await self._move(root)
        await self._flush()
        return {root: self._names[root] for root in roots}

    async def _move(self, root: str) -> None:
        """Copy one tree, a blob that points at other blobs, from the source to the target; the blobs that it points at
        first. `root` is the tree's digest in the source. The last blobs are not stored in the target until the caller
        calls `_flush`.

        Does so without recursion, because folders may be nested deeper than Python's stack.
        """
        waiting = [root]
        read: dict[str, bytes] = {}
        while waiting:
            digest = waiting[-1]
            if digest in self._names:
                waiting.pop()
                continue
            if digest not in read:
                read[digest] = (await self._read([digest]))[digest]
            packed = read[digest]
            trees, leaves = tree_refs(packed)
            if left := [tree for tree in trees if tree not in self._names]:
                waiting += left
                continue
            await self._move_leaves(leaves)
            await self._add(digest, packed)
            waiting.pop()
            del read[digest]

    async def _move_leaves(self, leaves: Sequence[str]) -> None:
        left = [leaf for leaf in dict.fromkeys(leaves) if leaf not in self._names]
        for start in range(0, len(left), _LEAVES):
            for digest, packed in (await self._read(left[start : start + _LEAVES])).items():
                if is_tree(packed):
                    raise Corrupt(f"blob {digest} is a tree where only a leaf is allowed. Restore it from a copy.")
                await self._add(digest, packed)

    async def _add(self, digest: str, packed: bytes) -> None:
        name, moved = self._sealed(digest, packed)
        self._names[digest] = name
        self._gathered[name] = moved
        self._size += len(moved)
        if self._size > _AT_ONCE:
            await self._flush()

    async def _flush(self) -> None:
        if self._gathered:
            await self._put(self._gathered)
        self._gathered, self._size = {}, 0

    async def _read(self, digests: Collection[str]) -> dict[str, bytes]:
        found = await self._source.get_blobs(digests)
        if absent := set(digests) - found.keys():
            raise MissingBlob(absent, thread_id=self._thread_id)
        return found

    def _sealed(self, digest: str, packed: bytes) -> tuple[str, bytes]:
        """Return the digest and the bytes that a blob has in the target, encrypted with the target's key. `digest` and
        `packed` are those of the blob in the source."""
        trees, leaves = ([self._names[name] for name in names] for names in tree_refs(packed))
        same = (trees, leaves) == tree_refs(packed)
        if same and blob_key(packed) == (None if self._keys is None else self._keys.current):
            return digest, packed
        value = unpack_blob(digest, packed, self._source.keys)
        return pack_tree(value, trees, leaves, self._keys) if is_tree(packed) else pack_blob(value, self._keys)
