"""The inbox of a thread: what is posted is neither lost nor read twice, and goes wherever the thread goes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, Head, MemoryCheckpointer
from clew.errors import Conflict, Corrupt, InvalidInput, ThreadNotFound, Unavailable
from clew.log import EMPTY, MessageAdded, Posted, StateSet, StatusChanged, fold
from clew.messages import assistant, user
from clew.threads.heads import INBOX, inbox_id, is_inbox
from clew.threads.inbox import Post
from clew.threads.ops import purge as purging
from clew.threads.ops.verify import verify, verify_all
from tests.clock import Clock
from tests.stores import make_store, store_fixture

pytestmark = pytest.mark.anyio
store = store_fixture()
OLD, NEW = "00" * 32, "11" * 32


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "_PAUSE", 0.02)


async def begin(store: Checkpointer, thread_id: str = "t") -> None:
    async with Thread.open(store, thread_id) as thread:
        await thread.append(MessageAdded(user("One.")), MessageAdded(assistant("Yes.")), StatusChanged("done"))


async def unread(store: Checkpointer, thread_id: str = "t") -> list[str | None]:
    async with Thread.open(store, thread_id) as thread:
        return [post.prompt for post in await thread.posts()]


async def read(store: Checkpointer, thread_id: str = "t", most: int = 100) -> list[str]:
    """Take in posts as an agent does: what they say and how far the inbox was read in one write."""
    async with Thread.open(store, thread_id) as thread:
        taken: list[Post] = list(await thread.posts())[:most]
        for post in taken:
            await thread.append(post.read, StateSet(f"took {post.prompt}", post.prompt_id))
    return [str(post.prompt) for post in taken]


async def inboxes(store: Checkpointer) -> list[Head]:
    return [head async for head in store.heads() if is_inbox(head)]


async def listed(store: Checkpointer) -> list[str]:
    return [head.thread_id async for head in Thread.list(store)]


async def test_posts_are_read_in_order_and_once(store: Checkpointer) -> None:
    await begin(store)
    assert await unread(store) == []
    names = [await Thread.post(store, "t", f"Post {number}.") for number in range(3)]
    assert len(set(names)) == 3
    assert await read(store, most=2) == ["Post 0.", "Post 1."]
    assert await read(store) == ["Post 2."]
    await Thread.post(store, "t", "Post 3.")
    assert await read(store) == ["Post 3."]
    assert await read(store) == []


async def test_a_thread_is_posted_to_while_another_holds_it(store: Checkpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("One.")))
        await Thread.post(store, "t", "Two.", prompt_id="p2", answer={"a": 1})
        (post,) = await thread.posts()
        await thread.append(StatusChanged("done"))
    assert (post.prompt, post.prompt_id, post.answer) == ("Two.", "p2", {"a": 1})


async def test_an_inbox_is_hidden_and_counts_as_done(store: Checkpointer) -> None:
    await begin(store)
    await Thread.post(store, "t", "Two.")
    (head,) = await inboxes(store)
    thread = await store.head("t")
    assert thread is not None
    assert head.thread_id == inbox_id("t", thread.log_id)
    assert (head.status, head.parent, head.tags, head.lease) == ("done", ("t", 0), {INBOX: thread.log_id}, None)
    assert await listed(store) == ["t"]
    with pytest.raises(ThreadNotFound):
        await Thread.post(store, head.thread_id, "To the inbox itself.")


async def test_the_same_id_is_posted_once_and_other_words_are_refused(store: Checkpointer) -> None:
    await begin(store)
    for _ in range(2):
        assert await Thread.post(store, "t", "Two.", prompt_id="p2") == "p2"
    assert await unread(store) == ["Two."]
    for words, answer in (("Three.", None), ("Two.", "yes")):
        with pytest.raises(InvalidInput, match="p2"):
            await Thread.post(store, "t", words, prompt_id="p2", answer=answer)
    assert await read(store) == ["Two."]
    await Thread.post(store, "t", "Two.", prompt_id="p2")
    assert await read(store) == []


@pytest.mark.parametrize(
    "given",
    [{}, {"prompt": " "}, {"prompt": "x", "prompt_id": "clew:1"}, {"answer": object()}, {"prompt": "\ud800"}],
)
async def test_what_cannot_be_a_post_is_refused(given: dict[str, Any]) -> None:
    store = MemoryCheckpointer()
    await begin(store)
    with pytest.raises(InvalidInput):
        await Thread.post(store, "t", **given)
    assert await inboxes(store) == []


async def test_a_thread_that_does_not_exist_has_no_inbox(store: Checkpointer) -> None:
    with pytest.raises(ThreadNotFound):
        await Thread.post(store, "t", "Two.")
    assert await inboxes(store) == []


async def test_a_large_post_arrives(store: Checkpointer) -> None:
    await begin(store)
    large = "long " * 100_000
    await Thread.post(store, "t", large)
    await Thread.gc(store, grace=timedelta(0))
    assert await unread(store) == [large]


async def test_two_posters_and_one_reader_at_once_lose_and_repeat_nothing(store: Checkpointer) -> None:
    await begin(store)

    async def poster(name: str) -> list[str]:
        for number in range(8):
            await Thread.post(store, "t", f"{name} {number}")
        return [f"{name} {number}" for number in range(8)]

    taken: list[str] = []
    posters = [asyncio.ensure_future(poster(name)) for name in ("a", "b")]
    while not all(each.done() for each in posters):
        taken += await read(store)
        await asyncio.sleep(0)
    taken += await read(store)
    for sent in [await each for each in posters]:
        assert [post for post in taken if post in sent] == sent
    assert len(taken) == 16
    assert [verdict async for verdict in verify_all(store) if not verdict.sound] == []


async def test_a_post_whose_outcome_is_unknown_is_sent_again_and_is_there_once() -> None:
    class Deaf(MemoryCheckpointer):
        lost = 0

        async def append(
            self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
        ) -> None:
            await super().append(thread_id, frames, at=at, head=head, refs=refs)
            if thread_id.startswith(INBOX) and self.lost < 2:
                self.lost += 1
                raise Unavailable("the answer was lost")

    store = Deaf()
    await begin(store)
    await Thread.post(store, "t", "Two.")
    assert (await unread(store), store.lost) == (["Two."], 2)


async def test_a_deleted_thread_takes_its_inbox_with_it(store: Checkpointer) -> None:
    for purge in (False, True):
        await begin(store)
        await Thread.post(store, "t", "Two.")
        async with Thread.open(store, "t") as thread:
            await thread.delete(purge=purge)
        assert [head async for head in store.heads()] == []
    await begin(store)
    assert await unread(store) == [], "a thread of the same name has an inbox of its own"


async def test_pruning_removes_inboxes_with_their_threads_and_never_alone(store: Checkpointer) -> None:
    for name in ("a", "b"):
        await begin(store, name)
        await Thread.post(store, name, "Two.")
    pruned = await Thread.prune(store, keep=1)
    assert (pruned.deleted, pruned.kept) == (("a",), 1)
    assert await unread(store, "b") == ["Two."]
    assert len(await inboxes(store)) == 1


async def test_a_fork_begins_with_an_empty_inbox(store: Checkpointer) -> None:
    await begin(store)
    await Thread.post(store, "t", "Two.")
    await read(store)
    await Thread.post(store, "t", "Three.")
    async with Thread.open(store, "t") as thread:
        await thread.fork("f")
    assert await unread(store, "f") == []
    await Thread.post(store, "f", "For the fork.")
    assert await read(store, "f") == ["For the fork."]
    assert await read(store) == ["Three."]


async def test_unread_posts_arrive_with_a_copy_and_are_read_there_once(store: Checkpointer, tmp_path: Path) -> None:
    await begin(store)
    for prompt in ("Two.", "Three."):
        await Thread.post(store, "t", prompt)
    await read(store, most=1)
    (tmp_path / "other").mkdir()
    async with make_store("sqlite", tmp_path / "other") as other:
        for _ in range(2):
            await Thread.copy(store, other, "t")
        assert await read(other) == ["Three."]
        assert await read(other) == []
    assert await read(store) == ["Three."]
    await Thread.post(store, "t", "Four.")
    await Thread.copy(store, store, "t", new_id="u")
    assert await read(store, "u") == ["Four."]
    assert await read(store) == ["Four."]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("key", [None, OLD])
async def test_unread_posts_arrive_with_an_import(plain: bool, key: str | None, tmp_path: Path) -> None:
    file = tmp_path / "t.clew"
    async with open_checkpointer(f"sqlite:///{tmp_path}/a.db", key=key) as here:
        await begin(here)
        for prompt in ("Two.", "Three. " * 20_000):
            await Thread.post(here, "t", prompt)
        await read(here, most=1)
        await Thread.export(here, "t", file, plain=plain)
    async with open_checkpointer(f"sqlite:///{tmp_path}/b.db", key=key) as there:
        for _ in range(2):
            await Thread.import_(there, file)
        await Thread.import_(there, file, thread_id="u")
        assert await read(there) == ["Three. " * 20_000]
        assert await read(there, "u") == ["Three. " * 20_000]
        assert await read(there) == []


async def test_a_file_whose_posts_were_changed_is_refused_and_nothing_is_imported(tmp_path: Path) -> None:
    store, file = MemoryCheckpointer(), io.BytesIO()
    await begin(store)
    await Thread.post(store, "t", "Two.")
    await Thread.export(store, "t", file)
    whole = file.getvalue()
    place = whole.index(b"inbox/00000000") + 512 + 40
    for changed in (whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[: place - 552] + bytes(1024)):
        other = MemoryCheckpointer()
        with pytest.raises(Corrupt):
            await Thread.import_(other, io.BytesIO(changed))
        assert [head async for head in other.heads()] == []


async def test_a_copy_of_all_threads_brings_their_posts_and_lists_no_inbox(store: Checkpointer) -> None:
    await begin(store)
    await Thread.post(store, "t", "Two.")
    other = MemoryCheckpointer()
    copied = await Thread.copy_all(store, other)
    assert copied.ids == ("t",)
    assert await read(other) == ["Two."]


async def test_a_repaired_thread_has_the_unread_posts(store: Checkpointer) -> None:
    await begin(store)
    await Thread.post(store, "t", "Two.")
    await Thread.repair(store, "t", "new")
    assert await read(store, "new") == ["Two."]


async def test_what_was_rewound_is_erased_from_the_inbox_too_and_what_is_unread_stays(store: Checkpointer) -> None:
    await begin(store)
    await Thread.post(store, "t", "secret " * 20_000)
    await read(store)
    await Thread.post(store, "t", "Three.")
    old = {blob for head in await inboxes(store) for blob in await store.refs(head.thread_id)}
    async with Thread.open(store, "t") as thread:
        await thread.rewind(0)
    await Thread.purge_rewound(store, "t")
    assert old
    assert await store.missing_blobs(old) == old
    assert await read(store) == ["Three."]
    assert await read(store) == []
    assert len(await inboxes(store)) == 1


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_rekey_seals_the_inbox_too(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db" if kind == "sqlite" else f"file://{tmp_path}/threads"
    async with open_checkpointer(url, key=OLD) as store:
        await begin(store)
        for prompt in ("Two.", "Three."):
            await Thread.post(store, "t", prompt)
        await read(store, most=1)
    async with open_checkpointer(url, key=[NEW, OLD]) as store:
        assert (await Thread.rekey(store)).sealed == ("t",)
        assert (await Thread.rekey(store)).already == 1
    async with open_checkpointer(url, key=[OLD, NEW]) as store:
        await Thread.post(store, "t", "Four.")
    async with open_checkpointer(url, key=[NEW, OLD]) as store:
        assert (await Thread.rekey(store)).sealed == ("t",), "an inbox under the old key is sealed with its thread"
    async with open_checkpointer(url, key=NEW) as store:
        assert [verdict async for verdict in verify_all(store) if not verdict.sound] == []
        assert await read(store) == ["Three.", "Four."]
        assert await read(store) == []


class Stopping(MemoryCheckpointer):
    """Stops, as a killed process does, before the write with a given number."""

    left = 1_000

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self._count()
        await super().append(thread_id, frames, at=at, head=head, refs=refs)

    async def delete(self, thread_id: str) -> None:
        self._count()
        await super().delete(thread_id)


async def test_a_purge_that_was_stopped_anywhere_loses_and_repeats_no_post(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody_holds(checkpointer: Checkpointer, head: Head) -> None: ...

    monkeypatch.setattr(purging, "wait_until_free", nobody_holds)
    for stop in range(12):
        store = Stopping()
        await begin(store)
        for prompt in ("Two.", "Three."):
            await Thread.post(store, "t", prompt)
        await read(store, most=1)
        store.left = stop
        try:
            await Thread.purge_rewound(store, "t")
        except InterruptedError:
            store.left = 1_000
            await Thread.gc(store, grace=timedelta(0))
            await Thread.purge_rewound(store, "t")
        store.left = 1_000
        assert (await read(store), await read(store)) == (["Three."], []), stop
        assert len([head async for head in store.heads()]) == 2, stop


async def test_a_post_to_a_thread_whose_log_is_being_replaced_arrives_in_the_new_inbox() -> None:
    """The poster has looked at the thread, and appends only after everything was carried over."""

    class Slow(MemoryCheckpointer):
        purged = False

        async def append(
            self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
        ) -> None:
            if thread_id.startswith(INBOX) and not self.purged:
                self.purged = True
                await Thread.purge_rewound(self, "t")
            await super().append(thread_id, frames, at=at, head=head, refs=refs)

    store = Slow()
    await begin(store)
    await Thread.post(store, "t", "Two.")
    assert (await read(store), await read(store)) == (["Two."], [])


async def test_gc_sweeps_the_inbox_of_a_thread_that_is_gone_after_the_grace_period(
    store: Checkpointer, clock: Clock
) -> None:
    for name in ("gone", "here"):
        await begin(store, name)
        await Thread.post(store, name, "Two.")
    await store.delete("gone")  # as an older version, or somebody else, does
    await Thread.gc(store)
    assert len(await inboxes(store)) == 2
    await Thread.gc(store, grace=timedelta(0), dry_run=True)
    assert len(await inboxes(store)) == 2
    await Thread.gc(store, grace=timedelta(0))
    assert [head.parent for head in await inboxes(store)] == [("here", 0)]


async def test_verify_checks_the_inbox_with_its_thread() -> None:
    store = MemoryCheckpointer()
    await begin(store)
    await Thread.post(store, "t", "long " * 30_000)
    assert (await verify(store, "t")).sound
    (head,) = await inboxes(store)
    await store.delete_blobs(await store.refs(head.thread_id), untouched_for=timedelta(0))
    verdict = await verify(store, "t")
    assert not verdict.sound
    assert "in the thread's inbox" in str(verdict.problems[0])


async def test_a_conflict_with_another_post_is_tried_again() -> None:
    class Crowded(MemoryCheckpointer):
        conflicts = 3

        async def append(
            self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
        ) -> None:
            if thread_id.startswith(INBOX) and self.conflicts:
                self.conflicts -= 1
                raise Conflict(thread_id, "another post came first")
            await super().append(thread_id, frames, at=at, head=head, refs=refs)

    store = Crowded()
    await begin(store)
    await Thread.post(store, "t", "Two.")
    assert await unread(store) == ["Two."]


async def test_a_post_does_not_change_the_state_of_the_inbox() -> None:
    assert fold([Posted("Two.", "p2", True)]) == EMPTY


@given(st.lists(st.sampled_from(["post", "read", "rewind", "copy", "purge"]), max_size=12))
def test_whatever_is_done_with_a_thread_each_post_is_read_once(steps: list[str]) -> None:
    async def work() -> None:
        store, sent, taken = MemoryCheckpointer(), list[str](), list[str]()
        await begin(store)
        for number, step in enumerate(steps):
            if step == "post":
                sent.append(f"Post {number}.")
                await Thread.post(store, "t", sent[-1])
            elif step == "read":
                taken += await read(store, most=2)
            elif step == "rewind":
                async with Thread.open(store, "t") as thread:
                    await thread.rewind(0)
            elif step == "copy":
                other = MemoryCheckpointer()
                await Thread.copy(store, other, "t")
                store = other
            else:
                await Thread.purge_rewound(store, "t")
        assert taken + await read(store) == sent

    asyncio.run(work())
