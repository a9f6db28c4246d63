"""Live events at the client: how a stream is read however it is cut, and what an older service means."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Thread
from clew.checkpointers.http.events import Event, EventReader, event
from clew.checkpointers.http.protocol import Broken
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.checkpointers.live import Changed, Delta, Dropped, NoLiveEvents
from clew.errors import Unavailable, UsageError
from clew.log import MessageAdded
from clew.messages import user
from tests.checkpointers.test_http import Fake, answer, failing, talking_to
from tests.limits import PATIENCE
from tests.server.serving import a_token, serving

pytestmark = pytest.mark.anyio

SECRET = "a-long-and-secret-token"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))
NAMES = st.text("abcdefghijk", min_size=1, max_size=5)


# The form


@given(st.lists(st.tuples(NAMES, TEXTS, st.none() | st.integers(0, 99).map(str))), st.lists(st.integers(0, 200)))
def test_events_are_read_as_they_were_written_wherever_the_stream_is_cut(
    written: list[tuple[str, str, str | None]], cuts: list[int]
) -> None:
    stream = b"retry: 2000\n\n: a comment\n\n" + b"".join(event(*each) for each in written)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = EventReader()
    found = [each for start, stop in itertools.pairwise(places) for each in reader.feed(stream[start:stop])]
    assert found == [Event(name, data, number) for name, data, number in written]


def test_an_event_that_is_cut_in_the_middle_is_never_given_out() -> None:
    whole = event("delta", "some words", "7")
    assert [list(EventReader().feed(whole[:size])) for size in range(len(whole))] == [[]] * len(whole)


def test_line_ends_of_a_proxy_and_fields_of_later_versions_do_no_harm() -> None:
    found = list(EventReader().feed(b"event: x\r\nfuture: 1\r\ndata:a\r\ndata: b\r\n\r\n: only a comment\r\n\r\n"))
    assert found == [Event("x", "a\nb")]


@pytest.mark.parametrize("endless", [b"data: " + b"x" * 2000, b"data: x\n" * 400], ids=["line", "event"])
def test_an_event_without_an_end_does_not_fill_the_memory(endless: bytes) -> None:
    with pytest.raises(Broken, match="more than 1000 bytes"):
        list(EventReader(1000).feed(endless))


# The client


def stream(*events: bytes, **headers: str) -> bytes:
    """An answer with these events, whose connection is then closed without the end of its body."""
    body = b"".join(events)
    whole = answer(200, body, kind="text/event-stream", **headers)
    return whole.replace(b"content-length: %d" % len(body), b"content-length: %d" % (len(body) + 1))


class Cutting(Fake):
    """A server that closes the connection after each answer."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self._answers[0] or b"")
        writer.close()


DELTA = event("delta", '{"turn":1,"at":0,"text":"Hi"}')


async def test_a_connection_that_is_cut_in_the_middle_of_an_event_is_unavailable_after_whole_events() -> None:
    fake = Cutting(stream(event("thread", "{}"), DELTA, event("dropped", '{"messages":3}'), DELTA[:-4]))
    async with talking_to(fake) as store:
        events = store.follow("t", after=4, log_id="x")
        found = [await anext(events) for _ in range(3)]
        with pytest.raises(Unavailable, match="broke off its events"):
            await anext(events)
    assert found == [Changed(), Delta(1, 0, "Hi"), Dropped(3)]
    assert b"/events?entries=0&after=4&log=" in fake.requests[0]


async def test_a_thread_that_is_gone_ends_the_events() -> None:
    async with talking_to(Fake(stream(event("gone", "{}", ""), DELTA))) as store:
        assert [each async for each in store.follow("t")] == []


@pytest.mark.parametrize("page", [answer(200, b"<html>", kind="text/html"), answer(200, b"", clew_protocol="")])
async def test_what_is_no_stream_of_a_clew_server_is_unavailable(page: bytes) -> None:
    async with talking_to(Fake(page)) as store:
        with pytest.raises(Unavailable):
            await anext(store.follow("t"))


async def test_an_older_service_has_no_live_events() -> None:
    async with talking_to(Fake(failing(404, "no_such_path"))) as store:
        with pytest.raises(NoLiveEvents):
            await anext(store.follow("t"))
        with pytest.raises(NoLiveEvents):
            await store.publish("t", [Delta(1, 0, "x")])


async def test_words_are_sent_once_whatever_the_answer() -> None:
    fake = Fake(failing(503, "unavailable"))
    async with talking_to(fake, retries=3) as store:
        with pytest.raises(Unavailable):
            await store.publish("t", [Delta(1, 0, "x")])
    assert len(fake.requests) == 1


@asynccontextmanager
async def followed() -> AsyncIterator[tuple[HTTPCheckpointer, str]]:
    with serving(tokens=[a_token(SECRET)]) as running:
        async with HTTPCheckpointer(running.url, token=SECRET) as store:
            async with Thread.open(store, "t") as thread:
                await thread.append(MessageAdded(user("first")))
            yield store, running.url


async def test_changes_and_words_are_told_in_order() -> None:
    async with followed() as (store, _), asyncio.timeout(PATIENCE):
        head = await store.head("t")
        assert head is not None
        events = store.follow("t", after=head.frames - 1, log_id=head.log_id)
        assert await anext(events) == Changed()
        while not await store.publish("t", []):
            await asyncio.sleep(0)
        assert await store.publish("t", [Delta(1, 0, "a"), Delta(1, 1, "b")]) == 1
        assert [await anext(events), await anext(events)] == [Delta(1, 0, "a"), Delta(1, 1, "b")]
        await store.delete("t")
        assert [each async for each in events] == []


async def test_a_token_that_may_not_read_is_told_so() -> None:
    async with followed() as (_, url), HTTPCheckpointer(url, token="another") as stranger:
        with pytest.raises(UsageError):
            await anext(stranger.follow("t"))
