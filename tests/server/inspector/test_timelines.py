"""The inspector keeps few turns of a long thread in memory, and shows all of them."""

from __future__ import annotations

import pytest

from bench.long_threads import write_thread
from clew import Thread
from clew.checkpointers import Head, MemoryCheckpointer
from clew.log import MessageAdded, ToolOutcome
from clew.messages import Assistant, Text, Thinking, ToolCall, ToolResult, user
from clew.server.inspector import timelines
from clew.server.inspector.timelines import Readers
from clew.threads.views.timeline import read_timeline

pytestmark = pytest.mark.anyio
KEPT, TURNS = 20, 90


class CountedReads(MemoryCheckpointer):
    reads = 0

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        self.reads += 1
        return await super().read(thread_id, start=start, stop=stop)


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> CountedReads:
    monkeypatch.setattr(timelines, "_NEWEST", KEPT)
    made = CountedReads()
    await write_thread(made, "t", TURNS)
    return made


@pytest.mark.parametrize("start", [0, 3, 41, 65, 80])
async def test_a_page_has_its_turns_wherever_in_the_thread_they_are(store: CountedReads, start: int) -> None:
    reader, *_ = await Readers().read_at(store, "", "t", start, start + 10)
    expected = (await read_timeline(store, "t", start=start, stop=start + 10)).turns
    assert reader.timeline(start, start + 10).turns == expected
    assert len(reader.timeline().turns) <= KEPT + 1


async def test_pages_beside_each_other_read_the_log_once(store: CountedReads) -> None:
    readers = Readers()
    await readers.read_at(store, "", "t", 30, 35)
    before = store.reads
    reader, head, _ = await readers.read_at(store, "", "t", 35, 40)
    assert store.reads == before
    assert isinstance(head, Head)
    assert [turn.position for turn in reader.timeline(35, 40).turns] == [35, 36, 37, 38, 39]
    newest, *_ = await readers.read_at(store, "", "t", TURNS - 5, TURNS)
    assert store.reads == before
    assert newest is not reader


async def test_of_long_texts_only_the_beginnings_stay_in_memory() -> None:
    long = "x" * 3_000_000
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t") as thread:
            await thread.append(MessageAdded(user(long, "short")))
            await thread.append(MessageAdded(Assistant((Thinking(long), Text(long), ToolCall("1", "tool", {})))))
            await thread.append(ToolOutcome(1, 0, ToolResult("1", (Text(long),))))
        reader, *_ = await Readers().read(store, "", "t")
    (turn,) = reader.timeline().turns
    (prompt,) = turn.prompts
    (call,) = turn.calls
    assert call.result is not None
    assert isinstance(prompt.content[1], Text)
    assert prompt.content[1].text == "short"
    for block in (prompt.content[0], *turn.blocks[:2], call.result.content[0]):
        assert isinstance(block, Text | Thinking)
        assert len(block.text) < 200_000
        assert block.text.endswith("2,810,000 more characters; export the thread to see all")
