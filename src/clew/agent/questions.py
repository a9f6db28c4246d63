"""Find the questions to a person that a thread waits for, and record the answers."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from clew.agent.events import QUESTIONS, Question
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, UsageError
from clew.log import Checkpoint, Logged, StateSet, StatusChanged, StepOutcome, encode_entries
from clew.log.checkpoint import ANSWERS
from clew.threads import Thread
from clew.threads.maintenance import upkeep

__all__ = ["answers_to", "open_questions", "record_answer"]

_ID = re.compile(r"\d+:\d+:.+")


def open_questions(state: Checkpoint) -> list[Question]:
    """Return the questions to a person that a thread in this state waits for."""
    return msgspec.convert(state.state.get(QUESTIONS) or [], list[Question])


def answers_to(thread_id: str, state: Checkpoint, answer: Any) -> list[Logged]:
    """Return the entries that record a person's answer to a thread's open questions. Does not record them.

    `answer` is the answer itself, or a dict by question id, which is required if there are several questions. Each
    answer is recorded as a part of the tool call that asked, and the tool finds it there when it runs again. The caller
    must hold the thread's lease while it records the entries, so that nobody else answers meanwhile.

    If the thread has no open questions, returns an empty list if its last questions were answered with the same answer,
    and otherwise raises `UsageError`. Raises `InvalidInput` if the answer does not fit the questions.
    """
    questions = {question.id: question for question in open_questions(state)}
    by_id = (
        isinstance(answer, dict) and bool(answer) and all(isinstance(key, str) and _ID.fullmatch(key) for key in answer)
    )
    if not questions:
        return _given_again(thread_id, state.state.get(ANSWERS) or {}, answer, by_id)
    if by_id and (unknown := answer.keys() - questions.keys()):
        raise InvalidInput(
            f"thread {thread_id!r} does not ask {', '.join(sorted(unknown))} any more. It asks {', '.join(questions)}."
        )
    if not by_id and len(questions) > 1:
        raise InvalidInput(f"thread {thread_id!r} waits for several answers: give a dict by id, {', '.join(questions)}")
    answers = answer if by_id else dict.fromkeys(questions, answer)
    entries: list[Logged] = [
        StepOutcome(asked.message, asked.index, asked.key, answers[key])
        for key, asked in questions.items()
        if key in answers
    ]
    encode_entries(entries)
    return [*entries, StateSet(QUESTIONS, None), StateSet(ANSWERS, dict(answers))]


async def record_answer(checkpointer: Checkpointer, thread_id: str, answer: Any) -> None:
    """Record a person's answer to a thread's questions, without an agent. The thread goes on with it at the next
    resume.

    For several questions, `answer` is a dict from question ids to answers. Raises `InvalidInput` if the answer does not
    fit the questions, and `UsageError` if the thread has none; both before the thread's lease is taken.
    """
    answers_to(thread_id, await Thread.load(checkpointer, thread_id), answer)
    async with upkeep(checkpointer, thread_id, "answering") as thread:
        if entries := answers_to(thread_id, thread.checkpoint, answer):
            await thread.append(*entries, StatusChanged("interrupted", "answered; a resume goes on"))


def _given_again(thread_id: str, before: dict[str, Any], answer: Any, by_id: bool) -> list[Logged]:
    same = answer.items() <= before.items() if by_id else answer in before.values()
    if not same:
        raise UsageError(f"thread {thread_id!r} does not wait for an answer. Resume it without answer=.")
    return []
