"""`ClewPlugin`: registers agents with Temporal's client and workers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from blake3 import blake3
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from clew.agent import Agent
from clew.errors import InvalidInput
from clew.integrations.temporal.activities import AgentActivities, FolderOf
from clew.integrations.temporal.agents import has_own_folder
from clew.integrations.temporal.payloads import TASK_QUEUE
from clew.integrations.temporal.workflow import AgentThread

__all__ = ["ClewPlugin"]

_GRACE = timedelta(seconds=20)
"""How long a worker that is shut down waits for open turns, unless `graceful_shutdown_timeout` says otherwise."""
_OFTEN = timedelta(seconds=2)
"""The longest time between heartbeats that reach the server, because an activity learns of its cancellation with one.
Also the longest time that a workflow waits for the worker that knows it, which may be gone: any other one can go on."""


class ClewPlugin(SimplePlugin):
    """Runs agents on Temporal's workers.

        client = await Client.connect("localhost:7233", plugins=[ClewPlugin(agent, workspaces="/srv/work")])
        worker = Worker(client, task_queue="clew")

    Give it to the client; workers that are made with this client have it too. It registers the workflow `AgentThread`
    and the activity that runs these agents. Without agents it registers the workflow alone, for workers that decide and
    do not work. The sandbox of workflows stays on; `clew` passes through it.
    """

    def __init__(
        self,
        *agents: Agent,
        workspaces: str | os.PathLike[str] | Callable[[str], str | os.PathLike[str]] | None = None,
        task_queue: str = TASK_QUEUE,
        task_queues: Mapping[str, str] | None = None,
    ) -> None:
        """`agents` have different names, and stores that the other workers and the client reach.

        `workspaces` is a folder in which each thread gets a folder for its files, or a function from the thread's id to
        that folder. Before each run the files on record are put there, so that any worker goes on with the same files.
        An agent with a workspace of its own needs it, because otherwise all threads would share that folder.

        `task_queue` is the queue of the workflows, and of the agents too unless `task_queues` names another for an
        agent: a dict from the agent's name to the queue of the workers that run it.
        """
        self.agents = _by_name(agents)
        self.task_queue = task_queue
        self.task_queues = dict(task_queues or {})
        if workspaces is None and (sharing := [name for name, agent in self.agents.items() if has_own_folder(agent)]):
            raise InvalidInput(
                f"the agent {sharing[0]!r} has a workspace, which all its threads on a worker would share. Give each thread "
                "a folder: ClewPlugin(…, workspaces='/srv/work')"
            )
        activities = AgentActivities(self.agents, _folders(workspaces))
        super().__init__(
            "clew.ClewPlugin",
            workflows=_with_thread,
            activities=[activities.run] if self.agents else None,
            workflow_runner=_with_passthrough,
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Register workflow and activity, unless the worker has them from the same plugin of its client. Gives open
        turns 20 seconds at a shutdown, and lets a cancellation reach a run within two seconds. Longer times that the
        worker was given for heartbeats and for workflows that it knows are shortened to these two seconds."""
        if AgentThread in config.get("workflows", []):
            return config
        times: dict[str, Any] = config  # type: ignore[assignment] # a TypedDict takes only literal names
        times["graceful_shutdown_timeout"] = times.get("graceful_shutdown_timeout") or _GRACE
        for name in ("max_heartbeat_throttle_interval", "sticky_queue_schedule_to_start_timeout"):
            times[name] = min(_OFTEN, times.get(name, _OFTEN))
        return super().configure_worker(config)


def _by_name(agents: Sequence[Agent]) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidInput(f"ClewPlugin takes agents, not {agent!r}")
        if not agent.name:
            raise InvalidInput("Temporal finds an agent by its name. Give it one: Agent(…, name=…)")
        if agent.name in found:
            raise InvalidInput(f"two agents have the name {agent.name!r}. Give each a name of its own.")
        found[agent.name] = agent
    return found


def _folders(workspaces: str | os.PathLike[str] | Callable[[str], str | os.PathLike[str]] | None) -> FolderOf | None:
    """Return the function from a thread's id to its folder. In a folder for all, the thread's own is named by a digest
    of its id, because an id may hold any characters."""
    if workspaces is None:
        return None
    if callable(workspaces):
        given = workspaces
        return lambda thread_id: Path(os.path.abspath(given(thread_id)))
    root = Path(os.path.abspath(workspaces))
    return lambda thread_id: root / blake3(thread_id.encode()).hexdigest()[:32]


def _with_thread(given: Sequence[type] | None) -> Sequence[type]:
    return [*(given or ()), AgentThread]


def _with_passthrough(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Return the worker's runner of workflows, whose sandbox takes Clew's modules as they are and does not import them
    anew for each workflow. A runner without a sandbox stays as it is."""
    if runner is None:
        runner = SandboxedWorkflowRunner()
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    changes: dict[str, Any] = {"restrictions": runner.restrictions.with_passthrough_modules("clew")}
    return dataclasses.replace(runner, **changes)
