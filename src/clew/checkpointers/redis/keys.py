"""How a store is laid out in Redis: which keys there are, and in which slots of a cluster.

A namespace is spread over 64 shards, each a hash tag, and so a slot, of its own. A thread lives in the shard that its key
names, with all that a call about it needs:

    clew:{<ns>.<n>}:<thread key>:head   hash    n frames, log id, r refs, t ttl, u and c places in the listing, h the head
    clew:{<ns>.<n>}:<thread key>:log    list    the frames
    clew:{<ns>.<n>}:<thread key>:refs   set     digests, 32 bytes each
    clew:{<ns>.<n>}:updated             zset    of the shard's threads, in the order of `updated_at`
    clew:{<ns>.<n>}:created             zset    the same by `created_at`
    clew:{<ns>.<n>}:blobs               zset    digests of the shard's blobs, by the server's time of their last touch
    clew:{<ns>.<n>}:blob:<digest>       string  a blob
    clew:format                         string  the version of this layout

Why a tag for each shard and not for each thread: the listing of a shard is then in the slot of its threads, and one
script writes frames, head, refs and the thread's place in the listing as one. There is no moment at which a thread
exists and cannot be listed, which gc depends on. 64 are enough to spread a namespace over a large cluster, for the tags
are chosen so that their slots are evenly apart, and few enough that a listing asks all of them in one round trip.

Places in a listing are bytes that sort as heads do: the moment, then the thread's key. All scores are 0, so that Redis
compares the bytes: a score could not tell microseconds apart after the year 2255.
"""

from __future__ import annotations

import functools
from binascii import crc_hqx
from collections.abc import Iterable
from itertools import count

from blake3 import blake3

from clew.checkpointers.heads import Head, micros, thread_digest

__all__ = ["FORMAT", "KEY", "SHARDS", "Layout", "created_place", "moment_bytes", "updated_place"]

FORMAT = 1
SHARDS = 64
KEY = 32
"""Bytes of a thread's key, and of a digest."""

_SLOTS = 16384
_ZERO = 2**63


def moment_bytes(moment: int) -> bytes:
    """Microseconds since 1970 as bytes that sort as the numbers do."""
    return (moment + _ZERO).to_bytes(8, "big")


def created_place(head: Head) -> bytes:
    return moment_bytes(micros(head.created_at)) + thread_digest(head.thread_id)


def updated_place(head: Head) -> bytes:
    """Ends with the moment of creation, so that whoever finds the place of a thread that is gone knows its other one."""
    key = thread_digest(head.thread_id)
    return moment_bytes(micros(head.updated_at)) + key + moment_bytes(micros(head.created_at))


class Layout:
    """The names of all keys of one namespace."""

    def __init__(self, prefix: str, namespace: str) -> None:
        self.format = f"{prefix}format"
        self.tags = [f"{prefix}{{{tag}}}:".encode() for tag in _tags(namespace)]
        self.thread = functools.lru_cache(4096)(self._thread)
        """Head, log and refs of the thread with this key, and the listings it is in."""

    def shard(self, key: str) -> int:
        """Where a thread with this key, or a blob with this digest, lives."""
        return int(key[:2], 16) * SHARDS // 256

    def _thread(self, key: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        tag = self.tags[self.shard(key)]
        own = tag + key.encode()
        return own + b":head", own + b":log", own + b":refs", tag + b"updated", tag + b"created"

    def blob(self, digest: str) -> bytes:
        return self.tags[self.shard(digest)] + b"blob:" + digest.encode()

    def by_shard(self, digests: Iterable[str]) -> dict[int, list[str]]:
        """Each of these once, with others of its shard."""
        found: dict[int, list[str]] = {}
        for digest in dict.fromkeys(digests):
            found.setdefault(self.shard(digest), []).append(digest)
        return found


@functools.lru_cache(64)
def _tags(namespace: str) -> tuple[str, ...]:
    """One hash tag a shard, the first found whose slot lies in the shard's part of all slots."""
    name = blake3(namespace.encode()).hexdigest(16)
    found: dict[int, str] = {}
    for number in count():
        tag = f"{name}.{number}"
        slot = crc_hqx(tag.encode(), 0) % _SLOTS
        found.setdefault(slot * SHARDS // _SLOTS, tag)
        if len(found) == SHARDS:
            break
    return tuple(found[shard] for shard in range(SHARDS))
