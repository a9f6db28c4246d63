"""Outcomes of runs: record how a run ended, and make the result that the caller of the run gets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from clew._runtime.aio import settle
from clew.agent.exchanges import exchange_of, last_exchange, reason_of
from clew.agent.journal import Journal
from clew.agent.loop import Ending, Loop, read_answer
from clew.agent.prompts import Asked, prompts_waiting
from clew.agent.run import DRAINED, RunResult
from clew.agent.settings import Settings
from clew.agent.trajectory import answer_on_record, done_since
from clew.agent.workspace import Files, lacks_files
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, ThreadNotFound
from clew.log import Checkpoint, Present, StatusChanged
from clew.threads.reader import load
from clew.threads.takeover import until_lost

__all__ = ["answer_in", "find_answer", "result_of", "run_recorded"]

_LIMITS = ("max_turns: ", "budget: ", "timeout: ", "turns: ", DRAINED)
"""The beginnings of the `reason` of a run that a limit or its caller interrupted. Such a run returns a result and raises
no error."""
_ASKED_AFTER_ANSWER = (
    "not asked yet: the thread waits for answers to questions of an earlier prompt. It is on record, and is asked once they "
    "are given with resume(answer=…)"
)
_ASKED_ON_RESUME = "the prompt was not asked yet. It is on record, and a resume asks it"


async def run_recorded(
    journal: Journal, files: Files, running: Coroutine[Any, Any, Ending], timeout: float | None, left: float | None
) -> Ending:
    """Await `running`, the work of a run, for at most `left` seconds, and return how the run ended. If `left` is None,
    there is no limit. `timeout` is the whole time in seconds that the caller gave the run, of which `left` remains; it
    is named in the record if the time is up.

    If the run fails or is cancelled, its files and its end are recorded before the error is raised again. If the time
    is up, that is recorded as the end and returned. A second cancellation does not stop the recording. If another
    process takes over the thread, the work is cancelled as soon as that is known, and `LeaseLost` is raised.
    """
    try:
        async with asyncio.timeout(left) as limit, until_lost(journal.thread):
            return await running
    except asyncio.CancelledError as error:
        with suppress(asyncio.CancelledError):  # a second cancellation; the first one is raised below
            await settle(_record_end(journal, files, StatusChanged("interrupted", "cancelled"), error))
        raise
    except Exception as error:
        if limit.expired() and isinstance(error, TimeoutError):
            return await settle(_record_timeout(journal, files, f"timeout: {timeout:g} s"))
        await settle(_record_end(journal, files, StatusChanged("failed", reason_of(error)), error))
        raise


async def _record_timeout(journal: Journal, files: Files, reason: str) -> Ending:
    journal.ending = True
    unkept = await files.settle()
    ending = Ending("interrupted", f"{reason}; {unkept}" if unkept else reason)
    await journal.record_end(StatusChanged(ending.status, ending.reason))
    return ending


async def _record_end(journal: Journal, files: Files, ending: StatusChanged, error: BaseException) -> None:
    """Record the files of the workspace, then the status in `ending`. If either cannot be recorded, a note that says so
    is added to `error`, the exception with which the run ended."""
    journal.ending, journal.failure = True, error
    if unkept := await files.settle(error):
        error.add_note(unkept)
        ending = StatusChanged(ending.status, f"{ending.reason}; {unkept}")
    try:
        await journal.record_end(ending)
    except Exception as second:  # noqa: BLE001 - the error that ended the run is the one to raise
        if str(second) != str(error):  # a lost lease is the reason of both: say it once
            error.add_note(f"that the run is {ending.status} could not be recorded: {second}")


def result_of(journal: Journal, before: Checkpoint, loop: Loop, ending: Ending) -> RunResult:
    thread = journal.thread
    state = thread.checkpoint
    words, prompt_id, reason = _worked_on(state, ending, loop.asked)
    return RunResult(
        output=loop.output if ending.status == "done" else None,
        prompt=words,
        prompt_id=prompt_id,
        model=state.model,
        thread_id=thread.thread_id,
        session_id=thread.thread_id,
        status=ending.status,
        reason=reason,
        questions=ending.questions,
        usage=journal.spent.usage,
        cost=journal.spent.cost,
        turns=state.turns,
        resumed_from=before.turns if before.history else None,
        drift=loop.drift,
        waited=journal.waited,
        duration=round(state.seconds - before.seconds, 6),
        blocks=done_since(before, state),
    )


def _worked_on(state: Checkpoint, ending: Ending, prompt: Asked | None) -> tuple[str, str, str]:
    """Return three things for a run's result: the words and the id of its prompt, and the reason of its status.

    The prompt is the one that was given to the run, even if it was asked together with later prompts. If the run was
    given none, it is the last prompt of the thread. If the run could not ask its prompt yet, because earlier work waits
    for an answer or was stopped, the reason says so.
    """
    reason = "" if ending.status == "waiting" else ending.reason
    given = None if prompt is None else prompt.among(prompts_waiting(state))
    if given is not None and ending.status == "waiting":
        return given.text, given.id, _ASKED_AFTER_ANSWER
    if given is not None:
        return given.text, given.id, f"{reason}; {_ASKED_ON_RESUME}"
    found = None if prompt is None else exchange_of(state, prompt.id)
    found = found or last_exchange(state)
    return ("", "", reason) if found is None else (found.prompt, found.prompt_id, reason)


async def find_answer(store: Checkpointer, thread_id: str, settings: Settings, prompt: Asked) -> RunResult | None:
    """Return the recorded answer to a prompt, as the result of a run that cost nothing, or None if a run is needed: the
    prompt is not answered yet, its id is random, or the thread has files on record and the agent's workspace is empty,
    so that they have to be restored. Takes no lease."""
    if not prompt.is_exact:
        return None
    try:
        found = await load(store, thread_id)
    except ThreadNotFound:
        return None
    if lacks_files(settings.workspace, found.state):
        return None
    answered = answer_in(thread_id, found.state, settings, prompt)
    return None if answered is None else msgspec.structs.replace(answered, position=found.head.frames)


def answer_in(thread_id: str, state: Checkpoint, settings: Settings, prompt: Asked) -> RunResult | None:
    """Return the recorded answer to a prompt, as the result of a run that cost nothing. Return None if the prompt must
    still be asked, or its work finished. Also return None if its id is a random one, so that no record of it can be
    found (`is_exact` is False).

    A program that is run again gives all prompts of its session again. If a prompt had ended by waiting for a person or
    by a limit, and the program had then gone on with another prompt, the result is the same as before. A prompt that
    failed or was cut off is asked again.

    Raises `InvalidInput` if the id is on record with another text. Raises it too if the recorded answer no longer fits
    `output=` and other prompts came later, so that the model cannot be asked to correct it.
    """
    if not prompt.is_exact:
        return None
    if (waiting := prompt.among(prompts_waiting(state))) is not None:
        prompt.check_words(thread_id, waiting.text)
    found = exchange_of(state, prompt.id)
    if found is None:
        return None
    prompt.check_words(thread_id, found.prompt)
    was_told = found.status == "waiting" or (found.status == "interrupted" and found.reason.startswith(_LIMITS))
    left_behind = prompt.is_numbered and not found.is_last and was_told
    if found.status != "done" and not left_behind:
        return None
    then = (state.history[found.place], *found.up_to_answer)
    output, correction = read_answer(settings, Present(messages=then)) if found.status == "done" else (None, "")
    if correction and found.is_last:  # the model is asked again, for the type that `output` is now
        return None
    if correction:
        raise InvalidInput(
            f"thread {thread_id!r}: the prompt {prompt.id!r} was answered when the agent had another output= or finish=, "
            "and its answer on record does not fit this one's. Other prompts came after it, so the model cannot be asked to "
            "correct it. Read it with an agent as it was then, or ask again with another prompt_id."
        )
    return msgspec.structs.replace(answer_on_record(thread_id, state, found), output=output)
