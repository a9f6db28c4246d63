"""Values that would keep the service busy for seconds, or fill its memory, are refused or cut short."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from clew.checkpointers.base import MAX_HEAD, MAX_ID
from clew.checkpointers.http import protocol
from clew.checkpointers.http.protocol import MSGPACK, encode_text
from clew.checkpointers.sql import heads as sql_heads
from clew.messages import Text, ToolCall, User
from clew.server.inspector.text import Room, compact, pretty
from clew.server.inspector.turns import _MOST_BLOCKS, _arguments_line, _prompt
from clew.testing.contract.builders import a_head
from tests.server.serving import Running, serving

pytestmark = pytest.mark.attack

FRAMES = f"/v1/threads/{encode_text('thread')}/frames"


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with serving() as running:
        yield running


def an_array(count: int, item: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + item * count


def an_append(**parts: bytes) -> bytes:
    whole = {"at": b"\x00", "head": msgspec.msgpack.encode(a_head("thread", 1)), "frames": b"\x91\xc4\x01x", **parts}
    return bytes([0x80 + len(whole)]) + b"".join(msgspec.msgpack.encode(name) + part for name, part in whole.items())


MANY = {f"{number:x}": "" for number in range(40_000)}
TOO_MANY = {
    "frames": (FRAMES, an_append(frames=an_array(2**19 + 1, b"\xc4\x00"))),
    "refs": (FRAMES, an_append(refs=an_array(2**17 + 1, b"\xa0"))),
    "tags": (FRAMES, an_append(head=msgspec.msgpack.encode(a_head("thread", 1, tags=MANY)))),
    "blobs": ("/v1/blobs", b"\x81\xa5blobs" + b"\xdf" + struct.pack(">I", 2**14 + 1) + b"\xa0\xc4\x00" * (2**14 + 1)),
    "digests": ("/v1/blobs/missing", b"\x81\xa7digests" + an_array(2**17 + 1, b"\xa0")),
    "digests to delete": ("/v1/blobs/delete", b"\x82\xb4untouched_for_micros\x00\xa7digests" + an_array(2**17 + 1, b"\xa0")),
    "conditions": ("/v1/threads/query", msgspec.msgpack.encode({"tags": MANY})),
}  # fmt: skip


@pytest.mark.parametrize("case", TOO_MANY)
def test_small_things_in_great_number_are_refused(service: Running, case: str) -> None:
    path, body = TOO_MANY[case]
    answer = httpx.post(service.url + path, content=body, headers={"content-type": MSGPACK})
    assert answer.status_code in (400, 413), answer.text
    assert "of length <=" in answer.text or "up to" in answer.text or "limit" in answer.text


def test_a_head_above_the_limit_is_refused_before_it_is_decoded(service: Running) -> None:
    body = an_append(head=an_array(MAX_HEAD, b"\xc0"))
    answer = httpx.post(service.url + FRAMES, content=body, headers={"content-type": MSGPACK})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_ids_that_are_refused_are_not_kept_in_memory(service: Running) -> None:
    before = protocol._decode_text.cache_info().currsize
    with httpx.Client(base_url=service.url) as client:
        for number in range(50):
            for size in (MAX_ID + 100, 20_000):
                named = encode_text(f"{number} " + "x" * size)
                assert client.get(f"/v1/threads/{named}").status_code == 400
                assert client.get("/v1/threads/eA", headers={"clew-namespace": named}).status_code == 400
    assert protocol._decode_text.cache_info().currsize <= before + 1


def test_an_id_of_the_greatest_length_is_answered(service: Running) -> None:
    for thread_id in ("x" * MAX_ID, "\U0001f9f6" * (MAX_ID // 4)):
        assert httpx.get(f"{service.url}/v1/threads/{encode_text(thread_id)}").status_code == 404


def test_long_texts_of_queries_are_not_kept_in_memory() -> None:
    before = sql_heads._short_digest.cache_info().currsize
    assert len({sql_heads.text_digest(f"{number} " + "x" * 10_000) for number in range(100)}) == 100
    assert sql_heads._short_digest.cache_info().currsize == before


class Watched(list[Any]):
    """A list that counts how many of its items are looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.seen += 1
            yield item


@pytest.mark.parametrize("item", [0, "", [], {}, None, "word", [[]]])
def test_of_a_value_no_more_items_are_visited_than_are_shown(item: object) -> None:
    value = Watched([item]) * 1_000_000
    value = Watched(value)
    assert pretty({"numbers": value}).endswith("… and more; export the thread to see all")
    assert 0 < value.seen <= 20_000
    value.seen = 0
    assert len(_arguments_line({"numbers": value, **{f"name {n}": 1 for n in range(1000)}})) <= 160
    assert 0 < value.seen <= 1000
    value.seen = 0
    assert len(compact(value)) <= 120
    assert 0 < value.seen <= 1000


def test_a_small_value_is_shown_whole() -> None:
    assert pretty({"a": [1, "two", None], "b": b"xyz"}) == (
        '{\n  "a": [\n    1,\n    "two",\n    null\n  ],\n  "b": "(3 bytes)"\n}'
    )


def test_of_a_message_with_very_many_blocks_the_first_are_shown() -> None:
    shown = _prompt(User(tuple(Text("x") for _ in range(100_000))), Room(1_000_000)).blocks
    assert len(shown) == _MOST_BLOCKS + 1
    assert "99,800 more blocks" in str(shown[-1])
    assert _arguments_line(ToolCall("1", "tool", "x" * 10_000_000).arguments).endswith("…")
