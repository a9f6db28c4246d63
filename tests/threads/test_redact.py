"""Redaction: what was taken out is nowhere, and what is left is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clew.checkpointers import MemoryCheckpointer, SQLiteCheckpointer
from clew.errors import InvalidInput
from clew.log import (
    Compacted,
    Described,
    Logged,
    MessageAdded,
    ModelCallRefused,
    Spend,
    StateSet,
    StatusChanged,
    StepOutcome,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
)
from clew.messages import Json, Opaque, Text, Thinking, ToolCall, ToolResult, assistant, user
from clew.threads import Thread
from clew.threads.redact import Redact

pytestmark = pytest.mark.anyio

SECRET = "sk-abc123"
EVERYWHERE: list[Logged] = [
    ThreadStarted("ada", "m", f"use {SECRET}", {}, {"key": SECRET}),
    MessageAdded(user(f"my key is {SECRET}", Opaque("x", {SECRET: [SECRET]}))),
    MessageAdded(assistant(Thinking(SECRET), ToolCall("c", "t", {"deep": [{"er": SECRET}]}))),
    StepOutcome(1, 0, "s", SECRET),
    ToolOutcome(1, 0, ToolResult("c", (Text(SECRET), Json({"k": SECRET})))),
    StateSet("note", {"a": (SECRET,)}),
    Described(SECRET, {"tag": SECRET}),
    Compacted(user(SECRET), 1),
    ModelCallRefused(f"HTTP 400: {SECRET}"),
    StatusChanged("waiting", f"for {SECRET}"),
]


@pytest.mark.parametrize(
    "redact", [[r"sk-\w+"], [re.compile("sk-[a-z0-9]+")], lambda text: text.replace(SECRET, "***")]
)
async def test_nothing_that_is_redacted_reaches_the_store(redact: Redact, tmp_path: Path) -> None:
    async with SQLiteCheckpointer(tmp_path / "c.db") as store:
        async with Thread.open(store, "t", redact=redact) as thread:
            await thread.append(*EVERYWHERE)
            assert SECRET not in repr(thread.checkpoint)
        state = await Thread.load(store, "t")
        assert SECRET not in repr(state)
        assert state.status == "waiting"
        assert state.turns == 1
        assert SECRET not in repr(await store.head("t"))


async def test_text_that_does_not_match_is_left_as_it_is() -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t", redact=["never there"]) as thread:
            await thread.append(MessageAdded(user("hello")))
        assert (await Thread.load(store, "t")).messages == (user("hello"),)


async def test_patterns_that_are_none_are_refused() -> None:
    async with MemoryCheckpointer() as store:
        with pytest.raises(InvalidInput, match="not a valid regular expression"):
            Thread.open(store, "t", redact=["("])
        with pytest.raises(InvalidInput, match=r"redact=\[pattern\]"):
            Thread.open(store, "t", redact="sk-.*")


async def test_a_function_that_returns_no_text_is_refused_and_leaves_the_thread_readable() -> None:
    def forgets_to_return(text: str) -> str:
        return text if "row" not in text else None  # type: ignore[return-value]

    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t", redact=forgets_to_return) as thread:
            await thread.append(MessageAdded(user("hello")))
            with pytest.raises(InvalidInput, match="redact returned NoneType"):
                await thread.append(MessageAdded(user("a row")))
        assert (await Thread.load(store, "t")).messages == (user("hello"),)


async def test_keys_by_which_one_thing_finds_another_are_left_alone() -> None:
    key, digest = "a1b2" * 8, "c3d4" * 16
    calls = [ToolCall("id-1", "pay", {"order": "1"}), ToolCall("id-2", "pay", {"order": "2"})]
    entries: list[Logged] = [
        ThreadStarted("ada", "m", "", {"pay": digest}),
        MessageAdded(assistant(*calls)),
        ToolIntent(0, 0, key),
        StepOutcome(0, 0, "step-1", "ok"),
        StateSet("clew:questions", [{"key": "x"}]),
    ]
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t", redact=[r"[0-9a-f]{32}", r"\bpay\b", r"id-\d", r"step", r"clew"]) as thread:
            await thread.append(*entries)
        state = await Thread.load(store, "t")
    first, second = state.calls
    assert (first.key, first.steps, [first.call, second.call]) == (key, {"step-1": "ok"}, calls)
    assert state.tools == {"pay": digest}
    assert state.state == {"clew:questions": [{"key": "x"}]}


CARD = 4111111111111111
NUMBERS: list[Logged] = [
    MessageAdded(user(Json({"card": CARD, "also": [{"deep": -CARD}], CARD: 1}), Opaque("x", {"card": CARD}))),
    MessageAdded(assistant(ToolCall("c", "pay", {"card": CARD, "exact": float(CARD), "amount": 12}))),
    ToolOutcome(1, 0, ToolResult("c", (Json(CARD), Json({"k": (CARD, True, None, 7, 0.5)})))),
    StepOutcome(1, 0, "s", {"card": CARD}),
    StateSet("card", CARD),
    StateSet("clew:answered", {"1:0:card": CARD, "1:1:other": {"cards": [CARD]}}),
    StateSet("clew:questions", [{"arguments": {"card": CARD}, "message": 3}]),
]


async def test_numbers_of_users_tools_and_models_are_redacted_and_those_of_clew_are_not() -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t", redact=[r"\b\d{16}\b"]) as thread:
            await thread.append(*NUMBERS)
        state = await Thread.load(store, "t")
        assert state.state["clew:questions"] == [{"arguments": {"card": "[redacted]"}, "message": 3}]
        assert str(CARD) not in repr(state)
        assert f"{float(CARD)!r}" not in repr(state)
        assert state.state["card"] == "[redacted]"
        assert state.turns == 1
        assert "'amount': 12" in repr(state)
        assert "True, None, 7, 0.5" in repr(state)


async def test_a_position_that_clew_keeps_stays_even_if_it_matches() -> None:
    async with MemoryCheckpointer() as store, Thread.open(store, "t", redact=[r"\d+"]) as thread:
        await thread.append(StateSet("clew:questions", [{"index": 5}]), Spend(Usage(input_tokens=7), 0.25))
        assert thread.checkpoint.state["clew:questions"] == [{"index": 5}]
        assert (thread.checkpoint.usage.input_tokens, thread.checkpoint.cost_usd) == (7, 0.25)


async def test_a_number_that_matches_nothing_stays_a_number() -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t", redact=lambda text: text.replace("secret", "")) as thread:
            await thread.append(StateSet("n", [1, 2.5, 10**18, -0.0, True]))
        kept = (await Thread.load(store, "t")).state["n"]
        assert [(type(value), value) for value in kept] == [
            (int, 1),
            (float, 2.5),
            (int, 10**18),
            (float, -0.0),
            (bool, True),
        ]
