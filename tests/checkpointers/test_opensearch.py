from __future__ import annotations

import asyncio
import base64
import functools
import logging
import random
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest

pytest.importorskip("opensearchpy")

from opensearchpy import AsyncOpenSearch, AsyncTransport

from clew._runtime.batches import batches
from clew.checkpointers.heads import HeadQuery, thread_key
from clew.checkpointers.opensearch.documents import thread_document
from clew.checkpointers.opensearch.schema import FORMAT
from clew.checkpointers.opensearch.store import OpenSearchCheckpointer
from clew.checkpointers.packed.clock import Clock
from clew.checkpointers.packed.log import Tail
from clew.checkpointers.sealed import SealedCheckpointer
from clew.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    MissingExtra,
    NewerFormat,
    ThreadNotFound,
    Unavailable,
    UsageError,
)
from clew.log.keys import Keyring
from clew.testing.contract.builders import a_head, all_blobs, append, digest_of, heads, listed, minute, put, state
from tests.certificate import make_certificate
from tests.limits import PATIENCE
from tests.servers.opensearch import OpenSearchNode, shared_node
from tests.servers.proxy import Proxy
from tests.servers.running import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("opensearch")]

_DAY = 86_400_000_000
_LARGE = random.Random(1).randbytes(100_000)
_numbers = count()
T = TypeVar("T")


@pytest.fixture
def node() -> OpenSearchNode:
    return shared_node()


Open = Callable[..., OpenSearchCheckpointer]


@pytest.fixture
def new_store(node: OpenSearchNode) -> Open:
    """Makes checkpointers on one store that no other test uses."""
    namespace = f"test {next(_numbers)}"

    def new_store(url: str = node.url, **options: Any) -> OpenSearchCheckpointer:
        return OpenSearchCheckpointer(url, namespace, **{"prefix": "tests", "timeout": PATIENCE, **options})

    return new_store


class _Counting(AsyncTransport):
    """Knows which requests were made."""

    asked: ClassVar[Counter[str]] = Counter()

    async def perform_request(self, method: str, url: str, *rest: Any, **more: Any) -> Any:
        self.asked[f"{method} {url.split('/')[1]}"] += 1
        return await super().perform_request(method, url, *rest, **more)


@asynccontextmanager
async def _counting_client(node: OpenSearchNode) -> AsyncIterator[AsyncOpenSearch]:
    _Counting.asked.clear()
    client = AsyncOpenSearch(hosts=[{"host": "127.0.0.1", "port": node.port}], transport_class=_Counting)
    yield client
    await client.close()


def _documents(node: OpenSearchNode, index: str, store: OpenSearchCheckpointer) -> dict[str, Any]:
    """All documents of a store in one of its indices."""
    node.ask("POST", f"/tests-{index}/_refresh")
    mine = {"query": {"term": {"ns": store._ns}}, "size": 1000}
    return {hit["_id"]: hit["_source"] for hit in node.ask("POST", f"/tests-{index}/_search", mine)["hits"]["hits"]}


# One document is the commit


async def test_an_append_is_one_request_and_nothing_else(node: OpenSearchNode, open_store: Open) -> None:
    async with _counting_client(node) as client:
        store = open_store(client=client)
        await append(store, "thread", b"one")
        _Counting.asked.clear()
        for number in range(1, 20):
            await append(store, "thread", b"frame", at=number)
        assert _Counting.asked == {"PUT tests-threads": 19}


async def test_ten_thousand_frames_are_a_small_document_and_a_few_packs(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    dice = random.Random(7)
    frames: list[bytes] = []
    for _ in range(50):
        some = [dice.randbytes(dice.randrange(50, 500)) for _ in range(200)]
        await append(store, "thread", *some, at=len(frames))
        frames += some
    [thread] = _documents(node, "threads", store).values()
    assert sum(len(str(value)) for value in thread.values()) < 50_000
    assert len(_documents(node, "data", store)) < 40
    assert await open_store().read("thread") == frames
    assert await open_store().read("thread", start=1234, stop=1240) == frames[1234:1240]


async def test_packs_that_were_merged_lost_or_deleted_are_gone(node: OpenSearchNode, open_store: Open) -> None:
    store, other = open_store(), open_store()
    for number in range(8):
        await append(store, "thread", _LARGE, at=number)
    assert len(_documents(node, "data", store)) < 8
    assert await other.read("thread") == [_LARGE] * 8
    before = _documents(node, "data", store).keys()
    await append(store, "thread", b"first", at=8)
    with pytest.raises(Conflict):
        await append(other, "thread", _LARGE, at=8)
    assert _documents(node, "data", store).keys() == before
    await store.delete("thread")
    assert _documents(node, "data", store) == _documents(node, "threads", store) == {}


async def test_a_reader_is_not_disturbed_by_packs_being_merged(open_store: Open) -> None:
    store, reader = open_store(), open_store()
    frames: list[bytes] = []
    writing = True

    async def write() -> None:
        nonlocal writing
        for number in range(30):
            frame = random.Random(number).randbytes(40_000)
            await append(store, "thread", frame, at=number)
            frames.append(frame)
        writing = False

    async def read() -> None:
        while writing:
            known = len(frames)
            assert (await reader.read("thread"))[:known] == frames[:known]

    await asyncio.gather(write(), read(), read())
    assert await reader.read("thread") == frames


async def test_leftovers_are_swept_after_a_day_and_nothing_else(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    await append(store, "thread", _LARGE, b"two")
    [large] = await put(store, _LARGE)
    kept = _documents(node, "data", store)
    assert {source["kind"] for source in kept.values()} == {"pack", "blob"}
    for key, source in kept.items():
        owner = source["owner"]
        node.ask("PUT", f"/tests-data/_doc/{key}x", {**source, "name": "left", "owner": owner})
        node.ask("PUT", f"/tests-data/_doc/{key}y", {**source, "name": "too", "owner": digest_of(b"nobody")})
    await store.delete_blobs([], untouched_for=timedelta(0))
    assert len(_documents(node, "data", store)) == 3 * len(kept)
    later = open_store()
    await later.head("thread")
    later._indices.clock = Clock(2 * _DAY)
    await later.delete_blobs([], untouched_for=timedelta(days=100))
    assert _documents(node, "data", store) == kept
    assert await later.read("thread") == [_LARGE, b"two"]
    assert await later.get_blobs([large]) == {large: _LARGE}


async def test_a_damaged_thread_keeps_its_packs_when_leftovers_are_swept(
    node: OpenSearchNode, open_store: Open
) -> None:
    store = open_store()
    await append(store, "thread", _LARGE)
    [(key, source)] = _documents(node, "threads", store).items()
    node.ask("PUT", f"/tests-threads/_doc/{key}", {**source, "contents": "AAAA"})
    later = open_store()
    await later.head("thread")
    later._indices.clock = Clock(2 * _DAY)
    await later.delete_blobs([], untouched_for=timedelta(0))
    node.ask("PUT", f"/tests-threads/_doc/{key}", source)
    assert await later.read("thread") == [_LARGE]


# What is not durable or not Clew's is refused


async def test_an_index_that_acknowledges_what_a_crash_loses_is_refused(node: OpenSearchNode, open_store: Open) -> None:
    await append(open_store(prefix="lax"), "thread", b"frame")
    for name in ("lax-threads", "lax-blobs", "lax-data"):
        node.ask("PUT", f"/{name}/_settings", {"index.translog.durability": "async"})
        with pytest.raises(InvalidInput, match=rf"{name}.*request"):
            await open_store(prefix="lax").head("thread")
        node.ask("PUT", f"/{name}/_settings", {"index.translog.durability": "request"})
    assert await open_store(prefix="lax").read("thread") == [b"frame"]


async def test_indices_are_made_durable_compressed_and_without_guessed_fields(
    node: OpenSearchNode, open_store: Open
) -> None:
    stores = [open_store(prefix="made", shards=2) for _ in range(4)]
    await asyncio.gather(*(append(store, f"thread {n}", b"frame") for n, store in enumerate(stores)))
    found = node.ask("GET", "/made-threads,made-blobs,made-data")
    for index in found.values():
        settings = index["settings"]["index"]
        assert settings["translog"]["durability"] == "request"
        assert settings["codec"] == "best_compression"
        assert settings["number_of_shards"] == "2"
        assert index["mappings"]["dynamic"] == "false"
    assert len(await listed(stores[0])) == 4


async def test_an_index_of_somebody_else_is_refused(node: OpenSearchNode, open_store: Open) -> None:
    node.ask("PUT", "/foreign-threads", {})
    with pytest.raises(InvalidInput, match="not created by Clew"):
        await append(open_store(prefix="foreign"), "thread", b"frame")


async def test_an_index_of_a_newer_clew_is_refused(node: OpenSearchNode, open_store: Open) -> None:
    node.ask("PUT", "/newer-threads", {"mappings": {"_meta": {"clew_format": FORMAT + 1}}})
    with pytest.raises(NewerFormat):
        await append(open_store(prefix="newer"), "thread", b"frame")


async def test_an_index_of_before_the_queue_gets_one(node: OpenSearchNode, open_store: Open) -> None:
    prefix = f"before-the-queue-{next(_numbers)}"
    await append(open_store(prefix=prefix), "thread", b"frame")
    mappings = node.ask("GET", f"/{prefix}-threads")[f"{prefix}-threads"]["mappings"]
    node.ask("DELETE", f"/{prefix}-threads")
    del mappings["properties"]["due"]
    mappings["_meta"]["clew_format"] = 1
    node.ask("PUT", f"/{prefix}-threads", {"mappings": mappings})
    stores = [open_store(prefix=prefix) for _ in range(3)]
    await asyncio.gather(*(append(store, f"{n}", b"frame", due=minute(-n)) for n, store in enumerate(stores)))
    await append(stores[0], "done", b"frame", status="done")
    assert await listed(stores[0], order="due") == ["2", "1", "0"]
    changed = node.ask("GET", f"/{prefix}-threads")[f"{prefix}-threads"]["mappings"]
    assert changed["_meta"]["clew_format"] == FORMAT
    assert changed["properties"]["due"] == {"type": "long"}


async def test_the_queue_is_found_without_a_look_at_other_threads(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    await asyncio.gather(*(append(store, f"{n}", b"frame", status="done") for n in range(30)))
    for number in range(3):
        await append(store, f"queued {number}", b"frame", due=minute(number))
    assert await listed(store, order="due", limit=50) == ["queued 0", "queued 1", "queued 2"]
    body = {**store._listing._body(HeadQuery(order="due"), 50), "track_total_hits": True}
    assert node.ask("POST", "/tests-threads/_search", body)["hits"]["total"]["value"] == 3


async def test_what_somebody_deleted_is_corrupt_and_never_absent(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store(prefix="wiped")
    await append(store, "thread", b"frame")
    for name in ("threads", "blobs", "data"):
        node.ask("DELETE", f"/_index_template/wiped-{name}")
        node.ask("DELETE", f"/wiped-{name}")
    for call in (store.head("thread"), store.read("thread"), listed(store), store.get_blobs([digest_of(b"blob")])):
        with pytest.raises(Corrupt, match="wiped-"):
            await call


# Damage


async def test_a_pack_deleted_behind_our_back_is_corrupt_and_named(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    [blob] = await put(store, b"blob")
    await append(store, "thread", _LARGE, refs=[blob])
    await append(store, "thread", b"two", at=1)
    [pack] = _documents(node, "data", store)
    node.ask("DELETE", f"/tests-data/_doc/{pack}")
    for call in (store.read, store.refs):
        with pytest.raises(Corrupt, match=pack):
            await call("thread")
    assert await store.read("thread", start=1) == [b"two"]


async def test_damaged_documents_are_corrupt_and_never_absent(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    small, large = await put(store, b"small", _LARGE)
    await append(store, "thread", _LARGE, refs=[small])
    await append(store, "thread", b"tail", at=1)
    kept = {index: _documents(node, index, store) for index in ("threads", "blobs", "data")}
    tried = 0
    for index, documents in kept.items():
        for key, source in documents.items():
            for field in {"head", "contents", "tail", "bytes", "table"} & source.keys():
                data = base64.b64decode(source[field])
                for bad in (data[:-1] + bytes([data[-1] ^ 1]), b""):
                    node.ask("PUT", f"/tests-{index}/_doc/{key}", {**source, field: base64.b64encode(bad).decode()})
                    with pytest.raises(Corrupt):
                        pytest.fail(f"{field} of {key}: {await _all(open_store(), 'thread', small, large)!r}")
                    tried += 1
            node.ask("PUT", f"/tests-{index}/_doc/{key}", source)
    assert tried == 14
    assert (await open_store().read("thread")) == [_LARGE, b"tail"]


async def _all(store: OpenSearchCheckpointer, thread_id: str, *blobs: str) -> object:
    return await state(store, thread_id), await heads(store), await store.get_blobs(blobs)


async def test_a_damaged_thread_does_not_hide_the_others_in_a_listing(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    for number in range(3):
        await append(store, f"thread {number}", b"frame")
    key = f"{store._ns}.{thread_key('thread 1')}"
    source = _documents(node, "threads", store)[key]
    node.ask("PUT", f"/tests-threads/_doc/{key}", {**source, "head": "AAAA"})
    seen = []

    async def look() -> None:
        async for head in store.heads():
            seen.append(head.thread_id)

    with pytest.raises(Corrupt, match="1 thread"):
        await look()
    assert sorted(seen) == ["thread 0", "thread 2"]


async def test_a_blob_put_again_is_mended(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    small, large = await put(store, b"small", _LARGE)
    for key, source in _documents(node, "blobs", store).items():
        node.ask("PUT", f"/tests-blobs/_doc/{key}", {"ns": source["ns"], "digest": source["digest"]})
    await put(store, b"small", _LARGE)
    assert await store.get_blobs([small, large]) == {small: b"small", large: _LARGE}
    for key in _documents(node, "data", store):
        node.ask("DELETE", f"/tests-data/_doc/{key}")
    with pytest.raises(Corrupt, match="tests-data"):
        await store.get_blobs([large])
    await put(store, _LARGE)
    assert await store.get_blobs([large]) == {large: _LARGE}


# Servers that are away


async def test_every_acknowledged_frame_outlives_a_killed_node_and_none_is_there_twice(
    node: OpenSearchNode, open_store: Open
) -> None:
    stores = [open_store(timeout=20) for _ in range(3)]
    acknowledged: dict[int, list[bytes]] = {number: [] for number in range(9)}
    failures = 0
    ending = False

    async def work(number: int) -> None:
        nonlocal failures
        frames = acknowledged[number]
        dice = random.Random(number)
        while not ending:
            frame = dice.randbytes(dice.choice([50, 2000, 40_000]))
            while True:
                try:
                    await append(stores[number % 3], f"thread {number}", frame, at=len(frames))
                    break
                except Unavailable:
                    failures += 1
                    await asyncio.sleep(0.05)
            frames.append(frame)

    workers = [asyncio.create_task(work(number)) for number in acknowledged]
    while min(map(len, acknowledged.values())) < 5:
        await asyncio.sleep(0.05)
    node.process.kill()
    try:
        before = {number: len(frames) for number, frames in acknowledged.items()}
        while failures < 9:
            await asyncio.sleep(0.05)
    finally:
        node.process.start()
    while any(len(acknowledged[number]) < before[number] + 3 for number in acknowledged):
        await asyncio.sleep(0.05)
    ending = True
    await asyncio.gather(*workers)
    reader = open_store()
    for number, frames in acknowledged.items():
        assert await reader.read(f"thread {number}") == frames
    assert sorted(await listed(reader)) == [f"thread {number}" for number in range(9)]


async def test_connections_cut_anywhere_lose_and_double_nothing(node: OpenSearchNode, open_store: Open) -> None:
    await append(open_store(), "before", b"frame")
    dice = random.Random(11)
    sizes = (2000, 30_000, 1_000_000)
    async with Proxy(("127.0.0.1", node.port), cut_after=lambda: dice.randrange(dice.choice(sizes))) as proxy:
        store = open_store(f"opensearch://127.0.0.1:{proxy.port}")
        frames = [dice.randbytes(dice.choice([100, 3000, 30_000])) for _ in range(30)]
        blobs: list[str] = []
        for number, frame in enumerate(frames):
            blobs += await _until_it_works(functools.partial(put, store, b"blob %d" % number))
            await _until_it_works(functools.partial(append, store, "thread", frame, at=number, refs=blobs[-1:]))
        assert proxy.cuts > 10
    assert (await state(open_store(), "thread"))[::2] == (frames, set(blobs))
    assert sorted(await all_blobs(open_store())) == sorted(blobs)


async def _until_it_works(call: Callable[[], Awaitable[T]]) -> T:
    for _ in range(100):
        with suppress(Unavailable):
            return await call()
    pytest.fail("it never worked")


async def test_connections_that_broke_while_nobody_used_them_are_not_noticed(
    node: OpenSearchNode, open_store: Open
) -> None:
    async with Proxy(("127.0.0.1", node.port)) as proxy:
        store = open_store(f"opensearch://127.0.0.1:{proxy.port}")
        for number in range(3):
            await append(store, "thread", b"frame", at=number)
            proxy.cut()
        assert await store.read("thread") == [b"frame"] * 3
        await store.close()


async def test_a_server_that_never_answers_is_unavailable(open_store: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_store(f"opensearch://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
        with pytest.raises(Unavailable, match=r"for 0\.2 s"):
            await store.head("thread")


async def test_an_index_that_takes_no_writes_is_unavailable_and_still_read(
    node: OpenSearchNode, open_store: Open
) -> None:
    store = open_store(prefix="full")
    await append(store, "thread", b"frame")
    node.ask("PUT", "/full-threads/_settings", {"index.blocks.write": True})
    with pytest.raises(Unavailable, match="takes no writes"):
        await append(store, "thread", b"more", at=1)
    assert await store.read("thread") == [b"frame"]
    node.ask("PUT", "/full-threads/_settings", {"index.blocks.write": None})
    await append(store, "thread", b"more", at=1)


async def test_something_else_behind_the_port_is_unavailable(open_store: Open) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>"
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        store = open_store(f"opensearch://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(Unavailable, match="not an OpenSearch server"):
            await store.head("thread")


# Listings and searches


async def test_a_listing_of_many_pages_leaves_no_point_in_time_behind(node: OpenSearchNode, open_store: Open) -> None:
    store = open_store()
    await asyncio.gather(*(append(store, f"thread {number}", b"frame") for number in range(210)))
    assert len(await listed(store)) == 210
    assert len(await listed(store, limit=205)) == 205
    assert node.ask("GET", "/_search/point_in_time/_all").get("pits", []) == []


async def test_a_long_listing_is_a_few_requests_that_read_no_frames(node: OpenSearchNode, open_store: Open) -> None:
    """A listing of 20,000 threads took 16 s, in 100 requests that read whole documents."""
    frame = random.Random(1).randbytes(10_000)
    made = [await append(open_store(), f"{n}", frame, updated_at=minute(n)) for n in range(20)]
    made += [a_head(f"{n}", updated_at=minute(n)) for n in range(20, 4500)]
    async with _counting_client(node) as client:
        store = open_store(client=client)
        threads = store._threads
        for batch in batches(made[20:], 1000):
            actions: list[tuple[str, dict[str, str], Any]] = []
            for head in batch:
                document = thread_document(threads._ns, head, msgspec.msgpack.encode(head), Tail((), [], [], 0))
                actions.append(("index", {"_id": threads.document(thread_key(head.thread_id))}, document))
            await store._engine.bulk("tests-threads", actions)
        assert await heads(store, HeadQuery(limit=1)) == made[-1:]
        _Counting.asked.clear()
        assert await heads(store) == made[::-1]
        assert _Counting.asked["POST tests-threads"] + _Counting.asked["POST _search"] <= 6
    [hit] = node.ask("POST", "/tests-threads/_search", store._listing._body(HeadQuery(), 1))["hits"]["hits"]
    assert hit.keys().isdisjoint({"_source"})
    assert hit["fields"].keys() == {"key", "head"}


async def test_threads_in_an_index_without_a_column_of_heads_are_listed(node: OpenSearchNode, open_store: Open) -> None:
    prefix = f"by-hand-{next(_numbers)}"
    await append(open_store(prefix=prefix), "thread", b"frame")
    mappings = node.ask("GET", f"/{prefix}-threads")[f"{prefix}-threads"]["mappings"]
    node.ask("DELETE", f"/{prefix}-threads")
    mappings["properties"]["head"] = {"type": "binary"}
    node.ask("PUT", f"/{prefix}-threads", {"mappings": mappings})
    store = open_store(prefix=prefix)
    made = [await append(store, f"{n}", b"frame", updated_at=minute(n)) for n in range(3)]
    assert await heads(store) == made[::-1]


async def test_values_too_long_for_an_index_are_kept_and_found(open_store: Open) -> None:
    store = open_store()
    long = "é" * 5_000
    title = f"{long} the End"
    kept = await append(store, "long", b"frame", agent=long, title=title, tags={long: long}, parent=(long, 1))
    await append(
        store, "other", b"frame", agent=long + "x", title=long, tags={long: long + "x"}, parent=(long + "x", 1)
    )
    for query in (
        HeadQuery(agent=long),
        HeadQuery(title="THE END"),
        HeadQuery(title=title),
        HeadQuery(tags={long: long}),
        HeadQuery(parent=long),
    ):
        assert await heads(store, query) == [kept]


async def test_threads_are_found_by_words_of_their_titles(open_store: Open) -> None:
    store = open_store()
    trip = await append(store, "a", b"frame", title="Plan a trip to Paris")
    report = await append(store, "b", b"frame", title="The report on Paris, and Paris again")
    await append(store, "c", b"frame", title="Nothing of the kind")
    assert {head.thread_id for head in await store.search("paris")} == {"a", "b"}
    assert await store.search("trip") == [trip]
    assert await store.search("REPORT", limit=1) == [report]
    assert await store.search("absent") == []
    for bad in ("", " "):
        with pytest.raises(InvalidInput):
            await store.search(bad)
    with pytest.raises(InvalidInput):
        await store.search("paris", limit=0)


async def test_threads_are_found_by_text_that_was_handed_over_until_they_are_deleted(
    node: OpenSearchNode, open_store: Open
) -> None:
    store = open_store(index_messages=True)
    head = await append(store, "thread", b"frame", title="Travels")
    await store.index_text("thread", "Book the night train to Lisbon.")
    await store.index_text("thread", "Book the night train to Porto.")
    assert await store.search("porto") == await store.search("travels train") == [head]
    assert await store.search("lisbon") == []
    assert await heads(store) == [head]
    await store.delete("thread")
    assert await store.search("porto") == []
    node.ask("POST", "/tests-threads/_refresh")
    of_it = {"query": {"term": {"text_of": store._ns}}}
    assert node.ask("POST", "/tests-threads/_search", of_it)["hits"]["hits"] == []


async def test_text_is_taken_only_if_asked_for_of_threads_that_are_there_and_not_encrypted(open_store: Open) -> None:
    plain = open_store()
    await append(plain, "thread", b"frame")
    with pytest.raises(UsageError, match="index_messages"):
        await plain.index_text("thread", "text")
    store = open_store(index_messages=True)
    with pytest.raises(ThreadNotFound):
        await store.index_text("absent", "text")
    with pytest.raises(InvalidInput, match="limit"):
        await store.index_text("thread", "x" * 5_000_000)
    await append(SealedCheckpointer(store, Keyring(bytes(32))), "sealed", b"frame")
    with pytest.raises(UsageError, match="in the clear"):
        await store.index_text("sealed", "text")


# Addresses and clients


@pytest.mark.parametrize(
    "url",
    [
        "opensearch:",
        "opensearch:/host",
        "opensearch://",
        "opensearch://:9200",
        "opensearch://host:port",
        "opensearch://host:99999",
        "opensearch://host/Upper",
        "opensearch://host/two/parts",
        "opensearch://host/-x",
        "opensearch://host/a*",
        f"opensearch://host/{'x' * 101}",
        "opensearch://host?unknown=1",
        "opensearch://host?tls=perhaps",
        "opensearch://host?tls=true&tls=true",
        "opensearch://host?timeout=soon",
        "opensearch://host?timeout=0",
        "opensearch://host?shards=0",
        "opensearch://host?shards=1.5",
        "opensearch://host?replicas=-1",
        "opensearch://host?ca_file=/ca.pem",
        "opensearch://host?tls=true&ca_file=/absent/ca.pem",
        "opensearch://host?verify=false",
        "opensearch://user:pass#word@host",
        "opensearch://[::1",
        "https://host",
    ],
)
def test_a_bad_url_is_invalid(url: str) -> None:
    with pytest.raises(InvalidInput):
        OpenSearchCheckpointer.from_url(url)


@pytest.mark.parametrize(
    "rest", ["@host:port", "@", "@host?unknown=1", "@host/Upper?tls=true", "@elsewhere.example", "#@host"]
)
def test_a_password_is_in_no_error(rest: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        OpenSearchCheckpointer.from_url(f"opensearch://me:hush-hush{rest}")
    assert "hush" not in str(caught.value)


async def test_a_password_is_in_no_repr_place_message_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = OpenSearchCheckpointer(f"opensearch://me:hush-hush@127.0.0.1:{free_port()}", "space")
    with pytest.raises(Unavailable) as caught:
        await store.head("thread")
    await store.close()
    told = [repr(store), store.place, str(caught.value), caplog.text, repr(vars(store))]
    assert not [text for text in told if "hush" in text]
    assert store.place.endswith("/clew#space")


async def test_a_password_does_not_go_over_a_network_in_the_clear_unless_that_is_said() -> None:
    with pytest.raises(InvalidInput, match="tls=true"):
        OpenSearchCheckpointer("opensearch://me:secret@search.example")
    for allowed in ("search.example?tls=false", "search.example?tls=true", "localhost", "127.0.0.1", "[::1]"):
        await OpenSearchCheckpointer(f"opensearch://me:secret@{allowed}").close()


def test_a_missing_driver_is_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opensearchpy", None)
    with pytest.raises(MissingExtra, match="opensearch"):
        OpenSearchCheckpointer()


async def test_a_client_that_was_handed_over_is_used_and_stays_open(node: OpenSearchNode, open_store: Open) -> None:
    async with _counting_client(node) as client:
        store = open_store("opensearch://nowhere.example", client=client)
        await append(store, "thread", b"frame")
        await store.close()
        assert (await client.info())["version"]["distribution"] == "opensearch"
    with pytest.raises(InvalidInput, match="AsyncOpenSearch"):
        open_store(client=object())


async def test_tls_needs_a_certificate_that_is_trusted(
    node: OpenSearchNode, open_store: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = _certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", node.port)
        await asyncio.gather(_carry(reader, back, seen), _carry(there, writer, []))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"opensearch://me:secret@localhost:{server.sockets[0].getsockname()[1]}"
        store = open_store(url, tls=True, ca_file=str(certificate))
        await append(store, "thread", b"frame")
        assert await store.read("thread") == [b"frame"]
        await store.close()
        assert b"basic " + base64.b64encode(b"me:secret") in b"".join(seen).replace(b"Basic", b"basic")
        anybody = open_store(url, tls=True, verify=False)
        assert await anybody.read("thread") == [b"frame"]
        await anybody.close()
        for unfit in ({"tls": True}, {"tls": False}):
            other = open_store(url, **unfit)
            with pytest.raises(Unavailable):
                await other.head("thread")
            await other.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[bytes]) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            seen.append(data)
            writer.write(data)
            await writer.drain()
    writer.close()


def _certificate(folder: Path) -> Path:
    """A certificate for localhost and its key, in one file."""
    path = folder / "localhost.pem"
    path.write_bytes(b"".join(part.read_bytes() for part in make_certificate(folder)))
    return path
