"""`run_thread` in workflows of users, and the sandbox around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.worker import Worker

from clew.errors import InvalidInput
from clew.integrations.temporal import AgentThread, ClewPlugin, Limits, ThreadStop, run_thread
from clew.integrations.temporal.payloads import RUN_ACTIVITY, Letter, ThreadStart, Work
from tests.integrations.temporal.child import in_child
from tests.integrations.temporal.fleet import agents, connect, effects, until
from tests.integrations.temporal.workflows import Approval, Invoice

pytestmark = pytest.mark.slow


@asynccontextmanager
async def a_client(address: str, folder: Path, store: str) -> AsyncIterator[Client]:
    """A client, and a worker in this process that runs the workflows and the agents."""
    known = agents(folder, store)
    client = await connect(address, ClewPlugin(known["biller"], known["writer"], workspaces=folder / "files"))
    async with Worker(client, task_queue=folder.name, workflows=[Invoice, Approval]):
        yield client


@in_child
async def test_a_workflow_of_a_user_runs_agents_in_the_sandbox_and_gets_their_answers(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    async with a_client(temporal, tmp_path, sqlite) as client:
        found = await client.execute_workflow(Invoice.run, "A", id=tmp_path.name, task_queue=tmp_path.name)
    assert found["output"] == "paid A\n"
    assert found["status"] == "done"
    assert found["in_sandbox"]
    assert found["imports"] == ["Agent", "tool", "ModelRefused"]
    assert effects(tmp_path) == ["paid A"]


@in_child
async def test_a_workflow_of_a_user_answers_questions_and_goes_on_with_what_is_on_record(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    async with a_client(temporal, tmp_path, sqlite) as client:
        started = await client.start_workflow(Approval.run, "A", id=tmp_path.name, task_queue=tmp_path.name)

        async def waits() -> bool:
            return bool(await agents(tmp_path, sqlite)["biller"].questions("approval-A"))

        await until(lambda: (tmp_path / "clew.db").exists(), "the agent did not begin")
        await asyncio.sleep(0.5)
        await until(waits, "the thread does not ask")
        await started.signal(Approval.answer, "yes")
        assert await started.result() == ["1 asked", "A: yes", "A: yes"]


@in_child
async def test_an_error_that_would_come_again_fails_the_workflow_of_a_user(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    known = agents(tmp_path, sqlite)
    client = await connect(temporal, ClewPlugin(known["writer"], workspaces=tmp_path / "files"))
    async with Worker(client, task_queue=tmp_path.name, workflows=[Invoice]):
        with pytest.raises(WorkflowFailureError) as failed:
            await client.execute_workflow(Invoice.run, "A", id=tmp_path.name, task_queue=tmp_path.name)
    assert isinstance(failed.value.cause, ActivityError)
    assert isinstance(failed.value.cause.cause, ApplicationError)
    assert failed.value.cause.cause.type == "UsageError"


@in_child
async def test_a_plugin_that_is_given_to_client_and_worker_registers_once(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    plugin = ClewPlugin(agents(tmp_path, sqlite)["biller"])
    client = await connect(temporal, plugin)
    with pytest.warns(UserWarning, match="plugin"):
        worker = Worker(client, task_queue=tmp_path.name, plugins=[plugin])
    assert worker.task_queue == tmp_path.name


@activity.defn(name=RUN_ACTIVITY)
async def deaf(work: Work) -> ThreadStop:
    """Ends as if nothing had happened when it is cancelled."""
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        return ThreadStop(work.thread_id, "done")


@in_child
async def test_a_cancellation_counts_even_if_the_run_ends_as_it_arrives(temporal: str, tmp_path: Path) -> None:
    client = await connect(temporal, ClewPlugin())
    start = ThreadStart("t", "deaf", limits=Limits(heartbeat_seconds=1), inbox=[Letter("p"), Letter("q")])
    async with Worker(client, task_queue=tmp_path.name, activities=[deaf]):
        handle = await client.start_workflow(AgentThread.run, start, id=tmp_path.name, task_queue=tmp_path.name)

        async def is_begun() -> bool:
            return bool((await handle.describe()).raw_description.pending_activities)

        await until(is_begun, "the activity did not begin")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as stopped:
            await handle.result()
    assert isinstance(stopped.value.cause, CancelledError)


@in_child
async def test_a_prompt_and_an_answer_at_once_are_refused(temporal: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not both"):
        await run_thread("biller", "Go.", thread_id="t", answer=True)
