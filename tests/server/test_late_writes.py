"""What a client gave up on is not written later: the service looks whether the client is still there."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from clew.checkpointers import SQLiteCheckpointer
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import Unavailable
from clew.testing.contract.builders import append, state
from tests.server.test_command import running

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals"),
]


@pytest.mark.parametrize("frame", [b"small", bytes(3 * 2**20)], ids=["small", "large"])
async def test_an_append_that_was_unavailable_is_not_written_when_a_frozen_service_goes_on(
    tmp_path: Path, frame: bytes
) -> None:
    path = tmp_path / "clew.db"
    with running("--no-token", "--store", f"sqlite:///{path}") as (url, process):
        async with HTTPCheckpointer(url, retries=0, timeout=1.0) as store:
            first = await append(store, "thread", b"first")
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(Unavailable):
                await append(store, "thread", frame, at=1)
            with pytest.raises(Unavailable):
                await store.delete("thread")
        process.send_signal(signal.SIGCONT)
        async with HTTPCheckpointer(url) as store:
            assert await state(store, "thread") == ([b"first"], first, set())
            await append(store, "another", b"frame")
        process.terminate()
        process.wait()
    async with SQLiteCheckpointer(path) as behind:
        assert await state(behind, "thread") == ([b"first"], first, set())
