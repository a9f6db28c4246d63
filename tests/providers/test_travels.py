"""What a provider keeps of a conversation is part of its thread: it stays, and goes wherever the thread goes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, MemoryCheckpointer
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio

_LONG = "x" * 200_000
"""Long enough to be cut into chunks of its own."""


async def _begun(root: Path, store: Checkpointer) -> str:
    session = toy_agent(toy_place(root / "first"), store).start_session(thread_id="s")
    await session.send(f"say remember {_LONG}")
    return session.resume_handle


async def _goes_on(root: Path, store: Checkpointer, handle: str) -> None:
    turn = await toy_agent(toy_place(root / "second"), store).resume_session(handle).send("echo")
    assert f"assistant=remember {_LONG}" in turn.output


async def test_garbage_collection_leaves_it(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    handle = await _begun(tmp_path, store)
    await Thread.gc(store, grace=timedelta(0))
    await _goes_on(tmp_path, store, handle)


async def test_a_copy_in_an_encrypted_store_has_it(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    handle = await _begun(tmp_path, store)
    async with open_checkpointer(f"sqlite:///{tmp_path}/other.db", key="ab" * 32) as other:
        await Thread.copy(store, other, "s")
        await Thread.gc(other, grace=timedelta(0))
        await _goes_on(tmp_path, other, handle)


async def test_an_exported_file_has_it(tmp_path: Path) -> None:
    store, other = MemoryCheckpointer(), MemoryCheckpointer()
    handle = await _begun(tmp_path, store)
    await Thread.export(store, "s", tmp_path / "s.clew")
    await Thread.import_(other, tmp_path / "s.clew")
    await _goes_on(tmp_path, other, handle)


async def test_a_thread_with_it_verifies(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    await _begun(tmp_path, store)
    assert (await Thread.verify(store, "s")).sound
