"""Threads on Temporal, against a real server: what a client sends is worked on by workers, and comes back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import CancelledError

from clew import Agent, Thread, open_checkpointer
from clew.errors import InvalidInput, ModelRefused, UsageError
from clew.integrations.temporal import ClewPlugin, Limits, ThreadHandle, thread
from clew.threads.views.entries import Line
from tests.integrations.temporal.child import in_child
from tests.integrations.temporal.fleet import a_worker, agents, connect, effects, open_gate, until
from tests.providers.toys import with_toys

pytestmark = pytest.mark.slow

SOON = Limits(heartbeat_seconds=2)


async def a_handle(address: str, folder: Path, store: str, agent: str = "biller") -> ThreadHandle:
    """A handle of the thread that belongs to the test."""
    client = await connect(address)
    return thread(client, agents(folder, store)[agent], f"of-{folder.name}", limits=SOON)


async def activities(handle: ThreadHandle) -> list[str]:
    """The states that activities of the workflow came to."""
    history = await handle.workflow.fetch_history()
    kinds = [event.WhichOneof("attributes") or "" for event in history.events]
    return [
        kind for kind in kinds if kind.startswith("activity_task") and "scheduled" not in kind and "started" not in kind
    ]


def text_of(history: WorkflowHistory) -> str:
    return "".join(str(event) for event in history.events)


@in_child
async def test_a_prompt_is_worked_on_and_answered_and_the_history_has_none_of_its_words(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        first = await handle.ask("pay A-7")
        second = await handle.ask("say my word")
    assert (first.status, first.output, first.turns) == ("done", "paid A-7", 2)
    assert (second.output, second.turns) == ("my word", 3)
    said = text_of(await handle.workflow.fetch_history())
    assert "A-7" not in said
    assert "my word" not in said
    assert handle.thread_id in said


@in_child
async def test_equal_prompts_are_two_prompts_and_an_equal_id_is_one(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    await handle.post("pay A", prompt_id="first")
    await handle.post("pay A", prompt_id="first")
    await handle.post("pay A", prompt_id="second")
    await handle.post("pay A")
    with a_worker(temporal, tmp_path, sqlite):
        await handle.ask("say end")
        assert effects(tmp_path) == ["paid A"] * 3
        assert len(await activities(handle)) == 4
        again = await handle.ask("pay A", prompt_id="first")
        assert (again.output, again.turns) == ("paid A", 7)
        with pytest.raises(InvalidInput, match="other words"):
            await handle.ask("pay B", prompt_id="first")
    assert effects(tmp_path) == ["paid A"] * 3


@in_child
async def test_a_prompt_that_is_posted_while_no_worker_is_up_is_not_lost(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    prompt_id = await (await a_handle(temporal, tmp_path, sqlite)).post("pay A")
    handle = await a_handle(temporal, tmp_path, sqlite)
    assert (await handle.status()).status == "absent"
    with a_worker(temporal, tmp_path, sqlite):
        assert (await handle.result(prompt_id)).output == "paid A"


@in_child
async def test_a_prompt_of_three_megabytes_reaches_the_agent_whole(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    prompt = "say " + "word " * 600_000
    with a_worker(temporal, tmp_path, sqlite):
        result = await handle.ask(prompt)
    assert result.status == "done"
    assert result.prompt == prompt
    assert sum(event.ByteSize() for event in (await handle.workflow.fetch_history()).events) < 4_000


@in_child
async def test_nothing_of_a_letter_is_left_in_the_store_once_it_is_answered(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    async with open_checkpointer(sqlite) as store:
        await handle.post("say hello", prompt_id="p")
        assert len([head async for head in Thread.list(store)]) == 1
        with a_worker(temporal, tmp_path, sqlite):
            await handle.ask("say hello", prompt_id="p")
            await handle.ask("say bye")
            await until_idle(handle)
        assert [head.thread_id async for head in Thread.list(store)] == [handle.thread_id]


async def until_idle(handle: ThreadHandle) -> None:
    """Wait until the workflow has nothing to do."""

    async def is_idle() -> bool:
        return (await handle.status()).pending == ()

    await until(is_idle, "the workflow has still something to do")


@in_child
async def test_what_must_not_be_on_record_is_taken_out_of_letters_too(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite, "secretive")
    await handle.post("say key-abcdef", prompt_id="p")
    async with open_checkpointer(sqlite) as store:
        (letter,) = [head.thread_id async for head in Thread.list(store)]
        assert "key-abcdef" not in str(await Thread.load(store, letter))
    with a_worker(temporal, tmp_path, sqlite):
        result = await handle.result("p")
    assert result.status == "done"
    assert "key-abcdef" not in str(result)


@in_child
async def test_a_question_waits_for_its_answer_without_an_activity(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        asked = await handle.ask("approve A-7", prompt_id="p")
        assert asked.status == "waiting"
        status = await handle.status()
        assert (status.status, status.pending, [one.text for one in status.questions]) == (
            "waiting",
            (),
            ["May A-7 be sent?"],
        )
        with pytest.raises(InvalidInput, match="does not ask"):
            await handle.answer({"9:9:nothing": True})
        answered = await handle.answer("certainly")
        assert (answered.status, answered.output, answered.prompt_id) == ("done", "A-7: certainly", "p")
        with pytest.raises(UsageError, match="does not wait"):
            await handle.answer("no")
    assert "certainly" not in text_of(await handle.workflow.fetch_history())


@in_child
async def test_a_cancelled_workflow_stops_the_run_and_the_thread_says_interrupted(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        asking = asyncio.create_task(handle.ask("look slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        await handle.post("say next", prompt_id="next")
        await handle.workflow.cancel()
        with pytest.raises(WorkflowFailureError) as stopped:
            await handle.workflow.result()
        assert isinstance(stopped.value.cause, CancelledError)
        assert (await asking).status == "interrupted"
        assert "never" in (await handle.result("next")).reason
        status = await handle.status()
    assert (status.status, status.pending) == ("interrupted", ())
    async with open_checkpointer(sqlite) as store:
        head = await store.head(handle.thread_id)
        assert head is not None
        assert head.lease is None


@in_child
async def test_an_interrupted_run_ends_and_the_next_prompt_is_asked(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        waiting = asyncio.create_task(handle.ask("look slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        await handle.interrupt()
        assert (await waiting).status == "interrupted"
        open_gate(tmp_path)
        assert (await handle.ask("say hello")).output == "hello"
        with pytest.raises(TimeoutError):
            await handle.result("never sent", timeout=0.001)
        assert (await handle.result("never sent")).status == "interrupted"


@in_child
async def test_work_that_was_interrupted_goes_on_when_it_is_asked_to(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        waiting = asyncio.create_task(handle.ask("look slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        await handle.interrupt()
        await waiting
        open_gate(tmp_path)
        result = await handle.result(await handle.post())
    assert (result.status, result.prompt, result.output) == ("done", "look slow-A", "looked slow-A")


@in_child
async def test_a_closed_thread_ends_its_workflow_once_all_is_done_and_can_be_asked_again(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    await handle.close()
    await handle.post("say first", prompt_id="first")
    await handle.close()
    with a_worker(temporal, tmp_path, sqlite):
        stop = await handle.workflow.result()
        assert stop["status"] == "done"
        assert stop["position"] > 0
        assert (await handle.result("first")).output == "first"
        assert (await handle.ask("say second")).output == "second"
        assert (await handle.workflow.describe()).status == WorkflowExecutionStatus.RUNNING


@in_child
async def test_a_history_that_grows_long_is_continued_as_new_and_no_prompt_is_lost(
    hasty: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(hasty, tmp_path, sqlite)
    ids = [await handle.post(f"pay {number}") for number in range(12)]
    with a_worker(hasty, tmp_path, sqlite):
        results = [await handle.result(prompt_id) for prompt_id in ids]
        more = [asyncio.create_task(handle.ask(f"pay {number}")) for number in range(12, 20)]
        results += await asyncio.gather(*more)
    assert [result.output for result in results] == [f"paid {number}" for number in range(20)]
    assert sorted(effects(tmp_path)) == sorted(f"paid {number}" for number in range(20))
    description = await handle.workflow.describe()
    first = (await handle.workflow.fetch_history()).events[0].workflow_execution_started_event_attributes
    assert first.continued_execution_run_id
    assert description.history_length < 60


@in_child
async def test_an_error_that_would_come_again_is_raised_at_the_client_and_not_tried_again(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        with pytest.raises(ModelRefused, match="a bad key") as refused:
            await handle.ask("refuse it")
        assert refused.value.model == "scripted"
        assert await activities(handle) == ["activity_task_failed_event_attributes"]
        assert (await handle.ask("say hello")).output == "hello"


@in_child
async def test_an_outage_of_the_model_is_tried_again(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        result = await handle.ask(f"outage {tmp_path}/seen")
    assert result.output == "up again"
    assert await activities(handle) == ["activity_task_completed_event_attributes"]


@in_child
async def test_a_thread_that_another_process_holds_is_tried_again_when_its_lease_may_have_ended(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        async with open_checkpointer(sqlite) as store, Thread.open(store, handle.thread_id):
            await handle.post("say hello", prompt_id="p")

            async def is_told() -> bool:
                return "is being run by" in (await handle.status()).problem

            await until(is_told, "nobody said that the thread is busy")
            description = await handle.workflow.describe()
            (pending,) = description.raw_description.pending_activities
            wait = pending.current_retry_interval.ToTimedelta()
            assert timedelta(seconds=15) < wait <= timedelta(seconds=30)
        assert (await handle.result("p")).output == "hello"


@in_child
async def test_an_attempt_that_takes_too_long_is_stopped_and_the_next_goes_on(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    client = await connect(temporal)
    limits = Limits(heartbeat_seconds=1, start_to_close_seconds=4)
    handle = thread(client, agents(tmp_path, sqlite)["biller"], f"of-{tmp_path.name}", limits=limits)
    with a_worker(temporal, tmp_path, sqlite):
        await handle.post("look slow-A", prompt_id="p")
        await until(lambda: len(effects(tmp_path)) == 2, "the tool was not run again")
        open_gate(tmp_path)
        result = await handle.result("p")
    assert (result.status, result.output, result.turns) == ("done", "looked slow-A", 2)


@in_child
async def test_an_agent_that_is_a_tool_works_on_a_thread_of_its_own(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        result = await handle.ask("helper pay A")
    assert result.output == "paid A"
    trajectory = await agents(tmp_path, sqlite)["biller"].trajectory(handle.thread_id)
    assert [child.exchanges[0].prompt for child in trajectory.sub_agents] == ["pay A"]


@in_child
async def test_an_agent_of_a_provider_is_run_too(temporal: str, tmp_path: Path, sqlite: str) -> None:
    with_toys()
    toy = Agent(provider="toy", name="toy", checkpointer=sqlite)
    handle = thread(await connect(temporal), toy, "toys", limits=SOON)
    with a_worker(temporal, tmp_path, sqlite):
        first = await handle.ask("write notes.txt kept\nsay hello")
    with a_worker(temporal, tmp_path, sqlite, named="other"):
        second = await handle.ask("echo")
    assert (first.output, first.provider) == ("hello", "toy")
    assert "assistant=hello" in str(second.output)
    kept = list((tmp_path / "files-other").rglob("notes.txt"))
    assert [file.read_text() for file in kept] == ["kept"]


@in_child
async def test_another_worker_goes_on_with_the_same_files(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite, "writer")
    with a_worker(temporal, tmp_path, sqlite, named="one"):
        await handle.ask("write one")
    with a_worker(temporal, tmp_path, sqlite, named="two"):
        await handle.ask("write two")
    with a_worker(temporal, tmp_path, sqlite, named="one"):
        result = await handle.ask("write three")
    assert result.output == "one\ntwo\nthree\n"


@in_child
async def test_each_agent_is_run_by_the_workers_of_its_own_queue(temporal: str, tmp_path: Path, sqlite: str) -> None:
    known = agents(tmp_path, sqlite)
    routes = {"biller": "q-bills", "writer": "q-words"}
    client = await Client.connect(temporal, plugins=[ClewPlugin(task_queue="q-threads", task_queues=routes)])
    deciding = a_worker(temporal, tmp_path, sqlite, named="decides", queue="q-threads", runs=())
    bills = a_worker(temporal, tmp_path, sqlite, named="bills", queue="q-bills", runs=("biller",))
    words = a_worker(temporal, tmp_path, sqlite, named="words", queue="q-words", runs=("writer",))
    with deciding, bills, words:
        handles = [thread(client, known[name], f"routed-{name}", limits=SOON) for name in routes]
        assert (await handles[0].ask("pay A")).output == "paid A"
        assert (await handles[1].ask("write A")).output == "A\n"
        for handle, worker in zip(handles, ("bills", "words"), strict=True):
            await until(partial(_was_run_by, handle, worker), f"the run of {handle.thread_id} was not that of {worker}")


async def _was_run_by(handle: ThreadHandle, worker: str) -> bool:
    """Return whether this worker alone has run the agent. Temporal's history says so a moment after the answer."""
    events = (await handle.workflow.fetch_history()).events
    return {event.activity_task_started_event_attributes.identity for event in events} - {""} == {worker}


@in_child
async def test_an_agent_that_a_worker_does_not_have_is_named_in_the_error(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite, runs=("writer",)), pytest.raises(UsageError, match="'biller', and this"):
        await handle.ask("pay A")


@in_child
async def test_the_log_of_a_thread_is_followed_from_any_position(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite):
        following = asyncio.create_task(until_status(handle))
        await handle.ask("pay A")
        seen = await following
    assert [line async for line in handle.events(follow=False)][: len(seen)] == seen
    position = (await handle.status()).position
    assert [line async for line in handle.events(after=position, follow=False)] == []
    middle = seen[len(seen) // 2].frame
    rest = [line async for line in handle.events(after=middle, follow=False)]
    assert rest[0].frame == middle


async def until_status(handle: ThreadHandle) -> list[Line]:
    """The entries up to the one that says that the run has ended."""
    seen: list[Line] = []
    async for line in handle.events():
        seen.append(line)
        if line.kind == "status":
            break
    return seen
