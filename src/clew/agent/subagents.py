"""An agent as a tool of another: it works on a thread of its own, which is resumed with the call that asked for it."""

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
"""Goes on with the child's thread, given the call, the thread's name, the task, and answers to what it waits for."""


def child_tool(name: str, description: str, work: Work) -> AnyTool:
    """The thread is named by the call, so that the call run again after a crash goes on where the child was. What the child
    asks a person, its parent asks; the answers reach the child when the parent is resumed with them.

    What ends a child that can be resumed, a model or a store that is away or somebody else who works on it, ends its parent
    too, and is resumed with it. Other failures of the child are told to the parent's model.
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
    """The name of a child's thread: the same for every attempt at the call. `is_child` knows it by its form."""
    return f"{parent}/{name}:{key[:16]}"


def handed_up_key(asked: Question) -> str:
    """The key under which a parent asks a question of its child; that of a grandchild's ends with it."""
    return f"clew:child:{asked.id}"


def _answer(ctx: ToolContext, name: str, asked: Question) -> Any:
    """The person's answer to a question of the child, if the parent's record has it; else the parent asks."""
    return ctx._answer(handed_up_key(asked), f"{name}: {asked.text}", kind=asked.kind, arguments=asked.arguments)
