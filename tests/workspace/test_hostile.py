"""A snapshot that somebody made to do harm: a clear error, nothing changed, and never anything outside the folder."""

from __future__ import annotations

import os
import stat
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from clew.checkpointers import Checkpointer
from clew.errors import ClewError, Corrupt, InvalidInput, MissingBlob, UsageError
from clew.log.blobs import pack_blob, pack_tree
from clew.workspace import Limits, Workspace
from clew.workspace.manifest import FileNode, FolderNode, LinkNode, Node
from tests.sqlite_files import database
from tests.stores import make_store
from tests.workspace.trees import facts, put, put_top, small_file

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.attack,
    pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="restores need names relative to open folders"),
]

TIME = 10**18


@pytest.fixture
def around(tmp_path: Path) -> Path:
    """What must not be touched: the workspace, with a file and a folder in it, and a file beside it."""
    around = tmp_path / "around"
    (around / "work/folder").mkdir(parents=True)
    (around / "work/file").write_text("mine")
    (around / "outside").write_text("not yours")
    return around


async def refuse(
    store: Checkpointer, around: Path, root: str, *errors: type[ClewError], limits: Limits | None = None
) -> str:
    """Restore in place and elsewhere. Both are refused, and nothing is changed."""
    top = await put_top(store, root)
    other = around.with_name("other")
    was = facts(around)
    workspace = Workspace(around / "work", store, limits=limits)
    with pytest.raises(errors):
        await workspace.restore(top)
    with pytest.raises(errors) as caught:
        await workspace.restore(top, other)
    assert facts(around) == was
    assert not other.exists()
    return str(caught.value)


def node(name: bytes, kind: str) -> Node:
    if kind == "folder":
        return FolderNode(name, 0o755, TIME)
    return LinkNode(name, 0o777, TIME, b"/etc") if kind == "link" else small_file(name)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
@pytest.mark.parametrize(
    "name", [b"..", b".", b"", b"/", b"/etc/passwd", b"../outside", b"folder/x", b"a/../../outside", b"a\0b"]
)
async def test_a_name_that_is_none_is_refused(store: Checkpointer, around: Path, name: bytes, kind: str) -> None:
    trees = (await put(store),) if kind == "folder" else ()
    root = await put(store, node(name, kind), trees=trees)
    assert "not a valid, unique name" in await refuse(store, around, root, InvalidInput)


@pytest.mark.parametrize("names", [(b"b", b"a"), (b"a", b"a")])
async def test_names_in_no_order_or_twice_are_refused(
    store: Checkpointer, around: Path, names: tuple[bytes, ...]
) -> None:
    """So no link and folder can share a name, with files written through the link."""
    await refuse(store, around, await put(store, *(node(name, "file") for name in names)), InvalidInput)


async def test_a_link_and_a_folder_of_one_name_are_refused(store: Checkpointer, around: Path) -> None:
    inner = await put(store, small_file(b"outside"))
    root = await put(store, LinkNode(b"x", 0o777, TIME, b".."), FolderNode(b"x", 0o755, TIME), trees=(inner,))
    await refuse(store, around, root, InvalidInput)


async def test_nothing_is_written_through_a_link_that_is_there(store: Checkpointer, around: Path) -> None:
    """The link is replaced by the folder that the snapshot has in its place."""
    (around / "work/x").symlink_to("..")
    inner = await put(store, small_file(b"outside", b"evil"))
    top = await put_top(store, await put(store, FolderNode(b"x", 0o755, TIME), trees=(inner,)))
    await Workspace(around / "work", store).restore(top)
    assert (around / "outside").read_text() == "not yours"
    assert (around / "work/x/outside").read_text() == "evil"


@pytest.mark.parametrize("name", [b"store.db", b"store.db-wal", b"store.db-journal"])
async def test_the_stores_own_files_are_not_replaced_nor_made(around: Path, name: bytes) -> None:
    async with make_store("sqlite", around / "work") as store:
        workspace = Workspace(around / "work", store)
        top = await put_top(store, await put(store, small_file(name, b"evil")))
        with pytest.raises(UsageError, match="is in the way"):
            await workspace.restore(top)
        assert (around / "work/file").read_text() == "mine"
        assert (await workspace.snapshot()).files == 1


@pytest.mark.parametrize("same_as", [b"/etc/passwd", b"../outside", b"a/../../outside", b"a//b", b"./a"])
async def test_another_name_of_a_file_outside_is_refused(store: Checkpointer, around: Path, same_as: bytes) -> None:
    await refuse(store, around, await put(store, small_file(b"x", same_as=same_as)), InvalidInput)


@pytest.mark.parametrize("same_as", [b"gone", b"link", b"plain", b"sub", b"link/outside", b"second"])
async def test_another_name_of_what_is_no_such_file_is_refused(
    store: Checkpointer, around: Path, same_as: bytes
) -> None:
    """In particular not of what a link leads to, and not of a file that is there and no part of the snapshot."""
    (around / "work/gone").write_text("not of the snapshot")
    root = await put(
        store,
        LinkNode(b"link", 0o777, TIME, b".."),
        small_file(b"plain"),
        small_file(b"second", same_as=b"plain"),
        FolderNode(b"sub", 0o755, TIME),
        small_file(b"x", same_as=same_as),
        trees=(await put(store),),
    )
    assert "hostile or damaged" in await refuse(store, around, root, InvalidInput)


async def test_too_many_names_are_refused(store: Checkpointer, around: Path) -> None:
    root = await put(store, *(node(b"%07d" % number, "file") for number in range(1_000_000)))
    assert "1000000 names" in await refuse(store, around, root, InvalidInput)


async def test_a_few_folders_that_unfold_to_many_are_refused(store: Checkpointer, around: Path) -> None:
    folder = await put(store)
    for _ in range(40):
        folder = await put(store, node(b"a", "folder"), node(b"b", "folder"), trees=(folder, folder))
    message = await refuse(store, around, folder, InvalidInput, limits=Limits(names=10_000))
    assert "more than 10000 names" in message


async def test_folders_nested_without_end_are_refused(store: Checkpointer, around: Path) -> None:
    folder = await put(store)
    for _ in range(3000):
        folder = await put(store, node(b"d", "folder"), trees=(folder,))
    assert "goes deeper" in await refuse(store, around, folder, InvalidInput)


async def test_folders_nested_deeper_than_any_path_can_name_are_restored(store: Checkpointer, around: Path) -> None:
    folder = await put(store, small_file(b"bottom", b"reached"))
    for _ in range(100):
        folder = await put(store, FolderNode(b"d" * 100, 0o755, TIME), trees=(folder,))
    workspace = Workspace(around / "work", store)
    top = await put_top(store, folder)
    before = (await workspace.restore(top)).before_restore
    assert before is not None
    assert (await workspace.snapshot()).digest == top
    await workspace.restore(before)
    assert sorted(os.listdir(around / "work")) == ["file", "folder"]


async def test_a_name_too_long_for_the_system_is_refused(store: Checkpointer, around: Path) -> None:
    assert "too long" in await refuse(store, around, await put(store, small_file(b"x" * 300)), InvalidInput)


async def test_a_name_that_restores_use_themselves_is_refused(store: Checkpointer, around: Path) -> None:
    root = await put(store, small_file(b".clew-0123456789abcdef.tmp"))
    assert "no snapshot may hold" in await refuse(store, around, root, InvalidInput)


async def chunk(store: Checkpointer, data: bytes) -> str:
    digest, packed = pack_blob(data, store.keys)
    await store.put_blobs({digest: packed})
    return digest


def chunked(name: bytes, size: int, chunks: int = 1, extents: tuple[tuple[int, int], ...] | None = None) -> FileNode:
    return FileNode(name, 0o644, TIME, size, chunks, b"", extents)


@pytest.mark.parametrize("size", [0, 1, 999, 1001, 99_000, 101_000, 2**40])
@pytest.mark.parametrize("count", [1, 3, 100])
async def test_a_file_of_another_length_than_its_chunks_is_refused(
    store: Checkpointer, around: Path, size: int, count: int
) -> None:
    leaves = (await chunk(store, b"x" * 1000),) * count
    root = await put(store, chunked(b"x", size, count), leaves=leaves)
    await refuse(store, around, root, Corrupt, InvalidInput)


@pytest.mark.parametrize("size", [0, 2, 10**9])
async def test_a_small_file_of_another_length_than_its_bytes_is_refused(
    store: Checkpointer, around: Path, size: int
) -> None:
    root = await put(store, FileNode(b"x", 0o644, TIME, size, 0, b"1"))
    await refuse(store, around, root, Corrupt)


@pytest.mark.parametrize(
    ("size", "extents"),
    [
        (1000, ((0, 2000),)),
        (5000, ((0, 999),)),
        (5000, ((0, 1001),)),
        (5000, ((500, 500), (0, 500))),
        (5000, ((0, 600), (500, 400))),
        (5000, ((-1, 1000),)),
        (5000, ((0, -1000), (0, 1000))),
        (5000, ()),
    ],
)
async def test_a_sparse_file_that_does_not_add_up_is_refused(
    store: Checkpointer, around: Path, size: int, extents: tuple[tuple[int, int], ...]
) -> None:
    root = await put(store, chunked(b"x", size, 1, extents), leaves=(await chunk(store, b"x" * 1000),))
    await refuse(store, around, root, Corrupt, InvalidInput)


async def test_a_file_over_the_limit_is_refused(store: Checkpointer, around: Path) -> None:
    root = await put(store, chunked(b"x", 1000), leaves=(await chunk(store, b"x" * 1000),))
    message = await refuse(store, around, root, InvalidInput, limits=Limits(file_bytes=999))
    assert "has 1000 bytes, the limit is 999" in message


async def test_more_or_fewer_digests_than_names_need_are_refused(store: Checkpointer, around: Path) -> None:
    one = await chunk(store, b"x" * 1000)
    for leaves in ((), (one, one)):
        await refuse(store, around, await put(store, chunked(b"x", 1000), leaves=leaves), Corrupt)
    await refuse(store, around, await put(store, node(b"x", "folder")), Corrupt)


async def test_a_missing_chunk_or_folder_is_told(store: Checkpointer, around: Path) -> None:
    gone = await chunk(store, b"x" * 1000)
    root = await put(store, chunked(b"x", 1000), leaves=(gone,))
    await store.delete_blobs([gone], untouched_for=timedelta(0))
    await refuse(store, around, root, MissingBlob)
    gone = await put(store, small_file(b"inner"))
    root = await put(store, node(b"x", "folder"), trees=(gone,))
    await store.delete_blobs([gone], untouched_for=timedelta(0))
    await refuse(store, around, root, MissingBlob)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_chunk_with_other_bytes_is_corrupt_and_changes_nothing(tmp_path: Path, around: Path, kind: str) -> None:
    async with make_store(kind, tmp_path) as store:
        digest = await chunk(store, os.urandom(1000))
        root = await put(store, chunked(b"file", 1000), leaves=(digest,))
        _damage(tmp_path, kind, digest)
        await refuse(store, around, root, Corrupt)


def _damage(folder: Path, kind: str, digest: str) -> None:
    if kind == "files":
        (blob,) = (folder / "store").rglob(digest)
        blob.write_bytes(blob.read_bytes()[:-1] + b"!")
        return
    with database(folder / "store.db") as db:
        db.execute(
            "UPDATE blob_data SET data = zeroblob(1001) WHERE id = (SELECT id FROM blobs WHERE digest = ?)",
            (bytes.fromhex(digest),),
        )


async def test_a_chunk_in_the_place_of_a_folder_is_refused_and_the_other_way_round(
    store: Checkpointer, around: Path
) -> None:
    plain, folder = await chunk(store, b"x" * 1000), await put(store)
    await refuse(store, around, plain, InvalidInput)
    await refuse(store, around, await put(store, node(b"x", "folder"), trees=(plain,)), InvalidInput)
    root = await put(store, chunked(b"x", 1000), leaves=(folder,))
    await refuse(store, around, root, Corrupt)


async def test_what_is_no_snapshot_at_all_is_refused(store: Checkpointer, around: Path) -> None:
    workspace = Workspace(around / "work", store)
    inner = await put(store, small_file(b"a"))
    for ref in ("", "../../etc/passwd", "Z" * 64, await chunk(store, b"text" * 100), inner):
        with pytest.raises(InvalidInput):
            await workspace.restore(ref)
    with pytest.raises(MissingBlob):
        await workspace.restore("0" * 64)


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", b"\x91\x01", b"\xdd\xff\xff\xff\xff", b"\x91\x94\xa3bad\xc4\x01x\x00\x00"]
)
async def test_a_folder_that_does_not_decode_is_told(store: Checkpointer, around: Path, value: bytes) -> None:
    digest, packed = pack_tree(value)
    await store.put_blobs({digest: packed})
    await refuse(store, around, digest, Corrupt, InvalidInput)


@pytest.mark.parametrize("change", [{"mode": -1}, {"mode": 0o170000}, {"mtime": -(2**63)}, {"size": -1}])
async def test_an_impossible_mode_time_or_size_is_refused(
    store: Checkpointer, around: Path, change: dict[str, int]
) -> None:
    root = await put(store, msgspec.structs.replace(small_file(b"x"), **change))
    await refuse(store, around, root, InvalidInput, Corrupt)


async def test_a_comparison_has_the_same_bounds(store: Checkpointer, around: Path) -> None:
    workspace = Workspace(around / "work", store, limits=Limits(names=10_000))
    deep = wide = await put(store)
    for _ in range(3000):
        deep = await put(store, node(b"d", "folder"), trees=(deep,))
    for _ in range(40):
        wide = await put(store, node(b"a", "folder"), node(b"b", "folder"), trees=(wide, wide))
    for root in (deep, wide, await put(store, node(b"..", "file"))):
        with pytest.raises(InvalidInput):
            await workspace.diff(None, await put_top(store, root))


POWERS = stat.S_ISUID | stat.S_ISGID


def modes(folder: Path) -> dict[str, int]:
    return {name: stat.S_IMODE((folder / name).stat().st_mode) for name in sorted(os.listdir(folder))}


async def test_setuid_and_setgid_bits_are_not_restored_unless_asked(around: Path, store: Checkpointer) -> None:
    workspace = Workspace(around / "mine", store)
    workspace.path.mkdir()
    for name, mode in (("user", 0o4755), ("group", 0o2755), ("both", 0o6711), ("plain", 0o755)):
        (workspace.path / name).write_text(name)
        (workspace.path / name).chmod(mode)
    (workspace.path / "shared").mkdir()
    (workspace.path / "shared").chmod(0o2770)
    as_it_was = modes(workspace.path)
    ref = await workspace.snapshot()
    await workspace.restore(ref, around / "copy")
    assert modes(around / "copy") == {name: mode & ~POWERS for name, mode in as_it_was.items()}
    again = await workspace.restore(ref, around / "copy")
    assert (again.written, again.touched) == (0, 0)
    await workspace.restore(ref, around / "trusted", setuid=True)
    assert modes(around / "trusted") == as_it_was


async def test_a_restore_takes_no_bit_from_what_stays_and_gives_none_to_new_content(
    around: Path, store: Checkpointer
) -> None:
    workspace = Workspace(around / "mine", store)
    workspace.path.mkdir()
    for name in ("same", "other", "older"):
        (workspace.path / name).write_text(name)
        (workspace.path / name).chmod(0o4755)
    (workspace.path / "shared").mkdir()
    (workspace.path / "shared").chmod(0o2770)
    ref = await workspace.snapshot()
    (workspace.path / "other").write_text("replaced by a program of the user's")
    (workspace.path / "other").chmod(0o4755)
    os.utime(workspace.path / "older", (1, 1))
    (workspace.path / "shared" / "new").touch()
    await workspace.restore(ref)
    assert modes(workspace.path) == {"older": 0o4755, "other": 0o755, "same": 0o4755, "shared": 0o2770}
