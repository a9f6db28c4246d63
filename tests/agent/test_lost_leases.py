"""An agent whose thread another process has taken begins nothing more, and stops at once what it is doing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from clew import Agent, ToolContext, tool
from clew.checkpointers import Head, MemoryCheckpointer
from clew.errors import LeaseLost, Unavailable
from clew.log import MessageAdded, ToolIntent
from clew.messages import ToolCall, assistant, user
from clew.models import retry
from clew.testing import ScriptedModel
from clew.threads import Thread
from clew.threads.leases import LEASE_TIME, RENEW_AFTER
from clew.tools import NOT_DONE, NotDone
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio

LASTS = LEASE_TIME.total_seconds()


class Frozen(MemoryCheckpointer):
    """A store whose user is frozen right after one of its appends, for longer than its lease lasts. Meanwhile another
    process takes the thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.left = -1
        """How many appends come before the one after which the process is frozen; -1 for never."""

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        await super().append(thread_id, frames, at=at, head=head, refs=refs)
        self.left -= self.left >= 0
        if self.left == 0:
            self.left = -1
            self._clock.advance(LASTS + 1)
            async with Thread.open(self, "t", takeover=True, label="other"):
                pass


def call(name: str) -> Any:
    return assistant(ToolCall("c1", name, {}))


async def run_frozen(how: str, place: int, clock: Clock) -> list[int]:
    """Run an agent that is frozen after this append. Return, for each time that the body of its tool began, how many
    appends were left before the freeze; -1 if the run was frozen before."""
    ran: list[int] = []
    async with Frozen(clock) as store:

        def body() -> str:
            ran.append(store.left)
            return "done"

        @tool(effect="steps")
        async def step(ctx: ToolContext) -> str:
            return await ctx.step("a", body)

        @tool(effect="steps")
        def blocking_step(ctx: ToolContext) -> str:
            return ctx.blocking.step("a", body)

        @tool(effect="idempotent")
        async def plain() -> str:
            return body()

        store.left = place
        agent = Agent(ScriptedModel([call(how), "Done."]), tools=[step, blocking_step, plain], checkpointer=store)
        try:
            await agent.run("Go.", thread_id="t")
        except LeaseLost:
            assert store.left == -1
        else:
            assert store.left > 0
    return ran


@pytest.mark.parametrize("how", ["plain", "step", "blocking_step"])
async def test_no_body_begins_once_the_lease_is_lost(how: str, clock: Clock) -> None:
    """Whichever append it is after which the process freezes."""
    appends = 100 - min(await run_frozen(how, 100, clock))
    assert 2 <= appends < 20
    for place in range(1, appends + 1):
        assert -1 not in await run_frozen(how, place, clock), f"a body was begun after a freeze after append {place}"


async def test_a_call_that_failed_is_not_tried_again_once_the_lease_is_lost(store: MemoryCheckpointer) -> None:
    tried: list[int] = []

    @tool(effect="idempotent", retries=3)
    async def pay() -> str:
        tried.append(1)
        async with Thread.open(store, "t", takeover=True, label="other"):
            pass
        raise OSError("the bank does not answer")

    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    with pytest.raises(LeaseLost):
        await agent.run("Go.", thread_id="t")
    assert tried == [1]


async def test_no_model_is_asked_once_the_lease_is_lost(clock: Clock) -> None:
    for place in range(1, 6):
        async with Frozen(clock) as store:
            store.left = place
            asked: list[int] = []

            class Model(ScriptedModel):
                async def stream(self, request: Any) -> Any:
                    asked.append(store.left)  # noqa: B023
                    async for event in super().stream(request):
                        yield event

            try:
                await Agent(Model(["Done."]), checkpointer=store).run("Go.", thread_id="t")
            except LeaseLost:
                assert -1 not in asked
            else:
                return


class APIError(Exception):
    """An error of a vendor's SDK: the vendor is overloaded, charges nothing, and says when to try again."""

    status_code = 429
    response = SimpleNamespace(headers={"retry-after": "60"})


@pytest.mark.parametrize("what", ["response", "summary"])
async def test_no_request_is_repeated_once_the_lease_is_lost(
    what: str, store: MemoryCheckpointer, clock: Clock
) -> None:
    """The process is frozen in the pause that the vendor asks for, and another process takes the thread."""
    tried: list[int] = []

    class Overloaded(ScriptedModel):
        def stream(self, request: Any) -> Any:
            is_summary = "Sum it up" in str(request.messages[-1])
            if is_summary != (what == "summary"):
                return super().stream(request)
            return retry.call(lambda thinking: self._attempt(), request, model=self.name)

        async def _attempt(self) -> Any:
            tried.append(1)
            raise APIError("too many requests")
            yield

    script = [call("look"), call("look"), call("look"), "Done."]
    look = tool(name="look", description="Look.", effect="none")(lambda: "x" * 1000)
    agent = Agent(Overloaded(script), tools=[look], checkpointer=store, context_window=10, compact_at=0.5)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    while not (tried or running.done()):
        await asyncio.sleep(0)
    async with Thread.open(store, "t", takeover=True, label="other"):
        pass
    clock.advance(61)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(running, PATIENCE)
    assert tried == [1]


async def test_a_run_whose_thread_is_taken_leaves_its_tool_at_once(store: MemoryCheckpointer, clock: Clock) -> None:
    inside, left = asyncio.Event(), asyncio.Event()

    @tool
    async def wait_for_ever() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return ""

    agent = Agent(ScriptedModel([call("wait_for_ever"), "Done."]), tools=[wait_for_ever], checkpointer=store)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await inside.wait()
    async with Thread.open(store, "t", takeover=True, label="other"):
        pass
    clock.advance(RENEW_AFTER.total_seconds())
    with pytest.raises(LeaseLost, match="taken over by"):
        await asyncio.wait_for(running, PATIENCE)
    assert left.is_set()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_was_frozen_does_not_pass_the_fence(
    is_async: bool, store: MemoryCheckpointer, clock: Clock
) -> None:
    paid: list[int] = []
    inside, going_on = asyncio.Event(), asyncio.Event()

    @tool
    async def pay(ctx: ToolContext) -> str:
        inside.set()
        await going_on.wait()
        if is_async:
            await ctx.fence()
        else:
            await asyncio.to_thread(ctx.blocking.fence)
        paid.append(1)
        return "paid"

    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await inside.wait()
    async with Thread.open(store, "t", takeover=True, label="other"):
        pass
    going_on.set()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(running, PATIENCE)
    assert paid == []


async def test_a_tool_that_holds_its_thread_passes_the_fence(store: MemoryCheckpointer) -> None:
    paid: list[int] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        await ctx.fence()
        paid.append(1)
        return "paid"

    await Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store).run("Go.", thread_id="t")
    assert paid == [1]


async def in_doubt(store: MemoryCheckpointer) -> Thread:
    """A thread with a call in doubt, whose holder may be at work."""
    thread = await Thread.open(store, "t").__aenter__()
    await thread.append(
        MessageAdded(user("Go.")), MessageAdded(assistant(ToolCall("c1", "pay", {}))), ToolIntent(1, 0, "key")
    )
    return thread


@pytest.mark.parametrize("pays_late", [True, False])
async def test_a_call_that_was_not_done_runs_only_after_the_end_of_the_lease_it_was_taken_from(
    pays_late: bool, store: MemoryCheckpointer, clock: Clock
) -> None:
    """The old holder may pay until it learns that it was replaced: `reconcile` is asked again after that."""
    first = await in_doubt(store)
    began, paid = time.monotonic(), list[float]()

    def was_paid(ctx: ToolContext) -> str | NotDone:
        return "paid" if paid else NOT_DONE

    @tool(reconcile=was_paid)
    async def pay() -> str:
        paid.append(time.monotonic() - began)
        return "paid"

    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store, takeover=True)
    running = asyncio.ensure_future(agent.resume(thread_id="t")._finish())
    while not running.done():
        await asyncio.sleep(0.001)
        clock.advance(1)
        if pays_late and time.monotonic() - began > LASTS / 2 and not paid:
            paid.append(0.0)  # by the old holder
    assert (await running).output == "Done."
    assert len(paid) == 1
    assert pays_late or paid[0] >= LASTS
    first._end()


async def test_a_step_that_was_not_done_runs_only_after_the_end_of_the_lease_it_was_taken_from(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    inside = asyncio.Event()
    began, paid = time.monotonic(), list[float]()
    is_first = True

    async def really() -> str:
        if is_first:
            inside.set()
            await asyncio.Event().wait()
        paid.append(time.monotonic() - began)
        return "paid"

    @tool(effect="steps")
    async def pay(ctx: ToolContext) -> str:
        return await ctx.step("pay", really, reconcile=lambda: NOT_DONE)

    model = ScriptedModel([call("pay"), "Done.", "Done."])
    first = asyncio.ensure_future(Agent(model, tools=[pay], checkpointer=store).run("Go.", thread_id="t")._finish())
    await inside.wait()
    is_first = False
    agent = Agent(model, tools=[pay], checkpointer=store, takeover=True)
    running = asyncio.ensure_future(agent.resume(thread_id="t")._finish())
    while not running.done():
        await asyncio.sleep(0.001)
        clock.advance(1)
    await running
    assert len(paid) == 1
    assert paid[0] >= LASTS
    with pytest.raises(LeaseLost):
        await first


async def test_a_tool_is_stopped_before_the_store_has_said_who_took_the_thread(clock: Clock) -> None:
    class Slow(MemoryCheckpointer):
        """A store that does not say what the head is until the tool has ended."""

        async def head(self, thread_id: str) -> Head | None:
            if began.is_set():
                await ended.wait()
            return await super().head(thread_id)

    @tool
    async def pay() -> str:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "paid"

    began, ended = asyncio.Event(), asyncio.Event()
    memory = MemoryCheckpointer()
    slow = Slow(beside=memory)
    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=slow)
    run = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await began.wait()
    async with Thread.open(memory, "t", takeover=True, label="other"):
        for _ in range(100):
            clock.advance(RENEW_AFTER.total_seconds())
            await asyncio.sleep(0)
        assert ended.is_set()
        with pytest.raises(LeaseLost, match="other"):
            await run


class Cut(MemoryCheckpointer):
    """A store that this process cannot reach while it `is_cut_off`. Others can."""

    is_cut_off = False

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        if self.is_cut_off:
            raise Unavailable("no route to the store")
        await super().append(thread_id, frames, at=at, head=head, refs=refs)


async def let_pass(clock: Clock, seconds: float) -> None:
    """Move the clock on in steps of a second, so that renewals are tried meanwhile."""
    for _ in range(int(seconds)):
        clock.advance(1)
        await asyncio.sleep(0.001)


class Body:
    """The body of an async tool, inside which its process is cut off from the store."""

    def __init__(self, store: Cut) -> None:
        self._store = store
        self.inside, self.going_on = asyncio.Event(), asyncio.Event()
        self.did: list[str] = []

    async def __call__(self) -> str:
        self._store.is_cut_off = True
        self.inside.set()
        try:
            await self.going_on.wait()
        except asyncio.CancelledError:
            self.did.append("cancelled")
            raise
        self.did.append("paid")
        return "paid"


@pytest.mark.parametrize("effect", ["once", "idempotent", "steps"])
async def test_a_tool_cut_off_from_the_store_is_cancelled_when_its_own_lease_ends(effect: Any, clock: Clock) -> None:
    store = Cut()
    body = Body(store)
    pay = tool(name="pay", description="Pay.", effect=effect)(body.__call__)
    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await body.inside.wait()
    await let_pass(clock, LASTS - 5)
    assert body.did == []
    await let_pass(clock, 6)
    assert body.did == ["cancelled"]
    with pytest.raises(Unavailable, match="until the lease of this process had ended"):
        await asyncio.wait_for(running, PATIENCE)


async def test_a_call_that_was_cut_off_is_in_doubt(clock: Clock) -> None:
    store = Cut()
    body = Body(store)
    pay = tool(name="pay", description="Pay.")(body.__call__)
    model = ScriptedModel([call("pay"), "Done."])
    agent = Agent(model, tools=[pay], checkpointer=store)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await body.inside.wait()
    await let_pass(clock, LASTS + 1)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(running, PATIENCE)
    store.is_cut_off = False
    resumed = asyncio.ensure_future(agent.resume(thread_id="t")._finish())
    while not resumed.done():
        await let_pass(clock, 1)
    assert (await resumed).output == "Done."
    assert "It is not known whether pay took effect" in str(model.requests[-1].messages[-1])
    assert body.did == ["cancelled"]


@pytest.mark.parametrize(("effect", "lasts"), [("once", LASTS - 5), ("none", LASTS + 20)])
async def test_a_tool_outlasts_a_store_that_is_away_for_less_than_the_lease_and_one_without_effects_for_longer(
    effect: Any, lasts: float, clock: Clock
) -> None:
    store = Cut()
    body = Body(store)
    pay = tool(name="pay", description="Pay.", effect=effect)(body.__call__)
    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await body.inside.wait()
    await let_pass(clock, lasts)
    store.is_cut_off = False
    await let_pass(clock, 20)
    body.going_on.set()
    assert (await asyncio.wait_for(running, PATIENCE)).output == "Done."
    assert body.did == ["paid"]


async def test_a_tool_goes_on_if_its_process_was_frozen_past_its_lease_and_nobody_took_the_thread(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    inside, going_on = asyncio.Event(), asyncio.Event()

    @tool
    async def pay() -> str:
        inside.set()
        await going_on.wait()
        return "paid"

    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await inside.wait()
    clock.advance(LASTS * 3)
    await let_pass(clock, 5)
    going_on.set()
    assert (await asyncio.wait_for(running, PATIENCE)).output == "Done."


@pytest.mark.parametrize("how", ["replaced", "cut off"])
@pytest.mark.parametrize("has_fence", [True, False])
async def test_a_tool_in_an_os_thread_goes_on_but_does_not_pass_the_fence(
    how: str, has_fence: bool, clock: Clock
) -> None:
    """No OS thread can be stopped. The run ends at once; its tool goes on, and `ctx.cancelled` says so."""
    memory = MemoryCheckpointer()
    store = Cut(beside=memory)
    inside, going_on, ended = threading.Event(), threading.Event(), threading.Event()
    was_cancelled, paid = list[bool](), list[int]()

    @tool
    def pay(ctx: ToolContext) -> str:
        inside.set()
        try:
            going_on.wait(PATIENCE)
            was_cancelled.append(ctx.cancelled)
            if has_fence:
                ctx.blocking.fence()
            paid.append(1)
        finally:
            ended.set()
        return "paid"

    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    running = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await asyncio.to_thread(inside.wait, PATIENCE)
    store.is_cut_off = how == "cut off"
    if how == "replaced":
        async with Thread.open(memory, "t", takeover=True, label="other"):
            pass
    await let_pass(clock, LASTS + 1)
    with pytest.raises(LeaseLost if how == "replaced" else Unavailable):
        await asyncio.wait_for(running, PATIENCE)
    going_on.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert was_cancelled == [True]
    assert paid == ([] if has_fence else [1])
