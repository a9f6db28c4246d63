"""The activity that runs an agent on a thread until the thread stops, however many turns that takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
from blake3 import blake3
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from clew._runtime.aio import cancel_and_wait, settle
from clew.agent import Agent, Run, RunResult
from clew.agent.exchanges import last_exchange
from clew.agent.run import DRAINED
from clew.errors import ClewError, ThreadNotFound, UsageError
from clew.integrations.temporal.agents import of_attempt, placed, store_of, words_of
from clew.integrations.temporal.letters import discard, fetch
from clew.integrations.temporal.payloads import RUN_ACTIVITY, ThreadStop, Work
from clew.integrations.temporal.retries import as_failure, is_final
from clew.providers import ProviderAgent
from clew.providers.session import GO_ON
from clew.threads import Thread

__all__ = ["AgentActivities", "FolderOf"]

log = logging.getLogger("clew.integrations.temporal")

FolderOf = Callable[[str], Path]
"""A function from a thread's id to the folder for its files."""
_BEATS = 3
"""How many heartbeats a worker sends in the time after which Temporal takes it for dead."""
_UNKNOWN_BEAT = timedelta(seconds=10)


class AgentActivities:
    """The activities of a worker that has these agents."""

    def __init__(self, agents: Mapping[str, Agent], folder_of: FolderOf | None) -> None:
        """`folder_of` says where the files of a thread are on this machine. Without it, agents work without files."""
        self._agents = agents
        self._folder_of = folder_of

    @activity.defn(name=RUN_ACTIVITY)
    async def run(self, work: Work) -> ThreadStop:
        """Run the agent on the thread until it is done, waits for a person, or is interrupted.

        The first thing that happens is a heartbeat, so that a worker that dies while it waits for the store is noticed
        too. If the worker is shut down, the run ends after the open turn, and another worker goes on. If the activity
        is cancelled, the run is stopped, and the files and the end are on record before the cancellation is reported.
        """
        async with _heartbeats():
            try:
                agent = self._agent(work)
                result = await self._run(agent, work)
            except ClewError as error:
                log.warning("thread %r: %s", work.thread_id, error)
                if is_final(error):
                    await self._forget(work)
                raise as_failure(error) from None
            except asyncio.CancelledError:
                if activity.is_worker_shutdown():
                    raise _handed_back(work) from None
                details = activity.cancellation_details()
                if details is not None and details.cancel_requested:
                    await settle(self._forget(work))
                raise
            if result.reason == DRAINED:
                raise _handed_back(work)
            await self._forget(work)
            return ThreadStop(
                thread_id=work.thread_id,
                status=result.status,
                position=result.position or 0,
                turns=result.turns,
                questions=[question.id for question in result.questions],
                output=msgspec.to_builtins(result.output) if work.with_output else None,
            )

    def _agent(self, work: Work) -> Agent:
        """Return the agent for this work, in the folder of the thread. Raises `UsageError` if this worker has no agent
        of that name."""
        agent = self._agents.get(work.agent)
        if agent is None:
            raise UsageError(
                f"thread {work.thread_id!r} is for the agent {work.agent!r}, and this worker has "
                f"{', '.join(map(repr, self._agents)) or 'none'}. Give it the agent, or send the work to the queue of a "
                "worker that has it: ClewPlugin(…, task_queues={…})."
            )
        agent = of_attempt(agent, _label(), is_first=activity.info().attempt == 1)
        if self._folder_of is None:
            return agent
        return placed(agent, self._folder_of(work.thread_id))

    async def _run(self, agent: Agent, work: Work) -> RunResult:
        kind, letter = work.letter.kind, work.letter.id
        if kind == "prompt":
            prompt = work.prompt if work.prompt is not None else await _words(agent, work)
            result = await _until_stopped(agent.run(prompt, thread_id=work.thread_id, prompt_id=letter))
            return await _with_posts(agent, work, result)
        if kind == "answer":
            says = [work.answer] if work.answer is not None else await fetch(store_of(agent), work.thread_id, letter)
            if says is not None:
                return await _until_stopped(agent.resume(thread_id=work.thread_id, answer=says[0]))
        if isinstance(agent, ProviderAgent):
            return await _until_stopped(agent.run(GO_ON, thread_id=work.thread_id, prompt_id=letter))
        return await _until_stopped(agent.resume(thread_id=work.thread_id))

    async def _forget(self, work: Work) -> None:
        """Delete the letter, whose end is certain now. A letter that stays does no harm, so errors are only logged."""
        agent = self._agents.get(work.agent)
        if agent is None or work.prompt is not None or work.answer is not None or work.letter.kind == "resume":
            return
        try:
            await discard(store_of(agent), work.thread_id, work.letter.id)
        except ClewError as error:
            log.info("thread %r: its letter %r could not be deleted: %s", work.thread_id, work.letter.id, error)


def _label() -> str:
    """Return the name of the present activity in leases: the same for all attempts at it, and for no other activity."""
    info = activity.info()
    name = f"{info.workflow_id}/{info.workflow_run_id}/{info.activity_id}"
    return f"temporal activity {blake3(name.encode()).hexdigest()[:16]}"


async def _words(agent: Agent, work: Work) -> str:
    """Return the words of the prompt that the letter of this work points at.

    If the letter is gone, an earlier attempt has worked on it to its end and could not report that. The words are then
    on record on the thread, and the run returns the recorded answer. Raises `UsageError` if they are nowhere.
    """
    store = store_of(agent)
    if (says := await fetch(store, work.thread_id, work.letter.id)) is not None:
        return str(says[0])
    try:
        words = words_of(await Thread.load(store, work.thread_id), work.letter.id)
    except ThreadNotFound:
        words = None
    if words is None:
        raise UsageError(
            f"thread {work.thread_id!r}: the prompt {work.letter.id!r} is not in the store of the agent {work.agent!r}. "
            "Give the agents of the client and of the worker the same checkpointer, and ask again."
        )
    return words


async def _with_posts(agent: Agent, work: Work, result: RunResult) -> RunResult:
    """Go on with prompts that were posted to the thread while an earlier attempt ran, if that attempt died after it had
    answered its own prompt and before it had answered these. Return the result with the status that the thread has then.
    """
    if activity.info().attempt == 1 or result.status != "done" or isinstance(agent, ProviderAgent):
        return result
    last = last_exchange(await Thread.load(store_of(agent), work.thread_id))
    if last is None or not last.is_open or last.prompt_id == result.prompt_id:
        return result
    after = await _until_stopped(agent.resume(thread_id=work.thread_id))
    return msgspec.structs.replace(
        result, status=after.status, reason=after.reason, questions=after.questions, position=after.position
    )


async def _until_stopped(run: Run[RunResult]) -> RunResult:
    """Return the result of a run. If the worker is shut down meanwhile, the run ends after its open turn. If the
    activity is cancelled, the run is stopped at once, and `CancelledError` is raised when what it did is on record."""

    async def drain() -> None:
        await activity.wait_for_worker_shutdown()
        run.drain()

    draining = asyncio.create_task(drain())
    try:
        return await run
    finally:
        await settle(run.aclose())
        await cancel_and_wait([draining])


def _handed_back(work: Work) -> ApplicationError:
    """Return the error with which a worker that is shut down hands its work to another one, at once."""
    return ApplicationError(
        f"thread {work.thread_id!r}: this worker is shut down. Another one goes on.",
        type="WorkerShutdown",
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=timedelta(milliseconds=1),
    )


@asynccontextmanager
async def _heartbeats() -> AsyncIterator[None]:
    """Send heartbeats of the current activity until the context ends, the first at once."""
    pause = (activity.info().heartbeat_timeout or _UNKNOWN_BEAT).total_seconds() / _BEATS

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(pause)

    activity.heartbeat()
    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        await cancel_and_wait([beating])
