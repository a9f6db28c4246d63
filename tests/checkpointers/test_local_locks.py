"""Calls of the stores on this machine's disk that wait for locks: how long, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from clew._runtime import files
from clew.checkpointers import Checkpointer, FileCheckpointer, SQLiteCheckpointer, open_checkpointer
from clew.checkpointers.files.store import WORKERS
from clew.checkpointers.heads import thread_key
from clew.checkpointers.patience import TIMEOUT
from clew.checkpointers.sqlite import connection
from clew.errors import InvalidInput, Unavailable
from clew.testing.contract.builders import append, listed, put
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.servers.lock_holder import LOCKING_SQLITE, lock_holder

pytestmark = pytest.mark.anyio

MANY = 5 * WORKERS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def file_store(folder: Path) -> AsyncIterator[FileCheckpointer]:
    async with FileCheckpointer(folder) as store:
        yield store


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of the one file with this name in a file store."""
    [file] = folder.rglob(name)
    with file.open("r+b") as opened:
        files.lock(opened.fileno(), file, shared=False)
        yield


async def _waiting(tasks: Sequence[asyncio.Future[Any]], store: FileCheckpointer) -> None:
    """Return once all of these calls were put off because of a lock."""
    async with asyncio.timeout(PATIENCE):
        while store._pool is None or len(store._pool._later) < len(tasks):
            await asyncio.sleep(0.001)


async def test_calls_that_wait_for_one_threads_lock_do_not_hold_up_other_threads(
    file_store: FileCheckpointer, folder: Path
) -> None:
    await append(file_store, "thread", b"one")
    await append(file_store, "another", b"one")
    with locked(folder, thread_key("thread")):
        calls = [asyncio.ensure_future(append(file_store, "thread", b"two", at=1)) for _ in range(MANY)]
        async with asyncio.timeout(PATIENCE):
            assert await file_store.read("another") == [b"one"]
        assert not any(call.done() for call in calls)
    await asyncio.gather(*calls)
    assert await file_store.read("thread") == [b"one", b"two"]


async def test_calls_that_wait_for_the_lock_of_blobs_do_not_hold_up_reads(
    file_store: FileCheckpointer, folder: Path
) -> None:
    [blob] = await put(file_store, b"blob")
    await append(file_store, "thread", b"one")
    with locked(folder, "blobs.lock"):
        calls = [asyncio.ensure_future(file_store.missing_blobs([blob])) for _ in range(MANY)]
        async with asyncio.timeout(PATIENCE):
            assert await file_store.read("thread") == [b"one"]
        assert not any(call.done() for call in calls)
    assert await asyncio.gather(*calls) == [set()] * MANY


async def test_a_listing_waits_for_a_locked_thread_and_then_has_it(file_store: FileCheckpointer, folder: Path) -> None:
    for name in ("first", "second"):
        await append(file_store, name, b"one")
    with locked(folder, thread_key("first")):
        listing = asyncio.ensure_future(listed(file_store))
        async with asyncio.timeout(PATIENCE):
            assert await file_store.read("second") == [b"one"]
        assert not listing.done()
    assert set(await listing) == {"first", "second"}


async def test_all_calls_that_wait_for_a_files_lock_end_together_also_queued_ones(
    file_store: FileCheckpointer, folder: Path, clock: Clock
) -> None:
    await append(file_store, "thread", b"one")
    with locked(folder, thread_key("thread")):
        early = [asyncio.ensure_future(append(file_store, "thread", b"two", at=1)) for _ in range(MANY)]
        await _waiting(early, file_store)
        clock.advance(TIMEOUT / 2)
        late = asyncio.ensure_future(append(file_store, "thread", b"two", at=1))
        await _waiting([*early, late], file_store)
        clock.advance(TIMEOUT / 2)
        assert {type(error) for error in await asyncio.gather(*early, return_exceptions=True)} == {Unavailable}
        assert not late.done(), "its time counts from when it was made"
        clock.advance(TIMEOUT / 2)
        with pytest.raises(Unavailable, match="another process held its lock"):
            await late
    await append(file_store, "thread", b"two", at=1)


async def test_a_call_waits_on_while_the_holder_of_a_files_lock_writes(
    file_store: FileCheckpointer, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(file_store, "thread", b"one")
    monkeypatch.setattr("clew.checkpointers.files.locks._age", lambda fd: 0.1)
    with locked(folder, thread_key("thread")):
        call = asyncio.ensure_future(append(file_store, "thread", b"two", at=1))
        await _waiting([call], file_store)
        clock.advance(3 * TIMEOUT)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(call), 0.6)  # two more attempts
    await call


async def test_closing_a_file_store_waits_for_calls_that_were_put_off(folder: Path) -> None:
    store = FileCheckpointer(folder)
    await append(store, "thread", b"one")
    with locked(folder, thread_key("thread")):
        calls = [asyncio.ensure_future(append(store, "thread", b"two", at=1)) for _ in range(MANY)]
        await _waiting(calls, store)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
    await closing
    assert all(call.done() and call.exception() is None for call in calls)


async def test_a_cancelled_append_that_was_put_off_is_still_made(file_store: FileCheckpointer, folder: Path) -> None:
    await append(file_store, "thread", b"one")
    with locked(folder, thread_key("thread")):
        call = asyncio.ensure_future(append(file_store, "thread", b"two", at=1))
        await _waiting([call], file_store)
        call.cancel()
        await asyncio.sleep(0.05)
        assert not call.done()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await file_store.read("thread") == [b"one", b"two"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clew.db"


def stopped_holder(path: Path, statement: str = "BEGIN IMMEDIATE") -> AbstractContextManager[None]:
    """Let another process lock a SQLite file and stop it, so that it makes no progress."""
    return lock_holder(LOCKING_SQLITE, [path, statement])


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collects how many seconds a statement still had each time that it found its database locked and waited."""
    seen: list[float] = []
    sound = connection.LockWait.__call__

    def call(wait: connection.LockWait, tries: int) -> bool:
        if (left := wait.left_now()) > 0:
            seen.append(left)
        return sound(wait, tries)

    monkeypatch.setattr(connection.LockWait, "__call__", call)
    return seen


async def _seen(waits: list[float]) -> None:
    """Return once a statement has found its database locked."""
    waits.clear()
    async with asyncio.timeout(PATIENCE):
        while not waits:
            await asyncio.sleep(0.005)


async def test_each_call_that_waits_for_sqlites_lock_ends_by_its_own_time(
    path: Path, clock: Clock, waits: list[float]
) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
        with stopped_holder(path):
            early = asyncio.ensure_future(append(store, "early", b"frame"))
            await _seen(waits)
            clock.advance(TIMEOUT / 2)
            late = [asyncio.ensure_future(append(store, f"late {number}", b"frame")) for number in range(20)]
            await asyncio.sleep(0)  # so that they begin
            clock.advance(TIMEOUT / 2)
            with pytest.raises(Unavailable, match="another process"):
                await early
            await _seen(waits)
            assert not any(call.done() for call in late)
            assert max(waits) <= TIMEOUT / 2, "their time counts from when they were made"
            assert await store.read("thread") == [b"one"]
            clock.advance(TIMEOUT / 2)
            assert {type(error) for error in await asyncio.gather(*late, return_exceptions=True)} == {Unavailable}
        await append(store, "early", b"frame")


async def test_calls_that_wait_for_sqlites_lock_are_made_when_it_is_free(path: Path, waits: list[float]) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
        with stopped_holder(path):
            calls = [asyncio.ensure_future(append(store, f"thread {number}", b"frame")) for number in range(20)]
            await _seen(waits)
        await asyncio.gather(*calls)
        assert len(await listed(store)) == 21


async def test_a_call_waits_on_while_other_processes_write_to_a_sqlite_store(
    path: Path, clock: Clock, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
        with stopped_holder(path):
            call = asyncio.ensure_future(append(store, "thread", b"two", at=1))
            await _seen(waits)
            with monkeypatch.context() as changed:
                changed.setattr(connection.LockWait, "_age", lambda wait: 0.1)
                clock.advance(3 * TIMEOUT)
                await _seen(waits)
                await _seen(waits)
                assert not call.done()
            with pytest.raises(Unavailable):
                await call


async def test_calls_that_open_a_locked_sqlite_store_end_together(path: Path, clock: Clock, waits: list[float]) -> None:
    """A store in the mode `delete` has to be changed to WAL mode, for which it must not be locked."""
    async with SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    with stopped_holder(path, "BEGIN EXCLUSIVE"):
        async with SQLiteCheckpointer(path) as store:
            calls: list[Awaitable[object]] = [store.head("thread") for _ in range(6)]
            calls += [append(store, f"thread {number}", b"frame") for number in range(6)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await _seen(waits)
            clock.advance(TIMEOUT)
            done, pending = await asyncio.wait(tasks, timeout=PATIENCE)
            assert not pending
            assert {type(task.exception()) for task in done} == {Unavailable}
            assert max(waits) <= TIMEOUT, "no call begins to wait anew"
    async with SQLiteCheckpointer(path) as store:
        assert await store.read("thread") == [b"one"]


async def test_a_store_that_waits_longer_does_not_hold_up_another_one_on_the_same_sqlite_file(
    path: Path, clock: Clock, waits: list[float]
) -> None:
    async with SQLiteCheckpointer(path, timeout=3600) as patient, SQLiteCheckpointer(path) as store:
        await append(store, "thread", b"one")
        with stopped_holder(path):
            long = [asyncio.ensure_future(append(patient, f"thread {number}", b"frame")) for number in range(20)]
            await _seen(waits)
            short = asyncio.ensure_future(append(store, "thread", b"two", at=1))
            async with asyncio.timeout(PATIENCE):
                while not any(wait < 2 * TIMEOUT for wait in waits):
                    await asyncio.sleep(0.005)
            clock.advance(TIMEOUT)
            await asyncio.wait([short], timeout=PATIENCE)
            assert isinstance(short.exception(), Unavailable)
            assert not any(call.done() for call in long)
        await asyncio.gather(*long)
        assert await patient.read("thread") == [b"one"]


@pytest.mark.parametrize("scheme", ["sqlite:///{}/store", "file://{}/store"])
async def test_the_time_that_a_call_may_take_is_an_option_of_the_url(scheme: str, tmp_path: Path) -> None:
    url = scheme.format(tmp_path)
    for wrong in ("timeout=0", "timeout=-1", "timeout=nan", "timeout=3601", "timeout=secret", "timeout="):
        with pytest.raises(InvalidInput, match="timeout must be") as refused:
            open_checkpointer(f"{url}?{wrong}")
        assert "secret" not in str(refused.value)
    for wrong in ("", "wait=3", "timeout=1&timeout=2"):
        with pytest.raises(InvalidInput, match="store"):
            open_checkpointer(f"{url}?{wrong}")
    async with open_checkpointer(f"{url}?timeout=2.5") as store:
        await append(store, "thread", b"frame")
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_both_stores_on_disk_wait_as_long_as_stores_with_a_server(tmp_path: Path) -> None:
    stores: list[Checkpointer] = [SQLiteCheckpointer(tmp_path / "clew.db"), FileCheckpointer(tmp_path / "store")]
    assert [_timeout(store) for store in stores] == [TIMEOUT, TIMEOUT]


def _timeout(store: Checkpointer) -> float:
    return store._timeout if isinstance(store, SQLiteCheckpointer) else store._locks._seconds  # type: ignore[attr-defined]
