"""Steps, questions, cancellation and state, as tools see them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from clew.errors import InvalidInput, UsageError
from clew.tools import NOT_DONE, Interrupted, MemoryJournal, OutcomeUnknown, State, ToolContext, answer_key

pytestmark = pytest.mark.anyio


async def test_a_step_is_recorded_and_replayed() -> None:
    journal, ran = MemoryJournal(), list[str]()

    async def charge() -> dict[str, Any]:
        ran.append("charge")
        return {"id": 7, "parts": (1, 2)}

    first = await ToolContext(journal=journal).step("charge", charge)
    again = await ToolContext(journal=journal).step("charge", charge)
    assert first == again == {"id": 7, "parts": [1, 2]}
    assert (ran, journal.intents) == (["charge"], ["charge"])


async def test_the_intent_is_on_record_before_the_step_runs() -> None:
    journal = MemoryJournal()

    def look() -> list[str]:
        return list(journal.intents)

    assert await ToolContext(journal=journal).step("look", look) == ["look"]


async def test_none_is_a_value_like_any_other() -> None:
    journal, ran = MemoryJournal(), list[int]()
    for _ in range(2):
        value: Any = await ToolContext(journal=journal).step("a", lambda: cast(Any, ran.append)(1))
        assert value is None
    assert ran == [1]


async def test_changing_a_step_s_value_does_not_change_the_record() -> None:
    journal = MemoryJournal()
    value: list[int] = await ToolContext(journal=journal).step("a", lambda: [1])
    value.append(2)
    replayed: list[int] = await ToolContext(journal=journal).step("a", lambda: [9])
    replayed.append(3)
    assert await ToolContext(journal=journal).step("a", lambda: [9]) == [1]


async def test_a_step_that_failed_runs_again() -> None:
    journal = MemoryJournal()

    def fail() -> int:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await ToolContext(journal=journal).step("a", fail)
    assert await ToolContext(journal=journal).step("a", lambda: 1) == 1


async def test_a_step_in_doubt_is_run_again_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    journal = MemoryJournal()
    await journal.step_intent("pay")
    with caplog.at_level(logging.WARNING, "clew.tools"):
        assert await ToolContext(thread_id="t", journal=journal).step("pay", lambda: 1) == 1
    assert "'pay' was begun before" in caplog.text


@pytest.mark.parametrize(("found", "ran"), [({"id": 3}, []), (NOT_DONE, ["pay"])])
async def test_a_step_in_doubt_asks_its_reconcile_first(found: Any, ran: list[str]) -> None:
    journal, calls = MemoryJournal(), list[str]()
    await journal.step_intent("pay")

    def pay() -> dict[str, int]:
        calls.append("pay")
        return {"id": 4}

    value = await ToolContext(journal=journal).step("pay", pay, reconcile=lambda: found)
    assert calls == ran
    assert journal.outcomes["pay"] == value == ({"id": 4} if ran else {"id": 3})


@pytest.mark.parametrize("value", [object(), {1: 2}, 2**80, b"x", "\ud800", {"a": [1, {"b": {3}}]}, State])
async def test_a_value_that_is_not_json_like_is_refused(value: Any) -> None:
    journal = MemoryJournal()
    with pytest.raises(InvalidInput, match="the step 'a' ran"):
        await ToolContext(journal=journal).step("a", lambda: value)
    assert journal.outcomes == {}


async def test_the_place_of_a_bad_value_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"\['rows'\]\[1\] is of the type set"):
        await ToolContext().step("a", lambda: {"rows": [1, {2}]})


async def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidInput, match="holds itself"):
        await ToolContext().step("a", lambda: loop)


async def test_a_key_is_used_once_in_a_call() -> None:
    ctx = ToolContext()
    await ctx.step("send", lambda: 1)
    with pytest.raises(InvalidInput, match="twice in one call"):
        await ctx.step("send", lambda: 2)


@pytest.mark.parametrize("key", ["", "clew:answer:0", 5])
async def test_some_keys_cannot_be_used(key: Any) -> None:
    with pytest.raises(InvalidInput, match="a step's key"):
        await ToolContext().step(key, lambda: 1)


async def test_no_step_begins_in_a_call_that_was_cancelled() -> None:
    journal = MemoryJournal()
    await ToolContext(journal=journal).step("a", lambda: 1)
    ctx = ToolContext(journal=journal)
    ctx.cancel()
    assert ctx.cancelled
    assert await ctx.step("a", lambda: 2) == 1
    with pytest.raises(OutcomeUnknown):
        await ctx.step("b", lambda: 2)
    assert journal.intents == ["a"]


async def test_a_step_s_key_for_others_is_stable_and_its_own() -> None:
    one, other = ToolContext(idempotency_key="k"), ToolContext(idempotency_key="l")
    assert one.step_key("a") == ToolContext(idempotency_key="k").step_key("a")
    assert len({one.step_key("a"), one.step_key("b"), other.step_key("a")}) == 3


async def test_a_question_without_an_answer_ends_the_tool() -> None:
    with pytest.raises(Interrupted) as raised:
        await ToolContext().interrupt("Sure?")
    assert (raised.value.question, raised.value.key) == ("Sure?", answer_key(0))
    assert not isinstance(raised.value, Exception)


@pytest.mark.parametrize("question", [{"pay": "Bob"}, "", None])
async def test_a_question_is_a_text(question: Any) -> None:
    with pytest.raises(InvalidInput, match="a question is a text for a person"):
        await ToolContext().interrupt(question)


async def test_answers_are_matched_to_questions_in_their_order() -> None:
    ctx = ToolContext(journal=MemoryJournal(answers=["yes", {"size": 2}]))
    assert await ctx.interrupt("Sure?") == "yes"
    assert await ctx.interrupt("How large?") == {"size": 2}
    with pytest.raises(Interrupted) as raised:
        await ctx.interrupt("Really?")
    assert raised.value.key == answer_key(2)


async def test_the_blocking_form_needs_a_call_and_a_thread() -> None:
    with pytest.raises(UsageError, match="call_tool"):
        await asyncio.to_thread(lambda: ToolContext().blocking.step("a", lambda: 1))
    with pytest.raises(UsageError, match=r"await ctx\.step"):
        ToolContext()._for_attempt(1).blocking.interrupt("Sure?")


def test_changes_of_the_state_are_known() -> None:
    state = State({"a": 1, "b": [1], "c": {"x": 1}, "d": 4, "gone": None})
    assert state.take_changes() == {}
    state["a"] = 2
    state["b"].append(2)
    _ = state["c"]
    del state["d"]
    state["e"] = (1, 2)
    assert dict(state) == {"a": 2, "b": [1, 2], "c": {"x": 1}, "e": [1, 2]}
    assert len(state) == 4
    assert state.take_changes() == {"a": 2, "b": [1, 2], "d": None, "e": [1, 2]}
    assert state.take_changes() == {}
    assert "d" not in state
    assert state.get("gone") is None
    state["b"].append(3)
    assert state.take_changes() == {"b": [1, 2, 3]}


def test_a_state_does_not_change_what_it_was_made_of() -> None:
    given = {"a": [1]}
    State(given)["a"].append(2)
    assert given == {"a": [1]}


def test_true_and_one_are_two_values() -> None:
    state = State({"a": 1})
    state["a"] = True
    assert state.take_changes() == {"a": True}


def test_the_state_takes_only_what_can_be_recorded() -> None:
    state = State()
    with pytest.raises(InvalidInput, match=r"state\['a'\]"):
        state["a"] = object()
    with pytest.raises(KeyError):
        del state["a"]
    with pytest.raises(KeyError):
        _ = state["a"]
    assert dict(state) == {}
