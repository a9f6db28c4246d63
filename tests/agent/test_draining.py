"""Runs that end before their work is done, because the caller wants so: after so many turns, or after the open one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clew import Thread
from clew.agent import Agent, Run, RunResult
from clew.checkpointers import HeadQuery, Lease, MemoryCheckpointer
from clew.errors import InvalidInput, ThreadBusy, UsageError
from clew.log import MessageAdded
from clew.messages import user
from clew.testing import Response, ScriptedModel, call
from clew.tools import AnyTool, ToolContext, tool

pytestmark = pytest.mark.anyio

SCRIPT: list[Response] = [call("note", text="0"), call("note", text="1"), call("note", text="2"), "Noted."]


class Book:
    """A tool that notes each call, and can be held up."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    @property
    def tool(self) -> AnyTool:
        @tool(effect="once")
        async def note(text: str) -> str:
            self.begun.set()
            await self.go_on.wait()
            self.notes.append(text)
            return f"noted {text}"

        return note


async def test_a_run_of_so_many_turns_ends_after_them_and_the_next_one_goes_on(store: MemoryCheckpointer) -> None:
    book, model = Book(), ScriptedModel(SCRIPT)
    agent = Agent(model, tools=[book.tool], checkpointer=store)
    first = await agent.run("Note.", thread_id="t", turns=2)
    assert (first.status, first.reason, first.turns, book.notes) == ("interrupted", "turns: 2", 2, ["0", "1"])
    second = await agent.run("Note.", thread_id="t", turns=5)
    assert (second.status, second.output, second.drift, book.notes) == ("done", "Noted.", {}, ["0", "1", "2"])
    await Agent(other := ScriptedModel(SCRIPT), tools=[Book().tool], checkpointer=None).run("Note.")
    assert [request.messages for request in model.requests] == [request.messages for request in other.requests]


async def test_the_last_of_so_many_turns_may_be_the_answer(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(SCRIPT), tools=[Book().tool], checkpointer=store)
    assert (await agent.run("Note.", thread_id="t", turns=4)).status == "done"


async def test_a_run_that_is_drained_ends_when_its_open_calls_are_on_record(store: MemoryCheckpointer) -> None:
    book = Book()
    book.go_on.clear()
    agent = Agent(ScriptedModel(SCRIPT), tools=[book.tool], checkpointer=store)
    run = agent.run("Note.", thread_id="t")
    waiting = asyncio.ensure_future(_result(run))
    await book.begun.wait()
    run.drain()
    book.go_on.set()
    ended = await waiting
    assert (ended.status, ended.reason, ended.turns, book.notes) == ("interrupted", "drained", 1, ["0"])
    assert not (await Thread.load(store, "t")).calls
    assert (await agent.resume(thread_id="t")).output == "Noted."
    assert book.notes == ["0", "1", "2"]


async def test_a_run_that_is_drained_before_it_begins_records_its_prompt_and_asks_nothing(
    store: MemoryCheckpointer,
) -> None:
    model = ScriptedModel(["Done."])
    run = Agent(model, checkpointer=store).run("Go.", thread_id="t")
    run.drain()
    assert ((await run).reason, model.requests) == ("drained", [])
    assert (await Agent(model, checkpointer=store).resume(thread_id="t")).output == "Done."


async def test_a_run_that_is_drained_in_its_last_turn_is_done(store: MemoryCheckpointer) -> None:
    run = Agent(ScriptedModel(["Done."], delay=0.01), checkpointer=store).stream("Go.", thread_id="t")
    async for _ in run:
        run.drain()
    assert run.result.status in ("done", "interrupted")
    assert (await Agent(ScriptedModel(["Done."]), checkpointer=store).resume(thread_id="t")).output == "Done."


async def test_a_sub_agent_is_drained_with_its_parent_and_goes_on_with_it(store: MemoryCheckpointer) -> None:
    book = Book()
    book.go_on.clear()

    def family() -> Agent:
        child = Agent(ScriptedModel(SCRIPT), name="clerk", tools=[book.tool])
        return Agent(
            ScriptedModel([call("clerk", task="Note."), "All noted."]), name="boss", tools=[child], checkpointer=store
        )

    run = family().run("Go.", thread_id="t")
    waiting = asyncio.ensure_future(_result(run))
    await book.begun.wait()
    run.drain()
    book.go_on.set()
    ended = await waiting
    assert (ended.status, ended.reason, book.notes) == ("interrupted", "drained", ["0"])
    (child,) = [head async for head in store.heads(HeadQuery(parent="t"))]
    assert (child.status, child.turns) == ("interrupted", 1)
    done = await family().resume(thread_id="t")
    assert (done.output, book.notes) == ("All noted.", ["0", "1", "2"])


async def test_a_script_that_is_drained_goes_on_where_it_was_when_it_is_run_again(store: MemoryCheckpointer) -> None:
    book = Book()
    agent = Agent(ScriptedModel(SCRIPT), tools=[book.tool], checkpointer=store)
    async with agent.session(thread_id="t", resume=True) as session:
        run = session.run("Note.")
        run.drain()
        assert (await run).reason == "drained"
    async with agent.session(thread_id="t", resume=True) as session:
        assert (await session.run("Note.")).output == "Noted."
    assert book.notes == ["0", "1", "2"]


@pytest.mark.parametrize("turns", [0, -1, True, "3"])
async def test_turns_is_a_number(turns: object, store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel([]), checkpointer=store)
    with pytest.raises(InvalidInput, match="turns is a whole number"):
        agent.run("Go.", turns=turns)  # type: ignore[arg-type]


def test_a_provider_counts_no_turns() -> None:
    agent = Agent(provider="claude_code", checkpointer=None)
    with pytest.raises(UsageError, match="turns="):
        agent.run("Go.", turns=1)
    with pytest.raises(UsageError, match="turns="):
        agent.resume(thread_id="t", turns=1)


async def test_a_function_decides_by_the_lease_whether_a_thread_is_taken_over(store: MemoryCheckpointer) -> None:
    seen: list[Lease] = []

    def decide(lease: Lease) -> bool:
        seen.append(lease)
        return lease.owner.label == "worker 1"

    async def run_while(label: str) -> str:
        async with Thread.open(store, label, label=label) as thread:
            await thread.append(MessageAdded(user("Go.")))
            agent = Agent(ScriptedModel(["Done."]), checkpointer=store, takeover=decide, label="worker 2")
            result = await agent.resume(thread_id=label)
            thread.abandon()
        return str(result.output)

    assert await run_while("worker 1") == "Done."
    with pytest.raises(ThreadBusy, match=r"\(worker 3\)"):
        await run_while("worker 3")
    assert [lease.owner.label for lease in seen] == ["worker 1", "worker 3"]


async def test_a_thread_that_nobody_holds_asks_no_function(store: MemoryCheckpointer) -> None:
    def decide(lease: Lease) -> bool:
        raise AssertionError(lease)

    agent = Agent(ScriptedModel(["Done."]), checkpointer=store, takeover=decide)
    assert (await agent.run("Go.", thread_id="t")).output == "Done."


async def test_the_label_of_an_agent_names_it_for_others(store: MemoryCheckpointer) -> None:
    book = Book()
    book.go_on.clear()
    run = Agent(ScriptedModel(SCRIPT), tools=[book.tool], checkpointer=store, label="worker 7").run(
        "Go.", thread_id="t"
    )
    waiting = asyncio.ensure_future(_result(run))
    await book.begun.wait()
    with pytest.raises(ThreadBusy, match=r"\(worker 7\)"):
        await Agent(ScriptedModel(SCRIPT), checkpointer=store).run("Go.", thread_id="t")
    book.go_on.set()
    await waiting
    with pytest.raises(InvalidInput, match="label has 201 characters"):
        Agent(ScriptedModel([]), label="x" * 201)


async def test_each_thread_may_have_a_folder_of_its_own(store: MemoryCheckpointer, tmp_path: Path) -> None:
    @tool
    async def write(text: str, ctx: ToolContext) -> str:
        assert ctx.workspace is not None
        (ctx.workspace / "note").write_text(text)
        return "written"

    script: list[Response] = [call("write", text="x"), "Done."]
    agent = Agent(
        ScriptedModel(script), tools=[write], checkpointer=store, workspace=lambda thread_id: tmp_path / thread_id
    )
    await agent.run("Go.", thread_id="a")
    await agent.run("Go.", thread_id="b")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("note")) == ["a/note", "b/note"]
    broken = Agent(ScriptedModel(script), tools=[write], checkpointer=store, workspace=lambda thread_id: 7)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidInput, match="the folder that workspace= returns for 'c' is the path of a folder, not 7"):
        await broken.run("Go.", thread_id="c")


async def test_a_result_says_where_the_log_ended(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=store)
    first = await agent.run("First.", thread_id="t", prompt_id="p-1")
    assert first.position == len(await store.read("t"))
    second = await agent.run("Second.", thread_id="t")
    assert second.position == len(await store.read("t")) > first.position
    assert (await agent.run("First.", thread_id="t", prompt_id="p-1")).position == second.position
    kept_back = Agent(ScriptedModel(["One."]), checkpointer=store, durability="exit")
    assert (await kept_back.run("First.", thread_id="u")).position == len(await store.read("u"))


async def test_the_store_of_an_agent_can_be_used_by_others(store: MemoryCheckpointer, tmp_path: Path) -> None:
    assert Agent(ScriptedModel([]), checkpointer=store).checkpointer is store
    async with Agent(ScriptedModel(["Done."]), checkpointer=f"sqlite:///{tmp_path}/c.db") as agent:
        await agent.run("Go.", thread_id="t")
        assert (await Thread.load(agent.checkpointer, "t")).status == "done"


async def _result(run: Run[RunResult]) -> RunResult:
    return await run
