"""An agent as a tool of another: it works on a thread of its own, which is resumed with the call that asked for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from clew.agent.events import Question
from clew.agent.runs import RunResult
from clew.tools import AnyTool, ToolContext, ToolError, tool

__all__ = ["Work", "child_tool"]

Work = Callable[[ToolContext, str, str, Any], Awaitable[RunResult]]
"""Goes on with the child's thread, given the call, the thread's name, the task, and answers to what it waits for."""


def child_tool(name: str, description: str, work: Work) -> AnyTool:
    """The thread is named by the call, so that the call run again after a crash goes on where the child was. What the child
    asks a person, its parent asks; the answers reach the child when the parent is resumed with them."""

    async def ask(task: str, ctx: ToolContext) -> Any:
        thread_id = f"{ctx.thread_id}/{name}:{ctx.idempotency_key[:16]}"
        result = await work(ctx, thread_id, task, None)
        while result.status == "waiting":
            answers = {asked.call_id: _answer(ctx, name, asked) for asked in result.questions}
            result = await work(ctx, thread_id, task, answers)
        if result.status != "done":
            raise ToolError(f"{name} did not finish: it is {result.status} ({result.reason})")
        return result.output

    return tool(name=name, description=description, effect="steps")(ask)


def _answer(ctx: ToolContext, name: str, asked: Question) -> Any:
    """The person's answer to a question of the child, if the parent's record has it; else the parent asks."""
    key = f"clew:child:{asked.message}:{asked.index}:{asked.key}"
    return ctx._answer(key, f"{name}: {asked.text}", kind=asked.kind, arguments=asked.arguments)
