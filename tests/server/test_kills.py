"""The server killed under load: what it acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import httpx
import pytest

from clew.checkpointers import SQLiteCheckpointer
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import Unavailable
from clew.testing.contract.builders import append
from tests.sampling import FULL, dice
from tests.server.serving import Running, serving
from tests.servers.proxy import Proxy
from tests.servers.running import ServerProcess, free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
]

KILLS = 40 if FULL else 2
CUTS = 400 if FULL else 12
WRITERS = 8


def command(tmp_path: Path, port: int) -> ServerProcess:
    def is_up() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    arguments = ["serve", "--store", f"sqlite:///{tmp_path}/clew.db", "--port", str(port), "--no-token"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLEW_")}
    return ServerProcess([sys.executable, "-m", "clew", *arguments], tmp_path / "server.log", is_up, env=env)


class Writer:
    """Appends to one thread, each append again until it is acknowledged: as whoever holds a lease does."""

    def __init__(self, number: int, store: HTTPCheckpointer) -> None:
        self.thread_id = f"thread {number}"
        self._store = store
        self.acknowledged: list[bytes] = []
        self.unanswered = 0

    async def write(self) -> None:
        at = len(self.acknowledged)
        frames = [b"%s.%d.%d" % (self.thread_id.encode(), at, part) for part in range(2)]
        while True:
            try:
                await append(self._store, self.thread_id, *frames, at=at)
                break
            except Unavailable:
                self.unanswered += 1
                await asyncio.sleep(0.05)
        self.acknowledged += frames

    async def until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.write()


async def test_a_killed_server_keeps_what_it_acknowledged_once(tmp_path: Path) -> None:
    chance = dice("kills of a server")
    port = free_port()
    store = HTTPCheckpointer(f"http://127.0.0.1:{port}", retries=1)
    writers = [Writer(number, store) for number in range(WRITERS)]
    with command(tmp_path, port) as server:
        for _ in range(KILLS):
            stop = asyncio.Event()
            work = [asyncio.create_task(writer.until(stop)) for writer in writers]
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            stop.set()
            await asyncio.gather(*work)
    await store.close()
    assert sum(writer.unanswered for writer in writers) > 0, "nobody was interrupted"
    async with SQLiteCheckpointer(tmp_path / "clew.db") as behind:
        for writer in writers:
            assert await behind.read(writer.thread_id) == writer.acknowledged


async def test_connections_cut_at_any_byte_lose_and_double_nothing(tmp_path: Path) -> None:
    chance = dice("cuts")
    with serving(f"sqlite:///{tmp_path}/clew.db") as running:
        async with Proxy(_target(running), cut_after=lambda: chance.randrange(40, 4000)) as proxy:
            store = HTTPCheckpointer(f"http://127.0.0.1:{proxy.port}", retries=1)
            writers = [Writer(number, store) for number in range(4)]
            while proxy.cuts < CUTS:
                await asyncio.gather(*(writer.write() for writer in writers))
                for writer in writers:
                    start = max(0, len(writer.acknowledged) - 20)
                    assert await _again(store, writer.thread_id, start) == writer.acknowledged[start:]
            await store.close()
    async with SQLiteCheckpointer(tmp_path / "clew.db") as behind:
        for writer in writers:
            assert await behind.read(writer.thread_id) == writer.acknowledged


async def _again(store: HTTPCheckpointer, thread_id: str, start: int) -> list[bytes]:
    """A read that is made again until it is answered; an answer that was cut is never taken for one."""
    while True:
        try:
            head = await store.head(thread_id)
            assert head is not None, "a thread was taken for absent"
            return await store.read(thread_id, start=start)
        except Unavailable:
            continue


def _target(running: Running) -> tuple[str, int]:
    return "127.0.0.1", running.server.port
