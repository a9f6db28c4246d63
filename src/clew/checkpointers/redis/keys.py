"""The keys of a store in Redis, and the slots of a cluster that they are in.

A namespace is spread over 64 shards. Each shard has its own hash tag (the part of a Redis key that decides its slot) and
therefore its own slot. A thread lives in the shard that the thread's key, a digest of its id, decides. Everything that a
call about the thread needs is there too:

    clew:{<ns>.<n>}:<thread key>:head   hash    fields: `n` and `r`, the numbers of frames and refs; `log`, the log's id;
                                                `t`, the ttl; `u` and `c`, the places in the listings by time; `d`, the
                                                place in the queue, if the thread is there; `h`, the head
    clew:{<ns>.<n>}:<thread key>:log    list    the frames
    clew:{<ns>.<n>}:<thread key>:refs   set     refs: digests of the blobs that the thread refers to
    clew:{<ns>.<n>}:updated             zset    of the shard's threads, in the order of `updated_at`
    clew:{<ns>.<n>}:created             zset    the same by `created_at`
    clew:{<ns>.<n>}:due                 zset    of the shard's threads that are in the queue of the workers, earliest last
    clew:{<ns>.<n>}:threads             string  1 once the shard has had a thread
    clew:{<ns>.<n>}:blobs               zset    digests of the shard's blobs, by the server's time of their last touch
    clew:{<ns>.<n>}:blob:<digest>       string  a blob
    clew:format                         string  the version of this layout

Each shard has a tag, instead of each thread, so that the listing of a shard is in the slot of its threads. One script
can then write frames, head, refs and the thread's place in the listing atomically. So a thread that exists can always
be listed, which gc, the deletion of unused blobs, depends on. 64 shards are enough to spread a namespace over a large
cluster, because the tags are chosen so that their slots are evenly apart. They are few enough that a listing asks all
of them in one round trip.

The three listings of a shard begin with an empty member, made together with the key `threads` at the shard's first thread. A
listing without it was lost, evicted or restored in part, and is made again from the keys of the threads.

Places in a listing are bytes that sort as heads do: the moment, then the thread's key. All scores are 0, so that Redis
compares the bytes. A score could not tell microseconds apart after the year 2255.
"""

from __future__ import annotations

import functools
import re
from binascii import crc_hqx
from collections.abc import Iterable
from itertools import count

from blake3 import blake3

from clew.checkpointers.heads import Head, due_place, micros, thread_digest

__all__ = ["FORMAT", "KEY", "SHARDS", "Layout", "created_place", "moment_bytes", "queue_place", "updated_place"]

FORMAT = 2
"""The version of the layout. Version 2 added the listing `due`, the queue of the workers."""
SHARDS = 64
KEY = 32
"""The length in bytes of a thread's key and of a digest."""

_SLOTS = 16384
_ZERO = 2**63


def moment_bytes(moment: int) -> bytes:
    """Encode microseconds since 1970 as 8 bytes. The bytes of a later moment sort after those of an earlier one."""
    return (moment + _ZERO).to_bytes(8, "big")


def created_place(head: Head) -> bytes:
    """Return a thread's place (position as sortable bytes) in the listing by creation: the moment of creation, then the
    thread's key, which is the hash of its id."""
    return moment_bytes(micros(head.created_at)) + thread_digest(head.thread_id)


def queue_place(head: Head) -> bytes:
    """Return a thread's place (position as sortable bytes) in the queue of the workers: the time at which it is due, of
    which the earliest sorts last, then the thread's key, which is the hash of its id. Empty if the thread is not in the
    queue."""
    due = due_place(head)
    return b"" if due is None else moment_bytes(due) + thread_digest(head.thread_id)


def updated_place(head: Head) -> bytes:
    """Return a thread's place (position as sortable bytes) in the listing by update: the moment of the update, the
    thread's key (the hash of its id), then the moment of creation.

    The last part makes it possible to find the thread's place in the listing by creation after the thread is gone.
    """
    key = thread_digest(head.thread_id)
    return moment_bytes(micros(head.updated_at)) + key + moment_bytes(micros(head.created_at))


class Layout:
    """Makes the names of all Redis keys of one namespace, which is a separate part of a store."""

    def __init__(self, prefix: str, namespace: str) -> None:
        self.format = f"{prefix}format"
        self.tags = [f"{prefix}{{{tag}}}:".encode() for tag in _tags(namespace)]
        self.thread = functools.lru_cache(4096)(self._thread)
        """Return seven names of Redis keys for the key of a thread: its head, its log, its refs, and then the keys that
        `listings` returns for its shard."""

    def shard(self, key: str) -> int:
        """Return the number of the shard that holds a thread or a blob. A shard is one of the 64 parts into which a
        namespace is divided. `key` is the thread's key or the blob's digest."""
        return int(key[:2], 16) * SHARDS // 256

    def _thread(self, key: str) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
        tag = self.tags[self.shard(key)]
        own = tag + key.encode()
        return own + b":head", own + b":log", own + b":refs", *self.listings(self.shard(key))

    def listings(self, shard: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the names of four Redis keys of a shard (one of the 64 parts of a namespace): the list of its threads
        in the order of their last update, the list in the order of their creation, the key that says that the shard has
        had threads, and the list of the threads that are in the queue of the workers. `shard` is the number of the
        shard, counted from 0."""
        tag = self.tags[shard]
        return tag + b"updated", tag + b"created", tag + b"threads", tag + b"due"

    def thread_keys_pattern(self) -> bytes:
        """Return a pattern for the Redis command `SCAN`. It matches the names of all Redis keys that hold the head, the
        log or the refs (digests of blobs) of a thread in this namespace."""
        name, _, _ = self.tags[0].rpartition(b".")
        return re.sub(rb"([\\*?\[\]])", rb"\\\1", name) + b".*}:" + b"?" * 2 * KEY + b":*"

    def thread_of(self, name: bytes) -> str | None:
        """Return the thread's key (the hash of its id) to which the Redis key `name` belongs. Returns None unless the
        Redis key holds the head, the log or the refs (digests of blobs) of a thread in this namespace."""
        tag, _, own = name.rpartition(b"}:")
        key, _, kind = own.partition(b":")
        try:
            found = key.decode("ascii")
            bytes.fromhex(found)
        except ValueError:
            return None
        if len(found) != 2 * KEY or kind not in {b"head", b"log", b"refs"}:
            return None
        return found if tag + b"}:" == self.tags[self.shard(found)] else None

    def blob(self, digest: str) -> bytes:
        return self.tags[self.shard(digest)] + b"blob:" + digest.encode()

    def by_shard(self, digests: Iterable[str]) -> dict[int, list[str]]:
        """Group digests of blobs, or keys of threads, by the number of the shard (part of the namespace) that holds
        them. Duplicates are dropped."""
        found: dict[int, list[str]] = {}
        for digest in dict.fromkeys(digests):
            found.setdefault(self.shard(digest), []).append(digest)
        return found


@functools.lru_cache(64)
def _tags(namespace: str) -> tuple[str, ...]:
    """Return one hash tag for each shard. A shard is one of the parts into which a namespace is divided. Redis puts all
    keys with the same hash tag into one slot of a cluster. The tags are chosen so that the slots of the shards are
    evenly apart."""
    name = blake3(namespace.encode()).hexdigest(16)
    found: dict[int, str] = {}
    for number in count():
        tag = f"{name}.{number}"
        slot = crc_hqx(tag.encode(), 0) % _SLOTS
        found.setdefault(slot * SHARDS // _SLOTS, tag)
        if len(found) == SHARDS:
            break
    return tuple(found[shard] for shard in range(SHARDS))
