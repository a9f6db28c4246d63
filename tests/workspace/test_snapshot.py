"""A snapshot holds what the folder holds, reads no more than it must, and is whole in the store or not at all."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew import SnapshotRef, Workspace
from clew.checkpointers import (
    Checkpointer,
    FileCheckpointer,
    MemoryCheckpointer,
    SealedCheckpointer,
    SQLiteCheckpointer,
)
from clew.errors import InvalidInput, Unavailable
from clew.log import WorkspaceSnapshot
from clew.log.blobs import pack_blob
from clew.log.keys import Keyring
from clew.workspace import Limits, Skipped, statcache
from clew.workspace import pack as _packing
from clew.workspace import snapshot as snapshotting
from clew.workspace.manifest import FileNode, FolderNode
from clew.workspace.pack import Content, Outbox, Reader, Threads
from clew.workspace.scan import CHANGED, Fact, Folder, Root
from tests.limits import PATIENCE
from tests.sampling import ON_SPEED
from tests.stores import store_fixture
from tests.workspace.snapped import contents, is_whole, nodes

pytestmark = pytest.mark.anyio

NOW = timedelta(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ws"
    path.mkdir()
    return path


@pytest.fixture
def store() -> MemoryCheckpointer:
    return MemoryCheckpointer()


any_store = store_fixture()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The paths that were read, in the order in which that was done."""
    found: list[bytes] = []
    read = Reader.read

    def noted(self: Reader, folder: Folder, seen: Fact, outbox: Outbox) -> Content:
        found.append(folder.at(seen[0]))
        return read(self, folder, seen, outbox)

    monkeypatch.setattr(Reader, "read", noted)
    return found


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def make(folder: Path, **files: bytes) -> None:
    """Files by name, `__` standing for a slash, all of them as old as makes no difference."""
    for name, data in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    time.sleep(0.03)


async def test_a_snapshot_holds_files_folders_and_links(any_store: Checkpointer, folder: Path) -> None:
    make(folder, small=b"a", d__large=noise(3_000_000), d__e__text=b"text " * 1000, nothing=b"")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("../anywhere")
    ref = await Workspace(folder, any_store).snapshot()
    assert await contents(any_store, ref) == {
        b"small": b"a",
        b"nothing": b"",
        b"d": None,
        b"d/large": noise(3_000_000),
        b"d/e": None,
        b"d/e/text": b"text " * 1000,
        b"empty": None,
        b"link": b"../anywhere",
    }
    assert (ref.files, ref.bytes, ref.skipped) == (4, 3_005_001, ())
    assert await is_whole(any_store, ref)


async def test_modes_and_times_are_kept_also_those_of_folders(store: MemoryCheckpointer, folder: Path) -> None:
    make(folder, d__file=b"a")
    (folder / "d/file").chmod(0o4751)
    (folder / "d").chmod(0o711)
    for path, moment in ((folder / "d/file", -1_000_000_001), (folder / "d", 12), (folder, 2**60)):
        os.utime(path, ns=(0, moment))
    found = await nodes(store, await Workspace(folder, store).snapshot())
    kept = {path: (node.mode, node.mtime) for path, (node, _) in found.items()}
    assert kept[b"d/file"] == (0o4751, -1_000_000_001)
    assert kept[b"d"] == (0o711, 12)
    assert kept[b""][1] == 2**60
    assert isinstance(found[b""][0], FolderNode)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems want UTF-8, and shorter paths")
async def test_names_of_any_bytes_and_any_length_are_kept(store: MemoryCheckpointer, folder: Path) -> None:
    here = os.open(folder, os.O_RDONLY)
    names = [b"\xff" * 255, *[b"n" * 250] * 20]
    for name in names:
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    fd = os.open(b"\x80\n", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here)
    os.write(fd, b"x" * 1000)
    os.close(fd)
    os.symlink(b"\xfe", b"link", dir_fd=here)
    os.close(here)
    found = await contents(store, await Workspace(folder, store).snapshot())
    subprocess.run(["rm", "-rf", folder], check=True)
    assert found[b"/".join([*names, b"\x80\n"])] == b"x" * 1000
    assert found[b"/".join([*names, b"link"])] == b"\xfe"


async def test_names_of_one_file_are_kept_as_such_and_it_is_read_once(
    store: MemoryCheckpointer, folder: Path, reads: list[bytes]
) -> None:
    make(folder, d__one=noise(5000), single=b"s")
    os.link(folder / "d/one", folder / "also")
    os.link(folder / "single", folder.parent / "outside")
    time.sleep(0.03)
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    found = {path: node for path, (node, _) in (await nodes(store, ref)).items() if isinstance(node, FileNode)}
    assert {path: node.same_as for path, node in found.items()} == {b"also": b"also", b"d/one": b"also", b"single": b""}
    assert (await contents(store, ref))[b"d/one"] == noise(5000)
    assert sorted(reads) == [b"also", b"single"]
    assert ref.files == 3
    assert (await workspace.snapshot()).digest == ref.digest
    assert len(reads) == 2
    (folder / "also").unlink()
    alone = (await nodes(store, await workspace.snapshot()))[b"d/one"][0]
    assert isinstance(alone, FileNode)
    assert alone.same_as == b""


async def test_a_sparse_file_stays_sparse(store: MemoryCheckpointer, folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(50_000_000)
        os.pwrite(file.fileno(), noise(8192), 20_000_000 // 4096 * 4096)
        os.fsync(file.fileno())
    ref = await Workspace(folder, store).snapshot()
    node = (await nodes(store, ref))[b"sparse"][0]
    assert isinstance(node, FileNode)
    if node.extents is None:
        pytest.skip("this file system does not tell where holes are")
    assert node.extents == ((19_996_672, 8192),)
    assert (ref.bytes, node.size) == (50_000_000, 50_000_000)
    assert (await contents(store, ref))[b"sparse"] == (folder / "sparse").read_bytes()


async def test_the_same_folder_gives_the_same_digest(store: MemoryCheckpointer, folder: Path) -> None:
    make(folder, a=b"1", d__b=noise(2000))
    copy = folder.with_name("copy")
    subprocess.run(["cp", "-a", folder, copy], check=True)
    ref = await Workspace(folder, store).snapshot()
    other = await Workspace(copy, store).snapshot()
    assert (other.digest, other.new_bytes) == (ref.digest, 0)
    assert ref.new_bytes > 2000


async def test_the_entry_names_the_digest(store: MemoryCheckpointer, folder: Path) -> None:
    make(folder, a=b"12")
    ref = await Workspace(folder, store).snapshot()
    assert ref.entry() == WorkspaceSnapshot(ref.digest, 1, 2)


async def test_what_has_not_changed_is_not_read_again(
    any_store: Checkpointer, folder: Path, reads: list[bytes]
) -> None:
    make(folder, a=b"1" * 1000, d__b=b"2" * 1000, d__c=b"3" * 1000, e__f=b"4")
    workspace = Workspace(folder, any_store)
    first = await workspace.snapshot()
    assert sorted(reads) == [b"a", b"d/b", b"d/c", b"e/f"]
    reads.clear()
    again = await workspace.snapshot()
    assert (reads, again.digest, again.new_bytes, again.files) == ([], first.digest, 0, 4)
    make(folder, d__b=b"5" * 1000)
    changed = await workspace.snapshot()
    assert reads == [b"d/b"]
    assert (await contents(any_store, changed))[b"d/b"] == b"5" * 1000
    assert await is_whole(any_store, changed)


async def test_another_process_does_not_read_again_either(folder: Path, tmp_path: Path, reads: list[bytes]) -> None:
    make(folder, a=b"1" * 1000, d__b=b"2" * 1000)
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        first = await Workspace(folder, store).snapshot()
        reads.clear()
        assert (await Workspace(folder, store).snapshot()).digest == first.digest
        assert reads == []


async def test_a_change_that_size_and_mtime_do_not_show_is_found(store: MemoryCheckpointer, folder: Path) -> None:
    make(folder, a=b"before")
    times = (folder / "a").stat()
    workspace = Workspace(folder, store)
    await workspace.snapshot()
    (folder / "a").write_bytes(b"after!")
    os.utime(folder / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (await contents(store, await workspace.snapshot()))[b"a"] == b"after!"


async def test_a_file_that_was_just_written_is_read_again(
    store: MemoryCheckpointer, folder: Path, reads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statcache, "_FINE", 10**12)
    make(folder, d__a=b"1")
    workspace = Workspace(folder, store)
    await workspace.snapshot()
    await workspace.snapshot()
    assert reads == [b"d/a", b"d/a"]
    monkeypatch.setattr(statcache, "_FINE", 0)
    await workspace.snapshot()
    await workspace.snapshot()
    assert reads == [b"d/a"] * 3


async def test_a_file_that_goes_on_changing_is_kept_and_reported_and_read_again(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, log=b"line\n" * 1000, still=b"s" * 1000)
    pack = pack_blob

    def grow(data: bytes, keys: Keyring | None = None) -> tuple[str, bytes]:
        if data.startswith(b"line"):
            with (folder / "log").open("ab") as file:
                file.write(b"line\n")
        return pack(data, keys)

    monkeypatch.setattr(_packing, "pack_blob", grow)
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    assert ref.skipped == (Skipped("log", CHANGED),)
    assert (await contents(store, ref))[b"log"] == b"line\n" * 1002
    assert await is_whole(store, ref)
    monkeypatch.setattr(_packing, "pack_blob", pack)
    after = await workspace.snapshot()
    assert after.skipped == ()
    assert (await contents(store, after))[b"log"] == b"line\n" * 1003


async def test_a_file_that_changes_once_while_it_is_read_is_read_again(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, log=b"line\n" * 1000)
    pack = pack_blob
    left = [1]

    def grow(data: bytes, keys: Keyring | None = None) -> tuple[str, bytes]:
        if left:
            left.pop()
            (folder / "log").write_bytes(b"other")
        return pack(data, keys)

    monkeypatch.setattr(_packing, "pack_blob", grow)
    ref = await Workspace(folder, store).snapshot()
    assert ref.skipped == ()
    assert (await contents(store, ref))[b"log"] == b"other"


def before_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], None]) -> None:
    """Have something happen after the walk, before a file is opened."""
    read = Reader.read

    def changed(self: Reader, folder: Folder, seen: Fact, outbox: Outbox) -> Content:
        change(folder.at(seen[0]))
        return read(self, folder, seen, outbox)

    monkeypatch.setattr(Reader, "read", changed)


async def test_a_file_that_vanishes_counts_as_deleted(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a=b"1", b=b"2")
    before_reading(monkeypatch, lambda path: (folder / "a").unlink(missing_ok=True))
    ref = await Workspace(folder, store).snapshot()
    assert await contents(store, ref) == {b"b": b"2"}
    assert (ref.files, ref.skipped) == (1, ())


async def test_a_file_that_becomes_a_fifo_does_not_hang(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a=b"1")

    def swap(path: bytes) -> None:
        (folder / "a").unlink()
        os.mkfifo(folder / "a")

    before_reading(monkeypatch, swap)
    ref = await asyncio.wait_for(Workspace(folder, store).snapshot(), 10)
    assert ref.skipped == (Skipped("a", CHANGED),)
    assert await contents(store, ref) == {}


async def test_a_folder_that_becomes_a_link_does_not_lead_out(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, d__file=b"mine")
    make(folder.parent / "outside", file=b"not mine")

    def swap(path: bytes) -> None:
        (folder / "d").rename(folder.parent / "moved")
        (folder / "d").symlink_to(folder.parent / "outside")

    before_reading(monkeypatch, swap)
    ref = await Workspace(folder, store).snapshot()
    assert await contents(store, ref) == {b"d": None}


async def test_a_file_that_was_replaced_is_read_as_it_is_now(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a=b"old")

    def swap(path: bytes) -> None:
        (folder.parent / "new").write_bytes(b"newer")
        os.replace(folder.parent / "new", folder / "a")

    before_reading(monkeypatch, swap)
    assert await contents(store, await Workspace(folder, store).snapshot()) == {b"a": b"newer"}


async def test_a_name_of_a_file_that_was_replaced_is_a_file_of_its_own(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a=b"both")
    os.link(folder / "a", folder / "b")
    left = [1]

    def swap(path: bytes) -> None:
        if left:
            left.pop()
            (folder.parent / "new").write_bytes(b"new")
            os.replace(folder.parent / "new", folder / "a")

    before_reading(monkeypatch, swap)
    assert await contents(store, await Workspace(folder, store).snapshot()) == {b"a": b"new", b"b": b"both"}


async def test_a_file_that_may_not_be_read_is_reported(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a=b"1", b=b"2")
    opened = Root.open

    def refuse(self: Root, path: bytes, flags: int) -> int:
        if path == b"a":
            raise PermissionError(13, "Permission denied")
        return opened(self, path, flags)

    monkeypatch.setattr(Root, "open", refuse)
    ref = await Workspace(folder, store).snapshot()
    assert ref.skipped == (Skipped("a", "permission denied"),)
    assert await contents(store, ref) == {b"b": b"2"}


async def test_one_linked_file_that_may_not_be_read_leaves_the_links_of_others_alone(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch, reads: list[bytes]
) -> None:
    make(folder, a=b"both", secret=b"s")
    os.link(folder / "a", folder / "b")
    os.link(folder / "secret", folder / "other")
    time.sleep(0.03)
    opened = Root.open

    def refuse(self: Root, path: bytes, flags: int) -> int:
        if path in (b"secret", b"other"):
            raise PermissionError(13, "Permission denied")
        return opened(self, path, flags)

    monkeypatch.setattr(Root, "open", refuse)
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    assert ref.skipped == (Skipped("other", "permission denied"), Skipped("secret", "permission denied"))
    found = {path: node.same_as for path, (node, _) in (await nodes(store, ref)).items() if isinstance(node, FileNode)}
    assert found == {b"a": b"a", b"b": b"a"}
    reads.clear()
    assert (await workspace.snapshot()).digest == ref.digest
    assert reads == [b"other"]


@pytest.mark.parametrize("becomes", ["gone", "a fifo"])
async def test_a_file_whose_first_name_vanishes_is_kept_under_its_others(
    store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    make(folder, a=b"both")
    os.link(folder / "a", folder / "b")
    left = [1]

    def vanish(path: bytes) -> None:
        if left:
            left.pop()
            (folder / "a").unlink()
            if becomes == "a fifo":
                os.mkfifo(folder / "a")

    before_reading(monkeypatch, vanish)
    assert await contents(store, await Workspace(folder, store).snapshot()) == {b"b": b"both"}


async def test_the_store_in_the_workspace_is_no_part_of_it(folder: Path) -> None:
    make(folder, a=b"1")
    async with SQLiteCheckpointer(folder / "clew.db") as store:
        workspace = Workspace(folder, store)
        await workspace.snapshot()
        assert await contents(store, await workspace.snapshot()) == {b"a": b"1"}
    async with FileCheckpointer(folder / "threads") as files:
        ref = await Workspace(folder, files, ignore=["clew.db*"]).snapshot()
        assert await contents(files, ref) == {b"a": b"1"}
        with pytest.raises(InvalidInput, match="its own files"):
            await Workspace(folder / "threads", files).snapshot()


async def test_nothing_of_ours_appears_in_the_workspace(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a=b"1")
    before = sorted(folder.rglob("*")), folder.stat().st_mtime_ns
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        await Workspace(folder, store).snapshot()
    assert (sorted(folder.rglob("*")), folder.stat().st_mtime_ns) == before


async def test_the_cache_in_the_workspace_is_no_part_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(folder / "cache"))
    make(folder, a=b"1", cache__mine=b"2")
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        await Workspace(folder, store).snapshot()
        ref = await Workspace(folder, store).snapshot()
        assert await contents(store, ref) == {b"a": b"1", b"cache": None, b"cache/mine": b"2"}
    assert list((folder / "cache/workspaces").iterdir())


async def test_a_store_that_has_lost_everything_gets_it_again(any_store: Checkpointer, folder: Path) -> None:
    make(folder, a=b"1" * 1000, d__b=b"2" * 1000)
    workspace = Workspace(folder, any_store)
    ref = await workspace.snapshot()
    await any_store.delete_blobs([digest async for digest in any_store.blobs(untouched_for=NOW)], untouched_for=NOW)
    assert not await is_whole(any_store, ref)
    assert (await workspace.snapshot()).digest == ref.digest
    assert await is_whole(any_store, ref)


async def test_what_is_taken_over_is_asked_for_also_when_something_changed(
    any_store: Checkpointer, folder: Path
) -> None:
    make(folder, a=b"1" * 1000, b=b"3" * 1000, d__b=b"2" * 1000)
    workspace = Workspace(folder, any_store)
    await workspace.snapshot()
    for path in (b"d/b", b"a"):
        ref = await workspace.snapshot()
        found = await nodes(any_store, ref)
        doomed = found[path][1] if path == b"a" else [digest async for digest in any_store.blobs(untouched_for=NOW)]
        await any_store.delete_blobs(doomed, untouched_for=NOW)
        make(folder, b=path * 1000)
        assert await is_whole(any_store, await workspace.snapshot())


class Asked(MemoryCheckpointer):
    """Remembers what it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[set[str]] = []

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        self.asked.append(set(digests))
        return await super().missing_blobs(digests)


async def test_after_half_of_gcs_grace_the_whole_set_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reads: list[bytes]
) -> None:
    make(folder, a=b"1" * 1000, d__b=b"2" * 1000, d__c=b"3" * 1000)
    store = Asked()
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    everything = set(store._space.blobs)
    store.asked.clear()
    await workspace.snapshot()
    assert max(map(len, store.asked)) == 2
    monkeypatch.setattr(snapshotting, "CONFIRM_AFTER", timedelta(seconds=-1))
    leaf = (await nodes(store, ref))[b"d/c"][1][0]
    await store.delete_blobs([leaf], untouched_for=NOW)
    store.asked.clear()
    reads.clear()
    assert (await workspace.snapshot()).digest == ref.digest
    assert any(asked >= everything - {ref.digest} for asked in store.asked)
    assert sorted(reads) == [b"d/b", b"d/c"]
    assert await is_whole(store, ref)


async def test_the_confirmation_is_remembered_across_processes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a=b"1" * 1000)
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        await Workspace(folder, store).snapshot()
        first = statcache.load(str(folder), store).confirmed
        await Workspace(folder, store).snapshot()
        assert statcache.load(str(folder), store).confirmed == first
        monkeypatch.setattr(snapshotting, "CONFIRM_AFTER", timedelta(0))
        await Workspace(folder, store).snapshot()
        assert statcache.load(str(folder), store).confirmed.steady > first.steady


class Slow(MemoryCheckpointer):
    """Takes its time, or fails, when it is given blobs."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.error: Exception | None = None
        self.delay = 3600.0

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        self.entered.set()
        if self.error is not None:
            raise self.error
        await asyncio.sleep(self.delay)
        await super().put_blobs(blobs)


async def test_cancelling_stops_promptly_and_does_no_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(_packing, "_BATCH", 10_000)
    make(folder, **{f"f{n}": noise(5000, n) for n in range(200)})
    store = Slow()
    store.place = "a store on the disk"
    workspace = Workspace(folder, store)
    taking = asyncio.create_task(workspace.snapshot())
    await store.entered.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(taking, PATIENCE)
    assert list(cache.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("clew-workspace")]
    store.delay = 0
    ref = await workspace.snapshot()
    assert ref.files == 200
    assert await is_whole(store, ref)


async def test_asyncio_has_nothing_to_complain_about_after_a_cancellation() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    with Threads(2) as threads:

        def work() -> None:
            threads.stop.wait(PATIENCE)
            threads.go_on()

        running = asyncio.create_task(threads.run_all([work, work], let_go=lambda: time.sleep(0.1)))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    del running
    await asyncio.sleep(0)  # the loop lets go of the task
    gc.collect()
    assert told == []


async def test_a_store_that_fails_ends_the_snapshot_with_its_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_packing, "_BATCH", 10_000)
    make(folder, **{f"f{n}": noise(5000, n) for n in range(50)})
    store = Slow()
    store.error = Unavailable("the disk is full")
    workspace = Workspace(folder, store)
    with pytest.raises(Unavailable, match="the disk is full"):
        await workspace.snapshot()
    store.error, store.delay = None, 0
    assert await is_whole(store, await workspace.snapshot())


async def test_progress_is_told(store: MemoryCheckpointer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(folder, **{f"f{n}": b"1" for n in range(20)})
    told: list[tuple[int, int | None]] = []
    await Workspace(folder, store).snapshot(lambda done, total: told.append((done, total)))
    assert told[-1] == (20, 20)
    assert told == sorted(told)


async def test_two_snapshots_at_once_are_both_right(store: MemoryCheckpointer, folder: Path) -> None:
    make(folder, a=b"1" * 1000)
    workspace = Workspace(folder, store)
    one, other = await asyncio.gather(workspace.snapshot(), workspace.snapshot())
    assert one.digest == other.digest


async def test_a_sealed_store_sees_no_content_and_has_a_cache_of_its_own(
    folder: Path, tmp_path: Path, reads: list[bytes]
) -> None:
    make(folder, a=b"secret " * 1000, tiny=b"secret")
    async with SQLiteCheckpointer(tmp_path / "c.db") as unsealed:
        plain = await Workspace(folder, unsealed).snapshot()
        store = SealedCheckpointer(unsealed, Keyring(bytes(32)))
        reads.clear()
        sealed = await Workspace(folder, store).snapshot()
        assert sorted(reads) == [b"a", b"tiny"]
        assert sealed.digest != plain.digest
        assert (await contents(store, sealed))[b"a"] == b"secret " * 1000
        packed = await store.get_blobs([digest async for digest in store.blobs(untouched_for=NOW)])
        assert not any(b"secret" in data for digest, data in packed.items() if data[:1] == b"\2")


async def test_what_is_ignored_or_over_the_limit_is_reported(store: MemoryCheckpointer, folder: Path) -> None:
    make(folder, a=b"1", b_pyc=b"2", large=b"3" * 2000)
    ref = await Workspace(folder, store, ignore="*_pyc\n", limits=Limits(file_bytes=1000)).snapshot()
    assert [(one.path, one.reason) for one in ref.skipped] == [
        ("b_pyc", "ignored"),
        ("large", "larger than the limit of 1000 bytes"),
    ]
    assert await contents(store, ref) == {b"a": b"1"}


def test_a_bad_pattern_shows_at_once(store: MemoryCheckpointer, folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"not a \.gitignore pattern"):
        Workspace(folder, store, ignore=["[z-a]"])


@pytest.mark.parametrize("limits", [Limits(names=-1), Limits(file_bytes=-1)])
def test_a_limit_below_zero_shows_at_once(store: MemoryCheckpointer, folder: Path, limits: Limits) -> None:
    with pytest.raises(InvalidInput, match="below zero"):
        Workspace(folder, store, limits=limits)


@pytest.mark.parametrize("name", ["nul\0", "surrogate\ud800", "~nobody-of-this-name/x"])
def test_what_can_be_no_path_shows_at_once(store: MemoryCheckpointer, name: str) -> None:
    with pytest.raises(InvalidInput, match="path"):
        Workspace(name, store)


async def test_a_folder_that_is_not_there_is_refused(store: MemoryCheckpointer, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="nothing"):
        await Workspace(folder / "nothing", store).snapshot()


async def test_memory_stays_bounded_whatever_is_read(folder: Path, tmp_path: Path) -> None:
    with (folder / "large").open("wb") as file:
        for _ in range(15):
            file.write(os.urandom(10_000_000))
    code = f"""
import asyncio, resource
from clew.checkpointers import SQLiteCheckpointer
from clew.workspace import Workspace
def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // {2**20 if sys.platform == "darwin" else 2**10}
async def main():
    async with SQLiteCheckpointer({str(tmp_path / "c.db")!r}) as store:
        await store.missing_blobs(["0" * 64])
        before = most()
        await Workspace({str(folder)!r}, store).snapshot()
        print(most() - before)
asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 100


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f/a"])
CHANGES = st.one_of(
    st.tuples(st.just("write"), NAMES, st.binary(max_size=3)),
    st.tuples(st.just("grow"), NAMES, st.just(b"x" * 600)),
    st.tuples(st.just("touch"), NAMES, st.just(b"")),
    st.tuples(st.just("mode"), NAMES, st.just(b"")),
    st.tuples(st.just("delete"), NAMES, st.just(b"")),
    st.tuples(st.just("link"), NAMES, st.just(b"a")),
    st.tuples(st.just("rename"), NAMES, st.just(b"b")),
)


def change(folder: Path, kind: str, name: str, value: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("write", "grow"):
        with path.open("wb" if kind == "write" else "ab") as file:
            file.write(value)
    elif not path.exists():
        return
    elif kind == "touch":
        os.utime(path, ns=(0, 1_000_000_000))
    elif kind == "mode":
        path.chmod(path.stat().st_mode ^ 0o100)
    elif kind == "delete":
        path.unlink()
    elif kind == "link" and not (folder / "linked").exists():
        os.link(path, folder / "linked")
    elif kind == "rename":
        path.rename(folder / "renamed")


@settings(max_examples=40, suppress_health_check=[*ON_SPEED, HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(CHANGES, max_size=4), min_size=1, max_size=5))
def test_a_snapshot_with_a_cache_is_one_without(
    rounds: list[list[tuple[str, str, bytes]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ws")
    store = MemoryCheckpointer()

    async def compare() -> None:
        cached = Workspace(folder, store)
        for changes in rounds:
            for kind, name, value in changes:
                change(folder, kind, name, value)
            ref: SnapshotRef = await cached.snapshot()
            fresh = await Workspace(folder, store).snapshot()
            assert (ref.digest, ref.files, ref.bytes) == (fresh.digest, fresh.files, fresh.bytes)

    asyncio.run(compare())
    shutil.rmtree(folder)


async def test_what_a_sealed_store_keeps_secret_is_not_in_the_cache_either(
    tmp_path: Path, folder: Path, cache: Path
) -> None:
    (folder / "secret.txt").write_text("the password is swordfish")
    os.utime(folder / "secret.txt", (1, 1))
    (folder / "link").symlink_to("/where/the/swordfish/lives")
    async with SealedCheckpointer(SQLiteCheckpointer(tmp_path / "store" / "c.db"), Keyring(bytes(32))) as store:
        await asyncio.sleep(0.03)
        first = await Workspace(folder, store).snapshot()
        kept = [path for path in cache.rglob("*") if path.is_file()]
        assert kept
        assert not any(b"swordfish" in path.read_bytes() for path in kept)
        assert (await Workspace(folder, store).snapshot()).digest == first.digest
        (folder / "more.txt").write_text("more")
        ref = await Workspace(folder, store).snapshot()
        assert await contents(store, ref) == {
            b"secret.txt": b"the password is swordfish",
            b"more.txt": b"more",
            b"link": b"/where/the/swordfish/lives",
        }
