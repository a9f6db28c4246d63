"""Single appends without a writer: the head follows from the state, and a log that has grown is left alone."""

from __future__ import annotations

import msgspec
import pytest

from clew.checkpointers import MemoryCheckpointer, SealedCheckpointer
from clew.errors import Conflict
from clew.log import FIRST, MessageAdded, encode_entries, encode_frame, fold
from clew.log.keys import Keyring
from clew.messages import user
from clew.threads import Thread
from clew.threads.appends import append_frames, append_state
from clew.threads.heads import new_head

pytestmark = pytest.mark.anyio

STATE = fold([MessageAdded(user("Paint the door."))])


async def test_the_head_of_a_new_log_follows_from_its_state() -> None:
    async with MemoryCheckpointer() as store:
        head = await append_state(store, new_head("door"), STATE, source_id="door")
        assert head == await store.head("door")
        assert (head.frames, head.snapshot, head.title) == (1, 0, "Paint the door.")
        assert await Thread.load(store, "door") == STATE


async def test_the_head_of_an_encrypted_log_has_no_title() -> None:
    async with SealedCheckpointer(MemoryCheckpointer(), Keyring(bytes(32))) as store:
        head = await append_state(store, new_head("door"), STATE, source_id="door")
        assert head.title == ""
        assert await Thread.load(store, "door") == STATE


async def test_changes_of_the_head_are_set_last() -> None:
    async with MemoryCheckpointer() as store:
        head = await append_state(store, new_head("door"), STATE, source_id="door", tags={"room": "1"})
        renamed = await append_frames(store, head, [], tags={"room": "2"}, updated_at=head.updated_at)
        assert renamed == msgspec.structs.replace(head, tags={"room": "2"}) == await store.head("door")


async def test_a_log_that_has_grown_is_left_alone() -> None:
    async with MemoryCheckpointer() as store:
        base = new_head("door")
        frame = encode_frame([encode_entries([MessageAdded(user("Paint it."))])], previous=FIRST, thread_id="door")
        head = await append_frames(store, base, [frame])
        with pytest.raises(Conflict):
            await append_frames(store, base, [frame, frame])
        assert await store.head("door") == head
