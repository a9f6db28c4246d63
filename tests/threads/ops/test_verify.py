"""verify names what is wrong and what is still readable, and is never what fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, FileCheckpointer, MemoryCheckpointer, SQLiteCheckpointer
from clew.errors import ClewError, ThreadNotFound, Unavailable
from clew.log import Checkpoint, FoldedState, MessageAdded, Rewound, StateSet, fold
from clew.log.blobs import pack_blob, pack_tree, tree_refs, unpack_blob
from clew.messages import assistant, user
from clew.threads.ops.scan import Problem
from clew.threads.ops.verify import Verdict, verify, verify_all
from tests.sampling import FULL, dice
from tests.sqlite_files import database
from tests.stores import store_fixture
from tests.threads.keeping import turn, with_folded_state, with_turns, write_log

pytestmark = pytest.mark.anyio

LARGE = "a long document. " * 8_000
KEY, OTHER = "00" * 32, "11" * 32


store = store_fixture()


async def test_sound_threads_are_found_sound(store: Checkpointer) -> None:
    await with_turns(store, "plain", 3, MessageAdded(user(LARGE)), MessageAdded(assistant("read")))
    await with_folded_state(store, "folded")
    async with Thread.open(store, "plain") as thread:
        await thread.fork("fork", at_turn=2)
        await thread.rewind(to_turn=1)
        running = await verify(store, "plain")
        assert (running.sound, running.problems) == (True, ())
    for thread_id in ("plain", "folded", "fork"):
        verdict = await verify(store, thread_id)
        assert verdict.problems == ()
        assert (verdict.sound, verdict.key_missing) == (True, False)
        assert verdict.readable == verdict.frames > 0
    done: list[tuple[int, int | None]] = []
    verdicts = [verdict async for verdict in verify_all(store, progress=lambda *step: done.append(step))]
    assert {verdict.thread_id for verdict in verdicts if verdict.sound} == {"plain", "folded", "fork"}
    assert done == [(1, 3), (2, 3), (3, 3)]


async def test_a_copy_of_a_thread_whose_process_died_is_sound(store: Checkpointer) -> None:
    """The log says running to its last frame, and the copy's head, which has no lease, that it is interrupted."""
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Begin.")))
        thread.abandon()
    async with MemoryCheckpointer() as copies:
        await Thread.copy(store, copies, "t")
        copied = await copies.head("t")
        assert copied is not None
        assert (copied.status, copied.lease) == ("interrupted", None)
        assert (await verify(copies, "t")).problems == ()


async def test_a_thread_that_is_not_there_is_not_found(store: Checkpointer) -> None:
    with pytest.raises(ThreadNotFound):
        await verify(store, "t")


async def test_a_store_that_does_not_answer_is_not_taken_for_damage() -> None:
    class Silent(MemoryCheckpointer):
        async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
            raise Unavailable("no answer")

    store = Silent()
    await write_log(store, "t", [turn(1)])
    with pytest.raises(Unavailable):
        await verify(store, "t")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "done"),
        ("agent", "bob"),
        ("model", "m-2"),
        ("title", "another"),
        ("turns", 3),
        ("input_tokens", 1),
        ("output_tokens", 1),
        ("cost_usd", 0.020000000000000004),
        ("cost_usd", None),
        ("parent", ("p", 1)),
        ("tags", {}),
        ("snapshot", 1),
    ],
)
async def test_a_head_that_says_something_else_than_the_log_is_named(
    field: str, value: Any, store: Checkpointer
) -> None:
    await with_turns(store, "t", 2)
    head = await store.head("t")
    assert head is not None
    changed = msgspec.structs.replace(head, **{field: value})
    await store.append("t", [], at=head.frames, head=changed)
    verdict = await verify(store, "t")
    assert not verdict.sound
    assert verdict.readable == verdict.frames
    assert [str(problem).split(" does not")[0] for problem in verdict.problems] == [f"head: its {field}"]


async def test_a_log_that_ends_elsewhere_than_the_head_says_is_named() -> None:
    store = MemoryCheckpointer()
    await with_turns(store, "t", 2)
    log = store._space.logs["t"]
    last = log.frames.pop()
    assert str((await verify(store, "t")).problems[0]).startswith(f"frame {len(log.frames)}: it is missing")
    log.frames.append(last)
    assert log.head is not None
    log.head = msgspec.structs.replace(log.head, digest="00" * 16)
    assert [str(problem) for problem in (await verify(store, "t")).problems] == [
        f"frame {len(log.frames) - 1}: it is not the frame that the head names as the last"
    ]


async def test_frames_that_do_not_follow_each_other_are_named() -> None:
    store = MemoryCheckpointer()
    await with_turns(store, "t", 3)
    frames = store._space.logs["t"].frames
    frames[2], frames[3] = frames[3], frames[2]
    verdict = await verify(store, "t")
    assert [problem.frame for problem in verdict.problems] == [2, 3, 4]
    assert verdict.readable == 2


async def test_a_folded_state_that_differs_from_what_precedes_it_is_named(store: Checkpointer) -> None:
    state = fold(turn(1))
    wrong = msgspec.structs.replace(state, history=state.history[:2])
    for name, folded in (("right", state), ("wrong", wrong)):
        fields = {"turns": 1, "input_tokens": 100, "output_tokens": 10, "cost_usd": 0.01, "title": "question 1"}
        await write_log(store, name, [turn(1), [FoldedState(folded)]], snapshot=1, **fields)
    assert (await verify(store, "right")).problems == ()
    assert [str(problem) for problem in (await verify(store, "wrong")).problems] == [
        "frame 1: it holds a folded state that differs from the fold of the log before it"
    ]


async def test_a_missing_blob_is_named_with_the_frame_that_needs_it(store: Checkpointer) -> None:
    await with_turns(store, "t", 1, MessageAdded(user(LARGE)))
    (digest,) = await store.refs("t")
    await store.delete_blobs([digest], untouched_for=timedelta(0))
    verdict = await verify(store, "t")
    assert {(problem.frame, problem.blob) for problem in verdict.problems} == {(3, digest)}
    assert verdict.readable == 3


async def test_a_blob_that_the_refs_do_not_name_is_named() -> None:
    store = MemoryCheckpointer()
    await with_turns(store, "t", 1, MessageAdded(user(LARGE)))
    (digest,) = await store.refs("t")
    store._space.logs["t"].refs.clear()
    (problem,) = (await verify(store, "t")).problems
    assert (problem.frame, problem.blob) == (3, digest)
    assert "refs do not name it" in problem.what


async def test_what_is_missing_below_a_tree_is_named(store: Checkpointer) -> None:
    leaf, inner, outer = _tree()
    await store.put_blobs(dict([leaf, inner, outer]))
    await with_turns(store, "t", 1)
    head = await store.head("t")
    assert head is not None
    await store.append("t", [], at=head.frames, head=head, refs=[outer[0]])
    assert (await verify(store, "t")).sound
    await store.delete_blobs([leaf[0]], untouched_for=timedelta(0))
    assert (await verify(store, "t")).problems == (Problem("it is not in the store", blob=leaf[0]),)


def _tree() -> list[tuple[str, bytes]]:
    leaf = pack_blob(b"a file")
    inner = pack_tree(b"a folder", leaves=[leaf[0]])
    return [leaf, inner, pack_tree(b"the workspace", [inner[0]])]


async def test_a_tree_can_be_followed_without_its_key() -> None:
    keys = open_checkpointer("memory://", key=KEY).keys
    leaf = pack_blob(b"a file", keys)
    digest, packed = pack_tree(b"a folder", leaves=[leaf[0], leaf[0]], keys=keys)
    assert tree_refs(packed) == ([], [leaf[0], leaf[0]])
    assert unpack_blob(digest, packed, keys) == b"a folder"
    assert tree_refs(leaf[1]) == ([], [])
    assert unpack_blob(*pack_tree(b"", [])) == b""
    for size in range(len(packed)):
        with pytest.raises(ClewError):
            unpack_blob(digest, packed[:size], keys)


@pytest.mark.parametrize("key", [None, OTHER])
async def test_without_its_key_a_thread_is_checked_as_far_as_that_goes(key: str | None, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url, key=KEY) as store:
        await with_turns(store, "t", 2, MessageAdded(user(LARGE)))
        assert (await verify(store, "t")).problems == ()
    async with open_checkpointer(url, key=key) as store:
        verdict = await verify(store, "t")
        assert verdict.key_missing
        *of_head, frame, blob = verdict.problems
        assert len(of_head) == (key is not None), "without any key, heads are not checked"
        assert "6 frames from this one on cannot be opened without key" in str(frame)
        assert "1 blob like this one cannot be opened without key" in str(blob)
    _alter(tmp_path / "c.db", "UPDATE frames SET data = zeroblob(100) WHERE number = 2")
    async with open_checkpointer(url, key=key) as store:
        assert 2 in {problem.frame for problem in (await verify(store, "t")).problems}


async def test_a_frame_that_was_lost_leaves_the_others_readable(tmp_path: Path) -> None:
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        await with_turns(store, "t", 3)
    _alter(tmp_path / "c.db", "DELETE FROM frames WHERE number = 3")
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        verdict = await verify(store, "t")
        assert [problem.frame for problem in verdict.problems] == [3]
        assert verdict.readable == 3


async def test_damage_after_a_folded_state_and_before_it_are_told_apart(tmp_path: Path) -> None:
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        snapshot = await with_folded_state(store, "t")
    with database(
        tmp_path / "c.db"
    ) as db:  # the log is long enough for a pack: the lengths of its frames, then the frames
        row: Any = db.execute("SELECT number, count, data FROM packs").fetchone()
        first, count, data = row
        assert first == 0
        place = 4 * count + int.from_bytes(data[:4], "little") + 40
        db.execute("UPDATE packs SET data = ?", (data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],))
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        verdict = await verify(store, "t")
        assert [problem.frame for problem in verdict.problems] == [1]
        assert verdict.readable == 1 < snapshot
        assert (await Thread.load(store, "t")).turns == 2


async def test_threads_that_cannot_be_listed_are_reported_too(tmp_path: Path) -> None:
    async with FileCheckpointer(tmp_path) as store:
        await with_turns(store, "good", 1)
        await with_turns(store, "bad", 1)
    (path,) = [path for path in tmp_path.rglob("*") if path.name == _key("bad")]
    _flip(path, path.stat().st_size - 1)
    async with FileCheckpointer(tmp_path) as store:
        verdicts = [verdict async for verdict in verify_all(store)]
        assert [(verdict.thread_id, verdict.sound) for verdict in verdicts] == [("good", True), ("", False)]
        assert str(path) in verdicts[1].problems[0].what
        assert {problem.frame for problem in (await verify(store, "bad")).problems} == {None}


def _key(thread_id: str) -> str:
    from clew.checkpointers.heads import thread_key

    return thread_key(thread_id)


def _alter(path: Path, statement: str, *values: object) -> None:
    with database(path) as db:
        db.execute(statement, values)


def _flip(path: Path, place: int, bits: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bits]))


# Every byte of a stored thread, flipped one at a time.


async def _victim(store: Checkpointer) -> Checkpoint:
    """A thread with everything a log can have; the value in the blob is short to read and still spills."""
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1), StateSet("k", [1, 2]))
        await thread.append(MessageAdded(user("x" * 65_536)), MessageAdded(assistant("read")))
        assert thread._writer is not None
        await thread._writer.renew()
        await thread.append(Rewound(turn=1))
        await thread.append(*turn(2))
    return await Thread.load(store, "t")


def _sample(places: Iterable[int], count: int, seed: str) -> list[int]:
    every = list(places)
    return every if FULL or len(every) <= count else sorted(dice(seed).sample(every, count))


async def _examine(store: Checkpointer, right: Checkpoint) -> tuple[Verdict, bool]:
    """What verify says, and whether the thread still loads. What it loads as is right, or it does not."""
    try:
        loaded: Checkpoint | None = await Thread.load(store, "t")
    except ClewError:
        loaded = None
    assert loaded is None or loaded == right
    return await verify(store, "t"), loaded is not None


@pytest.mark.crash
async def test_every_flipped_byte_of_a_thread_in_files_is_named_and_none_is_believed(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    async with FileCheckpointer(whole) as store:
        right = await _victim(store)
        frames = (await verify(store, "t")).frames
    files = [path for path in whole.rglob("*") if len(path.name) == 64 and path.is_file()]
    assert len(files) == 2
    for path in files:
        for place in _sample(range(path.stat().st_size), 150, f"files {path.parent.parent.name}"):
            bits = 1 << place % 8
            _flip(path, place, bits)
            async with FileCheckpointer(whole) as store:
                verdict, loads = await _examine(store, right)
                assert not verdict.sound, f"byte {place} of {path}"
                assert not loads
                if path.parent.parent.name == "blobs":
                    assert {problem.blob for problem in verdict.problems} == {path.name}
                else:
                    assert all(problem.frame is None or problem.frame < frames for problem in verdict.problems)
            _flip(path, place, bits)
    async with FileCheckpointer(whole) as store:
        assert (await verify(store, "t")).problems == ()


def _cells(path: Path) -> Iterator[tuple[str, str, int, bytes]]:
    with database(path) as db:
        for table, column in (("frames", "data"), ("heads", "head"), ("blob_data", "data")):
            rows: list[Any] = db.execute(f"SELECT rowid, {column} FROM {table} ORDER BY rowid").fetchall()
            for row, data in rows:
                yield table, column, row, data


@pytest.mark.crash
async def test_every_flipped_byte_of_a_thread_in_sqlite_is_named_and_none_is_believed(tmp_path: Path) -> None:
    whole = tmp_path / "c.db"
    async with SQLiteCheckpointer(whole) as store:
        right = await _victim(store)
    numbers = -1
    for table, column, row, data in list(_cells(whole)):
        numbers += table == "frames"
        places = range(len(data))
        for place in _sample(places, 120 if table == "heads" else 12, f"sqlite {table} {row}"):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            statement = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
            _alter(whole, statement, bytes(changed), row)
            async with SQLiteCheckpointer(whole) as store:
                verdict, loads = await _examine(store, right)
                if table == "frames":
                    assert numbers in {problem.frame for problem in verdict.problems}
                    assert not loads
                elif table == "blob_data":
                    assert all(problem.blob for problem in verdict.problems)
                    assert not verdict.sound
                    assert not loads
                else:
                    assert not verdict.sound, f"byte {place} of the head"
                    assert not loads
            _alter(whole, statement, data, row)


@pytest.mark.crash
async def test_a_flipped_byte_anywhere_in_a_sqlite_file_is_an_error_or_does_no_harm(tmp_path: Path) -> None:
    whole = tmp_path / "c.db"
    async with SQLiteCheckpointer(whole) as store:
        right = await _victim(store)
    content = whole.read_bytes()
    places = [place for place in range(len(content)) if content[place] or place % 64 == 0]
    chance = dice("anywhere")
    wanted = places if FULL else [*range(100), *chance.sample(places, 200)]
    for number, place in enumerate(wanted):
        copy = tmp_path / str(number) / "c.db"
        copy.parent.mkdir()
        copy.write_bytes(content)
        _flip(copy, place, 1 << chance.randrange(8))
        async with SQLiteCheckpointer(copy) as store:
            with suppress(ClewError):
                assert await Thread.load(store, "t") == right
            with suppress(ClewError):
                await verify(store, "t")
        shutil.rmtree(copy.parent)
