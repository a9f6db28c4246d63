from __future__ import annotations

import pytest

from clew.agent.events import ToolFinished
from clew.agent.journal import Journal
from clew.agent.recovery import left_over
from clew.checkpointers import MemoryCheckpointer
from clew.log import Checkpoint, MessageAdded
from clew.messages import Assistant, Message, Text, Tool, ToolCall, ToolResult, user
from clew.providers.events import Failed, Finished, ProviderEvent, Response, Result
from clew.providers.recorder import Recorder
from clew.threads import Thread

pytestmark = pytest.mark.anyio

A, B, C = (ToolCall(name, "shell", {"command": name}) for name in "abc")


def _done(call: ToolCall) -> Result:
    return Result(_result(call))


def _result(call: ToolCall) -> ToolResult:
    return ToolResult(call.id, (Text(f"did {call.id}"),))


async def _recorded(*happenings: ProviderEvent, pieces: bool = True) -> tuple[Checkpoint, list[str]]:
    """The thread, read anew by somebody else, and the names of the calls in the order in which they were told as done."""
    store = MemoryCheckpointer()
    told: list[object] = []
    async with Thread.open(store, "t") as thread, Journal(thread) as journal:
        await journal.record(MessageAdded(user("Go")))
        recorder = Recorder(journal, told.append, pieces=pieces)
        for happening in happenings:
            recorder.take(happening)
        await recorder.settle()
    return await Thread.load(store, "t"), [event.call_id for event in told if isinstance(event, ToolFinished)]


def _names(history: tuple[Message, ...]) -> list[tuple[type, str]]:
    return [
        (type(message), "".join(getattr(block, "id", "") or getattr(block, "call_id", "") for block in message.content))
        for message in history
    ]


async def test_results_of_calls_that_run_at_the_same_time_are_all_kept_whichever_ends_first() -> None:
    begun = (Response((A,), "m"), Response((B,), "m"), _done(B), Response((C,), "m"), _done(C))
    state, told = await _recorded(*begun, _done(A), Response((Text("All done"),), "n"), Finished("All done"))
    assert _names(state.history[1:]) == [
        (Assistant, "ab"),
        (Tool, "ab"),
        (Assistant, "c"),
        (Tool, "c"),
        (Assistant, ""),
    ]
    results = {
        block.call_id: block for message in state.history for block in message.content if hasattr(block, "call_id")
    }
    assert results == {call.id: _result(call) for call in (A, B, C)}
    assert told == ["b", "c", "a"]


async def test_all_calls_that_run_when_the_program_is_stopped_are_in_doubt() -> None:
    begun = (Response((A,), "m"), Response((B,), "m"), _done(B), Response((C,), "m"))
    for ending in [(), (Failed("stopped", "it was killed"),)]:
        state, _ = await _recorded(*begun, *ending)
        assert [call.id for call in left_over(state).in_doubt] == ["a", "c"]


async def test_a_call_that_has_begun_is_on_record_also_where_words_are_kept_only_whole() -> None:
    state, _ = await _recorded(Response((Text("I look"),), "m"), Response((A,), "m"), pieces=False)
    assert left_over(state).in_doubt == (A,)
