"""What is Redis's own: its URL, its settings, its scripts, keys that expire or vanish, and servers that go away."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from clew.checkpointers import Checkpointer, HeadQuery, open_checkpointer
from clew.checkpointers.heads import thread_key
from clew.checkpointers.redis import scripts
from clew.checkpointers.redis.engine import Call, Engine
from clew.checkpointers.redis.keys import FORMAT, SHARDS, Layout
from clew.checkpointers.redis.store import RedisCheckpointer
from clew.errors import Conflict, Corrupt, InvalidInput, MissingExtra, NewerFormat, Unavailable
from clew.testing.contract.builders import (
    all_blobs,
    append,
    digest_of,
    every_call,
    heads,
    listed,
    minute,
    put,
    state,
)
from clew.threads.ops.gc import gc
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.servers.proxy import Proxy
from tests.servers.redis import DURABLE, Server, a_cluster, a_server

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("redis")]

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with a_server("valkey", tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"own-{next(_numbers)}:"


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Redis]:
    """Another program at the same server."""
    async with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def store(server: Server, prefix: str) -> AsyncIterator[RedisCheckpointer]:
    async with RedisCheckpointer(server.url, prefix=prefix) as store:
        yield store


def keys_of(prefix: str, thread_id: str) -> tuple[bytes, ...]:
    return Layout(prefix, "").thread(thread_key(thread_id))


# URLs


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("redis:localhost", "not a Redis URL"),
        ("redis://", "not name a host"),
        ("redis://:s3cret@", "not name a host"),
        ("redis://:s3cret@host:port/0", "port"),
        ("redis://:s3cret@host:70000/0", "port"),
        ("redis://:s3cret@host/first", "'first' is not a database number"),
        ("redis://:s3cret@[::1/0", "does not parse"),
        ("redis://:s3cret#@host/0", "%23"),
        ("redis://:s3cret@host/0?colour=blue", "'colour'"),
        ("redis://:s3cret@host/0?ttl=soon", "ttl must be a number"),
        ("redis://:s3cret@host/0?ttl=nan", "ttl must be a number"),
        ("redis://:s3cret@host/0?ttl=0", "ttl is 1 second"),
        ("redis://:s3cret@host/0?ttl=1&ttl=2", "twice"),
        ("redis://me:1?s3cret@host/0", "an option is unknown"),
        ("redis://:s3cret@host/0?prefix=", "prefix"),
        ("redis://:s3cret@host/0?prefix={a}", "braces"),
        ("redis://:s3cret@host/0?timeout=0", "timeout"),
        ("redis://:s3cret@host/0?wait_replicas=1.5", "wait_replicas"),
        ("redis://:s3cret@host/0?wait_replicas=-1", "wait_replicas"),
        ("redis://:s3cret@host/0?cluster=maybe", "true or false"),
        ("redis://:s3cret@host/3?cluster=true", "database 0"),
        ("redis://:s3cret@host?cluster=true&wait_replicas=1", "min-replicas-to-write"),
        ("redis://:s3cret@host/0?ssl_ca_certs=ca.pem", "rediss://"),
        ("rediss://:s3cret@host/0?ssl_check_hostname=perhaps", "true or false"),
    ],
)
async def test_a_bad_url_says_what_is_wrong_and_shows_no_password(url: str, names: str) -> None:
    with pytest.raises(InvalidInput, match=names) as caught:
        open_checkpointer(url)
    assert "s3cret" not in str(caught.value)


async def test_a_url_and_a_constructor_can_say_the_same(server: Server, prefix: str) -> None:
    by_url = open_checkpointer(f"{server.url}?prefix={prefix}&ttl=60&timeout=5", namespace="team")
    by_name = RedisCheckpointer(server.url, "team", prefix=prefix, ttl=timedelta(minutes=1), timeout=5)
    assert by_url.place == by_name.place
    async with by_url, by_name:
        await append(by_url, "thread", b"frame")
        assert await by_name.read("thread") == [b"frame"]


async def test_stores_of_other_prefixes_and_databases_share_nothing(server: Server, prefix: str) -> None:
    urls = [f"{server.url}?prefix={prefix}", f"{server.url}?prefix=x{prefix}", f"{server.url[:-1]}1?prefix={prefix}"]
    stores = [open_checkpointer(url) for url in urls]
    assert len({store.place for store in stores}) == 3
    await append(stores[0], "thread", b"frame")
    await put(stores[0], b"blob")
    for other in stores[1:]:
        assert await other.head("thread") is None
        assert await listed(other) == []
        assert await all_blobs(other) == []
    for store in stores:
        await store.close()


async def test_a_missing_extra_is_named_when_the_store_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(MissingExtra, match=r"clew\[redis\]"):
        open_checkpointer("redis://localhost")


async def test_a_password_is_used_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with a_server("valkey", tmp_path, "--requirepass", "s3cret/@") as server:
        good = f"redis://:s3cret%2F%40@127.0.0.1:{server.port}"
        async with open_checkpointer(good) as store:
            await append(store, "thread", b"frame")
            shown = [repr(store), store.place]
        for wrong in (
            f"redis://:s3cret@127.0.0.1:{server.port}",
            server.url,
            f"redis://user:s3cret@127.0.0.1:{server.port}",
        ):
            async with open_checkpointer(wrong) as store:
                with pytest.raises(Unavailable, match="user name and password") as caught:
                    await store.head("thread")
                shown += [repr(store), str(caught.value), repr(caught.value.__cause__)]
    assert "s3cret" not in " ".join([*shown, caplog.text])


# What the server's settings mean


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (DURABLE, []),
        (("--appendonly", "no"), ["CONFIG SET appendonly yes and CONFIG SET appendfsync always"]),
        (("--appendonly", "yes"), ["appendfsync is everysec", "CONFIG SET appendfsync always"]),
        (("--appendonly", "yes", "--appendfsync", "no"), ["appendfsync is no,"]),
        ((*DURABLE, "--no-appendfsync-on-rewrite", "yes"), ["CONFIG SET no-appendfsync-on-rewrite no"]),
        ((*DURABLE, "--maxmemory-policy", "allkeys-lru"), ["threads can vanish: maxmemory-policy is allkeys-lru"]),
        ((*DURABLE, "--maxmemory-policy", "volatile-lru"), []),
        ((*DURABLE, "--rename-command", "CONFIG", ""), ["it is unknown whether"]),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
async def test_settings_under_which_writes_can_be_lost_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: tuple[str, ...], says: list[str]
) -> None:
    with a_server("valkey", tmp_path, *settings) as server:
        for _ in range(2):
            async with open_checkpointer(server.url) as store:
                await append(store, "thread", b"frame")
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == bool(says)
    assert all(text in told[0] for text in says)


async def test_a_policy_that_evicts_what_expires_is_told_to_who_wants_threads_to_expire(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_server("valkey", tmp_path, *DURABLE, "--maxmemory-policy", "volatile-lru") as server:
        async with open_checkpointer(f"{server.url}?ttl=60") as store:
            await append(store, "thread", b"frame")
    assert "maxmemory-policy is volatile-lru" in caplog.text


async def test_a_full_server_is_unavailable_and_keeps_what_it_has(
    server: Server, store: Checkpointer, client: Redis
) -> None:
    await append(store, "thread", b"frame")
    before = await state(store, "thread")
    await client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match="memory is full"):
            await append(store, "thread", b"more", at=1)
        assert await state(store, "thread") == before
    finally:
        await client.config_set("maxmemory", 0)
    await append(store, "thread", b"more", at=1)


async def test_a_store_of_a_newer_format_is_refused_untouched(server: Server, prefix: str, client: Redis) -> None:
    await client.set(f"{prefix}format", FORMAT + 1)
    async with RedisCheckpointer(server.url, prefix=prefix) as store:
        with pytest.raises(NewerFormat):
            await append(store, "thread", b"frame")
    assert [key async for key in client.scan_iter(f"{prefix}*")] == [f"{prefix}format".encode()]


async def test_a_store_of_before_the_queue_gets_one(server: Server, prefix: str, client: Redis) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix) as store:
        for number in range(100):
            await append(store, f"{number}", b"frame", updated_at=minute(number))
    await client.unlink(*await client.keys(f"{prefix}*:due"))
    await client.set(f"{prefix}format", 1)
    async with RedisCheckpointer(server.url, prefix=prefix) as store:
        await append(store, "7", b"more", at=1, due=minute(2))
        await append(store, "new", b"frame", due=minute(1))
        for _ in range(2):
            assert await listed(store, order="due") == ["new", "7"]
        scans = (await client.info("commandstats"))["cmdstat_scan"]["calls"]
    async with RedisCheckpointer(server.url, prefix=prefix) as store:
        assert await listed(store, order="due") == ["new", "7"]
        assert (await client.info("commandstats"))["cmdstat_scan"]["calls"] == scans, "threads are looked for only once"
    assert await client.get(f"{prefix}format") == b"%d" % FORMAT


async def test_the_queue_is_listed_without_a_look_at_other_threads(
    store: RedisCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*(append(store, f"{number}", b"frame", status="done") for number in range(300)))
    for number in range(3):
        await append(store, f"queued {number}", b"frame", due=minute(number))
    assert len(await listed(store)) == 303
    asked: list[Call] = []
    run_all = Engine.run_all

    async def counted(self: Engine, calls: Sequence[Call], **given: Any) -> list[Any]:
        asked.extend(calls)
        return await run_all(self, calls, **given)

    monkeypatch.setattr(Engine, "run_all", counted)
    assert await listed(store, order="due", limit=50) == ["queued 0", "queued 1", "queued 2"]
    assert sum(len(call.keys) for call in asked if call.script is scripts.HEADS) == 3
    assert len(asked) <= SHARDS + 3


async def test_what_an_expired_thread_leaves_in_the_queue_is_not_listed_and_goes(
    server: Server, prefix: str, client: Redis
) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, ttl=100) as store:
        await append(store, "kept", b"one", due=minute(30))
        for number in range(20):
            await append(store, f"{number}", b"one", due=minute(number))
            await client.unlink(*keys_of(prefix, f"{number}")[:3])
        assert await listed(store, order="due", limit=1) == ["kept"]
        assert await listed(store, order="due") == ["kept"]
        left = [await client.zrange(key, 0, -1) async for key in client.scan_iter(f"{prefix}*:due")]
        assert len([place for places in left for place in places if place]) == 1


# Keys and scripts


def test_the_keys_of_a_thread_are_in_one_slot_and_the_shards_evenly_apart() -> None:
    for namespace in ("", "team", "é" * 500):
        layout = Layout("clew:", namespace)
        slots = [key_slot(tag) for tag in layout.tags]
        assert [slot * SHARDS // 16384 for slot in slots] == list(range(SHARDS))
        for thread_id in ("a", "b", "{c}", "}{"):
            assert len({key_slot(key) for key in layout.thread(thread_key(thread_id))}) == 1
    assert not set(Layout("clew:", "a").tags) & set(Layout("clew:", "b").tags)


async def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(store: Checkpointer, client: Redis) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"one", refs=[blob])
    for call in (
        lambda: append(store, "thread", b"two", at=1, refs=[blob]),
        lambda: store.read("thread"),
        lambda: heads(store),
        lambda: put(store, *(b"%d" % n for n in range(100))),
        lambda: all_blobs(store),
        lambda: store.delete("thread"),
    ):
        await client.script_flush()
        await call()
    assert await listed(store) == []
    assert len(await all_blobs(store)) == 101


async def test_an_append_is_one_round_trip(store: Checkpointer, client: Redis) -> None:
    await append(store, "thread", b"one")
    before = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    total = (await client.info("stats"))["total_commands_processed"]
    for at in range(1, 11):
        await append(store, "thread", b"more", at=at, updated_at=minute(at))
    assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] == before + 10
    inside = ("HMGET", "LLEN", "RPUSH", "HSET", "ZREM", "ZADD")
    assert (await client.info("stats"))["total_commands_processed"] - total <= 10 * (1 + len(inside)) + 3


async def test_a_log_is_read_in_pages_and_comes_whole(store: Checkpointer) -> None:
    dice = random.Random(1)
    frames = [dice.randbytes(dice.choice([0, 10, 2000, 20_000])) for _ in range(3000)]
    for at in range(0, len(frames), 1000):
        await append(store, "thread", *frames[at : at + 1000], at=at)
    assert await store.read("thread") == frames
    assert await store.read("thread", start=1, stop=2990) == frames[1:2990]


async def test_a_log_made_anew_while_it_is_read_is_never_mixed_with_the_old_one(
    server: Server, prefix: str, store: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = [b"old" * 100_000] * 40, [b"new" * 100_000] * 45
    await append(store, "thread", *old, log_id="old")
    async with RedisCheckpointer(server.url, prefix=prefix) as reader:
        run, pages = reader._engine.run, 0

        async def run_and_make_anew(call: Call, **given: Any) -> Any:
            nonlocal pages
            answer = await run(call, **given)
            pages += 1
            if pages == 1:
                await store.delete("thread")
                await append(store, "thread", *new, log_id="new")
            return answer

        monkeypatch.setattr(reader._engine, "run", run_and_make_anew)
        assert await reader.read("thread") == new
        assert pages > 3


# Listings


async def test_a_thread_that_moves_while_it_is_listed_comes_once(
    server: Server, prefix: str, store: Checkpointer
) -> None:
    count = 2500
    for start in range(0, count, 100):
        batch = range(start, start + 100)
        await asyncio.gather(*(append(store, f"{n}", b"one", updated_at=minute(n)) for n in batch))
    async with RedisCheckpointer(server.url, prefix=prefix) as writer:
        seen = []
        async for head in store.heads():
            seen.append(head.thread_id)
            if len(seen) == 1:
                for n in (0, 1, 2):
                    await append(writer, f"{n}", b"two", at=1, updated_at=minute(count + n))
                for n in (2400, 1300):
                    await append(writer, f"{n}", b"two", at=1, updated_at=minute(-n))
    assert sorted(seen, key=int) == [f"{n}" for n in range(count)]


async def test_a_page_ends_where_the_next_begins_though_threads_move_between(
    server: Server, prefix: str, store: Checkpointer
) -> None:
    await asyncio.gather(*(append(store, f"{n}", b"one", updated_at=minute(n)) for n in range(60)))
    moving = [f"{n}" for n in range(60) if n % 3 == 0]
    async with RedisCheckpointer(server.url, prefix=prefix) as writer:

        async def churn() -> None:
            for moment in itertools.count(1):
                for n, thread_id in enumerate(moving):
                    moved = minute(random.Random(moment * 100 + n).randrange(60))
                    await append(writer, thread_id, b"more", at=moment + 0, updated_at=moved)

        churning = asyncio.create_task(churn())
        try:
            for _ in range(10):
                query = HeadQuery(limit=3)
                seen: list[str] = []
                while page := await heads(store, query):
                    assert page == sorted(page, key=query.position, reverse=True)
                    seen += [head.thread_id for head in page if head.thread_id not in moving]
                    query = query.after(page[-1])
                assert sorted(seen) == sorted(f"{n}" for n in range(60) if n % 3)
        finally:
            churning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await churning


async def test_a_few_are_listed_without_reading_all(store: Checkpointer, client: Redis) -> None:
    await asyncio.gather(*(append(store, f"{n}", b"one", updated_at=minute(n)) for n in range(500)))
    before = (await client.info("commandstats"))["cmdstat_hget"]["calls"]
    assert await listed(store, limit=10) == [f"{n}" for n in range(499, 489, -1)]
    assert (await client.info("commandstats"))["cmdstat_hget"]["calls"] - before <= 30


# What expires, vanishes or is damaged


async def test_a_thread_expires_when_nothing_was_appended_for_its_ttl(
    server: Server, prefix: str, client: Redis
) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, ttl=100) as store:
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"one", refs=[blob])
        keys = keys_of(prefix, "thread")
        assert {await client.ttl(key) for key in keys[:3]} <= set(range(40, 101))
        for key in keys[:3]:
            await client.expire(key, 10)
        await append(store, "thread", b"two", at=1)
        assert {await client.ttl(key) for key in keys[:3]} <= set(range(40, 101))
        await append(store, "thread", at=2)
        for key in keys[:3]:
            await client.pexpire(key, 1)
        await asyncio.sleep(0.01)
        assert await state(store, "thread") == ([], None, set())
        with pytest.raises(Conflict):
            await append(store, "thread", b"three", at=2)


async def test_what_an_expired_thread_leaves_in_the_listing_is_not_listed_and_goes(
    server: Server, prefix: str, client: Redis
) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, ttl=100) as store:
        kept = await append(store, "kept", b"one", updated_at=minute(1))
        for n in range(20):
            await append(store, f"{n}", b"one", updated_at=minute(2 + n), created_at=minute(n))
            await client.unlink(*keys_of(prefix, f"{n}")[:3])
        assert await heads(store, HeadQuery(limit=1)) == [kept]
        assert await heads(store, HeadQuery(order="created")) == [kept]
        assert await heads(store) == [kept]
        left = [await client.zrange(key, 0, -1) async for key in client.scan_iter(f"{prefix}*ated")]
        assert len([place for places in left for place in places if place]) == 2


async def test_a_thread_made_anew_after_it_expired_is_listed_once_at_its_new_place(
    server: Server, prefix: str, client: Redis
) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, ttl=100) as store:
        await append(store, "other", b"one", updated_at=minute(5), created_at=minute(5))
        for moment in (1, 9, 3):
            await append(
                store, "thread", b"one", updated_at=minute(moment), created_at=minute(moment), log_id=f"{moment}"
            )
            if moment != 3:
                await client.unlink(*keys_of(prefix, "thread")[:3])
        for query in (HeadQuery(), HeadQuery(order="created"), HeadQuery(limit=5)):
            assert [head.thread_id for head in await heads(store, query)] == ["other", "thread"]
        assert await listed(store, limit=1) == ["other"]


async def test_an_append_without_a_ttl_makes_a_thread_permanent(
    server: Server, prefix: str, store: Checkpointer, client: Redis
) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, ttl=100) as expiring:
        [blob] = await put(expiring, b"blob")
        await append(expiring, "thread", b"one", refs=[blob])
    await append(store, "thread", b"two", at=1)
    assert {await client.ttl(key) for key in keys_of(prefix, "thread")[:3]} == {-1}


async def test_gc_removes_the_blobs_of_expired_threads_and_no_others(
    server: Server, prefix: str, client: Redis
) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, ttl=100) as store:
        first, second = await put(store, b"first", b"second")
        await append(store, "expired", b"one", refs=[first])
        await append(store, "alive", b"one", refs=[second])
        await client.unlink(*keys_of(prefix, "expired")[:3])
        await gc(store, grace=timedelta(0))
        assert await all_blobs(store) == [second]


@pytest.mark.parametrize(
    "lost",
    [["updated"], ["created"], ["due"], ["updated", "created"], ["updated", "created", "due", "threads"]],
)
async def test_threads_whose_listing_was_lost_are_listed_again(
    lost: list[str], server: Server, prefix: str, store: Checkpointer, client: Redis
) -> None:
    made = [
        await append(
            store, f"{n}", b"one", updated_at=minute(n), created_at=minute(-n), due=minute(n) if n % 3 else None
        )
        for n in range(100)
    ]
    await store.delete("7")
    kept = [head for head in made if head.thread_id != "7"]
    await client.unlink(*[key for name in lost for key in await client.keys(f"{prefix}*:{name}")])
    if "threads" not in lost:
        kept[0] = await append(store, "0", b"two", at=1, updated_at=minute(1000), created_at=minute(0))
        kept.append(await append(store, "new", b"one", updated_at=minute(2000), created_at=minute(2000)))
    for query in (HeadQuery(), HeadQuery(order="created"), HeadQuery(limit=30), HeadQuery(order="created", limit=30),
                  HeadQuery(order="due"), HeadQuery(order="due", limit=30)):  # fmt: skip
        async with RedisCheckpointer(server.url, prefix=prefix) as other:
            expected = sorted(filter(query.matches, kept), key=query.position, reverse=True)
            assert await heads(other, query) == expected[: query.limit]
    scans = (await client.info("commandstats"))["cmdstat_scan"]["calls"]
    assert len(await heads(store)) == len(kept)
    assert (await client.info("commandstats"))["cmdstat_scan"]["calls"] == scans, "it is repaired only once"


@pytest.mark.parametrize("shards", ["all", "one"])
async def test_gc_keeps_the_blobs_of_threads_whose_listing_was_lost(
    shards: str, server: Server, prefix: str, store: Checkpointer, client: Redis
) -> None:
    """In one shard alone, nothing that is left of it tells a listing that it was lost: gc looks for itself."""
    for n in range(40):
        [blob] = await put(store, f"blob {n}".encode())
        await append(store, f"{n}", b"one", refs=[blob], updated_at=minute(n))
    [free] = await put(store, b"of no thread")
    lost: Sequence[bytes | str] = keys_of(prefix, "0")[3:]
    if shards == "all":
        names = ("updated", "created", "due", "threads")
        lost = [key for name in names for key in await client.keys(f"{prefix}*:{name}")]
    assert await client.unlink(*lost) == len(lost)
    collected = await gc(store, grace=timedelta(0))
    assert collected.deleted == 1
    assert await store.missing_blobs([free]) == {free}
    assert len(await listed(store)) == 40


async def test_blobs_are_not_deleted_by_what_a_lost_listing_said(
    prefix: str, store: Checkpointer, client: Redis
) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "hidden", b"one", refs=[blob])
    await append(store, "other", b"one")
    await client.unlink(*keys_of(prefix, "hidden")[3:])
    assert await listed(store) == ["other"]
    with pytest.raises(Unavailable, match="1 threads were missing in the listing"):
        await store.delete_blobs([blob], untouched_for=timedelta(0))
    assert await store.get_blobs([blob]) == {blob: b"blob"}
    assert sorted(await listed(store)) == ["hidden", "other"]


async def test_a_thread_that_lost_its_head_is_corrupt_in_listings_and_for_gc(
    prefix: str, store: Checkpointer, client: Redis
) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"one", refs=[blob])
    kept = await append(store, "other", b"one")
    await client.unlink(keys_of(prefix, "thread")[0])
    for query in (HeadQuery(), HeadQuery(order="created"), HeadQuery(limit=5)):
        for _ in range(2):
            listing = store.heads(query)
            assert await anext(listing) == kept
            with pytest.raises(Corrupt, match="is missing, but not the rest"):
                await anext(listing)
    with pytest.raises(Corrupt, match="is missing, but not the rest"):
        await gc(store, grace=timedelta(0))
    assert await store.get_blobs([blob]) == {blob: b"blob"}


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["head", "log", "refs"])
async def test_a_thread_of_which_a_key_was_evicted_is_corrupt_and_never_short(
    store: Checkpointer, prefix: str, client: Redis, lost: int
) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"one", b"two", refs=[blob])
    await client.unlink(keys_of(prefix, "thread")[lost])
    calls: list[Callable[[], Any]] = [
        lambda: store.read("thread"),
        lambda: store.head("thread"),
        lambda: store.refs("thread"),
        lambda: append(store, "thread", b"three", at=2),
        lambda: append(store, "thread", b"one", b"two", refs=[blob]),
    ]
    for call in calls:
        with pytest.raises(Corrupt, match="'thread'"):
            await call()
    await store.delete("thread")
    assert await state(store, "thread") == ([], None, set())
    await append(store, "thread", b"new")


async def test_a_log_with_fewer_frames_than_its_head_tells_is_corrupt(
    store: Checkpointer, prefix: str, client: Redis
) -> None:
    await append(store, "thread", b"one", b"two", b"three")
    await client.rpop(keys_of(prefix, "thread")[1].decode())
    with pytest.raises(Corrupt, match="2 of 3 frames"):
        await store.read("thread", stop=1)


async def test_a_damaged_head_is_corrupt(store: Checkpointer, prefix: str, client: Redis) -> None:
    await append(store, "thread", b"one")
    key = keys_of(prefix, "thread")[0].decode()
    data = await client.hget(key, "h")
    assert isinstance(data, bytes)
    for damaged in (b"", b"xx", data[:-1], bytes([data[0] ^ 1]) + data[1:]):
        await client.hset(key, "h", damaged)
        with pytest.raises(Corrupt, match="'thread'"):
            await store.head("thread")
        with pytest.raises(Corrupt):
            await heads(store)


async def test_a_damaged_blob_is_corrupt(store: Checkpointer, prefix: str, client: Redis) -> None:
    [digest] = await put(store, b"blob")
    await client.set(Layout(prefix, "").blob(digest), b"blub")
    with pytest.raises(Corrupt, match=digest):
        await store.get_blobs([digest])


async def test_a_key_of_another_kind_is_corrupt(store: Checkpointer, prefix: str, client: Redis) -> None:
    await client.set(keys_of(prefix, "thread")[1], b"text")
    with pytest.raises(Corrupt, match="another prefix"):
        await append(store, "thread", b"one")


# Servers that go away


async def test_a_server_killed_under_load_has_every_acknowledged_frame_once(tmp_path: Path) -> None:
    writers, rounds = 16, 4
    with a_server("redis", tmp_path) as server:
        async with RedisCheckpointer(server.url) as store:
            acknowledged: list[list[bytes]] = [[] for _ in range(writers)]
            over = asyncio.Event()

            async def write(number: int) -> None:
                frames = acknowledged[number]
                while not over.is_set():
                    frame = b"%d.%d " % (number, len(frames)) * 20
                    await _again(lambda: append(store, f"{number}", frame, at=len(frames), turns=len(frames)))  # noqa: B023
                    frames.append(frame)

            writing = [asyncio.create_task(write(number)) for number in range(writers)]
            for _ in range(rounds):
                before = sum(map(len, acknowledged))
                while sum(map(len, acknowledged)) < before + 200:
                    await asyncio.sleep(0.01)
                server.process.kill()
                await asyncio.to_thread(server.process.start)
            over.set()
            await asyncio.gather(*writing)
            server.process.kill()
            await asyncio.to_thread(server.process.start)
        async with RedisCheckpointer(server.url) as store:
            for number, frames in enumerate(acknowledged):
                assert len(frames) > rounds
                assert await store.read(f"{number}") == frames
            assert len(await listed(store)) == writers


async def test_a_restarted_server_is_a_hiccup(tmp_path: Path) -> None:
    with a_server("valkey", tmp_path) as server:
        async with RedisCheckpointer(server.url) as store:
            await append(store, "thread", b"one")
            for name, call in every_call(store).items():
                if name != "append":
                    server.process.kill()
                    server.process.start()
                    await call()
            await append(store, "thread", b"one")
            await asyncio.gather(*(store.head("thread") for _ in range(10)))  # each on a connection of its own
            server.process.kill()
            server.process.start()
            await append(store, "thread", b"two", at=1)
            assert await store.read("thread") == [b"one", b"two"]


async def test_a_network_that_cuts_at_random_bytes_loses_and_doubles_nothing(server: Server, prefix: str) -> None:
    dice = random.Random(7)
    async with (
        Proxy(("127.0.0.1", server.port), cut_after=lambda: dice.randrange(200, 40_000)) as proxy,
        RedisCheckpointer(f"redis://127.0.0.1:{proxy.port}", prefix=prefix) as store,
    ):

        async def write(number: int) -> list[bytes]:
            frames: list[bytes] = []
            for turn in range(25):
                blob = b"blob %d.%d" % (number, turn)
                await _again(lambda: store.put_blobs({digest_of(blob): blob}))  # noqa: B023
                new = [dice.randbytes(dice.randrange(600)) for _ in range(dice.randrange(1, 4))]
                refs = [digest_of(blob)]
                await _again(lambda: append(store, f"{number}", *new, at=len(frames), refs=refs))  # noqa: B023
                frames += new
                if turn % 5 == 0:
                    assert await _again(lambda: store.read(f"{number}")) == frames
                    assert f"{number}" in await _again(lambda: listed(store))
            return frames

        async def cut() -> None:
            """Most of the time a connection waits for the server's disk: a cut then loses the answer, not the request."""
            while True:
                await asyncio.sleep(dice.uniform(0.02, 0.1))
                proxy.cut()

        cutting = asyncio.create_task(cut())
        written = await asyncio.gather(*(write(number) for number in range(8)))
        cutting.cancel()
        assert proxy.cuts > 20
    async with RedisCheckpointer(server.url, prefix=prefix) as store:
        for number, frames in enumerate(written):
            assert await store.read(f"{number}") == frames
            assert len(await store.refs(f"{number}")) == 25
        assert len(await listed(store)) == 8
        assert len(await all_blobs(store)) == 8 * 25


@posix
async def test_a_server_that_does_not_answer_is_unavailable(server: Server, prefix: str) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, timeout=0.2) as store:
        await _again(lambda: append(store, "thread", b"one"))
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            for name, call in every_call(store).items():
                with pytest.raises(Unavailable, match=r"no answer for 0\.2 s"):
                    pytest.fail(f"{name} returned {await call()!r}")
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert await _again(lambda: store.read("thread")) == [b"one"]


@posix
async def test_a_cancelled_append_to_a_server_that_does_not_answer_settles_at_its_timeout(
    server: Server, prefix: str, clock: Clock
) -> None:
    async with RedisCheckpointer(server.url, prefix=prefix, timeout=600) as store:
        await store.head("thread")
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            task = asyncio.create_task(append(store, "thread", b"one"))
            await asyncio.sleep(0.05)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0.1)
            assert not done, "it was abandoned"
            clock.advance(600)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, PATIENCE)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)


async def test_a_server_without_tls_is_unavailable_to_who_asks_for_it(server: Server) -> None:
    for options in ("", "&ssl_cert_reqs=none&ssl_check_hostname=false", "&cluster=true"):
        async with open_checkpointer(f"rediss://127.0.0.1:{server.port}?timeout=0.3{options}") as store:
            with pytest.raises(Unavailable):
                await store.head("thread")


# Replicas and clusters


async def test_an_append_waits_for_the_replicas_it_was_told_to(tmp_path: Path) -> None:
    with a_server("valkey", tmp_path / "primary", *DURABLE, "--repl-diskless-sync-delay", "0") as primary:
        url = f"{primary.url}?wait_replicas=1&timeout=2"
        async with RedisCheckpointer(url) as store:
            for _ in range(2):
                with pytest.raises(Unavailable, match="0 of 1 replicas"):
                    await append(store, "thread", b"one")
            with a_server("valkey", tmp_path / "copy", *DURABLE, "--replicaof", f"127.0.0.1 {primary.port}") as copy:
                await _again(lambda: append(store, "thread", b"one"))
                [blob] = await put(store, b"blob")
                await append(store, "thread", b"two", at=1, refs=[blob])
                async with RedisCheckpointer(copy.url) as other:
                    assert await other.read("thread") == [b"one", b"two"]
                    assert await other.refs("thread") == {blob}
                    with pytest.raises(Unavailable, match="replica"):
                        await append(other, "thread", b"three", at=2)


@pytest.mark.slow
async def test_a_server_of_a_cluster_says_that_it_is_one(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as servers:
        async with RedisCheckpointer(servers[0].url) as store:
            with pytest.raises(InvalidInput, match="cluster=true"):
                await asyncio.gather(*(append(store, f"{number}", b"one") for number in range(20)))
        async with RedisCheckpointer(f"{servers[1].url}?cluster=true") as store:
            await append(store, "thread", b"one")
            servers[2].process.kill()
            with pytest.raises(Unavailable):
                await heads(store)
            servers[2].process.start()
            assert [head.thread_id for head in await _again(lambda: heads(store))] == ["thread"]


async def _again(call: Callable[[], Any]) -> Any:
    """Make the same call until the server answers it."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await call()
        except Unavailable:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
