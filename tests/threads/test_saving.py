"""`Thread.save`: all that a checkpoint holds is on record, or an error names what is not and nothing has changed."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Thread
from clew.checkpointers import MemoryCheckpointer
from clew.errors import ClewError, InvalidInput
from clew.log import (
    Checkpoint,
    Compacted,
    Described,
    Logged,
    MessageAdded,
    ModelCallStarted,
    ProviderKey,
    Rewound,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    Streamed,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceChanging,
    WorkspaceSnapshot,
    fold,
)
from clew.messages import Assistant, Text, ToolCall, ToolResult, assistant, user
from tests.strategies import logs

replace = msgspec.structs.replace
CALLS = MessageAdded(Assistant((ToolCall("a", "one", {}), ToolCall("b", "two", {}))))
TURN: list[Logged] = [MessageAdded(user("question")), MessageAdded(assistant("answer"), Usage(100, 10), 0.5)]


def saved(before: list[Logged], change: Any) -> tuple[Checkpoint, Checkpoint, Checkpoint]:
    """The state before, the one that was to be saved, and the one that a load gives."""

    async def run() -> tuple[Checkpoint, Checkpoint, Checkpoint]:
        async with MemoryCheckpointer() as store:
            async with Thread.open(store, "t") as thread:
                await thread.append(*before)
                was = thread.checkpoint
                wanted = change(was)
                frames = thread.head.frames
                try:
                    await thread.save(wanted)
                except ClewError:
                    assert (thread.checkpoint, thread.head.frames) == (was, frames), "refused, and changed"
                    raise
                assert thread.checkpoint == fold([], thread.checkpoint)
                kept = thread.checkpoint
                await thread.save(wanted)
                assert thread.checkpoint == kept, "saving twice is saving once"
            loaded = await Thread.load(store, "t")
            if wanted.status == "running":
                loaded = replace(loaded, status="running", reason=wanted.reason)
            return was, wanted, loaded

    return asyncio.run(run())


def check_kept(was: Checkpoint, wanted: Checkpoint, loaded: Checkpoint) -> None:
    """Every field is what it was to be; spend and history hold that and what was on record before."""
    grows = {"history", "view", "marks", "done_at", "usage", "cost_usd", "seconds", "unaccounted"}
    by_content = {"facts", "open_message", "intents", "results", "steps", "open_steps"}
    for field in Checkpoint.__struct_fields__:
        if field not in grows | by_content:
            assert encoded(getattr(loaded, field)) == encoded(getattr(wanted, field)), field
    assert loaded.messages == wanted.messages
    assert loaded.turns == wanted.turns
    assert [(c.call, c.status, c.key, c.result, c.steps) for c in loaded.calls] == [
        (c.call, c.status, c.key, c.result, c.steps) for c in wanted.calls
    ]
    assert {(f.turn, f.kind, f.key): encoded(f.value) for f in loaded.facts} == {
        (f.turn, f.kind, f.key): encoded(f.value) for f in wanted.facts
    }
    assert [message for message in wanted.history if message not in loaded.history] == []
    assert loaded.history[: len(was.history)] == was.history
    for name in Usage.__struct_fields__:
        assert getattr(loaded.usage, name) == max(getattr(was.usage, name), getattr(wanted.usage, name))
    if was.cost_usd is None or wanted.cost_usd is None:
        assert loaded.cost_usd is None
    else:
        assert loaded.cost_usd is not None
        assert math.isclose(loaded.cost_usd, max(was.cost_usd, wanted.cost_usd), abs_tol=1e-9)
    assert loaded.unaccounted >= wanted.unaccounted


def encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, order="deterministic")


@pytest.mark.slow
@given(logs, logs)
def test_a_state_that_goes_on_from_the_threads_own_is_kept_or_refused(before: list[Logged], more: list[Logged]) -> None:
    with suppress(ClewError):  # refused, and nothing has changed: `saved` looks
        check_kept(*saved(_without_files(before), lambda was: fold(_without_files(more), was)))


@pytest.mark.slow
@given(logs, logs)
def test_a_state_from_anywhere_is_kept_or_refused(before: list[Logged], other: list[Logged]) -> None:
    with suppress(ClewError):  # refused, and nothing has changed: `saved` looks
        check_kept(*saved(_without_files(before), lambda was: fold(_without_files(other))))


@pytest.mark.slow
@given(logs, logs, st.sampled_from(Checkpoint.__struct_fields__))
def test_a_state_with_one_field_of_another_is_kept_or_refused(
    before: list[Logged], other: list[Logged], field: str
) -> None:
    strange = fold(_without_files(other))
    with suppress(ClewError):  # refused, and nothing has changed: `saved` looks
        check_kept(*saved(_without_files(before), lambda was: replace(was, **{field: getattr(strange, field)})))


def _without_files(log: list[Logged]) -> list[Logged]:
    """Snapshots must be in the store: they have a test of their own."""
    return [entry for entry in log if not isinstance(entry, WorkspaceSnapshot)]


@pytest.mark.parametrize(
    "more",
    [
        [*TURN],
        [StateSet("k", 1), *TURN, StateSet("k", True), StateSet("seen", [1], scope="turn")],
        [ProviderKey("codex", "x"), *TURN],
        [*TURN, WorkspaceChanging(2)],
        [ThreadStarted("agent", "model", "Be brief.", {"one": "d"}, {"max_turns": 3}, ("parent", 1))],
        [Described("A title", {"team": "a"})],
        [StatusChanged("waiting", "for a person")],
        [StatusChanged("done")],
        [MessageAdded(user("go")), CALLS],
        [MessageAdded(user("go")), CALLS, ToolIntent(3, 0, "key", 2), StepIntent(3, 0, "s"), StepOutcome(3, 0, "s", 1)],
        [MessageAdded(user("go")), CALLS, ToolIntent(3, 1, "key"), StepIntent(3, 1, "s")],
        [MessageAdded(user("go")), CALLS, ToolIntent(3, 0, "key"), ToolOutcome(3, 0, ToolResult("a", (Text("ok"),)))],
        [Streamed((Text("half a"),)), ModelCallStarted("model")],
        [Rewound(turn=0), *TURN],
        [Rewound(messages=1), MessageAdded(assistant("another answer"))],
    ],
    ids=lambda more: "+".join(type(entry).__name__ for entry in more),
)
def test_what_was_folded_onto_the_threads_own_state_is_saved(more: list[Logged]) -> None:
    check_kept(*saved(TURN, lambda was: fold(more, was)))


def test_a_history_that_the_view_hides_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        InvalidInput, match=r"thread 't': saving would not keep history, .*view=\(\(0, len\(history\)\),\)"
    ):
        saved([], lambda was: Checkpoint(history=(user("question"), assistant("answer"))))


def test_a_history_with_its_view_and_marks_is_saved() -> None:
    wanted = fold([MessageAdded(user("question")), MessageAdded(assistant("answer"))])
    _, _, loaded = saved([], lambda was: replace(wanted, status="running"))
    assert loaded.messages == (user("question"), assistant("answer"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"history": (user("another"), assistant("answer")), "view": ()}, "history"),
        ({"marks": ((), (), ((0, 2),))}, "marks"),
        ({"view": ((0, 9),)}, "history does not hold"),
        ({"open_message": 9}, "history does not hold"),
        ({"intents": {0: ("key", 1)}}, "intents"),
        ({"unaccounted": 3}, "unaccounted"),
        ({"done_at": 1}, "done_at"),
        ({"facts": ()}, "set these keys to None: k"),
    ],
    ids=str,
)
def test_what_cannot_be_saved_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        saved([*TURN, StateSet("k", 1)], lambda was: replace(was, **change))


def test_a_provider_or_snapshot_that_a_state_does_not_know_is_not_forgotten_unseen() -> None:
    with pytest.raises(InvalidInput, match="facts: provider 'codex' of turn 1"):
        saved([*TURN, ProviderKey("codex", "x")], lambda was: fold(TURN))


def test_a_compaction_is_to_be_appended() -> None:
    with pytest.raises(InvalidInput, match="append the entries themselves"):
        saved([*TURN, *TURN], lambda was: fold([Compacted(user("a summary"), keep=1)], was))


def test_an_edited_or_shortened_conversation_is_what_the_model_sees_and_the_history_keeps_the_rest() -> None:
    was, wanted, loaded = saved(
        [*TURN, *TURN], lambda was: fold([Rewound(messages=1), MessageAdded(assistant("no"))], was)
    )
    assert loaded.messages == (user("question"), assistant("no"))
    assert loaded.history[:4] == was.history
    assert loaded.usage == wanted.usage == Usage(200, 20)
