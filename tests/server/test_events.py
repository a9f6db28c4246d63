"""Live events of a thread over the API: what a reader gets, who may read and publish, and what floods cannot do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, Delta, MemoryCheckpointer, live_channel
from clew.checkpointers.http.protocol import JSON, log_number
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.log import MessageAdded
from clew.messages import user
from clew.server import events
from clew.server.channels import Channels, Listener, delta_event
from clew.threads.views.entries import read_lines
from tests.limits import PATIENCE
from tests.server.following import a_client, deltas_path, events_path, following, streaming
from tests.server.serving import Running, a_token, serving

pytestmark = pytest.mark.anyio

WRITER, READER, ONLY_APPEND, OTHER = (f"the-long-{name}-token" for name in ("writer", "reader", "append", "other"))
TOKENS = [
    a_token(WRITER, "team", ["read", "write"]),
    a_token(READER, "team", ["read"]),
    a_token(ONLY_APPEND, "team", ["append"]),
    a_token(OTHER, "others", ["read", "write"]),
]
CLIENT = httpx.Client(timeout=PATIENCE)


@pytest.fixture
def service() -> Iterator[Running]:
    with serving(tokens=TOKENS) as running:
        yield running


@pytest.fixture
async def store(service: Running) -> AsyncIterator[HTTPCheckpointer]:
    async with HTTPCheckpointer(service.url, token=WRITER) as opened:
        yield opened


async def say(store: Checkpointer, *words: str, thread_id: str = "t") -> None:
    """Append a frame for each of these words."""
    async with Thread.open(store, thread_id) as thread:
        for said in words:
            await thread.append(MessageAdded(user(said)))


async def frames(store: Checkpointer, thread_id: str = "t") -> int:
    head = await store.head(thread_id)
    assert head is not None
    return head.frames


def publish(service: Running, token: str, deltas: list[Delta], thread_id: str = "t") -> httpx.Response:
    return CLIENT.post(
        service.url + deltas_path(thread_id),
        content=msgspec.json.encode({"deltas": deltas}),
        headers={"authorization": f"Bearer {token}", "content-type": JSON},
    )


def get(service: Running, token: str, path: str, **headers: str) -> httpx.Response:
    """The response to a request that is refused, so that it is no endless stream."""
    given = {"authorization": f"Bearer {token}"} | {name.replace("_", "-"): text for name, text in headers.items()}
    return httpx.get(service.url + path, headers=given, timeout=PATIENCE)


# What a reader gets


async def test_each_frame_comes_with_its_number_and_the_entries_that_show_prints(
    service: Running, store: HTTPCheckpointer
) -> None:
    await say(store, "first", "second")
    head = await store.head("t")
    assert head is not None
    shown = [json.loads(msgspec.json.encode(line.plain())) async for line in read_lines(store, head)]
    async with following(service, READER, "t") as read:
        told = await read.next("thread")
        found = [await read.event() for _ in range(head.frames)]
    assert told["log"] == log_number(head.log_id)
    assert (told["thread_id"], told["frames"], told["holder"]) == ("t", head.frames, "")
    assert [each.id for each in found] == [str(number) for number in range(head.frames)]
    assert [entry for each in found for entry in json.loads(each.data)["entries"]] == shown


async def test_an_append_is_told_at_once_and_not_at_the_next_look(
    service: Running, store: HTTPCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOOK_AGAIN", 100 * PATIENCE)
    await say(store, "first")
    last = await frames(store) - 1
    async with following(service, READER, "t", f"?after={last}") as read:
        await read.next("thread")
        await say(store, "second")
        assert (await read.next())["frame"] == last + 1


async def test_what_another_process_appends_is_told_by_the_next_look(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    with serving(url, tokens=[a_token(WRITER)]) as running:
        async with open_checkpointer(url) as beside:
            await say(beside, "first")
            async with following(running, WRITER, "t", f"?after={await frames(beside) - 1}") as read:
                await say(beside, "second")
                assert [entry["kind"] for entry in (await read.next())["entries"]] == ["lease"]


async def test_a_reader_goes_on_after_the_last_frame_that_it_names(service: Running, store: HTTPCheckpointer) -> None:
    await say(store, "first", "second", "third")
    async with following(service, READER, "t", "?after=1") as read:
        assert (await read.event()).id == "2"
    async with following(service, READER, "t", "?after=0", last_event_id="2") as read:
        assert (await read.event()).id == "3", "what a browser sends when it connects again counts more"


async def test_without_entries_one_event_stands_for_all_new_frames(service: Running, store: HTTPCheckpointer) -> None:
    await say(store, "first", "second")
    async with following(service, READER, "t", "?entries=0") as read:
        assert await read.next() == {"frame": await frames(store) - 1}


async def test_line_breaks_control_characters_and_huge_texts_stay_in_one_event(
    service: Running, store: HTTPCheckpointer
) -> None:
    texts = ["a\nb\r\nc\rd\n\ndata: x\nid: 99\n\n", "\x00\x1b[31m\x85\u2028\u2029\ufeff", "é😀" * 700_000]
    await say(store, *texts)
    async with following(service, READER, "t") as read:
        found = [await read.event() for _ in range(await frames(store))]
    entries = [entry for each in found for entry in json.loads(each.data)["entries"]]
    assert [part["entry"]["message"]["content"][0]["text"] for part in entries if part["kind"] == "message"] == texts


# The end


async def test_a_deleted_thread_ends_the_stream_with_an_event_that_says_so(
    service: Running, store: HTTPCheckpointer
) -> None:
    await say(store, "first")
    async with following(service, READER, "t") as read:
        await read.next()
        await store.delete("t")
        last = (await read.rest())[-1]
    assert (last.name, last.id, json.loads(last.data)["code"]) == ("gone", "", "absent")


async def test_a_thread_that_is_made_again_ends_the_stream_and_is_never_mixed(
    service: Running, store: HTTPCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SHORTEST", 0)
    await say(store, "old", "old", "old")
    async with following(service, READER, "t") as read:
        await read.next()
        await store.delete("t")
        await say(store, *["new"] * 10)
        rest = await read.rest()
    assert json.loads(rest[-1].data)["code"] in ("absent", "replaced")
    assert not [each for each in rest if '"text":"new"' in each.data]


@pytest.mark.parametrize("query", ["?after=99", "?after=0&log=1"])
async def test_a_position_in_another_log_is_told_as_replaced(
    query: str, service: Running, store: HTTPCheckpointer
) -> None:
    await say(store, "first")
    async with following(service, READER, "t", query) as read:
        assert [(each.name, json.loads(each.data)["code"]) for each in await read.rest()] == [("gone", "replaced")]


async def test_a_service_that_stops_ends_its_streams(store: HTTPCheckpointer, service: Running) -> None:
    await say(store, "first")
    async with following(service, READER, "t") as read:
        await read.next()
        service.begin_to_stop()
        assert all(each.name != "gone" for each in await read.rest())


async def test_comments_keep_a_quiet_stream_open(
    service: Running, store: HTTPCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEART_BEAT", 0.01)
    await say(store, "first")
    async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE) as client:
        headers = {"authorization": f"Bearer {READER}"}
        async with client.stream("GET", events_path("t", "?entries=0"), headers=headers) as answer:
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if text.count("\n: still here\n\n") >= 2:
                    break


# Who may read and publish


@pytest.mark.parametrize(
    ("token", "status"),
    [("wrong", 401), (ONLY_APPEND, 403), (OTHER, 404)],
    ids=["unknown", "no scope", "another tenant"],
)
async def test_only_a_token_that_may_read_the_thread_follows_it(
    token: str, status: int, service: Running, store: HTTPCheckpointer
) -> None:
    await say(store, "first")
    assert get(service, token, events_path("t")).status_code == status


async def test_a_thread_that_does_not_exist_is_absent(service: Running) -> None:
    assert get(service, READER, events_path("t")).json()["code"] == "absent"


@pytest.mark.parametrize("query", ["?after=x", "?after=-1", "?entries=2", "?afetr=1", "?after=1&after=2", "?log=x"])
def test_a_parameter_that_means_nothing_is_refused(query: str, service: Running) -> None:
    assert get(service, READER, events_path("t", query)).status_code == 400


@pytest.mark.parametrize("last", ["x", "-1", "1" * 400, "²"])
def test_an_event_id_that_is_no_number_is_refused(last: str, service: Running) -> None:
    headers = {b"authorization": f"Bearer {READER}".encode(), b"last-event-id": last.encode()}
    assert httpx.get(service.url + events_path("t"), headers=headers).status_code == 400


async def test_words_reach_those_who_follow_the_thread_of_the_same_tenant(
    service: Running, store: HTTPCheckpointer
) -> None:
    await say(store, "first")
    async with HTTPCheckpointer(service.url, token=OTHER) as others:
        await say(others, "first")
    async with following(service, READER, "t") as read, following(service, OTHER, "t") as other:
        await read.next("thread")
        await other.next("thread")
        words = [Delta(2, 0, "Hel"), Delta(2, 3, "lo\n", "thinking")]
        assert publish(service, WRITER, words).json() == {"listeners": 1}
        assert publish(service, OTHER, [Delta(2, 0, "theirs")]).json() == {"listeners": 1}
        assert [await read.next("delta"), await read.next("delta")] == [
            {"turn": 2, "at": 0, "text": "Hel", "kind": "text"},
            {"turn": 2, "at": 3, "text": "lo\n", "kind": "thinking"},
        ]
        assert (await other.next("delta"))["text"] == "theirs"


async def test_words_are_never_stored(service: Running, store: HTTPCheckpointer) -> None:
    await say(store, "first")
    before = await frames(store)
    assert publish(service, WRITER, [Delta(2, 0, "gone")]).json() == {"listeners": 0}
    assert await frames(store) == before
    async with following(service, READER, "t") as read:
        await read.next("thread")
        publish(service, WRITER, [Delta(2, 4, "kept")])
        assert (await read.next("delta"))["text"] == "kept"


def test_publishing_needs_the_right_to_append(service: Running) -> None:
    assert publish(service, READER, [Delta(1, 0, "x")]).status_code == 403
    assert publish(service, "wrong", [Delta(1, 0, "x")]).status_code == 401
    assert publish(service, ONLY_APPEND, [Delta(1, 0, "x")]).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"deltas": [{"turn": -1, "at": 0, "text": ""}]}, 400),
        ({"deltas": [{"turn": 1, "at": 0, "text": "x" * 20_000}]}, 400),
        ({"deltas": [{"turn": 1, "at": 0, "text": "x"}] * 100}, 400),
        ({"deltas": [{"turn": 1, "at": 0, "text": "x", "kind": "html"}]}, 400),
        ({"deltas": [{"turn": 2**60, "at": 0, "text": "x"}]}, 400),
        ({"deltas": [], "padding": "x" * 600_000}, 413),
        ([], 400),
    ],
)
def test_words_of_a_wrong_form_or_size_are_refused(body: Any, status: int, service: Running) -> None:
    answer = httpx.post(
        service.url + deltas_path("t"),
        content=json.dumps(body),
        headers={"authorization": f"Bearer {WRITER}", "content-type": JSON},
    )
    assert answer.status_code == status


async def test_a_token_that_is_used_up_by_words_still_works(service: Running) -> None:
    with serving(tokens=[a_token(WRITER)], rate=0.001, burst=10) as running:
        answers = [publish(running, WRITER, []).status_code for _ in range(10)]
        assert answers == [200] * 5 + [429] * 5
        async with HTTPCheckpointer(running.url, token=WRITER, retries=0) as store:
            assert [await store.head("t") for _ in range(3)] == [None] * 3


# Encryption

KEY, OTHER_KEY = "3" * 64, "4" * 64


@pytest.mark.parametrize("key", ["", OTHER_KEY])
async def test_a_service_without_the_key_says_that_the_frames_are_sealed(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("CLEW_KEY", key)
    with serving(f"sqlite:///{tmp_path}/c.db", tokens=TOKENS) as running:
        monkeypatch.setenv("CLEW_TOKEN", WRITER)
        async with open_checkpointer(running.url, key=KEY) as sealed:
            await say(sealed, "a secret")
            count = await frames(sealed)
        async with following(running, READER, "t") as read:
            assert [await read.next() for _ in range(count)] == [{"frame": at, "sealed": True} for at in range(count)]


async def test_a_service_with_the_key_shows_the_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_KEY", KEY)
    monkeypatch.setenv("CLEW_TOKEN", WRITER)
    with serving(f"sqlite:///{tmp_path}/c.db", tokens=TOKENS) as running:
        async with open_checkpointer(running.url, key=KEY) as sealed:
            await say(sealed, "a secret")
            count = await frames(sealed)
        async with following(running, READER, "t") as read:
            assert "a secret" in json.dumps([await read.next() for _ in range(count)])


def test_a_store_with_a_key_has_no_channel_for_words_in_the_clear() -> None:
    url = "http://127.0.0.1:1"
    assert live_channel(open_checkpointer(url)) is not None
    assert live_channel(open_checkpointer(url, key=KEY)) is None
    assert live_channel(MemoryCheckpointer()) is None


# Many readers, slow readers, floods


async def test_a_slow_reader_loses_the_oldest_words_and_is_told_how_many() -> None:
    listener = Listener(delta_event)
    for number in range(1000):
        listener.put(delta_event(Delta(1, number * 1000, "x" * 1000)))
    waiting = listener.take()
    assert len(waiting) < 2**17 + 2**11
    dropped, first = waiting.split(b"\n\n")[:2]
    left = waiting.count(b"event: delta")
    assert dropped == b'event: dropped\ndata: {"messages":%d}' % (1000 - left)
    assert b'"at":%d,' % ((1000 - left) * 1000) in first
    assert listener.take() == b""


async def test_two_hundred_readers_share_the_looks_at_the_store_and_what_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    for name in ("head", "read"):
        real = getattr(MemoryCheckpointer, name)

        def counted(self: Any, *given: Any, _real: Any = real, _name: str = name, **named: Any) -> Any:
            calls.append(_name)
            return _real(self, *given, **named)

        monkeypatch.setattr(MemoryCheckpointer, name, counted)
    monkeypatch.setattr(events, "LOOK_AGAIN", 100 * PATIENCE)
    with serving(tokens=TOKENS, max_connections_per_address=500) as running:
        async with HTTPCheckpointer(running.url, token=WRITER) as store:
            await say(store, "first")
            last = await frames(store) - 1
            ready = [asyncio.Event() for _ in range(200)]

            async def follow(client: httpx.AsyncClient, number: int) -> dict[str, Any]:
                async with streaming(client, running, READER, "t", f"?after={last}") as read:
                    await read.next("thread")
                    ready[number].set()
                    await read.next()
                    words: dict[str, Any] = await read.next("delta")
                    return words

            client = a_client()
            readers = [asyncio.create_task(follow(client, number)) for number in range(200)]
            for one in ready:
                await asyncio.wait_for(one.wait(), 2 * PATIENCE)
            calls.clear()
            await say(store, "second")
            while (await asyncio.to_thread(publish, running, WRITER, [])).json()["listeners"] < 200:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(publish, running, WRITER, [Delta(2, 0, "all")])
            assert {words["text"] for words in await asyncio.gather(*readers)} == {"all"}
            await client.aclose()
    assert len(calls) < 100, "200 readers made this many calls of the store"


async def test_a_reader_that_never_reads_delays_nobody(service: Running, store: HTTPCheckpointer) -> None:
    await say(store, "first")
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port, limit=2**10)
    writer.write(
        f"GET {events_path('t')} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {READER}\r\n\r\n".encode()
    )
    await reader.readuntil(b"id: 0")
    async with following(service, READER, "t") as read:
        await read.next("thread")
        for number in range(60):
            await asyncio.to_thread(publish, service, WRITER, [Delta(1, number, "x" * 16_000)])
            if number % 10 == 0:
                await read.next("delta")
        await say(store, "second")
        assert (await read.next())["frame"] >= 0
    writer.close()


async def test_a_channel_that_nobody_follows_any_more_is_forgotten() -> None:
    found = Channels()
    with found.listen(("", "t"), delta_event), found.listen(("", "t"), delta_event):
        assert found.publish(("", "t"), [Delta(1, 0, "x")]) == 2
        assert found.publish(("other", "t"), [Delta(1, 0, "x")]) == 0
    assert found.publish(("", "t"), [Delta(1, 0, "x")]) == 0
    assert found._open == {}


async def test_a_token_has_so_many_streams(store: HTTPCheckpointer) -> None:
    with serving(tokens=TOKENS, max_streams=1) as running:
        async with HTTPCheckpointer(running.url, token=WRITER) as kept:
            await say(kept, "first")
            async with following(running, READER, "t") as read:
                await read.next()
                assert get(running, READER, events_path("t")).status_code == 429
