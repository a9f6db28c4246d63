"""Workflows as users write them. Their module imports Clew like any other, and the sandbox stays on."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from clew import Agent, tool
from clew.errors import ModelRefused
from clew.integrations.temporal import Limits, run_thread

__all__ = ["Approval", "Invoice"]


@workflow.defn
class Invoice:
    """Has one agent do something and another one use the answer."""

    @workflow.run
    async def run(self, order: str) -> dict[str, Any]:
        first = await run_thread("biller", f"pay {order}", thread_id=f"invoice-{order}", with_output=True)
        second = await run_thread("writer", f"write {first.output}", thread_id=f"note-{order}", with_output=True)
        return {
            "status": first.status,
            "output": second.output,
            "in_sandbox": workflow.unsafe.in_sandbox(),
            "imports": [Agent.__name__, tool.__name__, ModelRefused.__name__],
        }


@workflow.defn
class Approval:
    """Hands the questions of a thread to whoever signals the answer."""

    def __init__(self) -> None:
        self._answer: str | None = None

    @workflow.run
    async def run(self, order: str) -> list[str]:
        limits, thread_id = Limits(heartbeat_seconds=2), f"approval-{order}"
        stop = await run_thread("biller", f"approve {order}", thread_id=thread_id, prompt_id="p", limits=limits)
        asked = len(stop.questions)
        await workflow.wait_condition(lambda: self._answer is not None)
        stop = await run_thread("biller", thread_id=thread_id, answer=self._answer, with_output=True)
        again = await run_thread("biller", thread_id=thread_id, with_output=True)
        return [f"{asked} asked", stop.output, again.output]

    @workflow.signal
    def answer(self, answer: str) -> None:
        self._answer = answer
