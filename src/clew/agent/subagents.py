"""An agent as a tool of another agent, its parent. This sub-agent, or child, works on a thread of its own, which is
resumed when the parent's call of it is resumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from clew.agent.events import Question
from clew.agent.run import DRAINED, RunResult
from clew.errors import LeaseLost, ModelUnavailable, ThreadBusy, Unavailable
from clew.threads.heads import is_child
from clew.tools import AnyTool, Stopped, ToolContext, ToolError, tool

__all__ = ["Drained", "Work", "child_tool", "handed_up_key", "is_child"]

Work = Callable[[ToolContext, str, str, Any], Awaitable[RunResult]]
"""A function that starts or resumes a child agent's thread, and returns the child's result. Its four arguments, in
order: the context of the parent's tool call, the id of the child's thread, the task (the prompt for the child), and a
person's answers to the child's questions or None."""


class Drained(Exception):
    """A child's run ended after its open turn, because its parent's run was asked to end. The call of the child is not
    done: it is run again when the parent goes on."""


def child_tool(name: str, description: str, work: Work) -> AnyTool:
    """Return the tool with which an agent (the parent) calls another agent (the child). `work` runs the child.

    The id of the child's thread is made from the call. So if the call is run again after a crash, the child goes on
    where it was. If the child has questions for a person, the parent asks them, and the child gets the answers when the
    parent is resumed with them.

    If the model or the store is unavailable, or another process works on the child, the parent's run raises the same
    error, and both can be resumed. All other failures of the child are reported to the parent's model.
    """

    async def ask(task: str, ctx: ToolContext) -> Any:
        thread_id = child_id(ctx.thread_id, name, ctx.idempotency_key)
        try:
            return await follow(thread_id, task, ctx)
        except (Drained, LeaseLost, ModelUnavailable, ThreadBusy, Unavailable) as error:
            raise Stopped(error) from error

    async def follow(thread_id: str, task: str, ctx: ToolContext) -> Any:
        result = await work(ctx, thread_id, task, None)
        while result.status == "waiting":
            answers = {asked.id: _answer(ctx, name, asked) for asked in result.questions}
            result = await work(ctx, thread_id, task, answers)
        if result.status == "interrupted" and result.reason == DRAINED:
            raise Drained
        if result.status != "done":
            raise ToolError(f"{name} did not finish: it is {result.status} ({result.reason})")
        return result.output

    return tool(name=name, description=description, effect="steps")(ask)


def child_id(parent: str, name: str, key: str) -> str:
    """Return the id of the thread of a child: an agent that is called as a tool by another agent, its parent. The id is
    the same for every attempt at the same call. `parent` is the id of the thread that makes the call, `name` is the
    child's name, and `key` the call's idempotency key.

    The function `is_child` recognizes the thread of a sub-agent by this form of its id and by the parent in its head.
    """
    return f"{parent}/{name}:{key[:16]}"


def handed_up_key(asked: Question) -> str:
    """Return the key under which a parent agent records a person's answer to a question of its child, an agent that it
    called as a tool. The key is `clew:child:` and the id of the question `asked`. The answer is recorded as a part of
    that tool call.

    The child's question may itself come from an agent that the child called. Then the question's id ends with the key
    under which the child records the answer, and so does the key that this function returns.
    """
    return f"clew:child:{asked.id}"


def _answer(ctx: ToolContext, name: str, asked: Question) -> Any:
    """Return a person's answer to a question of a child agent, if the parent, which called the child as a tool, has it
    on record. Otherwise raise `Interrupted`, so that the parent asks the person. `ctx` is the context of the parent's
    call, and `name` is the child's name."""
    return ctx._answer(handed_up_key(asked), f"{name}: {asked.text}", kind=asked.kind, arguments=asked.arguments)
