"""What a person is shown of a thread: when it worked, where it stopped, who went on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from clew import Agent, Thread, ToolContext, tool
from clew.checkpointers import Checkpointer, MemoryCheckpointer, SQLiteCheckpointer
from clew.errors import ThreadNotFound
from clew.log import (
    FIRST,
    Compacted,
    Frame,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallStarted,
    Rewound,
    Spend,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceSnapshot,
)
from clew.messages import Text, ToolCall, ToolResult, assistant, plain_text, user
from clew.messages import tool as results
from clew.testing import ScriptedModel, call
from clew.threads.views.timeline import Mark, TimelineReader, TimelineTurn, read_timeline, reader_of
from tests.limits import PATIENCE
from tests.threads.keeping import read_frames, with_folded_state

pytestmark = pytest.mark.anyio

SECOND = 1_000_000
A, B = "process 1 on alpha", "process 2 on beta"


@pytest.fixture
async def store() -> AsyncIterator[MemoryCheckpointer]:
    async with MemoryCheckpointer() as opened:
        yield opened


class Log:
    """Frames at times of one's own choosing."""

    def __init__(self) -> None:
        self.reader = TimelineReader("t")

    def at(self, second: float, *entries: Logged) -> list[TimelineTurn | Mark]:
        return self.reader.feed(Frame(FIRST, FIRST, int(second * SECOND), list(entries)))

    def kinds(self) -> list[str]:
        return [mark.kind for mark in self.reader.timeline().marks]


def asks(name: str = "look", **arguments: object) -> ToolCall:
    return ToolCall(f"id-{name}", name, arguments)


def outcome(message: int, index: int, text: str = "row", name: str = "look") -> ToolOutcome:
    return ToolOutcome(message, index, ToolResult(f"id-{name}", (Text(text),)))


def test_a_turn_has_its_times_tokens_cost_and_files() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"), ThreadStarted("ada", "m-1"), MessageAdded(user("Look.")))
    log.at(1, ModelCallStarted("m-1"))
    log.at(3, MessageAdded(assistant("So.", asks(), model="m-1"), Usage(100, 10), 0.5), ToolIntent(1, 0, "k"))
    log.at(7, outcome(1, 0))
    log.at(8, WorkspaceSnapshot("d" * 64, 2, 20), StatusChanged("done"))
    timeline = log.reader.timeline()
    (turn,) = timeline.turns
    assert (turn.number, turn.seconds, turn.usage, turn.cost_usd) == (1, 6.0, Usage(100, 10), 0.5)
    assert [plain_text(prompt) for prompt in turn.prompts] == ["Look."]
    assert turn.snapshot == WorkspaceSnapshot("d" * 64, 2, 20)
    (made,) = turn.calls
    assert (made.status, made.seconds, made.attempts) == ("done", 4.0, 1)
    assert log.kinds() == ["started", "done"]


def test_a_call_whose_process_vanished_is_in_doubt_and_the_crash_stands_where_it_happened() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"), MessageAdded(user("Go.")), ModelCallStarted("m"))
    calls = (asks("read"), asks("send"), asks("tell"))
    log.at(1, MessageAdded(assistant(*calls)), ToolIntent(1, 0, "a"), ToolIntent(1, 1, "b"))
    log.at(2, outcome(1, 0, name="read"))
    running = log.reader.timeline()
    assert [made.status for made in running.turns[0].calls] == ["done", "running", "not started"]
    gone = log.reader.timeline(abandoned=True)
    assert [made.status for made in gone.turns[0].calls] == ["done", "in doubt", "not started"]
    assert (gone.marks[-1].kind, gone.marks[-1].within) == ("crashed", True)
    assert gone.marks[-1].text == f"{A} ended without a word while it ran send"

    log.at(100, LeaseTaken("process 9 on alpha", "2"))
    then = log.reader.timeline()
    assert [made.status for made in then.turns[0].calls] == ["replayed", "in doubt", "not started"]
    crashed, resumed = then.marks[-2:]
    assert (crashed.kind, crashed.at and crashed.at.timestamp(), crashed.position) == ("crashed", 2.0, 1)
    assert (resumed.kind, resumed.owner, resumed.seconds) == ("resumed", "process 9 on alpha", 98.0)

    log.at(101, ToolIntent(1, 1, "b", 2), ToolIntent(1, 2, "c"))
    log.at(103, outcome(1, 1, name="send"), outcome(1, 2, name="tell"))
    (turn,) = log.reader.timeline().turns
    assert [(made.status, made.was_in_doubt, made.attempts) for made in turn.calls] == [
        ("replayed", False, 1),
        ("done", True, 2),
        ("done", False, 1),
    ]
    assert turn.seconds == 5.0, "the time in which nobody worked on it is none of its own"


def test_a_lease_taken_from_another_machine_before_it_ran_out_is_taken_over_and_one_after_is_a_crash() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"), MessageAdded(user("Go.")), MessageAdded(assistant("Yes.")))
    log.at(5, LeaseTaken(B, "2"))
    log.at(6, LeaseTaken(B, "3"))
    log.at(60, LeaseTaken(A, "4"))
    assert log.kinds() == ["started", "taken over", "resumed", "taken over", "resumed", "crashed", "resumed"]


def test_a_lease_that_was_given_back_is_no_crash_and_the_same_process_is_told_from_another() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"), MessageAdded(user("Go.")), MessageAdded(assistant("Yes.")), StatusChanged("done"))
    log.at(9, LeaseTaken(A, "2"), StatusChanged("interrupted", "cancelled"))
    log.at(20, LeaseTaken(B, "3"))
    marks = log.reader.timeline().marks
    assert [mark.kind for mark in marks] == ["started", "done", "resumed", "interrupted", "resumed"]
    assert [mark.same_process for mark in marks if mark.kind == "resumed"] == [True, False]
    assert marks[3].text == "interrupted: cancelled"


def test_what_was_rewound_is_kept_and_says_so() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"))
    for number in (1, 2, 3):
        log.at(number, MessageAdded(user(f"q{number}")), MessageAdded(assistant(f"a{number}")))
    changed = log.at(4, MessageAdded(user("never answered")), Rewound(turn=1))
    assert [(turn.number, turn.rewound) for turn in changed if isinstance(turn, TimelineTurn)] == [(2, True), (3, True)]
    log.at(5, MessageAdded(user("instead")), MessageAdded(assistant("other")))
    timeline = log.reader.timeline()
    assert [(turn.position, turn.number, turn.rewound) for turn in timeline.turns] == [
        (0, 1, False),
        (1, 2, True),
        (2, 3, True),
        (3, 2, False),
    ]
    mark = timeline.marks[-1]
    assert (mark.kind, mark.turn, mark.to_turn, mark.position) == ("rewound", 3, 1, 3)
    assert log.reader.turns.position_of(2) == 3
    assert log.reader.turns.position_of(3) is None
    assert [plain_text(prompt) for prompt in timeline.turns[-1].prompts] == ["instead"]


def test_results_given_as_a_message_and_spend_given_apart_belong_to_their_turn() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"), MessageAdded(user("Go.")))
    log.at(1, MessageAdded(assistant(asks())))
    log.at(3, MessageAdded(results(ToolResult("id-look", (Text("row"),)))))
    log.at(4, MessageAdded(assistant("Done.")), Spend(Usage(50, 5), 0.25))
    first, second = log.reader.timeline().turns
    assert (first.calls[0].status, first.calls[0].seconds, first.usage) == ("done", 2.0, None)
    assert (second.usage, second.cost_usd) == (Usage(50, 5), 0.25)


def test_what_awaits_a_response_is_shown_at_the_end_and_nowhere_else() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"), MessageAdded(user("One.")), MessageAdded(assistant("1")))
    log.at(1, MessageAdded(user("Two.")), MessageAdded(assistant("2")))
    log.at(2, MessageAdded(user("Three.")), ModelCallStarted("m"))
    end = log.reader.timeline(1)
    assert [plain_text(message) for message in end.pending] == ["Three."]
    assert end.asked_at is not None
    assert log.reader.timeline(0, 1).pending == ()
    assert log.reader.timeline(abandoned=True).asked_at is None


def test_a_move_to_another_provider_and_a_change_of_settings_are_marked() -> None:
    log = Log()
    log.at(0, LeaseTaken(A, "1"), ThreadStarted("ada", "m-1"), MessageAdded(user("Go.")), MessageAdded(assistant("1")))
    log.at(1, ThreadStarted("ada", "m-2"))
    log.at(2, ThreadStarted("codex", "", limits={"provider": "codex"}))
    assert log.kinds() == ["started", "changed", "moved"]
    assert log.reader.timeline().marks[-1].text == "moved from clew to codex"


def test_feeding_frame_by_frame_tells_what_each_one_changed() -> None:
    log = Log()
    first = log.at(0, LeaseTaken(A, "1"), MessageAdded(user("Go.")))
    assert [happened.kind for happened in first if isinstance(happened, Mark)] == ["started"]
    (asked,) = log.at(1, MessageAdded(assistant(asks())), ToolIntent(1, 0, "k"))
    assert isinstance(asked, TimelineTurn)
    assert asked.calls[0].status == "running"
    settled, done = log.at(2, outcome(1, 0), StatusChanged("done"))
    assert isinstance(settled, TimelineTurn)
    assert isinstance(done, Mark)
    assert (settled.calls[0].status, done.kind) == ("done", "done")


async def test_a_window_is_the_same_part_of_the_whole_timeline(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t", durability="exit") as thread:
        for number in range(300):
            await thread.append(
                MessageAdded(user(f"q{number}")), MessageAdded(assistant(f"a{number}"), Usage(1, 1), 0.0)
            )
            if number % 50 == 49:
                await thread.append(Compacted(user("so far"), 1))
        await thread.append(Rewound(turn=290))
    whole = await read_timeline(store, "t")
    assert (len(whole.turns), whole.total) == (300, 300)
    parts = [await read_timeline(store, "t", start=start, stop=start + 70) for start in range(0, 300, 70)]
    assert tuple(turn for part in parts for turn in part.turns) == whole.turns
    assert tuple(mark for part in parts for mark in part.marks) == whole.marks
    newest = await read_timeline(store, "t", start=-10)
    assert [turn.position for turn in newest.turns] == list(range(290, 300))
    assert all(turn.rewound for turn in newest.turns)


async def test_a_log_with_folded_states_in_it_reads_as_one_without(store: MemoryCheckpointer) -> None:
    folded = await with_folded_state(store, "t")
    timeline = await read_timeline(store, "t")
    assert 0 < folded < timeline.frames
    assert [turn.number for turn in timeline.turns] == [1, 2]
    assert all(turn.seconds is not None and turn.usage == Usage(100, 10) for turn in timeline.turns)


async def test_a_reader_goes_on_where_it_was_at_the_cost_of_what_is_new(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("1")), MessageAdded(assistant("1")))
        reader, head = await reader_of(store, "t")
        read = reader.frames
        await thread.append(MessageAdded(user("2")), MessageAdded(assistant("2")))
        again, head = await reader_of(store, "t", reader=reader)
    assert again is reader
    assert (read, reader.frames, reader.total) == (2, head.frames, 2)


async def test_a_fork_shows_the_turns_it_inherited_and_where_they_came_from(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("One.")), MessageAdded(assistant("1", asks())), ToolIntent(1, 0, "k"))
        await thread.append(outcome(1, 0), MessageAdded(user("Two.")), MessageAdded(assistant("2", asks("send"))))
        await thread.append(ToolIntent(4, 0, "x"))
        await thread.fork("cut", at_turn=1)
        await thread.fork("open")
    async with Thread.open(store, "cut") as thread:
        await thread.append(MessageAdded(user("Three.")), MessageAdded(assistant("3"), Usage(1, 1), 0.0))
    cut = await read_timeline(store, "cut")
    assert [(turn.number, turn.inherited) for turn in cut.turns] == [(1, True), (2, False)]
    assert [plain_text(turn.prompts[0]) for turn in cut.turns] == ["One.", "Three."]
    assert (cut.turns[0].calls[0].status, cut.turns[0].seconds, cut.turns[0].usage) == ("done", None, None)
    forked = cut.marks[0]
    assert (forked.kind, forked.position, forked.text) == ("forked", 1, "forked from turn 1 of t")
    in_doubt = await read_timeline(store, "open")
    assert [made.status for turn in in_doubt.turns for made in turn.calls] == ["done", "in doubt"]


async def test_a_fork_of_a_compacted_and_rewound_thread_shows_the_line_of_work_that_it_goes_on_from(
    store: MemoryCheckpointer,
) -> None:
    async with Thread.open(store, "t") as thread:
        for number in (1, 2, 3):
            await thread.append(MessageAdded(user(f"q{number}")), MessageAdded(assistant(f"a{number}")))
        await thread.append(Compacted(user("summary"), 1), Rewound(turn=2))
        await thread.append(MessageAdded(user("q3b")), MessageAdded(assistant("a3b")), Compacted(user("sum"), 1))
        await thread.append(MessageAdded(user("q4")), MessageAdded(assistant("a4")), MessageAdded(user("open")))
        await thread.fork("f")
    timeline = await read_timeline(store, "f")
    texts = ["".join(block.text for block in turn.blocks if isinstance(block, Text)) for turn in timeline.turns]
    assert texts == ["a1", "a2", "a3b", "a4"]


async def test_a_thread_that_is_not_there_is_not_found(store: MemoryCheckpointer) -> None:
    with pytest.raises(ThreadNotFound):
        await read_timeline(store, "nobody")


@tool(effect="steps")
async def ask(ctx: ToolContext) -> str:
    return f"they said {await ctx.interrupt('Which one?')}"


async def test_an_agent_that_waits_and_is_answered(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel([call("ask"), "Thanks."]), tools=[ask], checkpointer=store)
    await agent.run("Ask them.", thread_id="t")
    waiting = await read_timeline(store, "t")
    assert [made.status for made in waiting.turns[0].calls] == ["waiting"]
    assert waiting.marks[-1].kind == "waiting"
    await agent.resume(thread_id="t", answer="the red one")
    timeline = await read_timeline(store, "t")
    assert [mark.kind for mark in timeline.marks] == ["started", "waiting", "resumed", "answered", "done"]
    (made,) = timeline.turns[0].calls
    assert (made.status, made.was_in_doubt) == ("done", False)


async def test_an_agent_that_fails_and_is_resumed(store: MemoryCheckpointer) -> None:
    broken = Agent(ScriptedModel([ValueError("no network")]), checkpointer=store)
    with pytest.raises(ValueError, match="no network"):
        await broken.run("Try.", thread_id="t")
    failed = await read_timeline(store, "t")
    assert (failed.marks[-1].kind, failed.total) == ("failed", 0)
    assert [plain_text(message) for message in failed.pending] == ["Try."]
    await Agent(ScriptedModel(["Fine."]), checkpointer=store).resume(thread_id="t")
    timeline = await read_timeline(store, "t")
    assert [mark.kind for mark in timeline.marks] == ["started", "failed", "resumed", "done"]


CRASHING = """
import asyncio, os, signal, sys
from clew import Agent, tool
from clew.testing import ScriptedModel, call

@tool(effect="idempotent")
async def keep() -> str:
    return "kept"

@tool(effect="idempotent")
async def charge() -> str:
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return "charged"

agent = Agent(ScriptedModel([call("keep"), call("charge"), "Done."]), tools=[keep, charge], checkpointer=sys.argv[1])

async def main() -> None:
    await agent.run("Charge it.", thread_id="t")

asyncio.run(main())
"""


async def test_a_process_killed_in_a_tool_and_another_that_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    killed = _run(url, "dies")
    assert killed == -signal.SIGKILL
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        crashed = await read_timeline(store, "t")
        assert [made.status for turn in crashed.turns for made in turn.calls] == ["done", "in doubt"]
        assert crashed.marks[-1].kind == "crashed"
        assert crashed.marks[-1].text.endswith("ended without a word while it ran charge")
        assert _run(url, "lives") == 0
        timeline = await read_timeline(store, "t")
    assert [mark.kind for mark in timeline.marks] == ["started", "crashed", "resumed", "done"]
    assert not timeline.marks[2].same_process
    charged = timeline.turns[1].calls[0]
    assert (charged.status, charged.was_in_doubt, charged.attempts) == ("done", True, 2)


def _run(url: str, how: str) -> int:
    return subprocess.run([sys.executable, "-c", CRASHING, url, how], check=False, timeout=PATIENCE).returncode


async def test_the_state_it_ends_in_is_the_one_that_is_loaded(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel([call("ask"), "Thanks."]), tools=[ask], checkpointer=store)
    await agent.run("Ask them.", thread_id="t")
    assert (await read_timeline(store, "t")).checkpoint == await Thread.load(store, "t")


async def test_a_timeline_can_be_written_as_json(store: Checkpointer) -> None:
    agent = Agent(ScriptedModel([call("ask")]), tools=[ask], checkpointer=store)
    await agent.run("Ask them.", thread_id="t")
    (turn,) = (await read_timeline(store, "t")).turns
    assert b'"status":"waiting"' in msgspec.json.encode(turn)


async def test_frames_read_elsewhere_can_be_fed(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("1")), MessageAdded(assistant("1")))
    head = await store.head("t")
    assert head is not None
    reader = TimelineReader("t")
    for frame in await read_frames(store, head):
        reader.feed(frame)
    assert reader.timeline() == await read_timeline(store, "t")
