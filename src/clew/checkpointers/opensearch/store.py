"""The OpenSearch store. Each append writes the thread's own document, on condition that nobody has changed it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.checks import (
    Guard,
    check_append,
    check_blobs,
    check_digests,
    check_grace,
    check_namespace,
    check_query,
    check_range,
    check_thread_id,
)
from clew.checkpointers.heads import Head, HeadQuery
from clew.checkpointers.opensearch.blobs import Blobs
from clew.checkpointers.opensearch.engine import Answer, Engine, check_options, parse_url
from clew.checkpointers.opensearch.listing import Listing
from clew.checkpointers.opensearch.schema import Indices
from clew.checkpointers.opensearch.threads import Threads
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.packed.log import Append
from clew.errors import Corrupt, InvalidInput, ThreadNotFound, UsageError

if TYPE_CHECKING:
    from opensearchpy import AsyncOpenSearch

__all__ = ["OpenSearchCheckpointer", "sweep"]


SWEEP_EVERY = 3600.0
"""The fewest seconds between two sweeps of one checkpointer. A sweep deletes leftover documents. It is part of
`delete_blobs`, which garbage collection calls."""
MOST_TEXT = 4 * 2**20
"""The most bytes of UTF-8 in a text given to `index_text`."""
MOST_FOUND = 1000
"""The most threads that one search returns."""


@explains_lack_of_memory()
class OpenSearchCheckpointer(Checkpointer):
    """A store in an OpenSearch cluster, version 2.4 or later.

    The URL is `opensearch://[user:password@]host[:9200][/index-prefix]`. Options are given in the URL or as arguments;
    arguments take precedence:

    - `prefix`: start of the names of the three indices, `clew` by default. In the URL it is the path.
    - `tls=true` uses HTTPS; `ca_file` has the certificates to trust; `verify=false` trusts any. A password is sent to
      another machine without TLS only with `tls=false`.
    - `timeout`: seconds without progress after which a call raises `Unavailable`, 10 by default.
    - `shards` and `replicas` of the indices when they are created. The default is 1 shard, and 1 replica if there is a
      second node.
    - `index_messages=true` allows `index_text`.
    - `client`: an `opensearchpy.AsyncOpenSearch` to use, for several hosts or for signed requests, as Amazon's service
      needs them. The client is not closed with the checkpointer. It should not retry conditional writes, but if it
      does, nothing is lost.

    An acknowledged append is durable, because the cluster syncs its write-ahead log, the translog, for each request.
    Indices with `index.translog.durability: async` are refused on first use. Reads get documents by id and see every
    write. Listings and searches refresh the index first, so that they see everything appended before; appends never
    wait for a refresh.

    An append checks that the blobs it refers to exist, and sets their time of last use to now, in a request before the
    write. Garbage collection spares a blob for a grace period after its last use, so that period must be longer than an
    append takes.
    """

    def __init__(
        self,
        url: str = "opensearch://localhost:9200",
        namespace: str = "",
        *,
        prefix: str | None = None,
        tls: bool | None = None,
        ca_file: str | None = None,
        verify: bool | None = None,
        timeout: float | None = None,
        shards: int | None = None,
        replicas: int | None = None,
        index_messages: bool | None = None,
        client: AsyncOpenSearch | None = None,
    ) -> None:
        check_namespace(namespace)
        address, options = parse_url(url)
        named: dict[str, Any] = {
            "prefix": prefix,
            "tls": tls,
            "ca_file": ca_file,
            "verify": verify,
            "timeout": timeout,
            "shards": shards,
            "replicas": replicas,
            "index_messages": index_messages,
        }
        options = msgspec.structs.replace(
            options, **{name: value for name, value in named.items() if value is not None}
        )
        check_options(address, options)
        self._where = f"{address}/{options.prefix}"
        self._namespace = namespace
        self._options = options
        self.place = f"{self._where}#{namespace}"
        self._ns = blake3(namespace.encode()).hexdigest()[:32]
        self._guard = Guard(f"the OpenSearch checkpointer of {address}")
        self._indices = Indices(options)
        self._engine = Engine(address, options, client, self._indices.open)
        self._blobs = Blobs(self._engine, self._indices, self._ns, self._where)
        self._threads = Threads(self._engine, self._indices, self._ns, self._blobs, self._where)
        self._listing = Listing(self._engine, self._indices, self._ns, self._threads, self._guard, self._where)
        self._swept = -SWEEP_EVERY

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> OpenSearchCheckpointer:
        """Open a store in the cluster that the URL names, for example
        `opensearch://user:password@host:9200/prefix?tls=true&ca_file=/etc/ssl/ca.pem`."""
        return cls(url, namespace)

    def __repr__(self) -> str:
        return f"OpenSearchCheckpointer({self._where!r}, namespace={self._namespace!r})"

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self._guard.enter()
        encoded = check_append(thread_id, frames, at, head, refs)
        await self._engine.settle(self._threads.logs.append(Append(thread_id, frames, at, head, encoded, refs)))

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        self._guard.enter()
        check_range(thread_id, start, stop)
        return await self._threads.logs.read(thread_id, start, stop)

    async def head(self, thread_id: str) -> Head | None:
        self._guard.enter()
        check_thread_id(thread_id)
        return await self._threads.head(thread_id)

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        self._guard.enter()
        check_query(query)
        async for head in self._listing.heads(query):
            yield head

    async def refs(self, thread_id: str) -> set[str]:
        self._guard.enter()
        check_thread_id(thread_id)
        return await self._threads.logs.refs(thread_id)

    async def delete(self, thread_id: str) -> None:
        self._guard.enter()
        check_thread_id(thread_id)
        await self._engine.settle(self._threads.delete(thread_id))

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        self._guard.enter()
        check_blobs(blobs)
        await self._engine.settle(self._blobs.put(blobs))

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        self._guard.enter()
        check_digests(digests)
        return await self._blobs.get(digests)

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        self._guard.enter()
        check_digests(digests)
        return await self._engine.settle(self._blobs.touch(digests))

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        self._guard.enter()
        check_grace(untouched_for)
        async for digest in self._blobs.untouched(untouched_for):
            yield digest

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        self._guard.enter()
        check_digests(digests)
        check_grace(untouched_for)
        await self._engine.settle(self._delete_blobs(digests, untouched_for))

    async def search(self, text: str, *, limit: int = 20) -> list[Head]:
        """Return the heads of at most `limit` threads, best matches first. A thread matches if at least one word of
        this text is in its title or in the text that was given to `index_text`. Raises `InvalidInput` for an empty
        text, or if `limit` is not from 1 to 1000. Only the OpenSearch store has this method."""
        self._guard.enter()
        if not text.strip():
            raise InvalidInput("a search needs a word to search for. To list all threads use heads().")
        if not 0 < limit <= MOST_FOUND:
            raise InvalidInput(f"the limit of a search must be from 1 to {MOST_FOUND}, not {limit}")
        return await self._listing.search(text, limit)

    async def index_text(self, thread_id: str, text: str) -> None:
        """Set the text by which `search` finds this thread, for example its messages. Replaces the text of an earlier
        call.

        The store cannot take the text from the frames itself, because they are opaque to it. The text is stored
        unencrypted and is deleted with the thread. Raises `UsageError` if the store was opened without
        `index_messages=True` or the thread is encrypted, and `ThreadNotFound` if there is no such thread.
        """
        self._guard.enter()
        check_thread_id(thread_id)
        if not self._options.index_messages:
            raise UsageError(
                f"{self._where} was opened without index_messages=True, so it stores no text for searches."
            )
        if (size := len(text.encode("utf-8", "replace"))) > MOST_TEXT:
            raise InvalidInput(
                f"thread {thread_id!r}: the text for searches has {size} bytes; the limit is {MOST_TEXT}."
            )
        head = await self._threads.head(thread_id)
        if head is None:
            raise ThreadNotFound(thread_id)
        if head.seal:
            raise UsageError(f"thread {thread_id!r} is encrypted, but text for searches would be stored in the clear.")
        await self._threads.set_text(thread_id, text)

    async def close(self) -> None:
        if self._guard.close():
            await self._engine.close()

    async def _delete_blobs(self, digests: Collection[str], untouched_for: timedelta) -> None:
        await self._blobs.delete(digests, untouched_for)
        if time.monotonic() - self._swept >= SWEEP_EVERY:
            self._swept = time.monotonic()
            await sweep(self._engine, self._indices, self._ns, self._threads, self._blobs)


LEFTOVER = 86_400_000_000
"""The age in microseconds from which a pack, or a document with a blob's bytes, is deleted if no thread or blob holds
its name. A process that writes such a document adds the name to a thread or blob within an hour, or never."""
PAGE = 500
"""The number of documents that a sweep reads with each request; the last request may find fewer. A sweep deletes
leftover documents."""


async def sweep(engine: Engine, indices: Indices, ns: str, threads: Threads, blobs: Blobs) -> None:
    """Delete leftovers of interrupted writes that are more than a day old. These are packs (older frames of a thread)
    that no thread lists, and documents with blobs' bytes that no blob names. `ns` identifies the namespace."""
    await engine.refresh(indices.data)
    old = {"range": {"made": {"lt": indices.clock.now() - LEFTOVER}}}
    body: dict[str, Any] = {
        "size": PAGE,
        "query": {"bool": {"filter": [{"term": {"ns": ns}}, old]}},
        "sort": [{"name": "asc"}, {"piece": "asc"}],
        "_source": ["kind", "owner", "name"],
        "track_total_hits": False,
    }
    while True:
        hits = (await engine.search(body, indices.data))["hits"]["hits"]
        named = await _named(hits, threads, blobs)
        left = [hit["_id"] for hit in hits if hit["_source"]["name"] not in named]
        await engine.bulk(indices.data, [("delete", {"_id": key}, None) for key in left])
        if len(hits) < PAGE:
            return
        body["search_after"] = hits[-1]["sort"]


async def _named(hits: list[Answer], threads: Threads, blobs: Blobs) -> set[str]:
    """Return the names that a cleanup must not delete: those of packs (groups of older frames) to which a thread still
    refers, and those under which the bytes of a blob that still exists are stored. `hits` are the documents that the
    cleanup has found. If a thread or blob is damaged, all names that `hits` has for it are returned."""
    names: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for hit in hits:
        source = hit["_source"]
        names[source["kind"], source["owner"]].add(source["name"])
    named: set[str] = set()
    for (kind, owner), mine in names.items():
        try:
            named |= await (threads.logs.pack_names(owner) if kind == "pack" else blobs.names(owner))
        except Corrupt:
            named |= mine  # the owner is damaged, so nobody knows which names it holds; it may yet be restored
    return named
