"""A store with a key: nobody without the key can add to a thread, cut it off, replace it or take it back unnoticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer, SealedCheckpointer
from clew.checkpointers.heads import UNSEALED, QueuePlace
from clew.checkpointers.marks import Marks
from clew.checkpointers.sealed import without_keys
from clew.errors import Corrupt, InvalidInput, NotSealed, Unavailable, WrongKey
from clew.log import DIGEST, MessageAdded, StateSet, encode_entries, encode_frame
from clew.log.keys import Keyring
from clew.messages import assistant, user
from clew.server.inspector.entries_page import read_stretch
from clew.testing.contract.builders import a_head, listed, minute
from clew.threads.appends import append_frames
from clew.threads.ops.rekey import rekey
from clew.threads.ops.verify import verify, verify_all
from clew.threads.reader import state_after
from tests.server.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.attack]

KEY, OTHER = "00" * 32, "11" * 32
URLS = ["memory://", "sqlite:///{}/c.db", "file://{}/threads"]


@pytest.fixture(params=[*URLS, "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of each kind, and one behind `clew serve`, which has no key: the client has."""
    if request.param != "http":
        yield request.param.format(tmp_path)
        return
    with serving(f"sqlite:///{tmp_path}/served.db") as running:
        yield running.url


async def fill(store: Checkpointer, thread_id: str = "t", turns: int = 3) -> Head:
    """Add turns to a thread, and return its head as it is stored, with its seal."""
    async with Thread.open(store, thread_id) as thread:
        for number in range(turns):
            await thread.append(MessageAdded(user(f"{number}?")), MessageAdded(assistant(f"{number}!")))
    return await head_of(without_keys(store), thread_id)


async def head_of(store: Checkpointer, thread_id: str = "t") -> Head:
    head = await store.head(thread_id)
    assert head is not None
    return head


async def rewrite(store: Checkpointer, head: Head, frames: list[bytes], **changes: Any) -> None:
    """What somebody does who can write to the store and has no key: replace a thread by these frames and a head that
    fits them."""
    raw = without_keys(store)
    await raw.delete(head.thread_id)
    fitting: dict[str, Any] = {"frames": len(frames), "digest": frames[-1][DIGEST].hex(), "snapshot": -1}
    await raw.append(head.thread_id, frames, at=0, head=msgspec.structs.replace(head, **(fitting | changes)))


async def test_a_plain_frame_that_somebody_without_the_key_appends_is_refused(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        head = await fill(store)
        forged = encode_frame([encode_entries([StateSet("k", "forged")])], previous=bytes.fromhex(head.digest))
        position = {"frames": head.frames + 1, "digest": forged.digest.hex()}
        raw = without_keys(store)
        await raw.append("t", [forged.data], at=head.frames, head=msgspec.structs.replace(head, **position))
        with pytest.raises(Corrupt, match="thread 't': its head was changed by somebody who does not have the key"):
            await Thread.load(store, "t")
        assert not (await verify(store, "t")).sound
        genuine = msgspec.structs.replace(head, **position)
        await store.append("t", [], at=head.frames + 1, head=genuine)  # even under a head that somebody has sealed
        with pytest.raises(NotSealed, match=f"thread 't', frame {head.frames} is not sealed"):
            await Thread.load(store, "t")
        verdict = await verify(store, "t")
        assert [problem.frame for problem in verdict.problems][:1] == [head.frames]


async def test_dropping_the_last_frames_is_noticed(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        head = await fill(store)
        frames = await store.read("t")
        await rewrite(store, head, frames[:-1])
        for reading in (store.head("t"), Thread.load(store, "t"), Thread.open(store, "t").__aenter__()):
            with pytest.raises(Corrupt, match="thread 't': its head was changed"):
                await reading
        with pytest.raises(Corrupt, match="thread 't'"):
            _ = [head async for head in store.heads()]
        assert not (await verify(store, "t")).sound
        assert [verdict.sound async for verdict in verify_all(store)] == [False]


async def test_another_thread_of_the_same_store_does_not_pass_for_this_one(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        await fill(store)
        other = await fill(store, "other", 2)
        frames = await store.read("other")
        await rewrite(store, msgspec.structs.replace(other, thread_id="t"), frames)
        with pytest.raises(Corrupt, match="thread 't'"):
            await Thread.load(store, "t")


@pytest.mark.parametrize(
    "field", ["log_id", "status", "lease", "snapshot", "cost_usd", "tags", "parent", "due", "queue"]
)
async def test_every_field_of_a_head_is_sealed(field: str) -> None:
    new = {
        "log_id": "x",
        "status": "failed",
        "lease": None,
        "snapshot": 0,
        "cost_usd": 9.0,
        "tags": {"a": "b"},
        "due": minute(0),
        "queue": QueuePlace(queued_at=minute(0)),
    }
    async with open_checkpointer("memory://", key=KEY) as store, Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("hello")))
        frames = await store.read("t")
        await rewrite(store, await head_of(without_keys(store)), frames, **{field: new.get(field, ("p", 1))})
        with pytest.raises(Corrupt, match="'t'"):
            await store.head("t")
        await store.delete("t")
        thread.abandon() if hasattr(thread, "abandon") else None


async def test_the_queue_of_a_store_with_a_key_is_listed_in_its_order(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        for number in (2, 0, 1):
            head = a_head(f"t{number}", due=minute(number), queue=QueuePlace(queued_at=minute(0)))
            await store.append(head.thread_id, [b"frame"], at=0, head=head)
        await store.append("done", [b"frame"], at=0, head=a_head("done"))
        assert await listed(store, order="due") == ["t0", "t1", "t2"]
        assert await listed(store, order="due", limit=1) == ["t0"]


async def test_an_older_head_with_its_frames_is_noticed_only_by_a_mark_outside(url: str, tmp_path: Path) -> None:
    if url == "memory://":
        return  # no other process can open it
    marks = Marks(tmp_path / "marks")
    async with open_checkpointer(url, key=KEY) as store:
        marked = SealedCheckpointer(without_keys(store), Keyring(KEY), marks=marks)
        old, frames = await fill(marked), await store.read("t")
        await fill(marked)
        assert len(await store.read("t")) > len(frames)
        raw = without_keys(store)
        await raw.delete("t")
        await raw.append("t", frames, at=0, head=old)
        assert (await Thread.load(store, "t")).turns == 3
        with pytest.raises(Corrupt, match="thread 't' is older than this machine has seen it before"):
            await marked.head("t")
        with pytest.raises(Corrupt, match="older"):
            _ = [head async for head in marked.heads(HeadQuery(limit=1))]
        [mark] = (tmp_path / "marks").rglob("*.mark")
        mark.write_bytes(b"?")
        with pytest.raises(Corrupt, match=r"mark .* is damaged"):
            await marked.head("t")
        mark.unlink()
        assert (await head_of(marked)).frames == old.frames


def test_a_slow_process_does_not_put_back_a_mark_that_another_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = Marks(tmp_path), Marks(tmp_path)
    assert slow.see("store", head_after(5))
    moving = threading.Thread(target=other.see, args=("store", head_after(10)))
    write = slow._write

    def write_late(*mark: Any) -> None:
        moving.start()
        moving.join(0.5)
        write(*mark)

    monkeypatch.setattr(slow, "_write", write_late)
    assert slow.see("store", head_after(6))
    moving.join()
    assert not other.see("store", head_after(6))


def head_after(frames: int) -> Head:
    return a_head("t", frames=frames, digest=f"{frames:032x}")


async def test_a_log_that_was_replaced_does_not_come_back_unnoticed(tmp_path: Path) -> None:
    async with open_checkpointer(URLS[1].format(tmp_path), key=KEY, marks=tmp_path / "marks") as store:
        old, frames = await fill(store), await store.read("t")
        await store.delete("t")
        await fill(store, turns=1)
        raw = without_keys(store)
        await raw.delete("t")
        await raw.append("t", frames, at=0, head=old)
        with pytest.raises(Corrupt, match="older"):
            await store.head("t")


async def test_a_head_that_another_process_has_just_replaced_is_read_again(tmp_path: Path) -> None:
    async with open_checkpointer(URLS[1].format(tmp_path), key=KEY) as store:
        one, other = (
            SealedCheckpointer(without_keys(store), Keyring(KEY), marks=Marks(tmp_path / "marks")) for _ in range(2)
        )
        old = await fill(one)
        newer = await fill(other)
        assert await one._newest(old) == msgspec.structs.replace(newer, seal="")
        await store.delete("t")
        assert await one._newest(old) is None


async def test_marks_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with open_checkpointer(URLS[1].format(tmp_path), key=KEY, marks=tmp_path / "file") as store:
        with pytest.raises(Unavailable, match=r"the mark of a thread, .* cannot be (written|read)"):
            await fill(store)


def test_marks_and_plain_data_need_a_key(tmp_path: Path) -> None:
    for given in ({"marks": tmp_path}, {"allow_plain": True}):
        with pytest.raises(InvalidInput, match="for a store with a key"):
            open_checkpointer("memory://", **given)


async def test_threads_that_were_sealed_before_heads_were_open_with_plain_allowed_and_rekey_upgrades_them(
    url: str,
) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        head = await fill(store)
        raw = without_keys(store)
        await raw.append("t", [], at=head.frames, head=msgspec.structs.replace(head, seal=""))
        with pytest.raises(
            NotSealed, match=r"thread 't' is not sealed .* CLEW_ALLOW_PLAIN=1 .* `clew rekey --allow-plain`"
        ):
            await Thread.load(store, "t")
        with pytest.raises(NotSealed):
            await rekey(store)
        lenient = SealedCheckpointer(raw, Keyring(KEY, allow_plain=True))
        assert [head.seal async for head in lenient.heads()] == [UNSEALED]
        state, frames = await Thread.load(lenient, "t"), await store.read("t")
        assert (await rekey(lenient)).sealed == ("t",)
        assert (await rekey(lenient)).already == 1
        assert await store.read("t") == frames, "only the head was written"
        assert await Thread.load(store, "t") == state
        assert (await head_of(store)).updated_at == head.updated_at


async def test_a_head_sealed_with_another_key_is_told_apart_from_a_forged_one(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        await fill(store)
        other = SealedCheckpointer(without_keys(store), Keyring(OTHER))
        await fill(other, "theirs")
        with pytest.raises(WrongKey, match="the head of thread 't' is encrypted, and it needs the key with the id"):
            await other.head("t")
        listing = aiter(other.heads())
        assert (await anext(listing)).thread_id == "theirs"
        with pytest.raises(WrongKey, match="'t'"):
            await anext(listing)
        verdict = await verify(other, "t")
        assert verdict.key_missing


async def test_nobody_without_the_key_writes_over_a_sealed_head_by_mistake(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        head = await fill(store)
        with pytest.raises(WrongKey, match="the head of thread 't'"):
            await append_frames(without_keys(store), head, [])
        assert await head_of(without_keys(store)) == head


async def test_verify_reports_a_head_whose_seal_names_no_known_key(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        head = await fill(store)
        await rewrite(store, head, (await store.read("t"))[:-1], seal="00" * 24)
        verdict = await verify(store, "t")
        assert not verdict.sound
        assert "needs the key with the id 0000000000000000" in str(verdict.problems[0])


async def test_frames_of_an_earlier_log_of_the_thread_do_not_pass_for_the_beginning_of_this_one(url: str) -> None:
    async with open_checkpointer(url, key=KEY) as store:
        await fill(store, turns=2)
        old = await store.read("t")
        await store.delete("t")
        head = await fill(store, turns=4)
        new = await store.read("t")
        await rewrite(store, head, [*old, *new[len(old) :]], snapshot=head.snapshot, digest=head.digest)
        with pytest.raises(Corrupt, match="'t'"):
            await Thread.load(store, "t")
        with pytest.raises(Corrupt, match="'t'"):
            await state_after(store, "t", 1)
        with pytest.raises(Corrupt, match="'t'"):
            await read_stretch(store, await head_of(store), 0)


async def test_a_copy_of_an_unsealed_thread_to_a_store_without_a_key_has_no_seal() -> None:
    async with MemoryCheckpointer() as plain, MemoryCheckpointer() as target:
        await fill(plain)
        await Thread.copy(SealedCheckpointer(plain, Keyring(KEY, allow_plain=True)), target, "t")
        assert (await head_of(target)).seal == ""
        await fill(target)
