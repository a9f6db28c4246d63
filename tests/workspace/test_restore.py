"""A restore is exact, touches only what differs, and loses nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.checkpointers import Checkpointer, MemoryCheckpointer, SealedCheckpointer, SQLiteCheckpointer
from clew.errors import ClewError, InvalidInput, MissingBlob, Unavailable, UsageError
from clew.log.keys import Keyring
from clew.workspace import Limits, SnapshotRef, Workspace, apply
from clew.workspace.folders import TEMPORARY
from tests.stores import make_store, store_fixture
from tests.workspace.trees import HOLE, change, facts, grow

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="restores need names relative to open folders"),
]


any_store = store_fixture()


class Meddled(Workspace):
    """A workspace in which something happens between the snapshot before a restore and the restore."""

    def __init__(self, path: Path, store: Checkpointer, meddle: Callable[[], object]) -> None:
        super().__init__(path, store)
        self._meddle = meddle

    async def snapshot(self, progress: Any = None) -> SnapshotRef:
        ref = await super().snapshot(progress)
        self._meddle()
        return ref


def inodes(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in folder.rglob("*")}


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if TEMPORARY.fullmatch(os.fsencode(path.name))]


@pytest.mark.parametrize("seed", range(8))
async def test_a_restore_brings_back_every_byte_mode_time_link_and_hole(
    any_store: Checkpointer, folder: Path, seed: int
) -> None:
    workspace = Workspace(folder, any_store)
    grow(folder, seed)
    first, was = await workspace.snapshot(), facts(folder)
    change(folder, seed)
    second, changed = await workspace.snapshot(), facts(folder)
    other = folder.with_name("other")
    await workspace.restore(second, into=other, setuid=True)
    assert facts(other) == changed == facts(folder)
    restored = await workspace.restore(first, setuid=True)
    assert facts(folder) == was
    assert (await workspace.snapshot()).digest == first.digest
    assert restored.before_restore is not None
    await workspace.restore(restored.before_restore, setuid=True)
    assert facts(folder) == changed


async def test_a_sealed_snapshot_restores_with_its_key(folder: Path) -> None:
    async with SealedCheckpointer(MemoryCheckpointer(), Keyring(bytes(32))) as store:
        workspace = Workspace(folder, store)
        grow(folder, 3)
        await workspace.restore(await workspace.snapshot(), into=folder.with_name("other"), setuid=True)
        assert facts(folder.with_name("other")) == facts(folder)


async def test_an_entry_of_a_log_and_a_bare_digest_name_a_snapshot_too(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    (folder / "a").write_text("a")
    ref, was = await workspace.snapshot(), facts(folder)
    for name in (ref.entry(), ref.digest):
        (folder / "a").write_text("changed")
        await workspace.restore(name, setuid=True)
        assert facts(folder) == was


async def test_what_is_equal_is_not_touched_at_all(store: Checkpointer, folder: Path) -> None:
    grow(folder, 1)
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), inodes(folder)
    restored = await workspace.restore(ref, setuid=True)
    assert inodes(folder) == was
    assert (restored.written, restored.touched, restored.deleted, restored.kept) == (0, 0, 0, ())


async def test_of_many_files_only_the_one_that_differs_is_written(store: Checkpointer, folder: Path) -> None:
    for name in ("a/1", "a/2", "b/3"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name * 1000)
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), inodes(folder)
    (folder / "a/2").write_text("other")
    restored = await workspace.restore(ref, setuid=True)
    now = inodes(folder)
    assert {path for path in was if was[path] != now[path]} == {str(folder / "a/2"), str(folder / "a")}
    assert (restored.written, restored.deleted) == (1, 0)


async def test_a_mode_or_a_time_alone_is_set_without_writing_the_file(store: Checkpointer, folder: Path) -> None:
    (folder / "mode").write_bytes(b"m" * 5000)
    (folder / "time").write_bytes(b"t" * 5000)
    (folder / "link").symlink_to("gone")
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), facts(folder)
    inode = {name: (folder / name).lstat().st_ino for name in ("mode", "time", "link")}
    (folder / "mode").chmod(0o4711)
    os.utime(folder / "time", ns=(5, 5))
    os.utime(folder / "link", ns=(5, 5), follow_symlinks=False)
    restored = await workspace.restore(ref, setuid=True)
    assert facts(folder) == was
    assert {name: (folder / name).lstat().st_ino for name in inode} == inode
    assert (restored.written, restored.touched) == (0, 3)


async def test_a_file_with_a_name_outside_is_not_changed_there(store: Checkpointer, folder: Path) -> None:
    (folder / "shared").write_bytes(b"s" * 5000)
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), facts(folder)
    outside = folder.with_name("outside")
    os.link(folder / "shared", outside)
    outside.chmod(0o600)
    await workspace.restore(ref, setuid=True)
    assert facts(folder) == was
    assert outside.stat().st_mode & 0o777 == 0o600


async def test_all_names_of_a_file_follow_when_it_is_written_anew(store: Checkpointer, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    (folder / "a/first").write_bytes(b"1" * 5000)
    os.link(folder / "a/first", folder / "b/second")
    os.utime(folder / "a/first", ns=(10**18, 10**18))
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), facts(folder)
    (folder / "a/first").write_bytes(b"2" * 5000)
    os.utime(folder / "a/first", ns=(10**18, 10**18))
    await workspace.restore(ref, setuid=True)
    assert facts(folder) == was


async def test_names_that_were_one_file_become_two_again(store: Checkpointer, folder: Path) -> None:
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(b"same" * 1000)
        os.utime(folder / name, ns=(10**18, 10**18))
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), facts(folder)
    for name in ("b", "c"):
        (folder / name).unlink()
        os.link(folder / "a", folder / name)
    await workspace.restore(ref, setuid=True)
    assert facts(folder) == was


async def test_a_new_name_is_given_to_a_file_in_an_unchanged_folder(store: Checkpointer, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    (folder / "a/first").write_bytes(b"1" * 5000)
    for name in ("b/second", "b/third"):
        os.link(folder / "a/first", folder / name)
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), facts(folder)
    (folder / "b/third").unlink()
    await workspace.restore(ref, setuid=True)
    assert facts(folder) == was


async def test_files_folders_and_links_take_each_others_place(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)

    def make(kinds: str) -> None:
        for number, kind in enumerate(kinds):
            path = folder / str(number)
            if kind == "d":
                (path / "deep/er").mkdir(parents=True)
                (path / "deep/file").write_text("in a folder")
            elif kind == "l":
                path.symlink_to(folder)
            else:
                path.write_text("a file")

    make("fdlfdl")
    first, was = await workspace.snapshot(), facts(folder)
    subprocess.run(["rm", "-r", *map(str, folder.iterdir())], check=True)
    make("dlflfd")
    await workspace.restore(first, setuid=True)
    assert facts(folder) == was


async def test_large_and_sparse_files_are_whole(store: Checkpointer, folder: Path) -> None:
    (folder / "large").write_bytes(os.urandom(2**20) * 20)
    with open(folder / "sparse", "wb") as file:
        for number in range(0, 100, 7):
            file.seek(number * HOLE)
            file.write(os.urandom(HOLE))
        file.truncate(200 * HOLE)
    workspace = Workspace(folder, store)
    seen: list[tuple[int, int | None]] = []
    await workspace.restore(
        await workspace.snapshot(), folder.with_name("other"), progress=lambda *step: seen.append(step), setuid=True
    )
    assert facts(folder.with_name("other")) == facts(folder)
    assert seen == [(1, 2), (2, 2)]


async def test_a_look_elsewhere_leaves_the_workspace_alone(store: Checkpointer, folder: Path) -> None:
    grow(folder, 5)
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    change(folder, 6)
    was = inodes(folder), facts(folder)
    restored = await workspace.restore(ref, into=folder.with_name("deep") / "other", setuid=True)
    assert (inodes(folder), facts(folder)) == was
    assert restored.before_restore is None


async def test_a_folder_elsewhere_that_holds_something_is_kept_as_a_snapshot(store: Checkpointer, folder: Path) -> None:
    (folder / "a").write_text("a")
    workspace = Workspace(folder, store)
    other = folder.with_name("other")
    grow(other, 8)
    was = facts(other)
    restored = await workspace.restore(await workspace.snapshot(), into=other, setuid=True)
    assert facts(other) == facts(folder)
    assert restored.before_restore is not None
    await workspace.restore(restored.before_restore, into=other, setuid=True)
    assert facts(other) == was


async def test_a_workspace_that_was_deleted_comes_back(store: Checkpointer, folder: Path) -> None:
    grow(folder, 9)
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), facts(folder)
    subprocess.run(["chmod", "-R", "u+rwx", str(folder)], check=True)  # else only root could remove all of it
    subprocess.run(["rm", "-r", str(folder)], check=True)
    await workspace.restore(ref, setuid=True)
    assert facts(folder) == was


async def test_no_folder_in_around_or_of_the_store_is_restored_into(folder: Path) -> None:
    async with make_store("files", folder.with_name("keep")) as store:
        workspace = Workspace(folder, store)
        (folder / "a").write_text("a")
        ref = await workspace.snapshot()
        for into in (folder / "within", folder / "a", folder.parent, folder.with_name("keep") / "store" / "x"):
            with pytest.raises(InvalidInput):
                await workspace.restore(ref, into=into, setuid=True)
        assert os.listdir(folder) == ["a"]


async def test_a_file_is_no_folder_to_restore_into(store: Checkpointer, folder: Path) -> None:
    file = folder.with_name("file")
    file.write_text("mine")
    workspace = Workspace(folder, store)
    with pytest.raises(InvalidInput):
        await workspace.restore(await workspace.snapshot(), into=file, setuid=True)
    assert file.read_text() == "mine"


async def test_ignored_files_stay_and_keep_their_folder(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store, ignore=["*.log"])
    ref = await workspace.snapshot()
    (folder / "new/deep").mkdir(parents=True)
    (folder / "new/deep/x.log").write_text("mine")
    (folder / "new/deep/y").write_text("goes")
    (folder / "new/deep").chmod(0o555)
    restored = await workspace.restore(ref, setuid=True)
    assert [skipped.path for skipped in restored.kept] == ["new", "new/deep"]
    assert os.listdir(folder / "new/deep") == ["x.log"]
    assert (folder / "new/deep").stat().st_mode & 0o777 == 0o555
    assert restored.deleted == 1


@pytest.mark.parametrize("name", ["x.log", "folder"])
async def test_what_no_snapshot_holds_is_never_in_danger(store: Checkpointer, folder: Path, name: str) -> None:
    """It is in the way of a file, or in a folder whose place a file is to take: told before anything is changed."""
    everything = Workspace(folder, store)
    (folder / "x.log").write_text("in the snapshot")
    (folder / "folder").write_text("in the snapshot")
    ref = await everything.snapshot()
    (folder / name).unlink()
    (folder / "folder").unlink(missing_ok=True)
    (folder / "folder").mkdir()
    (folder / ("folder/x.log" if name == "folder" else name)).write_text("mine")
    (folder / "new").write_text("would go")
    was = facts(folder), inodes(folder)
    with pytest.raises(UsageError, match=r"x\.log.*in no snapshot \(ignored.*Nothing was changed"):
        await Workspace(folder, store, ignore=["folder/x.log" if name == "folder" else "x.log"]).restore(
            ref, setuid=True
        )
    assert (facts(folder), inodes(folder)) == was


async def test_a_store_in_the_workspace_outlives_every_restore(folder: Path) -> None:
    async with SQLiteCheckpointer(folder / "state" / "store.db") as store:
        workspace = Workspace(folder, store)
        (folder / "a").write_text("1")
        first = await workspace.snapshot()
        (folder / "state" / "more").write_text("2")
        (folder / "a").unlink()
        second = await workspace.snapshot()
        await workspace.restore(first, setuid=True)
        assert (folder / "a").read_text() == "1"
        assert not (folder / "state" / "more").exists()
        await workspace.restore(second, setuid=True)
        assert (folder / "state" / "more").read_text() == "2"


async def test_what_is_written_after_the_snapshot_is_not_replaced(store: Checkpointer, folder: Path) -> None:
    (folder / "a").write_text("old")
    ref = await Workspace(folder, store).snapshot()
    (folder / "a").write_text("newer")

    def meddle() -> None:
        (folder / "a").write_text("newest")

    with pytest.raises(Unavailable, match="'a' was changed by another program") as caught:
        await Meddled(folder, store, meddle).restore(ref, setuid=True)
    assert (folder / "a").read_text() == "newest"
    assert not leftovers(folder)
    assert "The folder as it was before is the snapshot" in caught.value.__notes__[0]


async def test_a_name_that_appears_after_the_snapshot_is_not_replaced(store: Checkpointer, folder: Path) -> None:
    (folder / "a").write_text("old")
    ref = await Workspace(folder, store).snapshot()
    (folder / "a").unlink()
    (folder / "b").write_text("to be kept as long as nothing can be done")
    was = folder / "a"
    with pytest.raises(UsageError, match="'a' is in the way"):
        await Meddled(folder, store, lambda: was.write_text("newest")).restore(ref, setuid=True)
    assert (was.read_text(), (folder / "b").exists()) == ("newest", True)


async def test_nothing_is_written_through_a_link_that_takes_a_folders_place(store: Checkpointer, folder: Path) -> None:
    outside = folder.with_name("outside")
    outside.mkdir()
    (outside / "file").write_text("outside")
    (folder / "inner").mkdir()
    (folder / "inner/file").write_text("old")
    ref = await Workspace(folder, store).snapshot()
    (folder / "inner/file").write_text("newer")
    was = facts(outside)

    def meddle() -> None:
        (folder / "inner").rename(folder / "moved")
        (folder / "inner").symlink_to(outside)

    with pytest.raises(Unavailable, match="changed by another program"):
        await Meddled(folder, store, meddle).restore(ref, setuid=True)
    assert facts(outside) == was


async def test_a_missing_chunk_is_told_before_anything_is_changed(store: Checkpointer, folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).write_bytes(name.encode() * 5000)
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    change(folder, 1)
    for name in ("a", "b"):
        (folder / name).write_text("other")
    was = facts(folder)
    digest = min(await _digests(store, b"b" * 5000))
    await _lose(store, digest)
    with pytest.raises(MissingBlob):
        await workspace.restore(ref, setuid=True)
    assert facts(folder) == was


async def _digests(store: Checkpointer, data: bytes) -> set[str]:
    from clew.log.blobs import pack_blob

    return {pack_blob(data, store.keys)[0]}


async def _lose(store: Checkpointer, digest: str) -> None:
    from datetime import timedelta

    assert not await store.missing_blobs([digest])
    await store.delete_blobs([digest], untouched_for=timedelta(0))


async def test_a_full_disk_is_told_with_the_path_and_leaves_the_file_as_it_was(
    store: Checkpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"a" * 5000)
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    (folder / "a").write_text("other")
    was = facts(folder)[b"a"]

    def full(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(apply, "write_all", full)
        with pytest.raises(Unavailable, match=r"'a': the disk is full\. Free some space"):
            await workspace.restore(ref, setuid=True)
    assert facts(folder)[b"a"] == was
    assert not leftovers(folder)
    await workspace.restore(ref, setuid=True)
    assert (folder / "a").read_bytes() == b"a" * 5000


async def test_a_restore_that_is_cancelled_stops_in_order_and_ends_right_the_next_time(
    store: Checkpointer, folder: Path
) -> None:
    for number in range(1000):
        (folder / f"{number}").write_bytes(b"%d" % number * 300)
    workspace = Workspace(folder, store)
    ref, was = await workspace.snapshot(), facts(folder)
    for number in range(1000):
        (folder / f"{number}").unlink()
    restoring: asyncio.Task[object]

    def stop(done: int, total: int | None) -> None:
        assert total == 1000
        restoring.cancel()

    restoring = asyncio.ensure_future(workspace.restore(ref, progress=stop, setuid=True))
    (folder / "new").write_text("x")
    with pytest.raises(asyncio.CancelledError):
        await restoring
    assert 0 < len(os.listdir(folder)) < 1000
    assert not leftovers(folder)
    await workspace.restore(ref, setuid=True)
    assert facts(folder) == was


@pytest.mark.parametrize("number", [1, 2, 40])
async def test_a_restore_that_is_killed_ends_right_the_next_time(folder: Path, number: int) -> None:
    path = folder.with_name("store.db")
    async with SQLiteCheckpointer(path) as store:
        workspace = Workspace(folder, store)
        grow(folder, 11, names=150)
        ref, was = await workspace.snapshot(), facts(folder)
        change(folder, 12, steps=150)
        command = [sys.executable, "-m", "tests.workspace.restorer", str(path), str(folder), ref.digest, str(number)]
        killed = await asyncio.to_thread(subprocess.run, command, check=False)
        assert killed.returncode == -9
        assert leftovers(folder)
        await workspace.restore(ref, setuid=True)
        assert facts(folder) == was


async def test_what_a_killed_restore_left_goes_even_if_its_folder_is_equal(store: Checkpointer, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a/.clew-0123456789abcdef.tmp").write_text("half")
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    was = (folder / "a").stat().st_mtime_ns
    await workspace.restore(ref, setuid=True)
    assert os.listdir(folder / "a") == []
    assert (folder / "a").stat().st_mtime_ns == was


async def test_two_restores_do_not_work_in_one_folder(store: Checkpointer, folder: Path) -> None:
    (folder / "a").write_text("a")
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    outcomes = await asyncio.gather(*(workspace.restore(ref, setuid=True) for _ in range(2)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, ClewError)]
    assert len(refused) == 1
    assert isinstance(refused[0], Unavailable)
    assert "is being restored by another process" in str(refused[0])


async def test_a_snapshot_that_does_not_fit_changes_nothing(
    store: Checkpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"a" * 5000)
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    (folder / "a").unlink()
    (folder / "b").write_text("stays")
    real = os.statvfs(folder)
    full = os.statvfs_result((*real[:3], 0, 0, *real[5:], real.f_fsid))
    monkeypatch.setattr(os, "fstatvfs", lambda fd: full)
    with pytest.raises(Unavailable, match="needs 4995 bytes of disk space, and 0 are free"):
        await workspace.restore(ref, setuid=True)
    assert os.listdir(folder) == ["b"]


async def test_batches_are_bounded_and_hold_every_file_once(store: Checkpointer, folder: Path) -> None:
    for number in range(600):
        (folder / f"{number:03}").write_bytes(b"%d" % number * 10_000)
    (folder / "large").write_bytes(b"l" * (apply._BATCH_BYTES + 1))
    workspace = Workspace(folder, store, limits=Limits())
    await workspace.restore(await workspace.snapshot(), into=folder.with_name("other"), setuid=True)
    assert facts(folder.with_name("other")) == facts(folder)
