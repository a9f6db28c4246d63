"""The Redis and Valkey checkpointer. An append is one Lua script, on a single server or on a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from zlib import crc32

import msgspec

from clew._runtime.aio import settle
from clew._runtime.batches import batches
from clew.checkpointers.base import Checkpointer
from clew.checkpointers.bells import Bell, bell_name
from clew.checkpointers.checks import (
    NO_THREAD,
    Guard,
    check_append,
    check_blobs,
    check_digests,
    check_grace,
    check_namespace,
    check_query,
    check_range,
    check_stored_blob,
    check_thread_id,
    check_wanted,
)
from clew.checkpointers.heads import Head, HeadQuery, grace_micros, thread_key
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.redis import scripts
from clew.checkpointers.redis.address import Options, check_options, parse_url
from clew.checkpointers.redis.engine import Call, Engine, Line
from clew.checkpointers.redis.keys import KEY, Layout, created_place, queue_place, updated_place
from clew.checkpointers.redis.listing import Listing
from clew.checkpointers.redis.recovery import Recovery
from clew.errors import Conflict, Corrupt, InvalidInput, MissingBlob, Unavailable

__all__ = ["RedisCheckpointer"]

MOST_FRAMES = 1_000_000
"""The most frames in one append. The limit is there because Redis refuses a command with more than 2**20 arguments."""
MOST_BLOB = 512 * 2**20
"""The most bytes of a blob: what one value in Redis can hold."""

_SUM = 4
_FAR = 2**53 - 1
"""A number for a frame that is after the end of every log. It is the largest integer that is exact in Lua."""
_MODE = 6
"""The position, counted from 0, of the argument `mode` among the arguments of the script `APPEND`."""
_PAGE = 4 * 2**20
_BATCH = 64

_decode_head = msgspec.msgpack.Decoder(Head).decode


@explains_lack_of_memory()
class RedisCheckpointer(Checkpointer, Bell):
    """Keeps threads in a Redis or Valkey server, or in a cluster of them.

    The URL is `redis://[user:password@]host[:6379][/db]`, or `rediss://` for TLS. These options may be in the URL or given
    as arguments; arguments override the URL:

    - `prefix`: the start of all keys, default `clew:`. It separates this store from others in the same database.
    - `ttl`: seconds without an append after which a thread is deleted. An append through a checkpointer without a `ttl`
      makes the thread permanent. Blobs do not expire, because an append cannot renew blobs that it does not name, such as
      those that other blobs point at. gc (garbage collection) removes the blobs that expired threads leave behind.
    - `cluster=true`: the server is part of a cluster. Clew asks it for the addresses of the others.
    - `wait_replicas`: an append, with the blobs it needs, returns only once this many replicas have it, and raises
      `Unavailable` if they do not confirm that in time.
    - `timeout`: seconds without progress after which a call raises `Unavailable`, default 10.

    How durable an append is depends on the server's settings. `appendonly yes` and `appendfsync always` keep the promise
    of `Checkpointer.append`. With other settings, a warning says once what to change.

    An append first checks that the blobs it names exist, and marks them as just used. This is a step of its own, because
    blobs live in other slots of a cluster. gc keeps blobs that were used within a certain time, by default a day, so it
    cannot delete such a blob in between as long as the append takes less time than that.

    The lists by which threads are listed are Redis keys of their own. If one is lost, the next call of `heads` makes it
    again from the keys of the threads. gc does not rely on these lists alone: before it deletes blobs, all keys of
    the server are looked through for threads.
    """

    is_hasty: bool = True

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        namespace: str = "",
        *,
        prefix: str | None = None,
        ttl: float | timedelta | None = None,
        cluster: bool | None = None,
        wait_replicas: int | None = None,
        timeout: float | None = None,
    ) -> None:
        check_namespace(namespace)
        address, options = parse_url(url)
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        named = {
            "prefix": prefix,
            "ttl": seconds,
            "cluster": cluster,
            "wait_replicas": wait_replicas,
            "timeout": timeout,
        }
        given = {name: value for name, value in named.items() if value is not None}
        options = msgspec.structs.replace(options, **given)
        check_options(address, options)
        self._address = address
        self._namespace = namespace
        self._options: Options = options
        self.place = f"{address}?prefix={options.prefix}#{namespace}"
        self._layout = Layout(options.prefix, namespace)
        self._guard = Guard(f"the Redis checkpointer of {address}")
        self._engine = Engine(address, options, self._layout, self._guard)
        self._channel = f"{options.prefix}{bell_name(str(address.db), namespace)}"
        self._recovery = Recovery(self._engine, self._layout, str(address))

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> RedisCheckpointer:
        """Open the store at a URL of the form `redis://host:6379/0?prefix=clew:&ttl=86400`. Use `rediss://` for TLS and
        `?cluster=true` for a cluster. All keys start with `prefix`, and a thread without appends is deleted after `ttl`
        seconds. `namespace` selects a separate part of the store."""
        return cls(url, namespace)

    def __repr__(self) -> str:
        return f"RedisCheckpointer({str(self._address)!r}, namespace={self._namespace!r})"

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        with self._engine.use():
            encoded = check_append(thread_id, frames, at, head, refs)
            if len(frames) > MOST_FRAMES:
                raise InvalidInput(
                    f"thread {thread_id!r}: the append has {len(frames)} frames, the limit is {MOST_FRAMES}. "
                    "Append in parts."
                )
            check_wanted()
            call = self._appending(thread_id, frames, at, head, encoded, refs)
            begun = None if refs else self._engine.begin(call)
            await settle(self._append(thread_id, at, refs, call, begun))

    def _appending(
        self, thread_id: str, frames: Sequence[bytes], at: int, head: Head, encoded: bytes, refs: Collection[str]
    ) -> Call:
        args: list[bytes | int] = [
            min(at, _FAR),
            head.log_id.encode(),
            updated_place(head),
            created_place(head),
            encoded + crc32(encoded).to_bytes(_SUM, "little"),
            0 if self._options.ttl is None else int(self._options.ttl * 1000),
            b"wait" if self._options.wait_replicas else b"",
            queue_place(head),
            len(refs),
            *map(bytes.fromhex, refs),
            *frames,
        ]
        return Call(scripts.APPEND, self._layout.thread(thread_key(thread_id)), args)

    async def _append(self, thread_id: str, at: int, refs: Collection[str], call: Call, begun: Line | None) -> None:
        missing = await self._missing(refs) if refs else set()
        if missing:
            call = call._replace(args=[*call.args[:_MODE], b"ask", *call.args[_MODE + 1 :]])
        outcome = await self._engine.run(call, wait=True, begun=begun)
        match outcome:
            case 1:
                return
            case [b"free"]:
                raise MissingBlob(missing, thread_id=thread_id)
            case [b"absent"]:
                raise Conflict(thread_id, NO_THREAD)
            case [b"other"]:
                raise Conflict(thread_id, "the thread was deleted and made again; this is another log")
            case [b"ends", end]:
                raise Conflict(thread_id, f"its log ends at frame {end}, not {at}")
            case _:
                raise self._in_part(thread_id, outcome)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        with self._engine.use():
            check_range(thread_id, start, stop)
            frames: list[bytes] = []
            log_id: bytes | None = None
            end = _FAR if stop is None else min(stop, _FAR)
            while True:
                args = [min(start + len(frames), _FAR), end, _PAGE]
                count, found, *page = await self._look(scripts.READ, thread_id, args)
                if frames and found != log_id:  # the thread was deleted meanwhile, and perhaps made again
                    frames, end = [], _FAR if stop is None else min(stop, _FAR)
                    continue
                log_id, end = found, min(end, count)
                frames += page
                if start + len(frames) >= end:
                    return frames

    async def head(self, thread_id: str) -> Head | None:
        with self._engine.use():
            check_thread_id(thread_id)
            data, count = await self._look(scripts.LOOK, thread_id)
            if data is None:
                return None
            head = self._decode(data, f"thread {thread_id!r}")
            if head.frames != count or head.thread_id != thread_id:
                raise Corrupt(
                    f"the head of thread {thread_id!r} in {self._address} does not match its log. Restore a copy."
                )
            return head

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        self._guard.enter()
        check_query(query)
        listing = Listing(self._engine, self._layout, self._recovery, self._decode, query, str(self._address))
        async for head in listing.heads():
            yield head

    async def refs(self, thread_id: str) -> set[str]:
        with self._engine.use():
            check_thread_id(thread_id)
            [digests] = await self._look(scripts.REFS, thread_id)
            return set(_cut(digests))

    async def delete(self, thread_id: str) -> None:
        """Delete a thread. Reads the id of its log first and then deletes only that log. So a delete that is repeated
        after a broken connection never deletes a thread with the same id that was created in between."""
        with self._engine.use():
            check_thread_id(thread_id)
            keys = self._layout.thread(thread_key(thread_id))
            [log_id] = await self._engine.commands([("HGET", keys[0], "log")])
            check_wanted()
            await self._engine.run(Call(scripts.DELETE, keys, [b"none", b""] if log_id is None else [b"this", log_id]))

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        with self._engine.use():
            check_blobs(blobs)
            for digest, data in blobs.items():
                if len(data) > MOST_BLOB:
                    raise InvalidInput(f"blob {digest} has {len(data)} bytes; a Redis store takes up to {MOST_BLOB}.")
            for part in batches(blobs, 16 * _BATCH, size=lambda digest: len(blobs[digest]), largest=_PAGE):
                calls = [
                    self._about_blobs(scripts.PUT, digests, [blobs[digest] for digest in digests])
                    for digests in self._layout.by_shard(part).values()
                ]
                await self._engine.run_all(calls, wait=True)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        with self._engine.use():
            check_digests(digests)
            found: dict[str, bytes] = {}
            for part in batches(dict.fromkeys(digests), _BATCH):
                datas = await self._engine.commands([("GET", self._layout.blob(digest)) for digest in part])
                for digest, data in zip(part, datas, strict=True):
                    if data is not None:
                        check_stored_blob(digest, data, str(self._address))
                        found[digest] = data
            return found

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        with self._engine.use():
            check_digests(digests)
            return await self._missing(digests)

    async def _missing(self, digests: Collection[str]) -> set[str]:
        """Return the digests of those blobs that are missing. Touches the blobs that exist: marks them as just used, by
        the server's clock."""
        shards = list(self._layout.by_shard(digests).values())
        answers = await self._engine.run_all([self._about_blobs(scripts.TOUCH, shard) for shard in shards], wait=True)
        return {shard[number] for shard, numbers in zip(shards, answers, strict=True) for number in numbers}

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        self._guard.enter()
        check_grace(untouched_for)
        with self._engine.use():
            await self._recovery.check()
        for tag in self._layout.tags:
            with self._engine.use():
                found = await self._engine.run(Call(scripts.UNTOUCHED, [tag + b"blobs"], [grace_micros(untouched_for)]))
            for digest in _cut(found):
                yield digest

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        with self._engine.use():
            check_digests(digests)
            check_grace(untouched_for)
            if restored := await self._recovery.check(recent=True):
                raise Unavailable(
                    f"{self._address}: {restored} threads were missing in the listing, so it was not known which blobs "
                    "they need. They are back, and nothing was deleted. Try again."
                )
            before = grace_micros(untouched_for)
            shards = self._layout.by_shard(digests).values()
            calls = [self._about_blobs(scripts.DELETE_BLOBS, shard) for shard in shards]
            await self._engine.run_all([call._replace(args=[before, *call.args]) for call in calls])

    async def ring(self) -> None:
        with self._engine.use():
            await self._engine.publish(self._channel)

    def hear(self) -> AsyncIterator[None]:
        return self._engine.hear(self._channel)

    async def close(self) -> None:
        if self._guard.close():
            await self._engine.close()

    async def _look(self, script: scripts.Script, thread_id: str, args: Sequence[int] = ()) -> list[Any]:
        """Run a script that reads a thread, and return its answer. `args` are the arguments of the script. Raises
        `Corrupt` if some of the thread's data is missing on the server."""
        keys = self._layout.thread(thread_key(thread_id))[:3]
        answer: list[Any] = await self._engine.run(Call(script, keys, args))
        if answer and answer[0] == b"part":
            raise self._in_part(thread_id, answer)
        return answer

    def _in_part(self, thread_id: str, answer: list[int]) -> Corrupt:
        _, frames, frames_there, refs, refs_there = answer
        return Corrupt(
            f"thread {thread_id!r} in {self._address} is incomplete: {frames_there} of {frames} frames and "
            f"{refs_there} of {refs} refs. The server has evicted keys or was restored in part. "
            "Restore a copy, or delete the thread."
        )

    def _about_blobs(self, script: scripts.Script, digests: Sequence[str], datas: Sequence[bytes] = ()) -> Call:
        """Return a `Call` of the Lua script `script` for these blobs, which is not sent to the server yet. All blobs
        must be in one shard (a part of the namespace). `datas` are the bytes of the blobs in the same order, for a
        script that stores them."""
        listing = self._layout.tags[self._layout.shard(digests[0])] + b"blobs"
        keys = [listing, *map(self._layout.blob, digests)]
        return Call(script, keys, [*map(bytes.fromhex, digests), *datas])

    def _decode(self, data: object, whose: str) -> Head:
        encoded = data[:-_SUM] if isinstance(data, bytes) else b""
        if not isinstance(data, bytes) or crc32(encoded).to_bytes(_SUM, "little") != data[-_SUM:]:
            raise Corrupt(f"the head of {whose} in {self._address} fails its check. Restore a copy.")
        try:
            return _decode_head(encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"the head of {whose} in {self._address} does not decode: {error}. Restore a copy."
            ) from error


def _cut(digests: bytes) -> Iterator[str]:
    return (digests[at : at + KEY].hex() for at in range(0, len(digests), KEY))
