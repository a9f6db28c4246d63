"""A reader of a thread's live events over a plain HTTP client, as a program without Clew would be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx

from clew.checkpointers.http.events import Event, EventReader
from clew.checkpointers.http.protocol import encode_text
from tests.limits import PATIENCE
from tests.server.serving import Running

__all__ = ["Followed", "a_client", "deltas_path", "events_path", "following", "streaming"]


def events_path(thread_id: str, query: str = "") -> str:
    return f"/v1/threads/{encode_text(thread_id)}/events{query}"


def deltas_path(thread_id: str) -> str:
    return f"/v1/threads/{encode_text(thread_id)}/deltas"


class Followed:
    """The events of one stream, in order."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events

    async def next(self, name: str = "message") -> Any:
        """The data of the next event with this name."""
        return json.loads((await self.event(name)).data)

    async def event(self, name: str = "message") -> Event:
        async with asyncio.timeout(PATIENCE):
            async for found in self._events:
                if found.name == name:
                    return found
        raise AssertionError(f"the stream ended without {name}")

    async def rest(self) -> list[Event]:
        """All further events, up to the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            return [found async for found in self._events]


def a_client() -> httpx.AsyncClient:
    """A client with as many connections as there are streams."""
    return httpx.AsyncClient(timeout=PATIENCE, limits=httpx.Limits(max_connections=None))


@asynccontextmanager
async def following(
    running: Running, token: str, thread_id: str, query: str = "", **headers: str
) -> AsyncIterator[Followed]:
    async with a_client() as client, streaming(client, running, token, thread_id, query, **headers) as read:
        yield read


@asynccontextmanager
async def streaming(
    client: httpx.AsyncClient, running: Running, token: str, thread_id: str, query: str = "", **headers: str
) -> AsyncIterator[Followed]:
    given = {"authorization": f"Bearer {token}"} | {name.replace("_", "-"): text for name, text in headers.items()}
    async with client.stream("GET", running.url + events_path(thread_id, query), headers=given) as answer:
        assert answer.status_code == 200, (await answer.aread(), answer.status_code)
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with aclosing(_events(answer)) as events:
            yield Followed(events)


async def _events(answer: httpx.Response) -> AsyncGenerator[Event, None]:
    reader = EventReader(2**28)
    async for piece in answer.aiter_raw():
        for found in reader.feed(piece):
            yield found
