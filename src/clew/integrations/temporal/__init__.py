"""Run agents on a fleet of machines with Temporal. Temporal decides which worker works on a thread and tries again after
a failure; what the agent does is on record in the agent's store, and Temporal's history holds only pointers to it.

    client = await Client.connect("localhost:7233", plugins=[ClewPlugin(agent, workspaces="/srv/work")])
    worker = Worker(client, task_queue="clew")                                  # on each machine: await worker.run()
    result = await thread(client, agent, "user-42").ask("Send the invoices.")   # from anywhere
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from clew._runtime.lazy import exports
from clew.errors import MissingExtra

if find_spec("temporalio") is None:
    raise MissingExtra("clew.integrations.temporal", "temporal")

if TYPE_CHECKING:
    from clew.integrations.temporal.handle import ThreadHandle, ThreadStatus, thread
    from clew.integrations.temporal.payloads import Limits, ThreadStop
    from clew.integrations.temporal.plugin import ClewPlugin
    from clew.integrations.temporal.workflow import AgentThread, run_thread

__all__ = [
    "AgentThread",
    "ClewPlugin",
    "Limits",
    "ThreadHandle",
    "ThreadStatus",
    "ThreadStop",
    "run_thread",
    "thread",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "AgentThread": "clew.integrations.temporal.workflow",
        "ClewPlugin": "clew.integrations.temporal.plugin",
        "Limits": "clew.integrations.temporal.payloads",
        "ThreadHandle": "clew.integrations.temporal.handle",
        "ThreadStatus": "clew.integrations.temporal.handle",
        "ThreadStop": "clew.integrations.temporal.payloads",
        "run_thread": "clew.integrations.temporal.workflow",
        "thread": "clew.integrations.temporal.handle",
    },
)
