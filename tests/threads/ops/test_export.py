"""`.clew` files: a thread in one file, equal when it comes back; and files made to do harm, which do none."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

import msgspec
import pytest
import zstandard
from blake3 import blake3

from clew import Thread
from clew.checkpointers import Checkpointer, Head, MemoryCheckpointer
from clew.errors import Conflict, Corrupt, InvalidInput, MissingBlob, NewerFormat, ThreadNotFound, WrongKey
from clew.log import (
    Checkpoint,
    Described,
    FoldedState,
    Logged,
    MessageAdded,
    Rewound,
    StateSet,
    compression,
    encode_entries,
    encode_frame,
)
from clew.messages import assistant, user
from clew.threads.ops.archive import Manifest, TarWriter
from clew.threads.ops.export import export, import_
from clew.threads.ops.gc import below
from tests.threads.moving import KEY, OTHER, store_of, stores, with_key, write_long, write_rich
from tests.threads.ops.test_copy import assert_equal

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("kind", ["sqlite", "files", "memory"])
@pytest.mark.parametrize(
    ("key", "plain", "other"),
    [(None, False, None), (None, False, KEY), (KEY, False, KEY), (KEY, True, None), (KEY, True, OTHER)],
)
async def test_a_thread_that_was_exported_and_imported_is_equal(
    kind: str, key: str | None, plain: bool, other: str | None, tmp_path: Path
) -> None:
    source, target = store_of(kind, tmp_path / "a", key), store_of(kind, tmp_path / "b", other)
    async with stores(source, target):
        await write_rich(source)
        for thread_id in ("t", "t-fork"):
            path = tmp_path / f"{thread_id}.clew"
            exported = await export(source, thread_id, path, plain=plain)
            assert exported.bytes == path.stat().st_size
            assert exported.key == (source.keys.current if source.keys and not plain else None)
            assert path.stat().st_mode & 0o777 == 0o600
            assert (await import_(target, path)).thread_id == thread_id
            await assert_equal(source, target, thread_id)
            await import_(target, path, thread_id=f"{thread_id}-2")
            await assert_equal(source, target, thread_id, f"{thread_id}-2")
        assert sorted(path.name for path in tmp_path.glob("*.*")) == ["t-fork.clew", "t.clew"]


async def test_tar_lists_and_unpacks_it(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    head = await write_rich(store)
    steps: list[tuple[int, int | None]] = []
    told = cast(Callable[[int, int | None], None], lambda done, total: steps.append((done, total)))
    await export(store, "t", tmp_path / "t.clew", progress=told)
    listed = subprocess.run(["tar", "tf", "t.clew"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert listed.stderr == ""
    refs = sorted(await below(store, await store.refs("t")))
    frames = [f"frames/{number:08d}" for number in range(head.frames)]
    assert listed.stdout.split() == ["clew.json", *frames, *(f"blobs/{digest}" for digest in refs)]
    assert steps[-1] == (len(refs) + head.frames,) * 2
    subprocess.run(["tar", "xf", "t.clew"], cwd=tmp_path, check=True)
    assert [(tmp_path / name).read_bytes() for name in frames] == await store.read("t")
    said = msgspec.json.decode((tmp_path / "clew.json").read_bytes())
    assert (said["format"], said["thread_id"], said["frames"], said["key"]) == (1, "t", head.frames, None)
    assert said["head"]["title"] == "A trip"


async def test_one_that_tar_packed_again_is_read_too(tmp_path: Path) -> None:
    store, target = MemoryCheckpointer(), MemoryCheckpointer()
    await write_rich(store)
    await export(store, "t", tmp_path / "t.clew")
    subprocess.run("tar xf t.clew && tar cf u.clew clew.json frames/* blobs/*", shell=True, cwd=tmp_path, check=True)
    await import_(target, tmp_path / "u.clew")
    await assert_equal(store, target, "t")


async def test_a_title_longer_than_a_head_has_is_sound_and_travels_whole(tmp_path: Path) -> None:
    store, target, title = MemoryCheckpointer(), MemoryCheckpointer(), "long " * 2000
    async with Thread.open(store, "t") as thread:
        await thread.append(Described(title))
    assert (await Thread.verify(store, "t")).problems == ()
    await export(store, "t", tmp_path / "t.clew")
    await import_(target, tmp_path / "t.clew")
    assert (await Thread.load(target, "t")).title == title


async def test_a_sealed_thread_is_exported_without_its_key_and_imported_only_with_it(tmp_path: Path) -> None:
    store = store_of("memory", tmp_path, KEY)
    await write_rich(store)
    store = with_key(store, None)
    await export(store, "t", tmp_path / "t.clew")
    for key in (None, OTHER):
        target = store_of("memory", tmp_path, key)
        with pytest.raises(WrongKey):
            await import_(target, tmp_path / "t.clew")
        assert [head async for head in target.heads()] == []
    target = store_of("memory", tmp_path, [OTHER, KEY])
    await import_(target, tmp_path / "t.clew")
    target = with_key(target, OTHER)
    assert (await Thread.load(target, "t")).title == "A trip"
    with pytest.raises(WrongKey):
        await export(store, "t", tmp_path / "plain.clew", plain=True)
    assert not (tmp_path / "plain.clew").exists()


async def test_a_file_that_is_there_is_left_alone_unless_told(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    await write_rich(store)
    path = tmp_path / "t.clew"
    path.write_text("mine")
    with pytest.raises(InvalidInput, match="overwrite=True"):
        await export(store, "t", path)
    assert path.read_text() == "mine"
    await export(store, "t", path, overwrite=True)
    assert (await import_(MemoryCheckpointer(), path)).title == "A trip"
    with pytest.raises(InvalidInput, match="no such file or folder"):
        await export(store, "t", tmp_path / "nowhere" / "t.clew")
    with pytest.raises(InvalidInput, match="no such file"):
        await import_(store, tmp_path / "nowhere.clew")
    with pytest.raises(ThreadNotFound):
        await export(store, "none", tmp_path / "none.clew")
    assert os.listdir(tmp_path) == ["t.clew"]


async def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    await write_rich(store)
    store._space.blobs.clear()
    for plain in (False, True):
        with pytest.raises(MissingBlob):
            await export(store, "t", tmp_path / "t.clew", plain=plain)
    assert os.listdir(tmp_path) == []


async def test_file_objects_do_also_those_that_cannot_seek() -> None:
    store, target = MemoryCheckpointer(), MemoryCheckpointer()
    await write_rich(store)
    out = io.BytesIO()
    await export(store, "t", out)

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, offset: int, whence: int = 0) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    await import_(target, Pipe(out.getvalue()))
    await assert_equal(store, target, "t")


async def test_an_import_never_adds_to_a_thread_that_is_there(tmp_path: Path) -> None:
    store, target = MemoryCheckpointer(), MemoryCheckpointer()
    await write_rich(store)
    await export(store, "t", tmp_path / "1.clew")
    first = await import_(target, tmp_path / "1.clew")
    assert await import_(target, tmp_path / "1.clew") == first
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("more")))
    await export(store, "t", tmp_path / "2.clew")
    with pytest.raises(Conflict):
        await import_(target, tmp_path / "2.clew")
    assert await target.head("t") == first


async def test_an_export_holds_no_more_than_a_few_frames_in_memory(tmp_path: Path) -> None:
    store = store_of("files", tmp_path)
    async with stores(store):
        await write_long(store, "t", 400, 60_000)
        tracemalloc.start()
        await export(store, "t", tmp_path / "t.clew")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * 2**20
    assert (tmp_path / "t.clew").stat().st_size > 24_000_000


# Files that are damaged, or were made to do harm.


async def small_file() -> bytes:
    """A whole one, with a blob."""
    store = MemoryCheckpointer()
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Hello")), MessageAdded(assistant("x" * 70_000)))
        await thread.append(StateSet("n", 1))
    out = io.BytesIO()
    await export(store, "t", out)
    return out.getvalue()


async def refused(data: bytes, match: str | None = None, *, store: Checkpointer | None = None) -> Exception:
    """Import it; whatever comes of it is a clear error, and nothing is left in the store."""
    store = MemoryCheckpointer() if store is None else store
    with pytest.raises((Corrupt, InvalidInput), match=match) as caught:
        await import_(store, io.BytesIO(data))
    assert [head async for head in store.heads()] == []
    return caught.value


def members(data: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(member.name, cast(IO[bytes], tar.extractfile(member)).read()) for member in tar]


def packed(*items: tuple[str | tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    writer = TarWriter(out, NOW)
    for name, data in items:
        if isinstance(name, str):
            writer.add(name, data)
        else:
            writer._write(name.tobuf(tarfile.USTAR_FORMAT))
            writer._write(data + bytes(-len(data) % 512))
    writer.end()
    return out.getvalue()


def forged(log: list[list[Logged]], **changes: object) -> bytes:
    """A file whose every digest is right, by somebody who knows how to make one."""
    previous = bytes(16)
    made: list[tuple[str, bytes]] = []
    blobs: dict[str, bytes] = {}
    for number, entries in enumerate(log):
        frame = encode_frame([encode_entries(entries)], previous=previous)
        previous = frame.digest
        blobs |= frame.blobs
        made.append((f"frames/{number:08d}", frame.data))
    return assembled(made, blobs, **changes)


def assembled(members: list[tuple[str, bytes]], blobs: dict[str, bytes], **changes: object) -> bytes:
    head = Head(
        thread_id="t",
        frames=len(members),
        status="interrupted",
        digest=members[-1][1][-16:].hex(),
        created_at=NOW,
        updated_at=NOW,
    )
    head = msgspec.structs.replace(head, **changes)
    said = Manifest(format=1, thread_id="t", frames=len(members), blobs=len(blobs), key=None, created=NOW, head=head)
    return packed(("clew.json", said.encoded()), *members, *((f"blobs/{name}", data) for name, data in blobs.items()))


@pytest.mark.attack
async def test_one_cut_short_anywhere_is_refused() -> None:
    data = await small_file()
    for length in range(0, len(data), 97):
        await refused(data[:length])
    await refused(data[:-1])


@pytest.mark.attack
async def test_one_with_a_changed_byte_anywhere_is_refused() -> None:
    data = await small_file()
    dice = random.Random("flips")
    headers = header_places(data)
    for place in {*range(0, len(data), 11), *range(1024)}:
        if any(start + 154 <= place < start + 156 for start in headers):
            continue  # what follows a header's checksum is read by no tar
        changed = bytearray(data)
        changed[place] ^= 1 << dice.randrange(8)
        await refused(bytes(changed))


def header_places(data: bytes) -> list[int]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [member.offset for member in tar]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "frames/../../evil", "frames/00000001/x", "evil", "blobs/ab"])
@pytest.mark.attack
async def test_a_member_with_another_name_is_refused_by_name(name: str) -> None:
    items = members(await small_file())
    for place in (0, 1, 2, len(items) - 1, len(items)):
        await refused(packed(*items[:place], (name, b"x"), *items[place:]), "clew.json" if place == 0 else name)
    renamed = [(name, data) if number == 1 else (old, data) for number, (old, data) in enumerate(items)]
    await refused(packed(*renamed), name)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
@pytest.mark.attack
async def test_a_member_that_is_no_plain_file_is_refused(kind: bytes) -> None:
    items = members(await small_file())
    member = tarfile.TarInfo("frames/00000000")
    member.type, member.linkname = kind, "/etc/passwd"
    await refused(packed(items[0], (member, b""), *items[1:]), "not a regular file")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE, b"?"])
@pytest.mark.attack
async def test_what_else_tar_can_say_is_refused(kind: bytes) -> None:
    items = members(await small_file())
    member = tarfile.TarInfo("frames/00000000")
    member.type, member.size = kind, 2**33 - 1
    await refused(packed(items[0], (member, b""), *items[1:]), "not a regular file")


@pytest.mark.parametrize("size", [2**20 + 1, 2**32, 2**33 - 1])
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.attack
async def test_a_size_that_is_made_up_takes_no_memory(size: int, place: int) -> None:
    items: list[tuple[str | tarfile.TarInfo, bytes]] = [*members(await small_file())]
    name, data = items[place]
    member = tarfile.TarInfo(str(name))
    member.size = size
    items[place] = member, data
    tracemalloc.start()
    await refused(packed(*items), str(name))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 2**20


@pytest.mark.attack
async def test_a_negative_size_is_refused() -> None:
    items = members(await small_file())
    header = bytearray(tarfile.TarInfo("frames/00000000").tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = b"\xff" * 12
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    await refused(packed(items[0])[:-1024] + bytes(header) + packed(*items[1:]), "frames/00000000")


@pytest.mark.attack
async def test_a_frame_over_the_limit_is_refused() -> None:
    items = members(await small_file())
    await refused(packed(items[0], ("frames/00000000", bytes(4 * 2**20 + 1))), "the limit is")


@pytest.mark.attack
async def test_a_member_that_is_there_twice_or_not_at_all_is_refused_by_name() -> None:
    items = members(await small_file())
    for number, item in enumerate(items):
        with_twice = packed(*items[: number + 1], item, *items[number + 1 :])
        await refused(with_twice, item[0])
        without = packed(*items[:number], *items[number + 1 :])
        await refused(without, "clew.json" if number == 0 else item[0] if number < len(items) - 1 else "blobs/")
    blob = items[-1]
    await refused(packed(*items, ("blobs/" + "0" * 64, blob[1])), "blobs/0000")


@pytest.mark.attack
async def test_a_blob_that_the_log_needs_and_the_file_has_not_is_named() -> None:
    frame = encode_frame([encode_entries([StateSet("k", os.urandom(70_000))])], previous=bytes(16))
    data = assembled([("frames/00000000", frame.data)], {})
    await refused(data, f"blobs/{next(iter(frame.blobs))}.*missing")


@pytest.mark.attack
async def test_bytes_after_the_end_are_refused_and_zeros_are_not() -> None:
    data = await small_file()
    await refused(data + b"more", "after its end")
    assert (await import_(MemoryCheckpointer(), io.BytesIO(data + bytes(10_240)))).thread_id == "t"


@pytest.mark.attack
async def test_a_blob_that_unpacks_to_far_more_than_it_is_takes_no_memory() -> None:
    bomb = b"\1" + zstandard.ZstdCompressor(level=19).compress(bytes(200 * 2**20))
    digest = blake3(bomb).digest()
    body = [1, [["state", "k", msgspec.msgpack.Ext(2, digest), "thread"]]]
    header = bytes([1, 2]) + os.urandom(12) + bytes(16)
    frame = header + msgspec.msgpack.encode(body)
    frame += blake3(frame).digest(16)
    data = assembled([("frames/00000000", frame)], {digest.hex(): bomb})
    tracemalloc.start()
    await refused(data, "unpacks to")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < max(50 * len(data), 2**20)


def crafted(body: bytes, number: int, previous: bytes) -> bytes:
    """A frame as short as it can be: nothing is padded."""
    compressor = zstandard.ZstdCompressor(level=19, dict_data=compression.framed._load(), write_dict_id=False)
    data = bytes([1, 1]) + number.to_bytes(12, "big") + previous + compressor.compress(body)
    return data + blake3(data).digest(16)


def values(value: bytes, count: int) -> list[bytes]:
    """As many bodies, each with another key."""
    return [b"\x92\0\x91\x93\xa5state\xa4%04d" % number + value for number in range(count)]


_ASSISTANT, _USER = b"\x92\xa7message\x92\xa9assistant\x90", b"\x92\xa7message\x92\xa4user\x90"
_REWINDS = [_ASSISTANT + _USER + b"\x93\xa7rewound\xc0\xcd" + kept.to_bytes(2, "big") for kept in range(1, 2049)]
HEAVY: dict[str, list[bytes]] = {
    "nils": values(b"\xdc\xf0\0" + b"\xc0" * 0xF000, 100),
    "empty lists": values(b"\xdc\xf0\0" + b"\x90" * 0xF000, 20),
    "empty maps": values(b"\xdc\xf0\0" + b"\x80" * 0xF000, 20),
    "lists of nil": values(b"\xdc\x70\0" + b"\x91\xc0" * 0x7000, 40),
    "words": values(b"\xdc\x50\0" + b"\xa2ab" * 0x5000, 40),
    "text": values(b"\xda\xf0\0" + b"a" * 0xF000, 400),
    "text with an emoji": values(b"\xda\xf0\4" + b"a" * 0xF000 + "😀".encode(), 150),
    "messages": [b"\x92\0\xdc\x0c\0" + _ASSISTANT * 0xC00] * 20,
    "states": [b"\x92\0\xdc\x10\0" + b"\x92\xa6folded\x90" * 0x1000] * 20,
    "entries of no kind": [b"\x92\0\xdc\xf0\0" + b"\xc0" * 0xF000] * 20,
    "a view in many pieces": [b"\x92\0\xdc\x0c\0" + b"".join(_REWINDS[at : at + 1024]) for at in (0, 1024)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.attack
async def test_many_small_frames_that_decode_to_much_are_refused_in_time(name: str, key: str | None) -> None:
    previous, made = bytes(16), list[tuple[str, bytes]]()
    for number, body in enumerate(HEAVY[name]):
        assert len(body) <= 2**16
        frame = crafted(body, number, previous)
        previous = frame[-16:]
        made.append((f"frames/{number:08d}", frame))
    turns = sum(body.count(_ASSISTANT) for body in HEAVY[name])
    data = assembled(made, {}, turns=turns)
    store = store_of("memory", Path(), key)
    await import_(MemoryCheckpointer(), io.BytesIO(await small_file()))
    tracemalloc.start()
    error = await refused(data, store=store)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 50 * len(data) + 16 * 2**20, f"{peak / len(data)} times its size"
    assert "trust=True" in str(error) or name == "states"


async def test_what_repeats_itself_a_lot_is_imported_if_told_to_trust_it(tmp_path: Path) -> None:
    store, target = MemoryCheckpointer(), MemoryCheckpointer()
    async with Thread.open(store, "t") as thread:
        for number in range(60):
            await thread.append(StateSet(str(number), [f"line {number}"] * 8000))
    await export(store, "t", tmp_path / "t.clew")
    with pytest.raises(InvalidInput, match=r"member 'frames/\d+': .* import it with trust=True"):
        await import_(target, tmp_path / "t.clew")
    assert await target.head("t") is None
    await import_(target, tmp_path / "t.clew", trust=True)
    await assert_equal(store, target, "t")


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": 7},
        {"title": "Not what it says"},
        {"status": "done"},
        {"status": "running"},
        {"cost_usd": 5.0},
        {"tags": {"a": "b"}},
        {"tags": {"clew:part": "x"}},
        {"parent": ("x", 1)},
        {"frames": 2},
        {"thread_id": "u"},
        {"snapshot": 0},
        {"snapshot": 5},
        {"digest": "00" * 16},
        {"input_tokens": 10**30},
        {"created_at": datetime(2026, 1, 1)},
    ],
)
@pytest.mark.attack
async def test_a_head_that_contradicts_the_log_is_refused(changes: dict[str, object]) -> None:
    entries: list[Logged] = [MessageAdded(user("Hello"))]
    assert (await import_(MemoryCheckpointer(), io.BytesIO(forged([entries], title="Hello")))).frames == 1
    await refused(forged([entries], **changes))


@pytest.mark.parametrize(
    "entry",
    [
        FoldedState(Checkpoint(open_message=999)),
        FoldedState(Checkpoint(marks=())),
        FoldedState(Checkpoint(view=((0, 10**12),))),
        FoldedState(Checkpoint(history=(user("a"),), view=((0, 1),) * 5)),
        FoldedState(Checkpoint(view=((-5, 0),))),
        Rewound(turn=-1),
        Rewound(messages=-3),
    ],
)
@pytest.mark.attack
async def test_entries_that_no_writer_makes_are_refused(entry: Logged) -> None:
    await refused(forged([[MessageAdded(user("Hello"))], [entry, Rewound(messages=1)]], snapshot=-1), "frames/00000001")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, [["message", 5]]]),
        msgspec.msgpack.encode([1, [["message"]]]),
        msgspec.msgpack.encode([1, [["message", ["user", [["text", "a"]], 1, 2], "x"]]]),
        msgspec.msgpack.encode([-5, [["message", ["user", [["text", "a"]]]]]]),
        msgspec.msgpack.encode([2**64 - 1, 5]),
        b"\x92\x01\x91" + b"\x91" * 100_000 + b"\xc0",
        b"\x92\x01\x91\x93\xa5state\xa1k" + b"\x91" * 5000 + b"\xc0",
    ],
)
@pytest.mark.attack
async def test_a_body_that_is_no_log_is_refused(body: bytes) -> None:
    frame = bytes([1, 0]) + os.urandom(12) + bytes(16) + body
    frame += blake3(frame).digest(16)
    for key in (None, KEY):
        await refused(assembled([("frames/00000000", frame)], {}), store=store_of("memory", Path(), key))


async def test_a_newer_format_is_told_apart_from_damage() -> None:
    items = members(await small_file())
    newer = items[0][1].replace(b'"format":1', b'"format":9')
    with pytest.raises(NewerFormat, match="format version 9"):
        await import_(MemoryCheckpointer(), io.BytesIO(packed(("clew.json", newer), *items[1:])))


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{}", b"null", b"[" * 100_000, b"\xff\xfe", b'{"format":1}', b'{"format":"x"}', b'{"format":1e999}'],
)
@pytest.mark.attack
async def test_a_manifest_that_is_none_is_refused(manifest: bytes) -> None:
    await refused(packed(("clew.json", manifest)), "clew.json")


@pytest.mark.attack
async def test_other_files_are_refused() -> None:
    for data in (b"", b"PK\3\4" + bytes(2000), b"\x1f\x8b" + bytes(600), bytes(1024), os.urandom(5000)):
        await refused(data)
