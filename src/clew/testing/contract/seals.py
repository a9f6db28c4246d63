"""Tests that every store has to pass so that sealed threads can be kept in it. A sealed thread has encrypted frames and
a signed head. If somebody who has no key, but can write to the store, changes a sealed thread, the next reader with the
key notices that."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import Head
from clew.checkpointers.marks import Marks
from clew.checkpointers.sealed import SealedCheckpointer
from clew.errors import Corrupt, NotSealed
from clew.log import DIGEST, MessageAdded, StateSet, encode_entries, encode_frame
from clew.log.keys import Keyring
from clew.messages import assistant, user
from clew.testing.contract.builders import OpenStore
from clew.threads import Thread

_KEYS = Keyring("5e" * 32)


class SealContract:
    """Tests of sealed threads, whose frames are encrypted and whose heads are signed. The signature, called the seal,
    is over all fields of a head. So the store must return each head exactly as it was written; it does nothing else for
    sealed threads."""

    async def test_a_sealed_thread_is_read_by_another_process_with_the_key(self, open_store: OpenStore) -> None:
        await _fill(open_store(), "thread", 2)
        async with Thread.open(_sealed(open_store()), "thread") as thread:
            await thread.append(StateSet("k", "v"))
        assert (await Thread.load(_sealed(open_store()), "thread")).turns == 2

    async def test_a_sealed_log_that_was_cut_off_under_a_fitting_head_is_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        head = await _fill(store, "thread", 3)
        frames = await store.read("thread")
        await _replace(open_store(), head, frames[:-1])
        await _assert_refused(open_store(), "thread")

    async def test_a_plain_frame_with_the_right_predecessor_is_refused_in_a_sealed_thread(
        self, open_store: OpenStore
    ) -> None:
        store, other = open_store(), open_store()
        head = await _fill(store, "thread", 2)
        forged = encode_frame([encode_entries([StateSet("k", "forged")])], previous=bytes.fromhex(head.digest))
        longer = msgspec.structs.replace(head, frames=head.frames + 1, digest=forged.digest.hex())
        await other.append("thread", [forged.data], at=head.frames, head=longer)
        await _assert_refused(open_store(), "thread")
        await _sealed(store).append("thread", [], at=longer.frames, head=longer)  # a head that somebody sealed after it
        with pytest.raises(NotSealed, match=f"frame {head.frames} is not sealed"):
            await Thread.load(_sealed(open_store()), "thread")

    async def test_another_sealed_thread_of_the_store_does_not_pass_for_this_one(self, open_store: OpenStore) -> None:
        store = open_store()
        await _fill(store, "thread", 2)
        other = await _fill(store, "other", 3)
        await _replace(open_store(), msgspec.structs.replace(other, thread_id="thread"), await store.read("other"))
        await _assert_refused(open_store(), "thread")
        assert (await Thread.load(_sealed(open_store()), "other")).turns == 3

    async def test_an_unsealed_head_is_refused_in_a_store_with_a_key(self, open_store: OpenStore) -> None:
        store = open_store()
        head = await _fill(store, "thread", 1)
        await open_store().append("thread", [], at=head.frames, head=msgspec.structs.replace(head, seal=""))
        with pytest.raises(NotSealed, match="'thread'"):
            await _sealed(open_store()).head("thread")

    async def test_a_sealed_thread_put_back_as_it_once_was_is_refused_by_its_mark(self, open_store: OpenStore) -> None:
        store = open_store()
        if not store.place:
            pytest.skip("no other process can open this store, so it has no marks")
        with tempfile.TemporaryDirectory() as folder:
            marks = Marks(Path(folder))
            old = await _fill(store, "thread", 1, marks)
            frames = await store.read("thread")
            await _fill(store, "thread", 1, marks)
            await _replace(open_store(), old, frames)
            assert (await Thread.load(_sealed(open_store()), "thread")).turns == 1
            marked = _sealed(open_store(), marks)
            with pytest.raises(Corrupt, match="older than this machine has seen it"):
                await marked.head("thread")
            with pytest.raises(Corrupt, match="older"):
                _ = [head async for head in marked.heads()]


def _sealed(store: Checkpointer, marks: Marks | None = None) -> SealedCheckpointer:
    return SealedCheckpointer(store, _KEYS, marks=marks)


async def _fill(store: Checkpointer, thread_id: str, turns: int, marks: Marks | None = None) -> Head:
    """Add `turns` turns to a sealed thread (one with encrypted frames and a signed head). Returns the thread's head as
    the store holds it, with its signature. `marks`, if given, remembers outside the store the newest state of each
    thread that this machine has seen."""
    async with Thread.open(_sealed(store, marks), thread_id) as thread:
        for number in range(turns):
            await thread.append(MessageAdded(user(f"{number}?")), MessageAdded(assistant(f"{number}!")))
    head = await store.head(thread_id)
    assert head is not None
    return head


async def _replace(store: Checkpointer, head: Head, frames: list[bytes]) -> None:
    """Attack a sealed thread as somebody can who has no key: replace it by these frames, and by a copy of `head` whose
    number of frames and digest fit them."""
    fitting: dict[str, Any] = {"frames": len(frames), "digest": frames[-1][DIGEST].hex()}
    await store.delete(head.thread_id)
    await store.append(head.thread_id, frames, at=0, head=msgspec.structs.replace(head, **fitting))


async def _assert_refused(store: Checkpointer, thread_id: str) -> None:
    sealed = _sealed(store)

    async def opened() -> None:
        async with Thread.open(sealed, thread_id):
            pass

    async def listed() -> None:
        _ = [head async for head in sealed.heads()]

    for read in (partial(sealed.head, thread_id), partial(Thread.load, sealed, thread_id), opened, listed):
        with pytest.raises(Corrupt, match=f"'{thread_id}'") as caught:
            await read()
        assert type(caught.value) is Corrupt, "the head came back without its seal"
