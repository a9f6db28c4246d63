"""What a snapshot holds, name by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, MissingBlob
from clew.workspace import Limits, Workspace
from clew.workspace.reader import list_snapshot

pytestmark = pytest.mark.anyio


async def test_folders_come_before_what_is_in_them_and_everything_is_named(store: Checkpointer, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "deep").mkdir()
    (folder / "a" / "deep" / "large").write_bytes(os.urandom(300_000))
    (folder / "a.txt").write_text("text")
    os.link(folder / "a.txt", folder / "b.txt")
    (folder / "link").symlink_to("a/deep")
    (folder / "n\nl").touch(0o600)
    os.utime(folder / "a.txt", ns=(0, -(10**18)))
    found = await list_snapshot(store, await Workspace(folder, store).snapshot())
    assert [(one.path, one.what, one.size, one.target) for one in found] == [
        ("a", "folder", None, None),
        ("a/deep", "folder", None, None),
        ("a/deep/large", "file", 300_000, None),
        ("a.txt", "file", 4, None),
        ("b.txt", "file", 4, None),
        ("link", "link", None, "a/deep"),
        ("n\\x0al", "file", 0, None),
    ]
    assert found[3].modified_at.year == 1938
    assert found[-1].mode == 0o600


async def test_a_snapshot_that_is_not_there_or_too_large_is_an_error(store: Checkpointer, folder: Path) -> None:
    (folder / "a").touch()
    (folder / "b").touch()
    ref = await Workspace(folder, store).snapshot()
    with pytest.raises(MissingBlob):
        await list_snapshot(store, "0" * 64)
    with pytest.raises(InvalidInput, match=r"at most 1 are"):
        await list_snapshot(store, ref, Limits(names=1))
