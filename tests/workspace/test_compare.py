"""What differs between two snapshots is told by path, and unchanged folders are not even read."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.errors import InvalidInput
from clew.workspace import Limits, Workspace
from clew.workspace import compare as _textdiff
from clew.workspace.compare import Change, Difference, as_lines, compare, unified
from tests.workspace.trees import change, grow

pytestmark = pytest.mark.anyio


def told(difference: Difference) -> list[tuple[str, str, str]]:
    return [(change.kind, change.what, change.path) for change in difference.changes]


async def test_each_kind_of_change_is_told_once(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    for name in ("changed", "deleted", "mode", "moved", "same", "time"):
        (folder / name).write_text(name)
    (folder / "empty").touch()
    (folder / "link").symlink_to("a")
    (folder / "gone").mkdir()
    before = await workspace.snapshot()
    (folder / "added").write_text("added")
    (folder / "changed").write_text("other")
    (folder / "deleted").unlink()
    (folder / "empty").rename(folder / "also empty")
    (folder / "gone").rmdir()
    (folder / "link").unlink()
    (folder / "link").symlink_to("b")
    (folder / "mode").chmod(0o600)
    (folder / "new").mkdir()
    (folder / "moved").rename(folder / "new/moved")
    os.utime(folder / "time", ns=(5, 5))
    difference = await workspace.diff(before, await workspace.snapshot())
    assert told(difference) == [
        ("added", "file", "added"),
        ("added", "file", "also empty"),
        ("changed", "file", "changed"),
        ("deleted", "file", "deleted"),
        ("deleted", "file", "empty"),
        ("deleted", "folder", "gone"),
        ("changed", "link", "link"),
        ("mode", "file", "mode"),
        ("added", "folder", "new"),
        ("renamed", "file", "new/moved"),
    ]
    by_path = {change.path: change for change in difference.changes}
    assert by_path["new/moved"].old_path == "moved"
    assert (by_path["mode"].old_mode, by_path["mode"].mode) == (0o644, 0o600)
    assert (by_path["changed"].old_size, by_path["changed"].size) == (7, 5)


async def test_none_is_the_folder_as_it_is_now(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    before = await workspace.snapshot()
    assert not await workspace.diff(before, None)
    (folder / "a").write_text("a")
    assert told(await workspace.diff(before)) == [("added", "file", "a")]
    assert told(await workspace.diff(None, before)) == [("deleted", "file", "a")]


async def test_a_file_that_becomes_a_folder_is_deleted_and_added(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    (folder / "a").write_text("a")
    before = await workspace.snapshot()
    (folder / "a").unlink()
    (folder / "a").mkdir()
    (folder / "a/b").symlink_to("c")
    after = await workspace.snapshot()
    assert told(await workspace.diff(before, after)) == [
        ("deleted", "file", "a"),
        ("added", "folder", "a"),
        ("added", "link", "a/b"),
    ]
    assert told(await workspace.diff(after, before)) == [
        ("deleted", "folder", "a"),
        ("added", "file", "a"),
        ("deleted", "link", "a/b"),
    ]


async def test_a_file_that_becomes_a_link_is_changed(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    (folder / "a").write_text("a")
    before = await workspace.snapshot()
    (folder / "a").unlink()
    (folder / "a").symlink_to("b")
    assert told(await workspace.diff(before, text=True)) == [("changed", "link", "a")]


async def test_each_file_that_was_moved_is_paired_once_by_its_name_if_possible(
    store: Checkpointer, folder: Path
) -> None:
    workspace = Workspace(folder, store)
    for name in ("x", "y"):
        (folder / name).write_text("the same")
    before = await workspace.snapshot()
    (folder / "sub").mkdir()
    (folder / "x").rename(folder / "sub/y")
    (folder / "y").rename(folder / "sub/x")
    (folder / "sub/z").write_text("the same")
    difference = await workspace.diff(before)
    assert [(change.kind, change.old_path, change.path) for change in difference.changes] == [
        ("added", None, "sub"),
        ("renamed", "x", "sub/x"),
        ("renamed", "y", "sub/y"),
        ("added", None, "sub/z"),
    ]


async def test_text_files_come_with_a_diff_that_applies(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    (folder / "a").write_text("".join(f"line {number}\n" for number in range(100)))
    (folder / "b").write_text("without an end")
    (folder / "d").write_text("goes\n")
    (folder / "sub").mkdir()
    (folder / "sub/ü").write_text("1\n2\n3\n")
    before = await workspace.snapshot()
    (folder / "a").write_text("".join(f"line {number}\n" for number in range(3, 100) if number != 50) + "more")
    (folder / "b").write_text("with an end\n")
    (folder / "c").write_text("comes\n")
    (folder / "d").unlink()
    (folder / "sub/ü").write_text("1\n2\n4\n")
    after = await workspace.snapshot()
    other = folder.with_name("other")
    await workspace.restore(before, into=other)
    patch = (await workspace.diff(before, after, text=True)).text()
    subprocess.run(["git", "apply", "-p1", "-"], cwd=other, input=patch.encode(), check=True)
    for name in ("a", "b", "c", "sub/ü"):
        assert (other / name).read_bytes() == (folder / name).read_bytes()
    assert not (other / "d").exists()


async def test_what_is_no_short_text_comes_without_a_diff(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    before = await workspace.snapshot()
    (folder / "bytes").write_bytes(b"\xff\xfe")
    (folder / "nul").write_bytes(b"a\0b")
    (folder / "long").write_bytes(b"long\n" * 300_000)
    with open(folder / "sparse", "wb") as file:
        file.truncate(2**40)
    (folder / os.fsdecode(b"odd\n\xff")).write_text("text\n")
    difference = await workspace.diff(before, text=True)
    assert {change.path: change.text is not None for change in difference.changes} == {
        "bytes": False,
        "long": False,
        "nul": False,
        r"odd\x0a\xff": True,
        "sparse": False,
    }
    assert "added file: bytes\n" in difference.text()
    assert "+++ b/odd\\x0a\\xff\n@@ -0,0 +1 @@\n+text\n" in difference.text()


async def test_a_changed_file_with_several_names_is_told_under_each(store: Checkpointer, folder: Path) -> None:
    workspace = Workspace(folder, store)
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    (folder / "a/first").write_text("one\n")
    os.link(folder / "a/first", folder / "b/second")
    before = await workspace.snapshot()
    (folder / "a/first").write_text("two\n")
    difference = await workspace.diff(before, text=True)
    assert told(difference) == [("changed", "file", "a/first"), ("changed", "file", "b/second")]
    assert all(change.text and "-one\n+two\n" in change.text for change in difference.changes)


async def test_the_limit_of_names_is_for_each_side(store: Checkpointer, folder: Path) -> None:
    (folder / "a").mkdir()
    for number in range(6):
        (folder / f"a/{number}").write_text(f"{number}" * 600)
    workspace = Workspace(folder, store, limits=Limits(names=7))
    before = await workspace.snapshot()
    (folder / "a").rename(folder / "b")
    assert len((await workspace.diff(before)).changes) == 8
    small = Workspace(folder.parent, store, limits=Limits(names=6))
    with pytest.raises(InvalidInput, match="more than 6 names"):
        await small.diff(before, (await workspace.snapshot()).digest)


async def test_folders_that_are_equal_are_not_read(folder: Path) -> None:
    class Counting(MemoryCheckpointer):
        count = 0

        async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
            self.count += len(digests)
            return await super().get_blobs(digests)

    async with Counting() as store:
        workspace = Workspace(folder, store)
        for number in range(50):
            (folder / f"{number}/deep").mkdir(parents=True)
            (folder / f"{number}/deep/file").write_text(str(number))
        before = await workspace.snapshot()
        (folder / "7/deep/file").write_text("other")
        after = await workspace.snapshot()
        store.count = 0
        assert told(await workspace.diff(before, after)) == [("changed", "file", "7/deep/file")]
        assert store.count == 8


@pytest.mark.parametrize("seed", range(5))
async def test_a_difference_is_empty_exactly_if_nothing_but_times_differs(
    store: Checkpointer, folder: Path, seed: int
) -> None:
    workspace = Workspace(folder, store)
    grow(folder, seed)
    before = await workspace.snapshot()
    for path in folder.rglob("*"):
        os.utime(path, ns=(7, 7), follow_symlinks=False)
    assert not await workspace.diff(before)
    change(folder, seed)
    forth, back = await workspace.diff(before, text=True), await workspace.diff(None, before)
    assert forth
    turned = {"added": "deleted", "deleted": "added", "renamed": "renamed", "changed": "changed", "mode": "mode"}
    assert sorted(turned[change.kind] for change in forth.changes) == sorted(change.kind for change in back.changes)
    forth.text()


async def test_a_change_tells_itself_in_one_line() -> None:
    changes = (
        Change(kind="mode", what="folder", path="a", old_mode=0o755, mode=0o700),
        Change(kind="renamed", what="file", path="c", old_path="b"),
    )
    assert Difference(changes).text() == "mode folder: a 0755 -> 0700\nrenamed file: b -> c\n"


def test_a_diff_of_any_two_texts_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    for number in range(60):
        monkeypatch.setattr(_textdiff, "_MOST_LINES", 10 if number % 2 else 10_000)
        old = [chance.choice("abcdef") for _ in range(chance.randrange(60))]
        new = [line for line in old if chance.random() < 0.9]
        for _ in range(chance.randrange(4)):
            new.insert(chance.randrange(len(new) + 1), chance.choice("axyz"))
        texts = ["\n".join(lines) + "\n" * (chance.random() < 0.5) for lines in (old, new)]
        old_lines, new_lines = (as_lines(text.encode()) for text in texts)
        assert old_lines is not None
        assert new_lines is not None
        if old_lines == new_lines:
            continue
        file = tmp_path / "f"
        file.write_text(texts[0])
        patch = unified(old_lines, new_lines, "a/f", "b/f")
        subprocess.run(["git", "apply", "-p1", "-"], cwd=tmp_path, input=patch.encode(), check=True)
        assert file.read_text() == texts[1], number


def test_two_long_texts_with_nothing_in_common_are_told_at_once() -> None:
    chance = random.Random(5)
    old, new = ([f"{chance.randrange(2000)}\n" for _ in range(150_000)] for _ in range(2))
    assert unified(old, new, "a/f", "b/f").count("\n") == 2 + 1 + 300_000


async def test_what_is_compared_with_nothing_was_all_added_or_deleted(store: Checkpointer, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("one\n")
    ref = await Workspace(folder, store).snapshot()
    added, deleted = await compare(store, None, ref, text=True), await compare(store, ref, None)
    assert told(added) == [("added", "folder", "sub"), ("added", "file", "sub/file")]
    assert told(deleted) == [("deleted", "folder", "sub"), ("deleted", "file", "sub/file")]
    assert "+one\n" in added.text()
    assert not await compare(store, None, None)
