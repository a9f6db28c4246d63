"""What is the file store's own: its files, their damage, its locks, its caches, and other processes."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from clew._runtime import files
from clew.checkpointers import FileCheckpointer, HeadQuery, open_checkpointer
from clew.checkpointers.files import heads as _file_heads
from clew.checkpointers.files import log as _file_log
from clew.checkpointers.files.envelope import HEADER, TRAILER
from clew.checkpointers.files.root import Root
from clew.checkpointers.heads import thread_key
from clew.errors import ClewError, Conflict, Corrupt, InvalidInput, MissingBlob, NewerFormat, Unavailable
from clew.testing.contract.builders import a_head, append, digest_of, every_call, heads, listed, minute, put, state
from tests.checkpointers.damage import sound_and_damaged
from tests.checkpointers.scripts import race, run_script, start_script

pytestmark = pytest.mark.anyio

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[FileCheckpointer]:
    async with FileCheckpointer(path) as store:
        yield store


def space(path: Path, namespace: str = "") -> Path:
    return path / digest_of(namespace.encode())


def thread_file(path: Path, thread_id: str = "thread") -> Path:
    key = thread_key(thread_id)
    return space(path) / "threads" / key[:2] / key


def blob_file(path: Path, digest: str) -> Path:
    return space(path) / "blobs" / digest[:2] / digest


SECTOR = 512


async def three_appends(path: Path, last: bytes = b"three") -> list[int]:
    """A thread of three appends; where each of its records ends."""
    ends = []
    async with FileCheckpointer(path) as store:
        for number, frame in enumerate([b"one", b"two", last]):
            await append(store, "thread", frame, at=number, title=f"{number + 1} of 3")
            ends.append(thread_file(path).stat().st_size)
    return ends


async def assert_at_the_second_append(path: Path) -> None:
    """Readers see two appends and change nothing; the next append goes on from there."""
    file = thread_file(path)
    before = file.read_bytes()
    async with FileCheckpointer(path) as store:
        frames, head, _ = await state(store, "thread")
        assert frames == [b"one", b"two"]
        assert head == a_head("thread", 2, title="2 of 3")
        assert await heads(store) == [head]
        assert file.read_bytes() == before
        await append(store, "thread", b"next", at=2)
        assert await store.read("thread") == [b"one", b"two", b"next"]
    async with FileCheckpointer(path) as store:
        assert await store.read("thread") == [b"one", b"two", b"next"]


# Torn and damaged files


async def test_the_last_record_torn_at_every_byte_opens_at_the_last_whole_append(path: Path) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    whole = file.read_bytes()
    for size in range(ends[1], ends[2]):
        file.write_bytes(whole[:size])
        await assert_at_the_second_append(path)


async def test_a_torn_tail_is_seen_by_a_store_that_is_open_already(path: Path) -> None:
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"one")
        before = thread_file(path).read_bytes()
        await append(store, "thread", b"two", at=1)
        whole = thread_file(path).read_bytes()
        for size in range(len(before), len(whole)):
            thread_file(path).write_bytes(whole[:size])
            assert await store.read("thread") == [b"one"]
            assert thread_file(path).stat().st_size == size
            await append(store, "thread", b"two", at=1)
            assert thread_file(path).read_bytes() == whole


@pytest.mark.parametrize("zeros", [1, HEADER - 1, HEADER, HEADER + 1, 300, 5000])
async def test_a_tail_of_zeros_is_cut_by_the_next_append(path: Path, zeros: int) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    file.write_bytes(file.read_bytes()[: ends[1]] + bytes(zeros))
    await assert_at_the_second_append(path)


async def test_the_first_record_torn_at_every_byte_is_an_absent_thread_that_can_be_made(path: Path) -> None:
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"one")
        whole = thread_file(path).read_bytes()
        for size in range(len(whole)):
            thread_file(path).write_bytes(whole[:size])
            assert await state(store, "thread") == ([], None, set())
            assert await listed(store) == []
            with pytest.raises(Conflict):
                await append(store, "thread", b"two", at=1)
            with pytest.raises(Conflict):
                await append(store, "thread", at=0)
            await append(store, "thread", b"one")
            assert thread_file(path).read_bytes() == whole


async def test_a_torn_tail_longer_than_the_next_append_leaves_nothing_behind(path: Path) -> None:
    ends = await three_appends(path, last=bytes(range(256)) * 40)
    file = thread_file(path)
    file.write_bytes(file.read_bytes()[: ends[2] - 1])
    await assert_at_the_second_append(path)


async def assert_corrupt_and_untouched(path: Path, offset: int) -> None:
    file = thread_file(path)
    before = file.read_bytes()
    async with FileCheckpointer(path) as store:
        for call in (store.read("thread"), store.head("thread"), append(store, "thread", b"four", at=3)):
            with pytest.raises(Corrupt, match=f"'thread'.*{file.name} is damaged at byte {offset}"):
                await call
        with pytest.raises(Corrupt, match=f"{file.name} is damaged at byte {offset}"):
            await heads(store)
        assert file.read_bytes() == before


async def test_a_whole_record_with_a_bad_sum_is_corrupt_and_is_not_cut(path: Path) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    whole = file.read_bytes()
    for position in range(ends[1], ends[2]):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        file.write_bytes(damaged)
        await assert_corrupt_and_untouched(path, ends[1])


async def test_a_damaged_record_inside_a_log_is_corrupt_for_whoever_reads_it(path: Path) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    whole = file.read_bytes()
    for position in range(ends[1]):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        file.write_bytes(damaged)
        async with FileCheckpointer(path) as store:
            with pytest.raises(Corrupt, match=f"'thread'.*{file.name} is damaged"):
                await store.read("thread")
            with pytest.raises(Corrupt):
                await store.read("thread", start=1 if position >= ends[0] else 0, stop=2 if position >= ends[0] else 1)
        assert file.read_bytes() == bytes(damaged)


async def test_damage_is_seen_by_a_store_that_has_read_the_thread_before(path: Path) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    whole = file.read_bytes()
    async with FileCheckpointer(path) as store:
        for position in range(ends[2]):
            file.write_bytes(whole)
            assert len(await store.read("thread")) == 3
            damaged = bytearray(whole)
            damaged[position] ^= 0x55
            file.write_bytes(damaged)
            with pytest.raises(Corrupt):
                await store.read("thread")


async def test_refs_that_were_damaged_are_corrupt(path: Path) -> None:
    async with FileCheckpointer(path) as store:
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"one", refs=[blob])
        await append(store, "thread", b"two", at=1)
    file = thread_file(path)
    file.write_bytes(file.read_bytes().replace(bytes.fromhex(blob), bytes(32)))
    async with FileCheckpointer(path) as store:
        with pytest.raises(Corrupt, match="'thread'"):
            await store.refs("thread")


async def test_zeros_that_are_no_whole_sector_are_corrupt_and_are_not_cut(path: Path) -> None:
    """A disk writes sectors whole. So this is no append that a power cut left, and it may have been acknowledged."""
    ends = await three_appends(path)
    file = thread_file(path)
    whole = file.read_bytes()
    assert ends[1] < SECTOR < ends[2]
    for start, stop in ((ends[1] + 10, SECTOR), (ends[1], SECTOR - 1), (SECTOR, ends[2] - 1), (ends[2] - 1, ends[2])):
        file.write_bytes(whole[:start] + bytes(stop - start) + whole[stop:])
        await assert_corrupt_and_untouched(path, ends[1])


async def test_a_last_record_that_lost_sectors_opens_at_the_last_whole_append(path: Path) -> None:
    """As a power cut leaves it where the length of a file reaches the disk before all sectors do."""
    ends = await three_appends(path, random.Random(1).randbytes(3000))
    file = thread_file(path)
    whole = file.read_bytes()
    sectors = [*range(SECTOR, ends[2], SECTOR)]
    pieces = [*zip([ends[1], *sectors], [*sectors, ends[2]], strict=True)]
    assert len(pieces) > 6
    for lost in [*itertools.combinations(pieces, 1), *itertools.combinations(pieces, 2), pieces[1:], pieces[:-1]]:
        torn = bytearray(whole)
        for start, stop in lost:
            torn[start:stop] = bytes(stop - start)
        file.write_bytes(torn)
        async with FileCheckpointer(path) as store:
            assert [head.frames async for head in store.heads()] == [2]
        await assert_at_the_second_append(path)
        assert Path(f"{file}.torn").read_bytes() == torn[ends[1] :], "what is cut off is kept"
    async with FileCheckpointer(path) as store:
        await store.delete("thread")
    assert not list(path.rglob("*.torn"))


async def test_sectors_lost_in_a_record_before_the_last_are_corrupt_and_are_not_cut(path: Path) -> None:
    ends = await three_appends(path, random.Random(1).randbytes(3000))
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"four", at=3)
    file = thread_file(path)
    whole = file.read_bytes()
    for start in range(SECTOR, ends[2] - SECTOR, SECTOR):
        damaged = whole[:start] + bytes(SECTOR) + whole[start + SECTOR :]
        file.write_bytes(damaged)
        async with FileCheckpointer(path) as store:
            with pytest.raises(Corrupt):
                await store.read("thread")
            assert await store.read("thread", start=3) == [b"four"]
        assert file.read_bytes() == damaged
    file.write_bytes(whole[: ends[1]] + bytes(SECTOR) + whole[ends[1] + SECTOR : -1])
    await assert_corrupt_and_untouched(path, ends[1])


@pytest.mark.parametrize("garbage", [b"x", b"CLW\x02", b"not a record " * 20, bytes(40) + b"x"])
async def test_garbage_after_the_last_record_is_corrupt_and_is_not_cut(path: Path, garbage: bytes) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    file.write_bytes(file.read_bytes() + garbage)
    await assert_corrupt_and_untouched(path, ends[2])


async def test_a_record_missing_from_the_middle_is_corrupt(path: Path) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    whole = file.read_bytes()
    file.write_bytes(whole[: ends[0]] + whole[ends[1] :])
    await assert_corrupt_and_untouched(path, ends[0])


async def test_a_record_from_another_log_is_corrupt_also_where_it_fits(path: Path) -> None:
    ends = await three_appends(path)
    mine = thread_file(path).read_bytes()
    async with FileCheckpointer(path) as store:
        await store.delete("thread")
        for number, frame in enumerate([b"ONE", b"TWO", b"three"]):
            await append(store, "thread", frame, at=number, title=f"{number + 1} of 3")
    theirs = thread_file(path).read_bytes()
    assert len(theirs) == len(mine)
    thread_file(path).write_bytes(mine[: ends[1]] + theirs[ends[1] :])
    await assert_corrupt_and_untouched(path, ends[1])
    thread_file(path).write_bytes(mine)
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"four", at=3)
        mine = thread_file(path).read_bytes()
    thread_file(path).write_bytes(mine[: ends[0]] + theirs[ends[0] : ends[1]] + mine[ends[1] :])
    async with FileCheckpointer(path) as store:
        assert await store.read("thread", start=2) == [b"three", b"four"]
        with pytest.raises(Corrupt, match=f"damaged at byte {ends[1] - TRAILER}"):
            await store.read("thread")


async def test_a_record_inside_a_frame_is_never_taken_for_the_last_one(path: Path) -> None:
    """A torn append whose frame holds a log, cut where a record in that frame ends."""
    ends = await three_appends(path)
    file = thread_file(path)
    log = file.read_bytes()
    async with FileCheckpointer(path) as store:
        file.write_bytes(log[: ends[1]])
        await append(store, "thread", log + b"more", at=2)
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.index(log, ends[1]) + len(log)])
    await assert_at_the_second_append(path)


async def test_a_file_under_another_threads_name_is_corrupt(store: FileCheckpointer, path: Path) -> None:
    await append(store, "thread", b"frame")
    await append(store, "other", b"frame")
    shutil.copy(thread_file(path, "other"), thread_file(path))
    with pytest.raises(Corrupt, match=r"'thread'.*holds the log of thread 'other'"):
        await store.read("thread")


async def test_a_record_of_a_newer_clew_is_refused_untouched(path: Path) -> None:
    ends = await three_appends(path)
    file = thread_file(path)
    data = bytearray(file.read_bytes())
    data[ends[1] + 3] = 9
    data[ends[1] + 88 : ends[1] + HEADER] = bytes.fromhex(digest_of(bytes(data[ends[1] : ends[1] + 88])))[:16]
    file.write_bytes(data)
    async with FileCheckpointer(path) as store:
        with pytest.raises(NewerFormat, match=r"'thread'.*version 9"):
            await append(store, "thread", b"four", at=3)
    assert file.read_bytes() == data


async def test_a_blob_whose_bytes_changed_is_corrupt(store: FileCheckpointer, path: Path) -> None:
    [blob] = await put(store, b"blob")
    blob_file(path, blob).write_bytes(b"blub")
    with pytest.raises(Corrupt, match=blob):
        await store.get_blobs([blob])


# Writes that fail


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, code: int) -> None:
    real = getattr(owner, name)

    def failing(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(owner, name, failing)


async def test_a_failed_sync_leaves_the_log_as_it_was(
    store: FileCheckpointer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(store, "thread", b"one")
    before = thread_file(path).read_bytes()
    fail_once(monkeypatch, files, "sync", errno.EIO)
    with pytest.raises(Unavailable, match=thread_file(path).name):
        await append(store, "thread", b"two", at=1)
    assert thread_file(path).read_bytes() == before
    assert await store.read("thread") == [b"one"]
    await append(store, "thread", b"two", at=1)
    assert await store.read("thread") == [b"one", b"two"]


@pytest.mark.parametrize("written", [0, 1, HEADER, 200])
async def test_a_failed_write_that_cannot_be_taken_back_is_cut_by_the_next_append(
    store: FileCheckpointer, path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    await append(store, "thread", b"one")

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[:written])
        raise OSError(errno.EIO, "a bad sector")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", half)
        fail_once(patch, os, "ftruncate", errno.EIO)
        with pytest.raises(Unavailable, match="a bad sector"):
            await append(store, "thread", b"two", at=1)
    assert await store.read("thread") == [b"one"]
    await append(store, "thread", b"two", at=1)
    assert await store.read("thread") == [b"one", b"two"]


@pytest.mark.parametrize("what", ["sync", "write_all", "sync_folder"])
@posix
async def test_a_first_append_that_fails_leaves_no_thread_and_no_file(
    store: FileCheckpointer, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    await put(store, b"opens the store")
    fail_once(monkeypatch, files, what, errno.EIO)
    with pytest.raises(Unavailable):
        await append(store, "thread", b"one")
    assert not thread_file(path).exists()
    assert await store.head("thread") is None
    await append(store, "thread", b"one")


@posix
async def test_an_append_refused_for_a_missing_blob_leaves_no_file(store: FileCheckpointer, path: Path) -> None:
    with pytest.raises(MissingBlob):
        await append(store, "thread", b"one", refs=[digest_of(b"nowhere")])
    assert not thread_file(path).exists()


async def test_an_append_that_was_made_before_is_synced_before_it_is_acknowledged(
    store: FileCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it may have been killed between its write and its sync."""
    await append(store, "thread", b"one")
    fail_once(monkeypatch, files, "sync", errno.EIO)
    with pytest.raises(Unavailable):
        await append(store, "thread", b"one")
    await append(store, "thread", b"one")


async def test_a_failed_put_leaves_no_file_behind(
    store: FileCheckpointer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, b"one")
    before = sorted(path.rglob("*"))
    fail_once(monkeypatch, os, "replace", errno.ENOSPC)
    with pytest.raises(Unavailable, match="disk is full"):
        await put(store, b"one", b"two")
    assert [file for file in sorted(path.rglob("*")) if file.is_file()] == [file for file in before if file.is_file()]
    [_, two] = await put(store, b"one", b"two")
    assert await store.get_blobs([two]) == {two: b"two"}


# Cost


async def test_an_append_reads_no_more_of_a_long_log_than_of_a_short_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = _file_log._read

    def counting(fd: int, offset: int, size: int) -> bytes:
        read.append(size)
        return real(fd, offset, size)

    monkeypatch.setattr(_file_log, "_read", counting)

    async def cost(store: FileCheckpointer, at: int) -> list[int]:
        read.clear()
        await append(store, "thread", bytes(1000), at=at)
        return read.copy()

    async with FileCheckpointer(path) as store:
        await append(store, "thread", bytes(1000))
        short = await cost(store, 1)
        for at in range(2, 100):
            await append(store, "thread", bytes(1000), at=at)
        assert await cost(store, 100) == short
    assert sum(short) < 100
    async with FileCheckpointer(path) as store:
        assert sum(await cost(store, 101)) < 2000
        read.clear()
        assert len(await store.read("thread", start=95)) == 7
        assert sum(read) < 12 * 1500


# The folder


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_all_files_and_folders_are_private(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_file_heads, "_WORTH_KEEPING", 0)
    path = tmp_path / "new folder" / "store"
    before = os.umask(umask)
    try:
        async with FileCheckpointer(path) as store:
            [blob] = await put(store, b"blob")
            await append(store, "thread", b"frame", refs=[blob])
            await listed(store)
    finally:
        os.umask(before)
    everything = [path.parent, path, *path.rglob("*")]
    assert {entry.name for entry in everything} >= {"clew-store", "namespace", "blobs.lock", "heads.cache", blob}
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in everything if entry.is_file()} == {0o600}
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in everything if entry.is_dir()} == {0o700}


async def test_making_a_checkpointer_touches_no_file(path: Path) -> None:
    async with FileCheckpointer(path):
        pass
    assert not path.exists()


async def test_no_call_leaves_a_temporary_file(store: FileCheckpointer, path: Path) -> None:
    for call in every_call(store).values():
        await call()
    assert [file for file in path.rglob("*") if file.name.endswith(".tmp")] == []


async def test_a_namespace_is_a_folder_that_says_its_name(path: Path) -> None:
    for namespace in ("", "../up", "tenant \u00e4"):
        async with FileCheckpointer(path, namespace) as store:
            await append(store, "thread", b"frame")
    assert (space(path) / "namespace").read_text(encoding="utf-8") == '""\n'
    assert (space(path, "../up") / "namespace").read_text(encoding="utf-8") == '"../up"\n'
    assert (space(path, "tenant \u00e4") / "namespace").read_text(encoding="utf-8") == '"tenant \u00e4"\n'
    assert sorted(entry.name for entry in path.iterdir()) == sorted(
        ["clew-store", "clew-store.reserve", *(space(path, name).name for name in ("", "../up", "tenant \u00e4"))]
    )


async def assert_refused(path: Path, kind: type[ClewError], match: str) -> None:
    for name in every_call(FileCheckpointer(path)):
        async with FileCheckpointer(path) as store:
            with pytest.raises(kind, match=match):
                await every_call(store)[name]()


async def test_a_folder_of_something_else_is_refused_untouched(path: Path) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("dear")
    await assert_refused(path, InvalidInput, "not a Clew store and not empty .*'letter.txt'.* Choose")
    assert [entry.name for entry in path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("there", [[], ["lost+found"], ["clew-store.0123.tmp"]])
async def test_an_empty_folder_becomes_a_store(path: Path, there: list[str]) -> None:
    path.mkdir(mode=0o755)
    for name in there:
        (path / name).touch()
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"frame")
    assert (path / "clew-store").read_text() == "clew-store 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


async def test_a_store_of_a_newer_clew_is_refused_untouched(path: Path) -> None:
    path.mkdir()
    (path / "clew-store").write_text("clew-store 3\n")
    await assert_refused(path, NewerFormat, "version 3; this Clew reads up to 2")
    assert [entry.name for entry in path.iterdir()] == ["clew-store"]


@pytest.mark.parametrize("text", ["", "clew-store", "clew-store x\n", "something else 1\n", "\0\0\0"])
async def test_a_damaged_marker_is_corrupt(path: Path, text: str) -> None:
    path.mkdir()
    (path / "clew-store").write_text(text)
    await assert_refused(path, Corrupt, "clew-store")


async def test_a_file_is_refused_with_the_way_out(path: Path) -> None:
    path.write_text("text")
    await assert_refused(path, InvalidInput, "is a file.*sqlite:///")
    assert path.read_text() == "text"


async def test_a_path_through_a_file_is_invalid(path: Path) -> None:
    path.write_text("text")
    await assert_refused(path / "below", InvalidInput, "Choose another path")


async def test_a_store_that_vanishes_is_unavailable_not_empty(store: FileCheckpointer, path: Path) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"frame", refs=[blob])
    moved = path.rename(path.with_name("elsewhere"))
    for present in (False, True):
        if present:
            path.mkdir()
        for name, call in every_call(store).items():
            with pytest.raises(Unavailable):
                await call()
            assert not path.exists() or list(path.iterdir()) == [], name
    path.rmdir()
    moved.rename(path)
    assert await state(store, "thread") == ([b"frame"], a_head("thread"), {blob})


async def test_folders_that_vanish_inside_the_store_are_made_again(store: FileCheckpointer, path: Path) -> None:
    for _ in range(2):
        [blob] = await put(store, b"blob")
        await append(store, "thread", b"frame", refs=[blob])
        assert await listed(store) == ["thread"]
        shutil.rmtree(space(path))
        assert await state(store, "thread") == ([], None, set())
        assert await store.missing_blobs([blob]) == {blob}


async def test_strange_files_in_the_store_are_left_alone(store: FileCheckpointer, path: Path) -> None:
    [blob] = await put(store, b"blob")
    await append(store, "thread", b"frame", refs=[blob])
    strange = [space(path) / part / ".DS_Store" for part in (".", "threads", "blobs")]
    strange += [thread_file(path).with_name(".DS_Store"), blob_file(path, blob).with_name("note.txt")]
    for file in strange:
        file.write_text("strange")
    assert await listed(store) == ["thread"]
    assert [digest async for digest in store.blobs(untouched_for=timedelta(0))] == [blob]
    await store.delete_blobs([blob], untouched_for=timedelta(0))
    assert all(file.exists() for file in strange)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up an administrator's rights for a while: they would open every file."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@posix
async def test_what_may_not_be_read_is_unavailable_never_absent() -> None:
    place = Path(tempfile.mkdtemp())
    try:
        place.chmod(0o777)
        with as_nobody():
            async with FileCheckpointer(place / "store") as store:
                [blob] = await put(store, b"blob")
                await append(store, "thread", b"frame", refs=[blob])
                for closed in (space(place / "store"), place / "store"):
                    closed.chmod(0)
                    for call in every_call(store).values():
                        with pytest.raises(Unavailable, match="permission denied"):
                            await call()
                    closed.chmod(0o700)
                thread_file(place / "store").chmod(0)
                for refused in (store.read("thread"), store.head("thread"), heads(store)):
                    with pytest.raises(Unavailable, match="permission denied"):
                        await refused
                thread_file(place / "store").chmod(0o400)
                assert await store.read("thread") == [b"frame"]
                with pytest.raises(Unavailable, match="permission denied"):
                    await append(store, "thread", b"more", at=1)
    finally:
        shutil.rmtree(place)


# URLs


async def test_three_slashes_are_absolute_and_none_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("file:some/folder", f"file://{tmp_path}/some/folder", f"file://{tmp_path}/some/folder/"):
        async with open_checkpointer(url) as store:
            assert isinstance(store, FileCheckpointer)
            await append(store, url, b"frame")
    async with FileCheckpointer(tmp_path / "some" / "folder") as store:
        assert len(await listed(store)) == 3


@pytest.mark.parametrize("name", ["a%20b", "a b", "#x", "ä"])
async def test_the_path_of_a_url_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    async with FileCheckpointer.from_url(f"file://{tmp_path}/{name}") as store:
        await append(store, "thread", b"frame")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("url", ["file:", "file://", "file:///", "file://host/dir", "file://dir", "files:dir", "/dir"])
def test_a_url_that_names_no_folder_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(InvalidInput, match="file:///absolute/dir or file:relative/dir"):
        FileCheckpointer.from_url(url)


def test_a_path_with_nul_is_invalid() -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        FileCheckpointer("a\0b")


# Locks


@contextmanager
def locked(file: Path, *, shared: bool = False) -> Iterator[None]:
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        files.lock(fd, file, shared=shared)
        yield
        files.unlock(fd)
    finally:
        os.close(fd)


@pytest.fixture
async def hasty_store(path: Path) -> AsyncIterator[FileCheckpointer]:
    """A store whose calls hardly wait for locks."""
    async with FileCheckpointer(path, timeout=0.05) as store:
        yield store


async def test_a_lock_held_too_long_is_unavailable_and_the_call_may_be_made_again(
    hasty_store: FileCheckpointer, path: Path
) -> None:
    store = hasty_store
    await append(store, "thread", b"one")
    with locked(thread_file(path)):
        for call in (store.read("thread"), append(store, "thread", b"two", at=1), store.delete("thread")):
            with pytest.raises(Unavailable, match=f"{thread_file(path).name}: another process held its lock"):
                await call
    await append(store, "thread", b"two", at=1)
    with locked(thread_file(path), shared=True):
        assert await store.read("thread") == [b"one", b"two"]
        with pytest.raises(Unavailable):
            await append(store, "thread", b"three", at=2)


async def test_an_append_that_waited_while_its_thread_was_deleted_does_not_write_to_the_old_file(
    store: FileCheckpointer, path: Path
) -> None:
    await append(store, "thread", b"one")
    with locked(thread_file(path)):
        going_on = asyncio.create_task(append(store, "thread", b"two", at=1))
        reading = asyncio.create_task(store.read("thread"))
        await asyncio.sleep(0.1)
        thread_file(path).unlink()
    with pytest.raises(Conflict):
        await going_on
    assert await reading == []
    with locked(thread_file(path)):
        starting = asyncio.create_task(append(store, "thread", b"new", log_id="log-2"))
        await asyncio.sleep(0.1)
        thread_file(path).unlink()
    await starting
    assert await store.read("thread") == [b"new"]


async def test_blobs_are_not_deleted_while_somebody_touches_them(hasty_store: FileCheckpointer, path: Path) -> None:
    store = hasty_store
    [blob] = await put(store, b"blob")
    with locked(space(path) / "blobs.lock", shared=True):
        await put(store, b"blob", b"another")
        await append(store, "thread", b"frame", refs=[blob])
        with pytest.raises(Unavailable, match=r"blobs\.lock"):
            await store.delete_blobs([blob], untouched_for=timedelta(0))
    with locked(space(path) / "blobs.lock"):
        assert await store.get_blobs([blob]) == {blob: b"blob"}
        with pytest.raises(Unavailable, match=r"blobs\.lock"):
            await store.missing_blobs([blob])
    await store.delete_blobs([blob], untouched_for=timedelta(0))
    assert await store.get_blobs([blob]) == {}


async def test_what_dead_writers_left_is_swept_after_a_day(store: FileCheckpointer, path: Path) -> None:
    [blob] = await put(store, b"blob")
    old, new = (blob_file(path, blob).with_name(f"{blob}.{age}.tmp") for age in ("old", "new"))
    stale = space(path) / "heads.cache.0123.tmp"
    for file in (old, new, stale):
        file.write_bytes(b"half")
    day_ago = time.time() - 90_000
    os.utime(old, (day_ago, day_ago))
    os.utime(stale, (day_ago, day_ago))
    await store.delete_blobs([], untouched_for=timedelta(days=1))
    assert not old.exists()
    assert not stale.exists()
    assert new.exists()
    assert await store.get_blobs([blob]) == {blob: b"blob"}


# Listings and their cache


@pytest.fixture
def eager_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that trusts what it saw a moment ago and keeps it at once, as it would after a while."""
    monkeypatch.setattr(_file_heads, "_SETTLED", -(10**9))
    monkeypatch.setattr(_file_heads, "_WORTH_KEEPING", 1)


# The queue


def markers(path: Path) -> list[str]:
    return sorted(os.listdir(space(path) / "due"))


async def test_the_queue_is_listed_without_a_look_at_other_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FileCheckpointer(path) as store:
        for number in range(50):
            await append(store, f"done {number}", b"frame", status="done")
        for number in range(3):
            await append(store, f"queued {number}", b"frame", due=minute(number))
    opened: list[str] = []
    real = os.open

    def counting(name: Any, *given: Any, **options: Any) -> int:
        opened.append(Path(name).name)
        return real(name, *given, **options)

    def scan(root: Root, folder: Path) -> Iterator[Any]:
        raise AssertionError(f"{folder} is listed")

    async with FileCheckpointer(path) as store:
        await store.head("done 0")
        monkeypatch.setattr(os, "open", counting)
        monkeypatch.setattr(Root, "fanned", scan)
        assert await listed(store, order="due", limit=50) == ["queued 0", "queued 1", "queued 2"]
        assert len(opened) == 3


async def test_a_marker_that_a_crash_left_behind_is_removed_by_a_listing(path: Path) -> None:
    async with FileCheckpointer(path) as store:
        await append(store, "queued", b"frame", due=minute(0))
        await append(store, "done", b"frame", status="done")
        await append(store, "deleted", b"frame", due=minute(0))
        await store.delete("deleted")
        assert markers(path) == [thread_key("queued")]
        for thread_id in ("done", "deleted", "never made"):
            (space(path) / "due" / thread_key(thread_id)).touch()
        assert await listed(store, order="due") == ["queued"]
        assert markers(path) == [thread_key("queued")]
        assert await listed(store) == await listed(FileCheckpointer(path))
        await append(store, "never made", b"frame", due=minute(1))
        assert await listed(store, order="due") == ["queued", "never made"]


async def test_a_marker_of_a_thread_that_another_process_has_locked_is_not_removed(path: Path) -> None:
    """The holder of the lock may be about to put the thread into the queue, after it has made the marker."""
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"frame", status="done")
        await append(store, "queued", b"frame", due=minute(0))
        assert await listed(store, order="due") == ["queued"]
        marker = space(path) / "due" / thread_key("thread")
        marker.touch()
        assert await store.head("thread") is not None
        heads_of = store._heads._read

        def lock_then_forget(key: str, before: Any) -> Any:
            found = heads_of(key, before)
            if key == thread_key("thread"):
                held.append(os.open(thread_file(path), os.O_RDWR))
                assert files.try_lock(held[-1], shared=False)
            return found

        held: list[int] = []
        store._heads._read = lock_then_forget  # type: ignore[method-assign]
        assert await listed(store, order="due") == ["queued"]
        assert marker.exists()
        for fd in held:
            os.close(fd)
        store._heads._read = heads_of  # type: ignore[method-assign]
        assert await listed(store, order="due") == ["queued"]
        assert not marker.exists()


async def test_a_queued_thread_whose_marker_was_lost_gets_one_with_its_next_append(path: Path) -> None:
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"frame", due=minute(0))
        (space(path) / "due" / thread_key("thread")).unlink()
        await append(store, "thread", b"frame", at=1, due=minute(1))
        assert await listed(store, order="due") == ["thread"]


async def test_a_thread_is_marked_before_the_append_that_queues_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    real = _file_log.Log.add

    def looking(log: _file_log.Log, *given: Any) -> None:
        seen.append((space(path) / "due" / Path(log.path).name).exists())
        real(log, *given)

    monkeypatch.setattr(_file_log.Log, "add", looking)
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"frame", due=minute(0))
        await append(store, "thread", b"ended", at=1)
    assert seen == [True, True]
    assert markers(path) == []


async def test_a_store_is_refused_by_an_older_clew_from_its_first_queued_thread_on(path: Path) -> None:
    async with FileCheckpointer(path) as store, FileCheckpointer(path) as other:
        await append(store, "thread", b"frame")
        assert (path / "clew-store").read_text() == "clew-store 1\n"
        await append(store, "thread", b"frame", at=1, due=minute(0))
        assert (path / "clew-store").read_text() == "clew-store 2\n"
        await append(other, "other", b"frame", due=minute(1))
    async with FileCheckpointer(path) as store:
        assert await listed(store, order="due") == ["thread", "other"]


async def test_a_cache_that_an_older_clew_has_written_is_not_believed(path: Path) -> None:
    """It holds heads without their place in the queue."""
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"frame", due=minute(0))
        [head] = await heads(store)
        cache = space(path) / "heads.cache"
        stamp = _file_heads._stamp(os.stat(thread_file(path)))
        bare = msgspec.structs.replace(head, due=None, queue=None)
        data = _file_heads._encode({thread_key("thread"): _file_heads._Known(stamp, bare)})
        cache.write_bytes(b"clew heads 1\n" + blake3(data).digest(16) + data)
    async with FileCheckpointer(path) as store:
        assert await heads(store) == [head] == await heads(store, HeadQuery(order="due"))


# Listings


@pytest.mark.usefixtures("eager_cache")
async def test_a_listing_reads_only_the_threads_that_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = _file_log.Log.refresh

    def counting(log: _file_log.Log, fd: int) -> int:
        opened.append(Path(log.path).name)
        return real(log, fd)

    async with FileCheckpointer(path) as store:
        for number in range(5):
            await append(store, f"thread {number}", b"frame")
        first = await heads(store)
    async with FileCheckpointer(path) as store, FileCheckpointer(path) as other:
        monkeypatch.setattr(_file_log.Log, "refresh", counting)
        assert await heads(store) == first
        assert opened == []
        changed = await append(other, "thread 3", b"more", at=1, title="changed")
        opened.clear()
        assert {head.thread_id: head for head in await heads(store)} == {
            head.thread_id: head for head in [*first, changed]
        }
        assert opened == [thread_key("thread 3")]


async def test_a_listing_is_exact_when_others_have_written_since(store: FileCheckpointer, path: Path) -> None:
    for number in range(4):
        await append(store, f"thread {number}", b"frame")
    assert len(await listed(store)) == 4
    code = """
async def main():
    async with FileCheckpointer(path) as store:
        await append(store, "thread 0", b"more", at=1, title="from outside", updated_at=minute(5))
        await append(store, "thread 1", at=1, status="done", updated_at=minute(4))
        await store.delete("thread 2")
        await store.delete("thread 3")
        await append(store, "thread 3", b"frame", log_id="log-2", updated_at=minute(3))
        await append(store, "thread 4", b"frame", updated_at=minute(2))
asyncio.run(main())
"""
    await run_script(code, str(path))
    found = await heads(store)
    assert [head.thread_id for head in found] == ["thread 0", "thread 1", "thread 3", "thread 4"]
    assert [head.log_id for head in found] == ["log-1", "log-1", "log-2", "log-1"]
    assert found == [await store.head(head.thread_id) for head in found]
    assert await listed(store, title="OUTSIDE") == ["thread 0"]


async def test_a_thread_made_again_in_the_same_moment_and_size_is_listed_as_it_is(
    store: FileCheckpointer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems give the same inode number out again, and the clocks of some tick once a second."""
    real = _file_heads._stamp

    def coarse(facts: os.stat_result) -> tuple[int, int, int, int]:
        _, size, changed, made = real(facts)
        return 1, size, changed // 10**9 * 10**9, made // 10**9 * 10**9

    monkeypatch.setattr(_file_heads, "_stamp", coarse)
    async with FileCheckpointer(path) as other:
        for number in range(30):
            await append(other, "thread", b"frame", log_id=f"log-{number:02}")
            assert [head.log_id for head in await heads(store)] == [f"log-{number:02}"]
            head = await store.head("thread")
            assert head is not None
            assert head.log_id == f"log-{number:02}"
            await other.delete("thread")


@pytest.mark.usefixtures("eager_cache")
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "flipped", "folder"])
async def test_a_damaged_cache_changes_no_listing(path: Path, damage: str) -> None:
    async with FileCheckpointer(path) as store:
        for number in range(5):
            await append(store, f"thread {number}", b"frame")
        before = await heads(store)
    cache = space(path) / "heads.cache"
    data = cache.read_bytes()
    assert len(data) > 100
    cache.unlink()
    if damage == "folder":
        cache.mkdir()
    elif damage != "gone":
        cache.write_bytes({"empty": b"", "cut": data[:-9], "flipped": data[:90] + b"?" + data[91:]}[damage])
    async with FileCheckpointer(path) as store:
        assert await heads(store) == before


async def test_sound_threads_are_listed_before_the_damaged_are_named(store: FileCheckpointer, path: Path) -> None:
    for number in range(4):
        await append(store, f"thread {number}", b"frame")
    for number in (1, 2):
        file = thread_file(path, f"thread {number}")
        file.write_bytes(b"?" + file.read_bytes()[1:])
    found, damage = await sound_and_damaged(store)
    assert found == ["thread 0", "thread 3"]
    assert "2 thread(s)" in damage
    assert thread_key("thread 1") in damage
    assert thread_key("thread 2") in damage
    await store.delete("thread 1")
    await store.delete("thread 2")
    assert len(await heads(store, HeadQuery(limit=9))) == 2


# Threads that are made again


async def test_a_holder_of_a_deleted_log_cannot_append_to_the_new_one(store: FileCheckpointer, path: Path) -> None:
    await append(store, "thread", b"one")
    async with FileCheckpointer(path) as other:
        await other.delete("thread")
        await append(other, "thread", b"new", log_id="log-2")
    for frames in ([b"two"], []):
        with pytest.raises(Conflict, match="another log"):
            await append(store, "thread", *frames, at=1)
    assert await store.read("thread") == [b"new"]


# Other processes


async def test_of_processes_that_make_one_thread_at_once_exactly_one_succeeds(path: Path) -> None:
    code = """
async def main():
    store = FileCheckpointer(path)
    await all_are_ready()
    for number in range(40):
        try:
            await append(store, f"thread {number}", str(os.getpid()).encode(), log_id=str(os.getpid()))
            print(number)
        except Conflict:
            pass
    await store.close()
asyncio.run(main())
"""
    won = [output.split() for output in await race(3, code, str(path))]
    assert sorted(int(number) for numbers in won for number in numbers) == list(range(40))
    async with FileCheckpointer(path) as store:
        for head in await heads(store):
            assert await store.read(head.thread_id) == [head.log_id.encode()]


async def test_processes_that_append_to_one_thread_lose_nothing(path: Path) -> None:
    code = """
async def main():
    store = FileCheckpointer(path)
    await all_are_ready()
    done = 0
    while done < 30:
        head = await store.head("thread")
        try:
            await append(store, "thread", b"%d %d" % (os.getpid(), done), at=head.frames)
            done += 1
        except Conflict:
            pass
    await store.close()
asyncio.run(main())
"""
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"first")
        await race(3, code, str(path))
        frames = [frame.split() for frame in (await store.read("thread"))[1:]]
        for process in {pid for pid, _ in frames}:
            assert [int(number) for pid, number in frames if pid == process] == list(range(30))
        assert len(frames) == 90


@posix
async def test_a_process_killed_while_it_appends_loses_nothing_acknowledged(path: Path) -> None:
    code = """
async def main():
    store = FileCheckpointer(path)
    head = await store.head("thread")
    at = head.frames if head else 0
    while True:
        await append(store, "thread", b"%d " % at * 5000, at=at)
        at += 1
        os.write(1, b"%d\\n" % at)
asyncio.run(main())
"""
    for _ in range(4):
        process = await start_script(code, str(path))
        assert process.stdout is not None
        said = await process.stdout.readline()
        await asyncio.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        said += await process.stdout.read()
        acknowledged = int(said.split()[-1])
        await process.wait()
        async with FileCheckpointer(path) as store:
            frames = await store.read("thread")
            assert acknowledged <= len(frames) <= acknowledged + 1
            assert frames == [b"%d " % at * 5000 for at in range(len(frames))]


@posix
async def test_a_full_disk_leaves_the_files_exactly_as_before(path: Path) -> None:
    code = """
import resource, signal
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def files():
    return {str(file): file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}

async def refused(call):
    try:
        await call
    except Unavailable as error:
        assert "may not grow" in str(error), error
    else:
        raise AssertionError("more was taken than the disk holds")

async def main():
    store = FileCheckpointer(path)
    await append(store, "thread", bytes(3000))
    await put(store, b"small")
    before = files()
    for limit in range(3100, 3500, 7):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        await refused(append(store, "thread", bytes(1000), at=1))
        await refused(append(store, "another", bytes(4000)))
        await refused(put(store, bytes(5000)))
        assert files() == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await append(store, "thread", bytes(1000), at=1)
    print([len(frame) for frame in await store.read("thread")])
    await store.close()
asyncio.run(main())
"""
    assert await run_script(code, str(path)) == "[3000, 1000]\n"


@posix
async def test_a_child_forked_during_an_append_does_not_keep_its_lock(path: Path) -> None:
    code = """
import warnings
from clew._runtime import files
warnings.simplefilter("ignore", DeprecationWarning)
children = []
real = files.sync

def forking(fd):
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    children.append(child)
    real(fd)

async def main():
    store = FileCheckpointer(path)
    await append(store, "thread", b"one")
    files.sync = forking
    await append(store, "thread", b"two", at=1)
    files.sync = real
    await append(store, "thread", b"three", at=2)
    print(await store.read("thread"), os.waitpid(children[0], os.WNOHANG) == (0, 0))
    os.kill(children[0], 9)
    os.waitpid(children[0], 0)
    await store.close()
asyncio.run(main())
"""
    assert await run_script(code, str(path)) == "[b'one', b'two', b'three'] True\n"


# A store that is being made


async def test_a_folder_that_another_process_makes_a_store_at_this_moment_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FileCheckpointer(path) as store:
        await append(store, "thread", b"frame")
    read = Path.read_bytes
    looked: list[Path] = []

    def read_bytes(file: Path) -> bytes:
        if not looked:  # the other process makes the store right after this
            looked.append(file)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    async with FileCheckpointer(path) as store:
        assert await store.read("thread") == [b"frame"]
    assert looked == [path / "clew-store"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no call to sync a folder")
@pytest.mark.parametrize("url", ["file://{}/made/for/it", "sqlite:///{}/made/for/clew.db"])
async def test_the_names_of_all_folders_above_a_new_store_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """A process that was killed may have made them and not synced."""
    (tmp_path / "made/for").mkdir(parents=True)
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    async with open_checkpointer(url.format(tmp_path)) as store:
        await append(store, "thread", b"frame")
    assert {tmp_path / "made", tmp_path, *tmp_path.parents} <= set(synced)
