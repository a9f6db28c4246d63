"""Probes of a worker: they tell the truth, and no client harms the worker."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from clew.agent import Agent
from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer
from clew.errors import InvalidInput, Unavailable
from clew.testing import ScriptedModel, call
from clew.tools import tool
from clew.workers import Worker, enqueue, probes
from clew.workers.probes import listening, parse_address
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


class Faltering(MemoryCheckpointer):
    is_away = False

    def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        if self.is_away:
            raise Unavailable("the store is away")
        return super().heads(query)


def a_worker(store: Checkpointer, **options: object) -> Worker:
    return Worker(Agent(ScriptedModel(["Done."] * 9), name="clerk"), store=store, poll=0.01, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[str]:
    task = asyncio.create_task(worker.run())
    try:
        async with listening(worker, "127.0.0.1", 0) as url:
            yield url.rpartition(":")[2]
    finally:
        task.cancel()
        await asyncio.wait([task])


async def send(port: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()


async def get(port: str, path: str) -> tuple[int, str]:
    answer = await send(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


async def until(port: str, path: str, status: int) -> str:
    async with asyncio.timeout(PATIENCE):
        while (found := await get(port, path))[0] != status:
            await asyncio.sleep(0.01)
    return found[1]


async def test_a_worker_is_healthy_and_ready_and_not_ready_once_it_drains() -> None:
    async with MemoryCheckpointer() as store:
        worker = a_worker(store)
        async with running(worker) as port:
            assert await until(port, "/readyz", 200) == "ok\n"
            assert await get(port, "/healthz") == (200, "ok\n")
            worker.drain()
            assert await get(port, "/readyz") == (503, "the worker is draining\n")


async def test_a_worker_whose_store_is_away_is_alive_and_not_ready() -> None:
    async with Faltering() as store, running(a_worker(store)) as port:
        await until(port, "/readyz", 200)
        store.is_away = True
        assert await until(port, "/readyz", 503) == "the store did not answer the last look\n"
        assert (await get(port, "/healthz"))[0] == 200


async def test_a_worker_whose_loop_stands_still_is_not_healthy(clock: Clock) -> None:
    async with MemoryCheckpointer() as store:
        worker = a_worker(store)
        async with listening(worker, "127.0.0.1", 0) as url:
            port = url.rpartition(":")[2]
            assert await get(port, "/healthz") == (503, "the worker has not begun yet\n")
            await worker.run(until_empty=True)
            assert (await get(port, "/healthz"))[0] == 200
            clock.advance(61)
            assert "stood still" in (await get(port, "/healthz"))[1]


async def test_metrics_count_what_happened() -> None:
    async with MemoryCheckpointer() as store:
        for name in ("a", "b"):
            await enqueue(store, name, "Go.", agent="clerk")
        worker = a_worker(store)
        await worker.run(until_empty=True)
        async with listening(worker, "127.0.0.1", 0) as url:
            status, text = await get(url.rpartition(":")[2], "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert status == 200
    assert values["clew_worker_taken_total"] == "2"
    assert values['clew_worker_ended_total{status="done"}'] == "2"
    assert (values["clew_worker_running"], values["clew_worker_concurrency"]) == ("0", "8")
    assert float(values["clew_worker_queue_read_seconds"]) < PATIENCE
    assert {re.sub(r"\{.*", "", name) for name in values} == set(re.findall(r"# TYPE (\S+)", text))


async def test_the_oldest_due_thread_is_told_while_the_worker_is_full(clock: Clock) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go_on.wait()
        return "ok"

    async with MemoryCheckpointer() as store:
        agent = Agent(ScriptedModel([call("wait"), "Done.", "Done."]), name="clerk", tools=[wait])
        worker = Worker(agent, store=store, concurrency=1, poll=0.01)
        await enqueue(store, "a", "Go.", agent="clerk")
        task = asyncio.create_task(worker.run())
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await enqueue(store, "b", "Go.", agent="clerk", priority=3)
        async with asyncio.timeout(PATIENCE):
            while worker.pulse.oldest_due < 100:
                clock.advance(2.5)
                await asyncio.sleep(0.01)
        assert worker.pulse.oldest_due < 3600  # the priority, which moves it to the front by hours, does not count
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            while worker.counts.ended.get("done") != 2 or worker.pulse.oldest_due:
                await asyncio.sleep(0.01)
        worker.drain()
        await task


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"x" * 100_000, 431),
        (b"GET /healthz?verbose HTTP/1.0\r\n\r\n", 200),
    ],
)
async def test_a_malformed_request_gets_an_answer(request_: bytes, status: int) -> None:
    async with MemoryCheckpointer() as store:
        worker = a_worker(store)
        await worker.run(until_empty=True)
        async with listening(worker, "127.0.0.1", 0) as url:
            answer = await send(url.rpartition(":")[2], request_)
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_head_has_no_body() -> None:
    async with MemoryCheckpointer() as store, listening(a_worker(store), "127.0.0.1", 0) as url:
        answer = await send(url.rpartition(":")[2], b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n")


async def test_slow_clients_are_dropped_and_keep_nobody_out() -> None:
    async with MemoryCheckpointer() as store:
        worker = a_worker(store)
        await worker.run(until_empty=True)
        async with listening(worker, "127.0.0.1", 0) as url:
            port = url.rpartition(":")[2]
            slow = [await asyncio.open_connection("127.0.0.1", int(port)) for _ in range(200)]
            for _, writer in slow:
                writer.write(b"GET /he")
            assert (await get(port, "/healthz"))[0] == 200
        for reader, writer in slow:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()


async def test_a_client_that_sends_nothing_is_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PATIENCE", 0.05)
    async with MemoryCheckpointer() as store, listening(a_worker(store), "127.0.0.1", 0) as url:
        assert await send(url.rpartition(":")[2], b"GET /he") == b""


async def test_an_address_that_is_taken_or_malformed_is_an_error_that_says_so() -> None:
    assert parse_address("[::1]:9090") == ("::1", 9090)
    for text in ("9090", ":9090", "localhost", "localhost:x", "localhost:70000", "localhost:-1"):
        with pytest.raises(InvalidInput, match="HOST:PORT"):
            parse_address(text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with MemoryCheckpointer() as store:
            with pytest.raises(InvalidInput, match="Choose another"):
                async with listening(a_worker(store), "127.0.0.1", taken.getsockname()[1]):
                    pass
