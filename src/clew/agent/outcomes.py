"""Outcomes of runs: how the end of a run is recorded, and the result that its caller gets."""

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
from clew.agent.run import RunResult
from clew.agent.settings import Settings
from clew.agent.trajectory import answer_on_record, done_since
from clew.agent.workspace import Files, lacks_files
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, ThreadNotFound
from clew.log import Checkpoint, StatusChanged
from clew.threads import Thread

__all__ = ["answer_in", "find_answer", "result_of", "run_recorded"]

_LIMITS = ("max_turns: ", "budget: ", "timeout: ")
"""How the `reason` begins if a limit interrupted a run. Such a run returns a result and raises nothing."""
_ASKED_AFTER_ANSWER = (
    "not asked yet: the thread waits for answers to questions of an earlier prompt. It is on record, and is asked once they "
    "are given with resume(answer=…)"
)
_ASKED_ON_RESUME = "the prompt was not asked yet. It is on record, and a resume asks it"


async def run_recorded(
    journal: Journal, files: Files, running: Coroutine[Any, Any, Ending], timeout: float | None
) -> Ending:
    """Run to the end. A run that fails, is cancelled or takes too long first puts its files and how it ended on record,
    however often it is cancelled meanwhile."""
    try:
        async with asyncio.timeout(timeout) as limit:
            return await running
    except asyncio.CancelledError as error:
        with suppress(asyncio.CancelledError):  # once more: the first goes on below
            await settle(_record_end(journal, files, StatusChanged("interrupted", "cancelled"), error))
        raise
    except Exception as error:
        if limit.expired() and isinstance(error, TimeoutError):
            return await settle(_record_timeout(journal, files, f"timeout: {timeout:g} s"))
        await settle(_record_end(journal, files, StatusChanged("failed", reason_of(error)), error))
        raise


async def _record_timeout(journal: Journal, files: Files, reason: str) -> Ending:
    unkept = await files.settle()
    ending = Ending("interrupted", f"{reason}; {unkept}" if unkept else reason)
    await journal.record(StatusChanged(ending.status, ending.reason))
    return ending


async def _record_end(journal: Journal, files: Files, ending: StatusChanged, error: BaseException) -> None:
    """Store the files, then record how the run ended. If either fails, a note on `error` says so."""
    if unkept := await files.settle(error):
        error.add_note(unkept)
        ending = StatusChanged(ending.status, f"{ending.reason}; {unkept}")
    try:
        await journal.record(ending)
    except Exception as second:  # noqa: BLE001 - the error that ended the run is the one to raise
        if str(second) != str(error):  # one who lost the thread is told so once
            error.add_note(f"that the run is {ending.status} could not be recorded: {second}")


def result_of(journal: Journal, before: Checkpoint, loop: Loop, ending: Ending, prompt: Asked | None) -> RunResult:
    thread = journal.thread
    state = thread.checkpoint
    words, prompt_id, reason = _worked_on(state, ending, prompt)
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
    """The words and the id of the prompt that a run is the result of, and the reason of its status.

    It is the prompt that the run was given, so that nobody takes the result of another prompt for its answer: not if it was
    asked together with later ones, and not if it was not asked at all, because what was begun before it waits for an answer
    or was stopped. Without a prompt it is the one that the thread went on with.
    """
    reason = "" if ending.status == "waiting" else ending.reason
    given = None if prompt is None else prompt.among(prompts_waiting(state))
    if given is not None and ending.status == "waiting":
        return given.text, given.id, _ASKED_AFTER_ANSWER
    if given is not None:
        return given.text, given.id, f"{reason}; {_ASKED_ON_RESUME}"
    found = exchange_of(state, prompt.id) if prompt is not None and prompt.is_exact else None
    found = found or last_exchange(state)
    return ("", "", reason) if found is None else (found.prompt, found.prompt_id, reason)


async def find_answer(store: Checkpointer, thread_id: str, settings: Settings, prompt: Asked) -> RunResult | None:
    """The answer to a prompt that is on record already; None if it is to be asked, or if files are to be restored first.
    Takes no lease."""
    if not prompt.is_exact:
        return None
    try:
        state = await Thread.load(store, thread_id)
    except ThreadNotFound:
        return None
    return None if lacks_files(settings.workspace, state) else answer_in(thread_id, state, settings, prompt)


def answer_in(thread_id: str, state: Checkpoint, settings: Settings, prompt: Asked) -> RunResult | None:
    """The answer to a prompt that is on record, at no cost; None if it is to be asked, or to be gone on with.

    A session's script that was told that a prompt waits or has reached a limit, and went on with another one, is told the
    same again. A prompt that raised an error or was cut off told the script nothing, and is asked again.
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
    at_its_end = Checkpoint(history=then, view=((0, len(then)),))
    output, correction = read_answer(settings, at_its_end) if found.status == "done" else (None, "")
    if correction and found.is_last:  # the model is asked for an answer of the type that it is to have now
        return None
    if correction:
        raise InvalidInput(
            f"thread {thread_id!r}: the prompt {prompt.id!r} was answered when the agent had another output= or finish=, "
            "and its answer on record does not fit this one's. Other prompts came after it, so the model cannot be asked to "
            "correct it. Read it with an agent as it was then, or ask again with another prompt_id."
        )
    return msgspec.structs.replace(answer_on_record(thread_id, state, found), output=output)
