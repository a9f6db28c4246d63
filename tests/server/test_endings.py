"""A service whose store cannot write says so, and one that is told to stop ends in time."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import httpx
import msgspec
import pytest

from clew._runtime import files
from clew.checkpointers import MemoryCheckpointer
from clew.checkpointers.http.protocol import MSGPACK, Append, encode_text
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.checkpointers.sqlite import connection
from clew.errors import Unavailable
from clew.server import Server, Settings
from clew.server.routes import probes
from clew.testing.contract.builders import a_head, append
from tests.limits import PATIENCE
from tests.server.serving import serving

FRAMES = f"/v1/threads/{encode_text('thread')}/frames"
PATH = Path("/private/clew.db")
FULL: dict[str, Exception] = {
    "sqlite": connection.explain(apsw.FullError("database or disk is full"), PATH),
    "files": files.explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), PATH),
    "quota": files.explain(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), PATH),
}


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(MemoryCheckpointer, "append", fail)
    monkeypatch.setattr(MemoryCheckpointer, "put_blobs", fail)


@pytest.mark.parametrize("store", FULL)
def test_a_full_disk_is_named_to_the_client_and_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    failing(monkeypatch, FULL[store])
    body = msgspec.msgpack.encode(Append(0, a_head("thread", 1), [b"frame"]))
    with serving() as running:
        answer = httpx.post(running.url + FRAMES, content=body, headers={"content-type": MSGPACK})
        ready = httpx.get(f"{running.url}/readyz")
    for said in (answer, ready):
        assert said.status_code == 503
        assert "disk of the store behind the server is full" in said.json()["message"]
        assert "private" not in said.text
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "clew.server"]
    assert sum("disk" in line.get("reason", "") for line in lines) == 2
    assert "private" not in caplog.text


@pytest.mark.anyio
async def test_a_program_learns_that_the_disk_behind_the_service_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, FULL["sqlite"])
    with serving() as running:
        async with HTTPCheckpointer(running.url, retries=0) as store:
            with pytest.raises(Unavailable, match="full"):
                await append(store, "thread", b"frame")


def test_another_failure_of_the_store_is_not_called_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, Unavailable("the server is away"))
    with serving() as running:
        assert "disk" not in httpx.get(f"{running.url}/readyz").text
    assert '"reason"' not in caplog.text


def test_ready_means_that_the_store_writes_and_many_questions_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    deleted: list[str] = []
    put, delete = MemoryCheckpointer.put_blobs, MemoryCheckpointer.delete_blobs

    async def watched_put(self: MemoryCheckpointer, blobs: Any) -> None:
        written.extend(blobs)
        await put(self, blobs)

    async def watched_delete(self: MemoryCheckpointer, digests: Any, **given: Any) -> None:
        deleted.extend(digests)
        await delete(self, digests, **given)

    monkeypatch.setattr(MemoryCheckpointer, "put_blobs", watched_put)
    monkeypatch.setattr(MemoryCheckpointer, "delete_blobs", watched_delete)
    monkeypatch.setattr(probes, "_FRESH", 3600.0)
    with serving() as running, httpx.Client(base_url=running.url) as client:
        assert {client.get("/readyz").text for _ in range(20)} == {"ok\n"}
        assert len(written) == 1
        monkeypatch.setattr(probes, "_FRESH", 0.0)
        assert client.get("/readyz").text == "ok\n"
    assert len(set(written)) == 2
    assert written == deleted


@pytest.mark.anyio
@pytest.mark.parametrize("grace", [30.0, 5.0, 4.0])
async def test_clients_get_less_than_the_grace_and_are_then_cut_off(grace: float) -> None:
    server = Server(Settings(store="memory://", no_token=True, grace=grace))
    waited: list[float] = []
    aborted: list[bool] = []

    async def drain(grace: float) -> None:
        waited.append(grace)

    server.gate.drain = drain  # type: ignore[method-assign]
    server.connections.abort = lambda: aborted.append(True)  # type: ignore[method-assign]
    server.stop()
    while not server.should_exit:
        await asyncio.sleep(0)
    assert aborted == [True]
    assert server.config.timeout_graceful_shutdown is not None
    assert waited[0] + server.config.timeout_graceful_shutdown < grace


STUCK = """
import time
from clew.checkpointers import MemoryCheckpointer
from clew.server import Settings, serve

async def close(self):
    time.sleep(100_000)

MemoryCheckpointer.close = close
serve(Settings(store="memory://", no_token=True, port=0, grace=2.0))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_store_that_never_closes_does_not_keep_the_process_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            events = [json.loads(process.stderr.readline())["event"] for _ in range(2)]
            assert events == ["warning", "listening"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 1
            assert [json.loads(line)["event"] for line in process.stderr] == ["stopping", "ended"]
        finally:
            process.kill()
