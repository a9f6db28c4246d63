"""The workflow of a thread, and the function with which other workflows run an agent. Deterministic: no I/O, no clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, CancelledError

from clew.errors import InvalidInput
from clew.integrations.temporal.payloads import (
    RUN_ACTIVITY,
    Letter,
    Limits,
    ThreadStart,
    ThreadState,
    ThreadStop,
    Work,
)
from clew.integrations.temporal.retries import failure_of

__all__ = ["AgentThread", "run_thread"]

_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=5))
"""The pauses between attempts, where the error names none of its own."""
_KEPT_FAILURES = 20


def _start(work: Work, task_queue: str, limits: Limits) -> workflow.ActivityHandle[ThreadStop]:
    """Start the activity that carries out this work, and return its handle. Once it is cancelled, it ends only after the
    worker has put the end of the run on record."""
    return workflow.start_activity(
        RUN_ACTIVITY,
        work,
        result_type=ThreadStop,
        task_queue=task_queue or None,
        heartbeat_timeout=timedelta(seconds=limits.heartbeat_seconds),
        start_to_close_timeout=timedelta(seconds=limits.start_to_close_seconds),
        retry_policy=_RETRIES,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


async def run_thread(
    agent: str,
    prompt: str | None = None,
    *,
    thread_id: str,
    prompt_id: str | None = None,
    answer: Any = None,
    with_output: bool = False,
    task_queue: str = "",
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> ThreadStop:
    """Run the agent of this name on a thread, from a workflow of your own, and return how it stopped.

        stop = await run_thread("biller", "Send the invoices.", thread_id="user-42")

    Give a `prompt`, an `answer` to the questions that the thread waits for, or neither, to go on with what is on
    record. Unlike prompts that are sent with a `ThreadHandle`, prompt and answer are in the workflow's history. The
    agent's own answer is there only `with_output`. `prompt_id` has the same meaning as in `Agent.run`; without it the
    prompt is a new one, however often the workflow is replayed. `task_queue` is that of the workers with the agent, by
    default the workflow's own.

    Raises `ActivityError` if the work failed with an error that would come again. To cancel the call stops the run in an
    orderly way.
    """
    if prompt is not None and answer is not None:
        raise InvalidInput("give run_thread a prompt or an answer, and not both")
    kind = "prompt" if prompt is not None else "answer" if answer is not None else "resume"
    letter = Letter(prompt_id or f"{workflow.info().workflow_id}:{workflow.uuid4().hex[:16]}", kind)
    return await _start(Work(thread_id, agent, letter, prompt, answer, with_output), task_queue, limits)


@workflow.defn(name="AgentThread")
class AgentThread:
    """The workflow of one thread, with the id `clew:{thread_id}`. It runs the agent for each letter that is sent to it,
    in order, and stays until it is closed. Its history holds ids only, and a run adds the same to it however many turns
    it has."""

    @workflow.init
    def __init__(self, start: ThreadStart) -> None:
        self._given = start
        self._inbox = list(start.inbox)
        self._failures = list(start.failures)
        self._is_closing = start.is_closing
        self._last = start.last
        self._running: workflow.ActivityHandle[ThreadStop] | None = None
        self._is_interrupted = False

    @workflow.run
    async def run(self, start: ThreadStart) -> ThreadStop | None:
        """Work on letters until the thread is closed and none is left. Returns how the last run stopped."""
        while True:
            await workflow.wait_condition(lambda: bool(self._inbox) or self._is_closing)
            if not self._inbox:
                return self._last
            await self._work(self._inbox[0])
            self._inbox.pop(0)
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(self._rest())

    async def _work(self, letter: Letter) -> None:
        """Run the agent for one letter. An error that would come again is kept for the client that waits for it. A
        cancellation of the workflow is raised again once the run has ended."""
        self._is_interrupted = False
        work = Work(self._given.thread_id, self._given.agent, letter)
        self._running = _start(work, self._given.activity_queue, self._given.limits)
        try:
            self._last = await self._running
        except ActivityError as error:
            is_cancelled = isinstance(error.cause, CancelledError)
            if is_cancelled and not self._is_interrupted:
                raise
            if not is_cancelled:
                self._failures = [*self._failures, failure_of(letter.id, error)][-_KEPT_FAILURES:]
        finally:
            self._running = None
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the run ended in another way before it heard of the cancellation
            raise asyncio.CancelledError

    def _rest(self) -> ThreadStart:
        """Return what the next run of this workflow begins with."""
        given = self._given
        return ThreadStart(
            given.thread_id,
            given.agent,
            given.activity_queue,
            given.limits,
            inbox=self._inbox,
            failures=self._failures,
            is_closing=self._is_closing,
            last=self._last,
        )

    @workflow.signal
    def post(self, letter: Letter) -> None:
        """Take a letter, unless it is here already. It is worked on after those before it."""
        if all(known.id != letter.id for known in self._inbox):
            self._failures = [failure for failure in self._failures if failure.letter != letter.id]
            self._inbox.append(letter)

    @workflow.signal
    def interrupt(self) -> None:
        """Stop the run that is under way. Letters after its own are worked on."""
        if self._running is not None:
            self._is_interrupted = True
            self._running.cancel()

    @workflow.signal
    def close(self) -> None:
        """End the workflow once no letter is left."""
        self._is_closing = True

    @workflow.query
    def state(self) -> ThreadState:
        """Return which letters are not done, and the newest failures."""
        return ThreadState([letter.id for letter in self._inbox], self._failures)
