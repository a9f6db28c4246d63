"""Record histories of workflows for tests/golden/temporal: `python -m tests.integrations.temporal.record`.

Every release replays them, so that it can go on with workflows that an older one began. Never record one again under
the same name: a change that needs it breaks running workflows. Give a new one a new name, and keep the old.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from clew.errors import ModelRefused
from clew.integrations.temporal import ClewPlugin, ThreadHandle, thread
from tests.integrations.temporal.fleet import agents, effects, open_gate, until
from tests.integrations.temporal.workflows import Approval, Invoice
from tests.servers.temporal import a_temporal

__all__ = ["HISTORIES", "main"]

HISTORIES = Path(__file__).parents[2] / "golden" / "temporal"


async def answered(handle: ThreadHandle, folder: Path) -> None:
    await handle.ask("pay A")
    await handle.ask("approve A")
    await handle.answer("yes")


async def closed(handle: ThreadHandle, folder: Path) -> None:
    await handle.ask("say hello")
    await handle.close()
    await handle.workflow.result()


async def refused(handle: ThreadHandle, folder: Path) -> None:
    with suppress(ModelRefused):
        await handle.ask("refuse it")
    await handle.ask("say hello")


async def tried_again(handle: ThreadHandle, folder: Path) -> None:
    await handle.ask(f"outage {folder}/seen")


async def interrupted(handle: ThreadHandle, folder: Path) -> None:
    asking = asyncio.create_task(handle.ask("look slow-A"))
    await until(lambda: "looked slow-A" in effects(folder), "the tool did not begin")
    await handle.interrupt()
    await asking
    open_gate(folder)
    await handle.ask("say hello")
    (folder / "gate").unlink()


async def cancelled(handle: ThreadHandle, folder: Path) -> None:
    await handle.post("look slow-B")
    await until(lambda: "looked slow-B" in effects(folder), "the tool did not begin")
    await handle.workflow.cancel()
    with suppress(WorkflowFailureError):
        await handle.workflow.result()


async def continued(handle: ThreadHandle, folder: Path) -> None:
    for number in range(12):
        await handle.post(f"say {number}")
    await handle.ask("say end")


THREADS: list[Callable[[ThreadHandle, Path], Awaitable[None]]] = [
    answered,
    closed,
    refused,
    tried_again,
    interrupted,
    cancelled,
    continued,
]


async def record(address: str, folder: Path) -> None:
    known = agents(folder, f"sqlite:///{folder}/clew.db")
    plugin = ClewPlugin(known["biller"], known["writer"], workspaces=folder / "files")
    client = await Client.connect(address, plugins=[plugin], identity="client")
    async with Worker(client, task_queue="clew", workflows=[Invoice, Approval], identity="worker"):
        for scenario in THREADS:
            handle = thread(client, known["biller"], scenario.__name__.replace("_", "-"))
            await scenario(handle, folder)
            await keep(handle.thread_id, handle.workflow)
            if scenario is continued:
                told = await handle.workflow.describe()
                run_id = told.raw_description.workflow_execution_info.first_run_id
                first = client.get_workflow_handle(handle.workflow.id, run_id=run_id)
                await keep("continued-first", first)
        started: WorkflowHandle[Any, Any] = await client.start_workflow(
            Invoice.run, "A", id="invoice", task_queue="clew"
        )
        await started.result()
        await keep("run-thread", started)
        started = await client.start_workflow(Approval.run, "A", id="approval", task_queue="clew")
        await asyncio.sleep(1)
        await started.signal(Approval.answer, "yes")
        await started.result()
        await keep("run-thread-answer", started)


async def keep(name: str, handle: WorkflowHandle[Any, Any]) -> None:
    """Write the history, unless there is one of this name. Stack traces, which have paths of this machine, are left
    out."""
    file = HISTORIES / f"{name}.json"
    if not file.exists():
        history = without_traces(json.loads((await handle.fetch_history()).to_json()))
        file.write_text(json.dumps(history, indent=1) + "\n")


def without_traces(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_traces(one) for key, one in value.items() if key != "stackTrace"}
    return [without_traces(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with a_temporal(folder, limit__historyCount__suggestContinueAsNew=20) as address:
            asyncio.run(record(address, folder))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
