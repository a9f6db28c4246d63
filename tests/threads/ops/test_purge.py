"""Erasure: bytes are gone when the call returns, what others use stays, and an interrupted one can be finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, FileCheckpointer, Head, MemoryCheckpointer
from clew.errors import Conflict, LeaseLost, ThreadBusy, ThreadNotFound, Unavailable
from clew.log import Compacted, Described, Logged, MessageAdded, Rewound, StateSet, decode_frame, fold
from clew.log.blobs import pack_blob, pack_tree
from clew.messages import assistant, user
from clew.threads.heads import PART
from clew.threads.ops import purge as purging
from clew.threads.ops.purge import purge, purge_rewound, trimmed
from clew.threads.ops.verify import verify, verify_all
from tests.sampling import examples
from tests.stores import store_fixture
from tests.threads.keeping import turn, with_turns

SECRET = "my deploy target is staging-eu, and nobody else's "


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "_PAUSE", 0.02)


store = store_fixture()


async def names(store: Checkpointer) -> list[str]:
    return sorted([head.thread_id async for head in store.heads()])


async def with_large(store: Checkpointer, thread_id: str, *texts: str) -> None:
    async with Thread.open(store, thread_id) as thread:
        for text in texts:
            await thread.append(MessageAdded(user(text * 20_000)), MessageAdded(assistant("read")))


@pytest.mark.anyio
async def test_a_purged_thread_takes_with_it_the_blobs_that_nobody_else_uses(store: Checkpointer) -> None:
    await with_large(store, "a", "shared ", "only a ")
    await with_large(store, "b", "shared ")
    blobs = await store.refs("a")
    purged = await purge(store, "a")
    assert (purged.thread_id, purged.blobs) == ("a", 1)
    assert purged.freed > 0
    assert await names(store) == ["b"]
    assert await store.missing_blobs(blobs) == blobs - await store.refs("b")
    assert (await verify(store, "b")).problems == ()
    with pytest.raises(ThreadNotFound):
        await purge(store, "a")


@pytest.mark.anyio
async def test_a_purge_follows_trees_both_ways(store: Checkpointer) -> None:
    shared, own = pack_blob(b"a shared file"), pack_blob(b"a file of its own")
    first, second = pack_tree(b"one", leaves=[shared[0], own[0]]), pack_tree(b"two", leaves=[shared[0]])
    await store.put_blobs(dict([shared, own, first, second]))
    for thread_id, tree in (("a", first), ("b", second)):
        await with_turns(store, thread_id, 1)
        head = await store.head(thread_id)
        assert head is not None
        await store.append(thread_id, [], at=head.frames, head=head, refs=[tree[0]])
    assert (await purge(store, "a")).blobs == 2
    assert set(await store.get_blobs([shared[0], own[0], first[0], second[0]])) == {shared[0], second[0]}


@pytest.mark.anyio
async def test_whoever_held_a_purged_thread_writes_nothing_more(store: Checkpointer) -> None:
    thread = Thread.open(store, "t")
    await thread.__aenter__()
    await purge(store, "t")
    with pytest.raises(LeaseLost):
        await thread.append(*turn(1))
    thread._end()


@pytest.mark.anyio
async def test_a_blob_that_another_thread_begins_to_use_during_a_purge_stays() -> None:
    class Late(MemoryCheckpointer):
        async def delete_blobs(self, digests: Collection[str], **given: object) -> None:
            await with_large(self, "late", "text ")
            await super().delete_blobs(digests, **given)  # type: ignore[arg-type]

    store = Late()
    await with_large(store, "t", "text ")
    await purge(store, "t")
    assert (await verify(store, "late")).problems == ()


async def rewound(store: Checkpointer, thread_id: str = "t") -> None:
    async with Thread.open(store, thread_id) as thread:
        await thread.append(*turn(1), StateSet("k", 1))
        await thread.append(MessageAdded(user(SECRET)), MessageAdded(assistant(SECRET * 2000)), StateSet("k", SECRET))
        await thread.append(MessageAdded(user("about " * 20_000)), MessageAdded(assistant("read")))
        await thread.rewind(to_turn=1)
        await thread.append(*turn(2))


@pytest.mark.anyio
async def test_what_was_rewound_is_gone_and_all_else_is_as_before(store: Checkpointer) -> None:
    await rewound(store)
    before, head = await Thread.load(store, "t"), await store.head("t")
    blobs = await store.refs("t")
    assert head is not None
    assert len(blobs) == 2
    purged = await purge_rewound(store, "t")
    assert (purged.messages, purged.blobs) == (4, 2)
    after, new = await Thread.load(store, "t"), await store.head("t")
    assert new is not None
    assert (new.frames, new.snapshot, new.created_at, new.tags, new.lease) == (1, 0, head.created_at, head.tags, None)
    assert (after.messages, after.history) == (before.messages, before.messages)
    for field in ("usage", "cost_usd", "turns", "state", "status", "title", "calls", "agent"):
        assert getattr(after, field) == getattr(before, field)
    assert await store.missing_blobs(blobs) == blobs
    assert await names(store) == ["t"]
    assert (await verify(store, "t")).problems == ()
    async with Thread.open(store, "t") as thread:
        await thread.rewind(to_turn=1)
        await thread.append(*turn(3))
    assert (await purge_rewound(store, "t")).messages == 3


@pytest.mark.anyio
async def test_no_byte_of_what_was_rewound_is_left_in_files(tmp_path: Path) -> None:
    async with FileCheckpointer(tmp_path) as store:
        await rewound(store)
        await with_turns(store, "other", 1)
        await purge_rewound(store, "t")
        data = (await store.read("t"))[0]
    assert list(tmp_path.rglob("blobs/*/*")) == []
    assert len(list(tmp_path.rglob("threads/*/*"))) == 2
    assert SECRET.encode() not in msgspec.msgpack.encode(decode_frame(data, "t", 0).entries)


@pytest.mark.anyio
async def test_an_encrypted_thread_stays_encrypted_and_readable(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url, key="00" * 32) as store:
        await rewound(store)
        before = await Thread.load(store, "t")
        await purge_rewound(store, "t")
        assert (await Thread.load(store, "t")).messages == before.messages
        assert (await verify(store, "t")).problems == ()
        head = await store.head("t")
        assert head is not None
        assert head.title == ""


@pytest.mark.anyio
async def test_a_title_goes_with_the_message_it_was_taken_from(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(*turn(1, SECRET))
        await thread.rewind(to_turn=0)
        await thread.append(Rewound(messages=0))
        await thread.append(*turn(2))
    await purge_rewound(store, "t")
    head = await store.head("t")
    assert head is not None
    assert head.title == "question 2"
    async with Thread.open(store, "t") as thread:
        await thread.append(Described(title="mine"), Rewound(messages=0))
    await purge_rewound(store, "t")
    assert (await Thread.load(store, "t")).title == "mine"


@pytest.mark.anyio
async def test_a_thread_that_somebody_works_on_is_not_rewritten(store: Checkpointer) -> None:
    await rewound(store)
    async with Thread.open(store, "t") as thread:
        with pytest.raises(ThreadBusy):
            await purge_rewound(store, "t")
        await thread.append(*turn(3))
    with pytest.raises(ThreadNotFound):
        await purge_rewound(store, "absent")


class Interrupted(MemoryCheckpointer):
    """Stops answering after so many changes."""

    left = -1

    def _spend(self) -> None:
        if self.left == 0:
            raise Unavailable("no answer")
        self.left -= 1

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self._spend()
        await super().append(thread_id, frames, at=at, head=head, refs=refs)

    async def delete(self, thread_id: str) -> None:
        self._spend()
        await super().delete(thread_id)

    async def delete_blobs(self, digests: Collection[str], **given: object) -> None:
        self._spend()
        await super().delete_blobs(digests, **given)  # type: ignore[arg-type]


async def nobody_holds(checkpointer: Checkpointer, head: Head) -> None:
    """Stand in for `wait_until_free`: every lease is free."""


@pytest.mark.anyio
@pytest.mark.parametrize("changes", range(7))
@pytest.mark.parametrize("again", range(5))
async def test_a_rewrite_that_was_interrupted_is_finished_by_the_next(
    changes: int, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "wait_until_free", nobody_holds)  # as if the process that was interrupted had died
    store = Interrupted()
    await rewound(store)
    right, blobs = await Thread.load(store, "t"), await store.refs("t")
    for store.left in (changes, again):
        with suppress(Unavailable):
            await purge_rewound(store, "t")
        copies = [await Thread.load(store, name) for name in await names(store)]
        assert any(copy.messages == right.messages for copy in copies)
    store.left = -1
    await purge_rewound(store, "t")
    assert (await Thread.load(store, "t")).messages == right.messages
    assert await names(store) == ["t"]
    assert await store.missing_blobs(blobs) == blobs
    assert [verdict.problems async for verdict in verify_all(store)] == [()]


@pytest.mark.anyio
async def test_work_done_after_an_interruption_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "wait_until_free", nobody_holds)
    store = Interrupted()
    await rewound(store)
    store.left = 2  # the copy is written, the old log is still there
    with pytest.raises(Unavailable):
        await purge_rewound(store, "t")
    store.left = -1
    async with Thread.open(store, "t", takeover=True) as thread:
        await thread.append(*turn(3))
    await purge_rewound(store, "t")
    assert (await Thread.load(store, "t")).turns == 3
    assert await names(store) == ["t"]


@pytest.mark.anyio
async def test_a_thread_made_in_the_gap_is_a_conflict_and_the_copy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "wait_until_free", nobody_holds)
    store = Interrupted()
    await rewound(store)
    right = await Thread.load(store, "t")
    store.left = 3  # the old log is gone, the new one is not there yet
    with pytest.raises(Unavailable):
        await purge_rewound(store, "t")
    store.left = -1
    await with_turns(store, "t", 1)
    with pytest.raises(Conflict, match="clew:purging:"):
        await purge_rewound(store, "t")
    await store.delete("t")
    await purge_rewound(store, "t")
    assert (await Thread.load(store, "t")).messages == right.messages


async def forged_copy(store: Checkpointer, **tags: str) -> None:
    """A thread under the id of the copy that a purge of `t` makes, with these tags."""
    await with_turns(store, "forged", 1)
    head = await store.head("forged")
    assert head is not None
    forged = msgspec.structs.replace(head, thread_id=purging._copy_id("t"), tags=tags, lease=None, log_id="e" * 32)
    await store.append(forged.thread_id, await store.read("forged"), at=0, head=forged)
    await store.delete("forged")


@pytest.mark.anyio
async def test_a_forged_copy_does_not_make_a_purge_report_what_was_not_done() -> None:
    store = MemoryCheckpointer()
    await rewound(store)
    before = await store.head("t")
    assert before is not None
    await forged_copy(store, **{PART: "1", purging._OLD_LOG: "no such log", purging._NEW_LOG: before.log_id})
    assert (await purge_rewound(store, "t")).messages > 0
    state = await Thread.load(store, "t")
    assert trimmed(state) == state
    assert await names(store) == ["t"]


@pytest.mark.anyio
async def test_a_thread_in_the_place_of_the_copy_that_is_none_is_named() -> None:
    store = MemoryCheckpointer()
    await rewound(store)
    await forged_copy(store, city="Paris")
    with pytest.raises(Conflict, match="is no such copy"):
        await purge_rewound(store, "t")


@pytest.mark.anyio
async def test_a_purge_takes_what_an_interrupted_rewrite_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Interrupted()
    await rewound(store)
    store.left = 3
    with pytest.raises(Unavailable):
        await purge_rewound(store, "t")
    store.left = -1
    assert (await purge(store, "t")).blobs == 2
    assert await names(store) == []


@st.composite
def logs(draw: st.DrawFn) -> list[Logged]:
    entries: list[Logged] = []
    kinds: list[Callable[[int], list[Logged]]] = [
        turn,
        lambda n: turn(n)[:2],
        lambda n: [MessageAdded(user(f"more {n}"))],
        lambda n: [Rewound(turn=n % 4)] if n % 4 <= fold(entries).turns else [],
        lambda n: [Rewound(messages=n % 5)],
        lambda n: [Compacted(user(f"summary {n}"), keep=n % 3)],
        lambda n: [StateSet("k", n)],
    ]
    for number in range(draw(st.integers(0, 14))):
        entries += draw(st.sampled_from(kinds))(number)
    return entries


@settings(max_examples=examples(300))
@given(logs(), logs())
def test_trimming_changes_nothing_that_can_still_be_seen(before: list[Logged], after: list[Logged]) -> None:
    state = fold(before)
    less = trimmed(state)
    assert less.messages == state.messages
    assert less.turns == state.turns
    for number in range(state.turns + 1):
        there = fold([Rewound(turn=number)], less)
        assert there.messages == fold([Rewound(turn=number)], state).messages
    assert [msgspec.structs.replace(call, message=0) for call in less.calls] == [
        msgspec.structs.replace(call, message=0) for call in state.calls
    ]
    assert fold(after, less).messages == fold(after, state).messages
    assert trimmed(less) == less
    seen = {place for ranges in (less.view, *less.marks) for start, stop in ranges for place in range(start, stop)}
    assert seen | {less.open_message} >= set(range(len(less.history)))
