"""The router and the responses in themselves: streams that are cut short, from either side, and the life of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew.checkpointers import MemoryCheckpointer
from clew.checkpointers.http.protocol import MSGPACK, encode_text
from clew.server import Settings, create_app
from clew.server.failures import error_response
from clew.server.request import Request
from clew.server.response import Response, Stream
from clew.server.router import Route, Router
from clew.server.stores import Stores
from clew.server.streams import respond
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


class Client:
    """One side of an ASGI call: the messages that it sends, and those that it was sent."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = [*messages]
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.sent.append(message)


def a_scope(method: str = "GET", path: str = "/", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "query_string": b"", "headers": named}


async def endless(closed: list[str]) -> Stream:
    try:
        while True:
            await asyncio.sleep(0)
            yield b"more"
    finally:
        await asyncio.sleep(0)  # as a store does that gives something back
        closed.append("closed")


async def test_a_client_that_leaves_ends_its_stream() -> None:
    client, closed = Client(), list[str]()
    sending = asyncio.create_task(Response(endless(closed)).send(client.receive, client.send))
    while len(client.sent) < 10:
        await asyncio.sleep(0)
    assert closed == []
    client.gone.set()
    async with asyncio.timeout(PATIENCE):
        await sending
    assert closed == ["closed"]
    assert client.sent[-1] == {"type": "http.response.body", "body": b"more", "more_body": True}


async def test_a_client_that_leaves_while_nothing_is_sent_ends_its_stream() -> None:
    client, closed = Client(), list[str]()

    async def silent() -> Stream:
        try:
            await asyncio.Event().wait()
            yield b"never"
        finally:
            closed.append("closed")

    asyncio.get_running_loop().call_later(0.01, client.gone.set)
    async with asyncio.timeout(PATIENCE):
        await Response(silent()).send(client.receive, client.send)
    assert closed == ["closed"]


async def test_a_response_that_is_cancelled_closes_its_stream() -> None:
    client, closed = Client(), list[str]()
    sending = asyncio.create_task(Response(endless(closed)).send(client.receive, client.send))
    while len(client.sent) < 3:
        await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert closed == ["closed"]


async def test_a_connection_that_breaks_closes_its_stream() -> None:
    closed = list[str]()

    async def broken(message: dict[str, Any]) -> None:
        if message.get("body"):
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await Response(endless(closed)).send(Client().receive, broken)
    assert closed == ["closed"]


async def test_an_error_within_a_stream_is_raised_and_the_response_has_no_end() -> None:
    client = Client()

    async def failing() -> Stream:
        yield b"one"
        raise RuntimeError("within")

    with pytest.raises(RuntimeError, match="within"):
        await Response(failing()).send(client.receive, client.send)
    assert client.sent[-1] == {"type": "http.response.body", "body": b"one", "more_body": True}


async def test_a_stream_that_is_read_to_its_end_has_an_end_and_no_length() -> None:
    client = Client()

    async def short() -> Stream:
        yield b"one"

    await Response(short(), "text/plain").send(client.receive, client.send)
    assert client.sent[0]["headers"] == [(b"content-type", b"text/plain; charset=utf-8")]
    assert [message.get("body") for message in client.sent[1:]] == [b"one", b""]
    assert not client.sent[-1].get("more_body")


async def test_records_are_closed_with_the_stream_that_sends_them() -> None:
    """Not only when Python collects them: until then they hold a store."""
    client, closed = Client(), list[str]()

    async def records() -> Stream:
        try:
            while True:
                await asyncio.sleep(0)
                yield bytes(2**16)
        finally:
            closed.append("closed")

    response = await respond(records())
    sending = asyncio.create_task(response.send(client.receive, client.send))
    while len(client.sent) < 5:
        await asyncio.sleep(0)
    client.gone.set()
    await sending
    assert closed == ["closed"]


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_that_has_no_body_states_no_length_and_no_type(status: int) -> None:
    assert Response(kind=MSGPACK, status=status).headers == []


# The router


def routed(*routes: tuple[str, str]) -> Router:
    async def handler(request: Request) -> Response:
        return Response(f"{request.route} {dict(request.path_params)}".encode())

    return Router([Route(method, path, None, handler) for method, path in routes], error_response)


async def answer(router: Router, method: str, path: str) -> tuple[int, str]:
    request = Request(a_scope(method, path), None, Stores("memory://"), Settings(store="memory://", no_token=True))
    found = await router.answer(request)
    assert isinstance(found.body, bytes)
    return found.status, found.body.decode()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a/b", "/a/b {}"),
        ("/a/c", "/a/{one} {'one': 'c'}"),
        ("/a/b/c/d", "/a/{one}/c/{two} {'one': 'b', 'two': 'd'}"),
        ("/a/{one}", "/a/{one} {'one': '{one}'}"),
        ("/a/{}/", "/a/{one} {'one': '{}'}"),
        ("/a/None", "/a/{one} {'one': 'None'}"),
        ("/", "/ {}"),
        ("", "/ {}"),
    ],
)
async def test_a_route_is_found_and_its_parts_are_named(path: str, found: str) -> None:
    router = routed(("GET", "/"), ("GET", "/a/b"), ("GET", "/a/{one}"), ("GET", "/a/{one}/c/{two}"))
    assert await answer(router, "GET", path) == (200, found)


@pytest.mark.parametrize("path", ["/a", "/a/x/c", "/a/x/y", "/b", "/a/x/c/y/z"])
async def test_a_path_without_a_route_is_not_found(path: str) -> None:
    router = routed(("GET", "/a/{one}"), ("GET", "/a/{one}/c/{two}"))
    assert (await answer(router, "GET", path))[0] == 404


# The gate


async def test_a_client_that_leaves_while_it_sends_changes_nothing() -> None:
    app = create_app(Settings(store="memory://", no_token=True))
    client = Client({"type": "http.request", "body": b"\x93", "more_body": True})
    client.gone.set()
    path = f"/v1/threads/{encode_text('t')}/frames"
    await app(a_scope("POST", path, host="localhost", content_type=MSGPACK), client.receive, client.send)
    assert client.sent[0]["status"] == 400
    assert b"went away" in client.sent[1]["body"]


async def test_an_error_within_a_stream_reaches_the_log_and_not_the_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(*_: Any, **__: Any) -> AsyncIterator[bytes]:
        yield b"data: one\n\n"
        raise RuntimeError("private")

    monkeypatch.setattr("clew.server.inspector.pages.threads_events", failing)
    client = Client()
    app = create_app(Settings(store="memory://", no_token=True))
    await app(a_scope(path="/threads/events", host="localhost"), client.receive, client.send)
    assert client.sent[-1].get("more_body")
    assert "RuntimeError" in caplog.text
    assert "private" not in caplog.text
    assert app.under_way == 0


async def test_the_stores_are_closed_when_the_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()

    async def close(_: Any) -> None:
        closed.append("closed")

    monkeypatch.setattr(MemoryCheckpointer, "close", close)
    client = Client({"type": "lifespan.startup"})
    living = asyncio.create_task(
        create_app(Settings(store="memory://", no_token=True))({"type": "lifespan"}, client.receive, client.send)
    )
    while not client.sent:
        await asyncio.sleep(0)
    assert closed == []
    client.gone.set()
    await living
    assert closed
    assert [message["type"] for message in client.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_store_that_cannot_be_closed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close(_: Any) -> None:
        raise RuntimeError("not closed")

    monkeypatch.setattr(MemoryCheckpointer, "close", close)
    client = Client({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    with pytest.raises(RuntimeError, match="not closed"):
        await create_app(Settings(store="memory://", no_token=True))({"type": "lifespan"}, client.receive, client.send)
    assert client.sent[-1]["type"] == "lifespan.shutdown.failed"
    assert "not closed" in client.sent[-1]["message"]


async def test_a_web_socket_is_refused() -> None:
    client = Client()
    await create_app(Settings(store="memory://", no_token=True))({"type": "websocket"}, client.receive, client.send)
    assert client.sent == [{"type": "websocket.close"}]
