"""A server that accepts a connection and says nothing: with its default settings, every store gives up after ten seconds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from clew.checkpointers import open_checkpointer
from clew.errors import Unavailable
from clew.testing.contract.builders import append, listed
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio

URLS = (
    "postgresql://me@127.0.0.1:{port}/db",
    "mysql://me@127.0.0.1:{port}/db",
    "redis://127.0.0.1:{port}/0",
    "redis://127.0.0.1:{port}/0?cluster=true",
    "oracle://me:password@127.0.0.1:{port}/service",
    "s3://bucket/prefix?endpoint=http://127.0.0.1:{port}&region=us-east-1",
    "opensearch://127.0.0.1:{port}",
    "http://127.0.0.1:{port}",
)


@asynccontextmanager
async def silent_server(connections: list[asyncio.StreamWriter]) -> AsyncIterator[int]:
    """A port on which connections are accepted and read from, and nothing is ever answered."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while await reader.read(65_536):
            pass

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in connections:
            writer.transport.abort()


@pytest.mark.parametrize("url", URLS, ids=["cluster" if "cluster" in url else url.partition(":")[0] for url in URLS])
async def test_every_call_ends_after_ten_seconds_unless_the_user_says_otherwise(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    connections: list[asyncio.StreamWriter] = []
    async with silent_server(connections) as port, open_checkpointer(url.format(port=port)) as store:
        appends = [append(store, f"thread {number}", b"frame") for number in range(30)]  # more than connections
        calls = [
            asyncio.ensure_future(call)
            for call in (store.head("thread"), store.read("thread"), listed(store), store.delete("thread"), *appends)
        ]
        await clock.advance_when(lambda: connections, 11.0)
        await asyncio.wait(calls, timeout=PATIENCE)
        errors = [call.exception() for call in calls]
    assert {type(error) for error in errors} == {Unavailable}
    wrong = [str(error) for error in errors if not re.search(r"no answer for 10 s|timeout", str(error))]
    assert wrong == []
