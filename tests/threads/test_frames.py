"""Frames of a thread are decoded where they keep nothing else waiting."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

from clew import Thread
from clew.checkpointers import MemoryCheckpointer
from clew.log import Logged, MessageAdded, StateSet, decode_frame
from clew.messages import user
from clew.threads import frames
from clew.threads.frames import decoded

pytestmark = pytest.mark.anyio

NOISE = Random(1).randbytes(2**18).hex()


@pytest.mark.parametrize(
    ("entry", "is_beside"),
    [
        (MessageAdded(user("short")), False),
        (MessageAdded(user(NOISE)), True),
        (StateSet("pieces", [NOISE[at : at + 8] for at in range(0, len(NOISE), 8)]), True),
    ],
    ids=["small", "a large text", "many small texts"],
)
async def test_a_large_frame_is_decoded_beside_the_event_loop(
    entry: Logged, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(*given: Any, **options: Any) -> Any:
        where.append(threading.current_thread())
        return plain(*given, **options)

    where: list[threading.Thread] = []
    plain = decode_frame
    monkeypatch.setattr(frames, "decode_frame", watched)
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t") as thread:
            await thread.append(entry)
        where.clear()
        data = (await store.read("t"))[1]
        assert (await decoded(store, "t", 1, data)).entries == [entry]
    assert (where[-1] is not threading.current_thread()) is is_beside
