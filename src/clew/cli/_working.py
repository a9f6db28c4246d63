"""A prompt to the agent that a setup describes, shown as it is worked on: what `run` and `resume` have in common."""

from __future__ import annotations

import shlex
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from clew.cli._agents import make_agent
from clew.cli._answers import ask
from clew.cli.live import Ended, View, live_view

if TYPE_CHECKING:
    from clew.agent import RunResult, Session
    from clew.agent.setups import Setup
    from clew.checkpointers import Checkpointer
    from clew.cli._setups import Asked
    from clew.log import Checkpoint

__all__ = ["Job", "resume_command", "taken_up", "work_on"]


class Job(NamedTuple):
    """What is to be done, on which thread, and by whom."""

    setup: Setup
    thread_id: str = ""
    """Empty: a new thread, which is given a name."""
    prompt: str | None = None
    answer: Any = None
    timeout: float | None = None
    before: Checkpoint | None = None
    """The thread as it is on record; None for a new one."""
    handle: str = ""
    """In place of a thread: of a provider's session that the store does not know."""
    notes: tuple[str, ...] = ()
    """What is to be said first."""


def taken_up(thread_id: str, state: Checkpoint, asked: Asked) -> Job:
    """To go on with a thread, with what it has on record and what is asked for besides. What differs is said."""
    import msgspec

    from clew.agent.setups import setup_of
    from clew.cli._setups import changes, merged

    before = setup_of(state)
    now = merged(before, asked)
    then = msgspec.structs.replace(before, model=before.model or state.model, folder=before.folder or now.folder)
    return Job(now, thread_id, before=state, notes=tuple(changes(then, now)))


def resume_command(thread_id: str, store: str | None, *more: str) -> str:
    """What a user types to go on with a thread."""
    from clew.cli._stores import store_option

    return " ".join(["clew resume", shlex.quote(thread_id), *more]) + store_option(store)


def work_on(job: Job, store: str | None, json: bool) -> None:
    """Do it, and show it. On a terminal what the agent asks is asked at once. Ends the command: with 0 if the work is done,
    with 1 if it stopped short of that."""
    from clew.cli._stores import on_store

    with live_view(json) as view:
        ended = on_store(store, lambda opened: _work(opened, job, store, view), "made")
        while True:
            view.end(ended)
            if ended.status != "waiting" or (answer := ask(ended.questions, json)) is None:
                break
            ended = on_store(store, partial(_answer, job, ended.thread_id, answer, store, view), "made")
    raise typer.Exit(0 if ended.status == "done" else 1)


async def _answer(job: Job, thread_id: str, answer: Any, url: str | None, view: View, store: Checkpointer) -> Ended:
    from clew import Thread

    before = await Thread.load(store, thread_id)
    job = job._replace(thread_id=thread_id, prompt=None, answer=answer, before=before, handle="", notes=())
    return await _work(store, job, url, view)


async def _work(store: Checkpointer, job: Job, url: str | None, view: View) -> Ended:
    from clew.errors import ClewError, InvalidInput, ThreadBusy, UsageError

    def stopped(thread_id: str) -> str:
        view.pause()
        return resume_command(thread_id, url)

    async with AsyncExitStack() as stack:
        agent, notes = await make_agent(job.setup, job.before, store, stack, stopped)
        thread_id = job.thread_id or agent.new_id()
        session = agent.resume_session(job.handle) if job.handle else agent.start_session(thread_id=thread_id)
        try:
            if not job.handle:
                await _keep(store, thread_id, job)
            view.begin(thread_id, _who(job))
            for note in (*job.notes, *notes):
                view.note(note)
            result = await _watched(session, job, view)
        except ThreadBusy as busy:
            busy.add_note(f"To take it all the same: clew unlock {shlex.quote(thread_id)} --force")
            raise
        except (InvalidInput, UsageError):
            view.pause()
            raise
        except ClewError as error:
            view.pause()
            error.add_note(f"To go on: {resume_command(thread_id, url)}")
            raise
        if job.handle:
            await _keep(store, result.thread_id, job)
        return await _ended(store, result, url)


async def _keep(store: Checkpointer, thread_id: str, job: Job) -> None:
    """What it is worked on with goes on record, if it is not there already: never later than the work itself."""
    from clew.agent.setups import keep_setup, kept_setup

    if job.before is None or kept_setup(job.before) != job.setup:
        await keep_setup(store, thread_id, job.setup)


async def _watched(session: Session, job: Job, view: View) -> RunResult:
    running = session.resume(job.prompt, answer=job.answer, timeout=job.timeout)
    async for event in running:
        view.show(event)
    return await running


def _who(job: Job) -> str:
    setup = job.setup
    who = " ".join(filter(None, (setup.provider, setup.model)))
    if job.before is None or not job.before.history:
        return who
    return f"goes on from turn {job.before.turns} with {who}"


async def _ended(store: Checkpointer, result: RunResult, url: str | None) -> Ended:
    from clew.errors import ThreadNotFound

    head = await store.head(result.thread_id)
    if head is None:
        raise ThreadNotFound(result.thread_id)
    more = ("--answer", "TEXT") if result.status == "waiting" else ()
    return Ended(
        thread_id=result.thread_id,
        status=result.status,
        resume=resume_command(result.thread_id, url, *more),
        reason=result.reason,
        output=result.output,
        questions=result.questions,
        turns=head.turns,
        input_tokens=head.input_tokens,
        output_tokens=head.output_tokens,
        cost_usd=head.cost_usd,
        seconds=result.duration,
        drift=dict(result.drift),
    )
