"""One run of the built-in agent on one thread: from opening the thread to the result that the caller gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from clew.agent.arguments import check_count, check_has_folder, check_timeout, make_folder
from clew.agent.exchanges import standing_of
from clew.agent.journal import Ends, Journal
from clew.agent.live import published
from clew.agent.loop import Loop
from clew.agent.outcomes import answer_in, find_answer, result_of, run_recorded
from clew.agent.prompts import asked, prompts_waiting
from clew.agent.questions import answers_to
from clew.agent.run import Drain, Emit, RunResult
from clew.agent.settings import Settings
from clew.agent.stores import Store, answers_within
from clew.agent.workspace import lacks_files
from clew.checkpointers import live_channel
from clew.errors import ThreadBusy, UsageError
from clew.threads import Thread
from clew.threads.leases import LEASE_TIME, Takeover, this_process
from clew.threads.redact import Redact
from clew.threads.thread import Durability
from clew.workspace import Workspace

__all__ = ["Job", "run_job", "turn_of"]


class Job(msgspec.Struct, frozen=True):
    """What one run of an agent has to do: ask a prompt, go on with a thread, or deliver a person's answer to a question
    for which the thread waits."""

    thread_id: str
    prompt: str | None
    answer: Any = None
    max_turns: int | None = None
    timeout: float | None = None
    named: bool = False
    """True if the user's program finds the same thread again when it is started again. That is so if the program gave
    the thread's id, or if the id is computed from the first prompt, the agent's name and the folder."""
    nth: int | None = None
    """The position of the prompt among the prompts of its session, from 0, if a repeated prompt is recognized by its
    position; else None."""
    prompt_id: str | None = None
    turns: int | None = None
    """After how many turns the run ends, whether or not the work is done; None for no such limit."""
    drain: Drain = msgspec.field(default_factory=Drain)

    def __post_init__(self) -> None:
        check_count("max_turns", self.max_turns, optional=True)
        check_count("turns", self.turns, optional=True)
        check_timeout(self.timeout)

    def left(self, since: float) -> float | None:
        """Return how many seconds of the timeout are left, or None if the run has no timeout. `since` is when the run
        began, by `time.perf_counter`."""
        return None if self.timeout is None else max(0.0, self.timeout - (time.perf_counter() - since))


@asynccontextmanager
async def turn_of(job: Job, lock: asyncio.Lock) -> AsyncIterator[float]:
    """Wait until no other run of the same agent works on the job's thread. Then hold the agent's lock for that thread,
    which is `lock`, until the context ends. Yields the time at which the wait began, as `time.perf_counter` gives it:
    the job's timeout counts from then. Raises `ThreadBusy` if the wait alone takes longer than that timeout."""
    called = time.perf_counter()
    try:
        async with asyncio.timeout(job.timeout) as limit:
            await lock.acquire()
    except TimeoutError:
        if not limit.expired():
            raise
        holder = str(this_process("another run of the same agent"))
        raise ThreadBusy(job.thread_id, holder, LEASE_TIME.total_seconds()) from None
    try:
        yield called
    finally:
        lock.release()


async def run_job(
    job: Job,
    settings: Settings,
    where: Store,
    *,
    durability: Durability,
    redact: Redact | None,
    takeover: Takeover,
    label: str,
    ends: Ends | None,
    called: float,
    began: Callable[[], None],
    emit: Emit,
) -> RunResult:
    """Carry out the job, which is one run, and return its result. If the prompt already has an answer on record, that
    is the result and no model is asked.

    `where` is the agent's store. `durability` says when entries are stored, and `redact` removes secrets from them.
    `takeover` says whether the thread is taken from a process that still holds it, and `label` names this process for
    others. `ends` may change what is recorded at the end of the run. `called` is when the run was asked for, by
    `time.perf_counter`: the job's timeout counts from then. `began` is called once, after the thread was opened or the
    recorded answer was found. `emit` is called with each event; the words among them also go to those who follow the
    thread live, unless there is something to redact. Wrong arguments raise an error before the thread is opened.
    """
    if job.max_turns is not None:
        settings = msgspec.structs.replace(settings, max_turns=job.max_turns)
    check_has_folder(settings, "Give one: agent.session(workspace=…), or Agent(…, workspace=…)")
    make_folder(settings.workspace)
    opening = time.perf_counter()
    store = where.open()
    prompt = None if job.prompt is None else asked(job.prompt, redact, prompt_id=job.prompt_id, number=job.nth)
    async with answers_within(job.left(called), job.thread_id):
        if job.answer is not None:
            answers_to(job.thread_id, await Thread.load(store, job.thread_id), job.answer)
        if prompt is not None and (answered := await find_answer(store, job.thread_id, settings, prompt)) is not None:
            began()
            return answered
    holding = where.thread(
        job.thread_id,
        takeover=takeover,
        label=label,
        durability=durability,
        redact=redact,
        timeout=job.left(called),
    )
    channel = None if redact is not None else live_channel(store)  # what is cut anywhere cannot be redacted
    async with holding as thread, Journal(thread, ends) as journal, published(channel, job.thread_id, emit) as emit:
        began()
        journal.count_since(opening)
        before = thread.checkpoint
        if job.prompt is None and not (before.messages or prompts_waiting(before) or await thread.posts()):
            raise UsageError(f"thread {job.thread_id!r} has no prompt to go on from. Give one: agent.run(prompt, …)")
        if job.answer is not None:
            await journal.record(*answers_to(job.thread_id, before, job.answer))
        workspace = None if settings.workspace is None else Workspace(settings.workspace, store)
        loop = Loop(settings, journal, workspace, emit, turns=job.turns, drain=job.drain)
        answered = None if prompt is None else answer_in(job.thread_id, before, settings, prompt)
        if answered is None:
            ending = await run_recorded(journal, loop.files, loop.run(prompt), job.timeout, job.left(called))
            result = result_of(journal, before, loop, ending)
        else:  # the folder lacks the files, or another process has answered the prompt since `find_answer`
            if lacks_files(settings.workspace, before):
                await loop.files.bring()
            await journal.record(standing_of(before))
            result = answered
    return msgspec.structs.replace(result, position=thread.position)
