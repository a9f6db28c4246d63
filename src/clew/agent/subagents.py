"""An agent as a tool of another agent. It works on a thread of its own, which is resumed together with the call that
asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from clew.agent.events import Question
from clew.agent.run import RunResult
from clew.errors import LeaseLost, ModelUnavailable, ThreadBusy, Unavailable
from clew.threads.heads import is_child
from clew.tools import AnyTool, Stopped, ToolContext, ToolError, tool

__all__ = ["Work", "child_tool", "handed_up_key", "is_child"]

Work = Callable[[ToolContext, str, str, Any], Awaitable[RunResult]]
"""Starts or goes on with the child's thread, given the call, the thread's id, the task, and answers to its questions."""


def child_tool(name: str, description: str, work: Work) -> AnyTool:
    """Return the tool that lets an agent call a child agent, which `work` runs.

    The thread of the child is named by the call. So if the call is run again after a crash, the child goes on where it
    was. The parent asks the questions that the child has for a person, and the child gets the answers when the parent is
    resumed with them.

    If the model or the store is away, or another process works on the child, the parent ends with the same error, and
    both can be resumed. All other failures of the child are reported to the parent's model.
    """

    async def ask(task: str, ctx: ToolContext) -> Any:
        thread_id = child_id(ctx.thread_id, name, ctx.idempotency_key)
        try:
            return await follow(thread_id, task, ctx)
        except (LeaseLost, ModelUnavailable, ThreadBusy, Unavailable) as error:
            raise Stopped(error) from error

    async def follow(thread_id: str, task: str, ctx: ToolContext) -> Any:
        result = await work(ctx, thread_id, task, None)
        while result.status == "waiting":
            answers = {asked.id: _answer(ctx, name, asked) for asked in result.questions}
            result = await work(ctx, thread_id, task, answers)
        if result.status != "done":
            raise ToolError(f"{name} did not finish: it is {result.status} ({result.reason})")
        return result.output

    return tool(name=name, description=description, effect="steps")(ask)


def child_id(parent: str, name: str, key: str) -> str:
    """Return the id of a child's thread. It is the same for every attempt at the call. `is_child` knows it by its form."""
    return f"{parent}/{name}:{key[:16]}"


def handed_up_key(asked: Question) -> str:
    """Return the key under which a parent asks a question of its child. The key for a question of a grandchild ends with
    the key that the child uses for it.
    """
    return f"clew:child:{asked.id}"


def _answer(ctx: ToolContext, name: str, asked: Question) -> Any:
    """Return the person's answer to a question of the child if it is on the parent's record; else make the parent ask."""
    return ctx._answer(handed_up_key(asked), f"{name}: {asked.text}", kind=asked.kind, arguments=asked.arguments)
