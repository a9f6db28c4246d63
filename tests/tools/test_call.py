"""One call of a tool: what the model is given, whatever the tool does."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import subprocess
import sys
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from clew.messages import File, Image, Json, Text, ToolResult
from clew.tools import (
    NOT_DONE,
    AnyTool,
    Interrupted,
    MemoryJournal,
    OutcomeUnknown,
    ToolContext,
    ToolError,
    ask_reconcile,
    call_tool,
    needs_approval,
    tool,
    unknown_tool,
)
from clew.tools import call as calling_module
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio

Who = contextvars.ContextVar("Who", default="nobody")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling_module, "_FIRST_PAUSE", 0.001)


async def call(made: AnyTool, arguments: Any = None, **of_context: Any) -> ToolResult:
    return await call_tool(made, arguments, ToolContext(call_id="c1", **of_context))


def said(result: ToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, Text)
    return block.text


class Struct(msgspec.Struct):
    a: int


class Model(pydantic.BaseModel):
    a: date


@dataclasses.dataclass
class Data:
    a: Path


@dataclasses.dataclass
class Choking:
    a: int

    def __post_init__(self) -> None:
        raise LookupError("no")


class Rude:
    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("words", (Text("words"),)),
        ("half \ud800", (Text("half ?"),)),
        (None, (Text("done"),)),
        (5, (Json(5),)),
        (True, (Json(True),)),
        ({"a": 1, 2: [3]}, (Json({"a": 1, "2": [3]}),)),
        ([1, "a"], (Json([1, "a"]),)),
        ([], (Json([]),)),
        (Struct(1), (Json({"a": 1}),)),
        (Model(a=date(2025, 1, 2)), (Json({"a": "2025-01-02"}),)),
        ([Model(a=date(2025, 1, 2))], (Json([{"a": "2025-01-02"}]),)),
        (Data(Path("x")), (Json({"a": "x"}),)),
        (date(2025, 1, 2), (Text("2025-01-02"),)),
        (b"\x89PNG\r\n\x1a\n.", (Image("image/png", b"\x89PNG\r\n\x1a\n."),)),
        (b"RIFF....WEBP", (Image("image/webp", b"RIFF....WEBP"),)),
        (b"%PDF-1", (File("", "application/pdf", b"%PDF-1"),)),
        (b"\0", (File("", "application/octet-stream", b"\0"),)),
        (Image(url="http://x"), (Image(url="http://x"),)),
        (["see", Image(url="http://x")], (Text("see"), Image(url="http://x"))),
        (2**80, (Text(str(2**80)),)),
        (Rude(), (Text("The tool ran, and returned a Rude, which has no text form."),)),
    ],
)
async def test_any_value_is_a_result(value: Any, content: tuple[Any, ...]) -> None:
    @tool
    async def give() -> Any:
        return value

    assert await call(give) == ToolResult("c1", content)


async def test_a_result_is_given_the_id_of_its_call() -> None:
    @tool
    def give() -> ToolResult:
        return ToolResult("other", (Text("no"),), is_error=True)

    assert await call(give) == ToolResult("c1", (Text("no"),), is_error=True)


async def test_arguments_are_decoded_and_the_context_is_given() -> None:
    @tool
    async def add(ctx: ToolContext, a: int, b: int = 1) -> str:
        return f"{ctx.thread_id} {a + b}"

    assert said(await call(add, {"a": "2"}, thread_id="t")) == "t 3"


async def test_wrong_arguments_are_an_error_for_the_model_and_the_body_does_not_run() -> None:
    ran = []

    @tool
    def add(a: int) -> None:
        ran.append(a)

    result = await call(add, {"a": "x", "b": 1})
    assert result.is_error
    assert "`a`: expected int" in said(result)
    assert "`b`: there is no such argument" in said(result)
    assert ran == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_is_an_error_with_type_and_message_and_no_traceback(is_async: bool) -> None:
    def fail(token: str = "secret") -> None:
        raise LookupError("no such order")

    async def fail_later() -> None:
        fail()

    result = await call(tool(fail_later if is_async else fail))
    assert result == ToolResult("c1", (Text("LookupError: no such order"),), is_error=True)


async def test_a_tool_error_is_said_as_it_is() -> None:
    @tool(effect="none", retries=5)
    async def fail() -> None:
        raise ToolError("Ask for a smaller range.")

    assert await call(fail) == ToolResult("c1", (Text("Ask for a smaller range."),), is_error=True)


@pytest.mark.parametrize(
    "error", [SystemExit(3), StopIteration(4), Rude, asyncio.CancelledError(), ExceptionGroup("g", [OSError("x")])]
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_no_exception_of_a_tool_gets_out(error: Any, is_async: bool) -> None:
    def fail() -> None:
        if error is Rude:
            raise RuntimeError(Rude())
        raise error

    async def fail_later() -> None:
        fail()

    assert (await call(tool(fail_later if is_async else fail))).is_error


async def test_a_long_error_is_cut() -> None:
    @tool
    def fail() -> None:
        raise ValueError("x" * 100_000)

    assert len(said(await call(fail))) < 5000


async def test_a_sync_tool_runs_in_a_thread_with_the_context_variables() -> None:
    @tool
    def where() -> list[Any]:
        return [Who.get(), threading.current_thread() is threading.main_thread(), threading.current_thread().daemon]

    Who.set("Ada")
    assert (await call(where)).content == (Json(["Ada", False, True]),)


async def test_sync_tools_run_side_by_side_and_leave_the_loop_free() -> None:
    both = threading.Barrier(3)

    @tool
    def meet() -> None:
        both.wait(PATIENCE)

    async def third() -> None:
        await asyncio.to_thread(both.wait, PATIENCE)

    await asyncio.gather(call(meet), call(meet), third())


async def test_a_failure_is_tried_again_with_the_same_key() -> None:
    seen: list[tuple[int, str]] = []

    @tool(effect="idempotent", retries=2)
    async def flaky(ctx: ToolContext) -> str:
        seen.append((ctx.attempt, ctx.idempotency_key))
        if len(seen) < 3:
            raise OSError("down")
        return "up"

    assert said(await call(flaky, attempt=4, idempotency_key="k")) == "up"
    assert seen == [(4, "k"), (5, "k"), (6, "k")]


async def test_the_last_failure_is_told() -> None:
    count = iter(range(10))

    @tool(effect="none", retries=1)
    def flaky() -> None:
        raise OSError(f"down {next(count)}")

    assert said(await call(flaky)) == "OSError: down 1"


async def test_a_retried_tool_replays_its_steps() -> None:
    ran: list[str] = []

    @tool(retries=1)
    async def trip(ctx: ToolContext) -> int:
        def begin() -> int:
            ran.append("first")
            return 1

        first = await ctx.step("first", begin)
        if ctx.attempt == 1:
            raise OSError("down")
        return first

    assert trip.effect == "steps"
    assert (await call(trip)).content == (Json(1),)
    assert ran == ["first"]


async def test_an_async_tool_that_times_out_is_cancelled_and_the_model_told(clock: Clock) -> None:
    ended: list[str] = []

    @tool(timeout=600)
    async def slow() -> None:
        try:
            clock.advance(600)
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    result = await call(slow)
    assert result.is_error
    assert said(result) == "The tool timed out after 600 s. It may have taken effect in part or in whole."
    assert ended == ["cancelled"]


async def test_a_timeout_of_the_tool_s_own_is_an_error_like_others() -> None:
    @tool(timeout=10)
    async def fail() -> None:
        raise TimeoutError("the bank did not answer")

    assert said(await call(fail)) == "TimeoutError: the bank did not answer"


@pytest.mark.parametrize("effect", ["once", "idempotent", "steps"])
async def test_a_sync_tool_that_times_out_is_in_doubt_and_sees_that_it_was_given_up(effect: Any, clock: Clock) -> None:
    began, seen = threading.Event(), threading.Event()
    runs: list[int] = []

    @tool(timeout=600, effect=effect, retries=0 if effect == "once" else 3)
    def slow(ctx: ToolContext) -> None:
        runs.append(1)
        began.set()
        while not ctx.cancelled:
            time.sleep(0.005)
        seen.set()

    with pytest.raises(OutcomeUnknown, match="slow: it timed out after 600 s and may still be running"):
        await asyncio.gather(call(slow), clock.advance_when(began.is_set, 600))
    assert await asyncio.to_thread(seen.wait, PATIENCE)
    assert runs == [1]


async def test_a_sync_tool_without_effect_that_times_out_is_tried_again_and_then_an_error(clock: Clock) -> None:
    began, given_up = [threading.Event(), threading.Event()], threading.Event()
    runs: list[int] = []

    @tool(timeout=600, effect="none", retries=1)
    def slow() -> None:
        runs.append(1)
        began[len(runs) - 1].set()
        given_up.wait(PATIENCE)

    calling = asyncio.create_task(call(slow))
    for run in began:
        await clock.advance_when(run.is_set, 600)
    assert said(await calling) == "The tool timed out after 600 s."
    given_up.set()
    assert runs == [1, 1]


async def test_a_tool_given_up_begins_no_further_step(clock: Clock) -> None:
    journal, went_on = MemoryJournal(), threading.Event()
    began, given_up = threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        given_up.wait(PATIENCE)

    @tool(timeout=600)
    def slow(ctx: ToolContext) -> None:
        try:
            ctx.blocking.step("first", first)
            ctx.blocking.step("second", lambda: None)
        finally:
            went_on.set()

    with pytest.raises(OutcomeUnknown):
        await asyncio.gather(call(slow, journal=journal), clock.advance_when(began.is_set, 600))
    given_up.set()
    assert await asyncio.to_thread(went_on.wait, PATIENCE)
    assert journal.intents == ["first"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_cancelling_a_call_passes_and_tells_the_tool(is_async: bool) -> None:
    began, told = threading.Event(), threading.Event()

    def slow(ctx: ToolContext) -> None:
        began.set()
        while not ctx.cancelled:
            time.sleep(0.005)
        told.set()

    async def slow_async(ctx: ToolContext) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            told.set()

    task = asyncio.create_task(call(tool(slow_async if is_async else slow)))
    assert await asyncio.to_thread(began.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(told.wait, PATIENCE)


async def test_stopping_the_run_is_seen_by_its_tools() -> None:
    ctx = ToolContext()

    @tool
    async def look(inner: ToolContext) -> bool:
        ctx.cancel()
        return inner.cancelled

    assert (await call_tool(look, {}, ctx)).content == (Json(True),)


async def test_the_blocking_forms_record_and_replay_as_the_others_do() -> None:
    journal, ran = MemoryJournal(), list[str]()

    async def later() -> str:
        ran.append("later")
        return "later"

    @tool
    def work(ctx: ToolContext) -> list[Any]:
        here = threading.current_thread()

        def look() -> bool:
            ran.append("same")
            return threading.current_thread() is here

        same = ctx.blocking.step("same", look)
        return [same, ctx.blocking.step("later", later), ctx.blocking.interrupt("Sure?")]

    with pytest.raises(Interrupted, match="Sure"):
        await call(work, journal=journal)
    journal.outcomes["clew:answer:0"] = "yes"
    assert (await call(work, journal=journal)).content == (Json([True, "later", "yes"]),)
    assert ran == ["same", "later"]


async def test_a_blocking_step_in_doubt_asks_its_reconcile() -> None:
    journal = MemoryJournal()
    await journal.step_intent("pay")

    @tool
    def work(ctx: ToolContext) -> Any:
        return ctx.blocking.step("pay", lambda: "paid again", reconcile=lambda: "paid")

    assert said(await call(work, journal=journal)) == "paid"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_question_is_not_swallowed_by_a_tool_that_catches_all_errors(is_async: bool) -> None:
    async def ask(ctx: ToolContext) -> str:
        try:
            return str(await ctx.interrupt("Sure?"))
        except Exception:  # noqa: BLE001
            return "swallowed"

    def ask_blocking(ctx: ToolContext) -> str:
        try:
            return str(ctx.blocking.interrupt("Sure?"))
        except Exception:  # noqa: BLE001
            return "swallowed"

    with pytest.raises(Interrupted, match="Sure"):
        await call(tool(ask if is_async else ask_blocking))


async def test_a_question_gets_out_of_a_task_group() -> None:
    @tool
    async def ask(ctx: ToolContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.interrupt("Sure?"))

    with pytest.raises(Interrupted, match="Sure"):
        await call(ask)


@pytest.mark.parametrize("is_async", [True, False])
async def test_reconcile_is_asked_with_all_arguments(is_async: bool) -> None:
    def look(ctx: ToolContext, amount: int, currency: str) -> str:
        return f"{ctx.idempotency_key} {amount} {currency}"

    async def look_later(ctx: ToolContext, amount: int, currency: str) -> str:
        return look(ctx, amount, currency)

    @tool(reconcile=look_later if is_async else look)
    def pay(amount: int, currency: str = "EUR") -> None: ...

    result = await ask_reconcile(pay, {"amount": "5"}, ToolContext(call_id="c1", idempotency_key="k"))
    assert result == ToolResult("c1", (Text("k 5 EUR"),))


async def test_reconcile_may_say_that_nothing_was_done() -> None:
    @tool(reconcile=lambda ctx: NOT_DONE)
    def pay() -> None: ...

    assert await ask_reconcile(pay, {}, ToolContext()) is NOT_DONE


async def test_a_reconcile_that_fails_or_is_not_there_leaves_the_call_in_doubt() -> None:
    def fail(ctx: ToolContext) -> None:
        raise OSError("down")

    @tool(reconcile=fail)
    def pay() -> None: ...

    @tool
    def send() -> None: ...

    for made in (pay, send):
        with pytest.raises(OutcomeUnknown):
            await ask_reconcile(made, {}, ToolContext())


async def test_arguments_that_a_validator_chokes_on_are_an_error_for_the_model() -> None:
    @tool
    def take(value: Choking) -> None: ...

    @tool
    def nest(value: list[Any]) -> None: ...

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert said(await call(take, {"value": {"a": 1}})) == "The arguments cannot be read: LookupError: no"
    assert (await call(nest, {"value": deep})).content
    while deep:
        deep = deep[0]


def test_a_tool_that_never_ends_does_not_keep_the_process_from_ending() -> None:
    code = """
import asyncio, time
from clew.tools import *
@tool(timeout=0.1)
def hang() -> None: time.sleep(3600)
async def main():
    try: await call_tool(hang, {}, ToolContext())
    except OutcomeUnknown: print("in doubt")
asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (0, "in doubt\n", "")


async def test_approval_may_depend_on_the_arguments() -> None:
    def large(amount: int, **_: Any) -> bool:
        return amount > 100

    async def large_later(amount: int, currency: str) -> bool:
        return amount > 100

    for approve in (large, large_later):

        @tool(approve=approve)
        def pay(amount: int, currency: str = "EUR") -> None: ...

        assert await needs_approval(pay, {"amount": 101})
        assert not await needs_approval(pay, {"amount": 99})
        assert not await needs_approval(pay, {"amount": "many"})


async def test_approval_is_asked_if_it_is_always_or_if_deciding_fails() -> None:
    @tool(approve=True)
    def pay() -> None: ...

    @tool(approve=lambda: 1 / 0)
    def send() -> None: ...

    @tool
    def read() -> None: ...

    assert [await needs_approval(made, {}) for made in (pay, send, read)] == [True, True, False]


async def test_a_tool_that_there_is_not_is_answered() -> None:
    result = unknown_tool("read_fil", ["write_file", "read_file"], "c1")
    assert result.is_error
    assert said(result) == (
        "There is no tool 'read_fil'. Did you mean 'read_file'? The tools are: read_file, write_file"
    )
