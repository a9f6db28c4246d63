"""A log entry by entry, for people and their tools."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from clew.checkpointers import MemoryCheckpointer
from clew.log import (
    FoldedState,
    LeaseTaken,
    MessageAdded,
    ProviderKey,
    Spend,
    StateSet,
    StatusChanged,
    UnknownEntry,
    Usage,
)
from clew.messages import Image, assistant, user
from clew.threads import Thread
from clew.threads.views.entries import Line, read_lines

pytestmark = pytest.mark.anyio


async def lines(start: int = 0) -> list[Line]:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t") as thread:
            await thread.append(
                MessageAdded(user("Hello.", Image("image/png", b"abc"))), ProviderKey("codex", "secret")
            )
            await thread.append(MessageAdded(assistant("Hi."), Usage(3, 1), 0.5), StateSet("raw", {1: b"x"}))
            await thread.append(UnknownEntry(msgspec.msgpack.encode(["from-the-future", 1])))
            await thread.append(Spend(seconds=1.5), StatusChanged("done", "all said"))
        head = await store.head("t")
        assert head is not None
        return [line async for line in read_lines(store, head, start)]


async def test_every_entry_is_there_with_its_frame_and_time_and_can_be_json() -> None:
    found = await lines()
    assert [(line.frame, line.kind) for line in found] == [
        (0, "lease"),
        (1, "message"),
        (1, "provider"),
        (2, "message"),
        (2, "state"),
        (3, "unknown"),
        (4, "spend"),
        (4, "status"),
    ]
    assert all(before.at <= after.at for before, after in pairwise(found))
    said = [msgspec.json.decode(msgspec.json.encode(line.fields())) for line in found]
    assert said[1]["message"]["content"][1]["data"] == "YWJj"
    assert said[3]["usage"]["input_tokens"] == 3
    assert said[4]["value"] == {"1": "eA=="}
    assert said[-1] == {"status": "done", "reason": "all said"}
    assert [line.frame for line in await lines(3)] == [3, 4, 4]


async def test_secrets_are_left_out_and_a_folded_state_is_told_in_few_words() -> None:
    found = await lines()
    assert isinstance(found[0].entry, LeaseTaken)
    assert "secret" not in str([line.fields() for line in found])
    assert found[0].entry.token not in str([line.fields() for line in found])
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t") as thread:
            await thread.append(MessageAdded(user("Hello.")), MessageAdded(assistant("Hi.")))
            await thread.fork("u")
        head = await store.head("u")
        assert head is not None
        (folded,) = [line async for line in read_lines(store, head)]
    assert isinstance(folded.entry, FoldedState)
    assert folded.fields() == {"turns": 1, "messages": 2, "status": "interrupted"}
