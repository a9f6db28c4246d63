"""How an agent calls another agent as a tool, and copies of agents for programs that run them for others."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from clew.agent.job import Job
from clew.agent.journal import Ends
from clew.agent.run import Drain, RunResult
from clew.agent.stores import LastRun, Store
from clew.agent.subagents import child_tool
from clew.checkpointers import Checkpointer
from clew.threads.redact import both
from clew.tools import AnyTool, ToolContext

if TYPE_CHECKING:
    from clew.agent.agent import Agent

__all__ = ["as_child", "draining", "hosted", "running"]

A = TypeVar("A", bound="Agent")
running: ContextVar[Agent] = ContextVar("clew_running_agent")
"""The agent whose run is under way in this context. Its sub-agents use its store, redaction and takeover."""
draining: ContextVar[Drain] = ContextVar("clew_draining")
"""Says whether the run in this context was asked to end after its open turn. Its sub-agents end too then."""


def as_child(child: Agent) -> AnyTool:
    """Return a tool that calls the agent `child`. The child works on the store of the agent that calls it, unless it was
    given its own."""
    child._check_as_tool()

    async def work(ctx: ToolContext, thread_id: str, task: str, answers: Any) -> RunResult:
        above, made = running.get(), copy.copy(child)
        made._store = above._store if child._store.is_default else child._store
        made._redact = both(above._redact, child._redact)
        made._takeover = child._takeover if above._takeover is False else above._takeover
        made._handle_signals = False
        made._label = above._label
        made._last = LastRun()
        restores = child._settings.restore_files or above._ends is not None
        made._settings = msgspec.structs.replace(
            child._settings, parent=(ctx.thread_id, ctx.turn), restore_files=restores
        )
        return await made._run(Job(thread_id, task, answers, nth=0, drain=draining.get()), lambda event: None)

    return child_tool(child.name, child._settings.system_prompt[:1000], work)


def hosted(agent: A, store: Checkpointer, label: str, ends: Ends) -> A:
    """Return a copy of an agent for a program that runs agents for others, such as a worker.

    The copy works in `store`. It restores a thread's files before each run, because another machine may have had the
    thread since. `label` names the program in leases, and `ends` decides what is recorded at the end of each run. The
    copy handles no signals, and closes nothing.
    """
    made = copy.copy(agent)
    made._store = Store(store)
    made._label = label
    made._ends = ends
    made._handle_signals = False
    made._restore_always()
    return made
