"""A restore among what is odd: leftovers, mounts, folders that are replaced or deep, a store that has lost something."""

from __future__ import annotations

import errno
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, SQLiteCheckpointer
from clew.errors import InvalidInput, MissingBlob, Unavailable
from clew.log.blobs import pack_blob
from clew.workspace import Skipped, SnapshotRef, Workspace, manifest, reader
from tests.workspace.snapped import is_whole
from tests.workspace.trees import facts

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="restores need names relative to open folders"),
]

LEFTOVER = ".clew-0123456789abcdef.tmp"
HOLDS = "it holds files that are in no snapshot"


def make(folder: Path, **files: str) -> None:
    """Files by name, `__` standing for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


async def test_a_thread_without_a_snapshot_is_told_as_that(store: Checkpointer, folder: Path) -> None:
    async with Thread.open(store, "t"):
        pass
    missing: Any = (await Thread.load(store, "t")).workspace
    with pytest.raises(InvalidInput, match="there is no snapshot"):
        await Workspace(folder, store).restore(missing)
    nonsense: Any = 17
    with pytest.raises(InvalidInput, match="17 is not a snapshot"):
        await Workspace(folder, store).restore(nonsense)


@pytest.mark.parametrize("name", ["nul\0", "surrogate\ud800"])
async def test_what_can_be_no_path_is_not_restored_into(store: Checkpointer, folder: Path, name: str) -> None:
    workspace = Workspace(folder, store)
    with pytest.raises(InvalidInput, match="path"):
        await workspace.restore(await workspace.snapshot(), into=f"{folder}-{name}")


async def test_a_loop_of_links_is_no_folder_to_restore_into(store: Checkpointer, folder: Path) -> None:
    loop = folder.with_name("loop")
    loop.symlink_to("loop")
    workspace = Workspace(folder, store)
    with pytest.raises(InvalidInput, match="levels of symbolic links"):
        await workspace.restore(await workspace.snapshot(), into=loop)


async def test_the_workspace_itself_is_known_by_its_short_name_too(
    store: Checkpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    with pytest.raises(InvalidInput, match="nor contain it"):
        await workspace.restore(ref, into="~/work/within")


async def test_whatever_a_snapshot_kept_of_deep_folders_can_be_restored(
    store: Checkpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "DEEPEST", 3)
    make(folder, a="a")
    workspace = Workspace(folder, store)
    first = await workspace.snapshot()
    make(folder, d__d__d__deepest="kept", d__d__d__d__file="too deep", d__other="goes")
    deep = await workspace.snapshot()
    assert [skipped.path for skipped in deep.skipped] == ["d/d/d/d"]
    await workspace.restore(deep, into=folder.with_name("other"))
    assert (folder.with_name("other") / "d/d/d/deepest").read_text() == "kept"
    restored = await workspace.restore(first)
    assert [skipped.path for skipped in restored.kept] == ["d", "d/d", "d/d/d"]
    assert (folder / "d/d/d/d/file").read_text() == "too deep"
    assert len(await changes(workspace, first, deep)) == 5


async def changes(workspace: Workspace, a: SnapshotRef, b: SnapshotRef) -> list[str]:
    return [change.path for change in (await workspace.diff(a, b)).changes]


async def test_how_deep_the_folder_goes_that_is_there_keeps_nothing_from_being_restored(
    store: Checkpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a="a")
    workspace = Workspace(folder, store)
    first, was = await workspace.snapshot(), facts(folder)
    make(folder, d__d__d__d__file="deep")
    monkeypatch.setattr(reader, "is_too_deep", lambda path: path.count(b"/") >= 2)
    await workspace.restore(first)
    assert facts(folder) == was


async def test_the_patterns_of_a_folder_that_has_to_stay_go_on_protecting_what_is_in_it(
    store: Checkpointer, folder: Path
) -> None:
    make(folder, a="1")
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    make(folder, d__sub___env="TOKEN=1", d__sub__file="goes", gone__file="goes")
    (folder / "d/.clewignore").write_text("_env\n")
    (folder / "gone/.clewignore").write_text("_env\n")
    for deleted in (4, 0):
        restored = await workspace.restore(ref)
        assert restored.kept == (
            Skipped("d", HOLDS),
            Skipped("d/.clewignore", "it says what is ignored in a folder that has to stay"),
            Skipped("d/sub", HOLDS),
        )
        assert restored.deleted == deleted
        assert sorted(path.name for path in folder.rglob("*")) == [".clewignore", "_env", "a", "d", "sub"]


async def test_a_folder_that_has_the_name_of_a_leftover_is_kept_and_restored_like_any(
    store: Checkpointer, folder: Path
) -> None:
    make(folder, x="a file")
    workspace = Workspace(folder, store)
    file, was = await workspace.snapshot(), facts(folder)
    (folder / "x").unlink()
    make(folder, **{f"x__{LEFTOVER}__data": "precious"})
    full, held = await workspace.snapshot(), facts(folder)
    await workspace.restore(file)
    assert facts(folder) == was
    await workspace.restore(full)
    assert facts(folder) == held


async def test_leftovers_go_whatever_their_folder_is_called_and_no_other_is_looked_into(
    store: Checkpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = folder / os.fsdecode("line\nbreak ü".encode())
    odd.mkdir()
    make(folder, a="1", ignored__file="mine")
    workspace = Workspace(folder, store, ignore=["ignored/"])
    ref = await workspace.snapshot()
    for place in (folder, odd, folder / "ignored"):
        (place / LEFTOVER).write_text("half")
    ignored = (folder / "ignored").stat().st_ino
    listed: list[int] = []
    scandir = os.scandir

    def noted(path: Any) -> Any:
        listed.append(os.stat(path).st_ino)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    await workspace.restore(ref)
    assert ignored not in listed
    assert [os.path.exists(place / LEFTOVER) for place in (folder, odd, folder / "ignored")] == [False, False, True]


async def test_leftovers_that_are_gone_by_the_time_of_the_restore_are_no_error(
    store: Checkpointer, folder: Path
) -> None:
    class Meddled(Workspace):
        async def snapshot(self, progress: Any = None) -> SnapshotRef:
            ref = await super().snapshot(progress)
            (folder / LEFTOVER).unlink(missing_ok=True)
            return ref

    make(folder, a="1", d__b="2")
    workspace = Meddled(folder, store)
    ref = await workspace.snapshot()
    for place in (folder, folder / "d"):
        (place / LEFTOVER).write_text("half")
    await workspace.restore(ref)
    assert sorted(path.name for path in folder.rglob("*")) == ["a", "b", "d"]


async def test_a_mount_point_that_should_go_is_kept_and_told(
    store: Checkpointer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, a="1")
    workspace = Workspace(folder, store)
    ref = await workspace.snapshot()
    make(folder, mounted__file="goes", other__file="goes")
    rmdir = os.rmdir

    def busy(name: Any, **more: Any) -> None:
        if name == b"mounted":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        rmdir(name, **more)

    monkeypatch.setattr(os, "rmdir", busy)
    restored = await workspace.restore(ref)
    assert restored.kept == (Skipped("mounted", "something is mounted there"),)
    assert sorted(path.name for path in folder.rglob("*")) == ["a", "mounted"]


async def test_a_workspace_that_is_replaced_before_it_is_snapshotted_is_not_restored(
    store: Checkpointer, folder: Path
) -> None:
    """Else one folder would be kept, and another one changed."""
    moved = folder.with_name("moved")

    class Replaced(Workspace):
        async def snapshot(self, progress: Any = None) -> SnapshotRef:
            folder.rename(moved)
            make(folder, f="3")
            return await super().snapshot(progress)

    make(folder, f="1")
    ref = await Workspace(folder, store).snapshot()
    make(folder, f="2")
    with pytest.raises(Unavailable, match="was replaced by another folder"):
        await Replaced(folder, store).restore(ref)
    assert ((moved / "f").read_text(), (folder / "f").read_text()) == ("2", "3")


@pytest.mark.parametrize("same", [True, False], ids=["the same object", "another"])
async def test_after_a_missing_chunk_the_next_snapshot_puts_it_back(folder: Path, same: bool) -> None:
    make(folder, a="a" * 5000, b="b" * 5000)
    time.sleep(0.03)
    async with SQLiteCheckpointer(folder.with_name("store.db")) as store:
        workspace = Workspace(folder, store)
        ref = await workspace.snapshot()
        lost = pack_blob(b"b" * 5000)[0]
        await store.delete_blobs([lost], untouched_for=timedelta(0))
        await workspace.snapshot()
        assert not await is_whole(store, ref)
        with pytest.raises(MissingBlob):
            await workspace.restore(ref, into=folder.with_name("other"))
        again = await (workspace if same else Workspace(folder, store)).snapshot()
        assert again.digest == ref.digest
        assert await is_whole(store, ref)
        await workspace.restore(ref, into=folder.with_name("other"))
        assert facts(folder.with_name("other")) == facts(folder)
