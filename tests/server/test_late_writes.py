"""What a client gave up on is not written later: the service looks whether the client is still there, and so does the
store once it has the lock for which it waited."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import apsw
import pytest

from clew import Thread
from clew._runtime import files
from clew.checkpointers import SQLiteCheckpointer
from clew.checkpointers.heads import thread_key
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import Unavailable
from clew.log import MessageAdded
from clew.messages import user
from clew.testing.contract.builders import append, state
from tests.limits import PATIENCE
from tests.server.serving import Running, serving
from tests.server.test_command import running

pytestmark = pytest.mark.anyio


@contextmanager
def sqlite_locked(folder: Path) -> Iterator[None]:
    """Hold SQLite's lock on the store, as another process does that writes."""
    other = apsw.Connection(str(folder / "clew.db"))
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def file_locked(folder: Path) -> Iterator[None]:
    """Hold the lock on the file of the thread `thread`, as another process does that writes to it."""
    [path] = folder.rglob(thread_key("thread"))
    other = os.open(path, os.O_RDWR)
    files.lock(other, path, shared=False)
    try:
        yield
    finally:
        files.unlock(other)
        os.close(other)


async def until_idle(service: Running) -> None:
    """Wait until the service works on no request any more."""
    async with asyncio.timeout(PATIENCE):
        while service.server.gate.under_way:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("url", "locked"),
    [("sqlite:///{}/clew.db", sqlite_locked), ("file://{}/store", file_locked)],
    ids=["sqlite", "files"],
)
async def test_what_was_unavailable_because_of_a_lock_is_not_written_when_the_lock_is_free(
    tmp_path: Path, url: str, locked: Callable[[Path], AbstractContextManager[None]]
) -> None:
    with serving(url.format(tmp_path), no_token=True) as service:
        async with HTTPCheckpointer(service.url, retries=0, timeout=1.0) as store:
            first = await append(store, "thread", b"first")
            with locked(tmp_path):
                with pytest.raises(Unavailable):
                    await append(store, "thread", b"late", at=1)
                with pytest.raises(Unavailable):
                    await store.delete("thread")
            await until_idle(service)
        async with HTTPCheckpointer(service.url) as store:
            assert await state(store, "thread") == ([b"first"], first, set())


async def test_what_a_left_block_could_not_write_is_not_written_later(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/clew.db", no_token=True) as service:
        async with HTTPCheckpointer(service.url, retries=1, timeout=1.0) as store:
            async with Thread.open(store, "thread") as thread:
                await thread.append(MessageAdded(user("first")))
            before = (await Thread.load(store, "thread")).messages
            with ExitStack() as held:

                async def leave_unwritten() -> None:
                    async with Thread.open(store, "thread") as thread:
                        held.enter_context(sqlite_locked(tmp_path))
                        await thread.append(MessageAdded(user("late")))

                with pytest.raises(Unavailable):
                    await leave_unwritten()
            await until_idle(service)
            assert (await Thread.load(store, "thread")).messages == before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("frame", [b"small", bytes(3 * 2**20)], ids=["small", "large"])
async def test_an_append_that_was_unavailable_is_not_written_when_a_frozen_service_goes_on(
    tmp_path: Path, frame: bytes
) -> None:
    path = tmp_path / "clew.db"
    with running("--no-token", "--store", f"sqlite:///{path}") as (url, process):
        async with HTTPCheckpointer(url, retries=0, timeout=1.0) as store:
            first = await append(store, "thread", b"first")
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(Unavailable):
                await append(store, "thread", frame, at=1)
            with pytest.raises(Unavailable):
                await store.delete("thread")
        process.send_signal(signal.SIGCONT)
        async with HTTPCheckpointer(url) as store:
            assert await state(store, "thread") == ([b"first"], first, set())
            await append(store, "another", b"frame")
        process.terminate()
        process.wait()
    async with SQLiteCheckpointer(path) as behind:
        assert await state(behind, "thread") == ([b"first"], first, set())
