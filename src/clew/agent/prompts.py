"""Check prompts, give them ids, record those that have to wait for the results of tool calls, and tell prompts from
notes, which are messages from Clew to the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec
from blake3 import blake3

from clew.errors import InvalidInput
from clew.log import Checkpoint, Logged, MessageAdded, StateSet
from clew.log.checkpoint import PROMPT_IDS
from clew.messages import NOTE_MARK, Assistant, Message, User, plain_text, user
from clew.threads.prompts import MADE, check_prompt, made_id, quoted
from clew.threads.redact import Redact, redactor

__all__ = [
    "NOTE",
    "Asked",
    "WaitingPrompt",
    "asked",
    "check_prompt",
    "check_resumed",
    "is_note",
    "is_prompt",
    "line_of_work",
    "made_id",
    "note",
    "note_waiting",
    "prompts_waiting",
    "turns_of_task",
    "waiting_prompts",
]


_PROMPTS = "clew:prompts"
"""The name of the thread's value that holds the texts of waiting prompts: those that were given while tool calls of the
last turn had no result."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that was given to a run: its text and its id."""

    text: str
    words: str
    """The text as it is stored in the log, with the redaction applied."""
    id: str
    is_exact: bool
    """True if the prompt can be recognized by its id alone: the id was given, or made from the prompt's position in its
    session.

    Otherwise the id is new with each call, and an unfinished prompt with the same words counts as the same prompt.
    """
    is_numbered: bool = False

    def among(self, prompts: Sequence[WaitingPrompt]) -> WaitingPrompt | None:
        """Return the last prompt in this list that is the same as `self`, or None. Two prompts are the same if they
        have the same id. If `is_exact` is False, the id of `self` is random, and the same words are enough."""
        for other in reversed(prompts):
            if other.id == self.id or (not self.is_exact and other.text == self.words):
                return other
        return None

    def check_words(self, thread_id: str, known: str) -> None:
        """Raise `InvalidInput` if this prompt's text differs from `known`, the text that is on record with the same id.
        `thread_id` is for the message."""
        if known != self.words:
            raise InvalidInput(
                f"thread {thread_id!r}: the prompt_id {self.id!r} is on record with other words: {quoted(known)}, and not "
                f"{quoted(self.words)}. Give each prompt an id of its own."
            )


def asked(text: str, redact: Redact | None, *, prompt_id: str | None = None, number: int | None = None) -> Asked:
    """Return a prompt with its id, its full text for the model, and its words as they go on record: without what
    `redact` removes.

    The id is `prompt_id` if that is given. Otherwise it is made from `number`, the prompt's position in its session
    from 0, and from the words on record. Without a number, the id is new and random. `redact` is a function or regular
    expressions that remove secrets from texts before they are stored in the thread.
    """
    words = _on_record(text, redact)
    if prompt_id is not None:
        return Asked(text=text, words=words, id=prompt_id, is_exact=True)
    if number is not None:
        digest = blake3(words.encode("utf-8", "replace")).hexdigest()[:16]
        return Asked(text=text, words=words, id=f"{MADE}{number + 1}:{digest}", is_exact=True, is_numbered=True)
    return Asked(text=text, words=words, id=made_id(), is_exact=False)


def _on_record(text: str, redact: Redact | None) -> str:
    change = redactor(redact)
    entries: list[Logged] = [MessageAdded(user(text))]
    (entry,) = entries if change is None else change(entries)
    return plain_text(entry.message) if isinstance(entry, MessageAdded) else text


def check_resumed(prompt: str | None, prompt_id: str | None) -> None:
    """Raise `InvalidInput` if a resume cannot take this prompt or its id, for example because the text is empty or
    cannot be stored, or if an id is given without a prompt. Both may be None."""
    if prompt is not None:
        check_prompt(prompt, prompt_id)
    elif prompt_id is not None:
        raise InvalidInput(
            "prompt_id= was given without the prompt that it is for. Give both: resume(prompt, prompt_id=…)"
        )


class WaitingPrompt(msgspec.Struct, frozen=True):
    """A recorded prompt that is not yet in the conversation: the model gets it once the tool calls of the last turn
    have results."""

    text: str
    id: str


def prompts_waiting(state: Checkpoint) -> list[WaitingPrompt]:
    """Return the recorded prompts that wait until the tool calls of the last turn have results, oldest first."""
    values = state.state
    texts, ids = values.get(_PROMPTS) or [], values.get(PROMPT_IDS) or []
    known = [*ids, *(made_id() for _ in texts[len(ids) :])]
    return [WaitingPrompt(text, prompt_id) for text, prompt_id in zip(texts, known, strict=False)]


def waiting_prompts(prompts: list[WaitingPrompt]) -> list[Logged]:
    """Return the entries that record these prompts as waiting until tool calls have ended. Once recorded, this list
    replaces the earlier list of waiting prompts. Ids are stored apart from the texts, because only texts are redacted.
    """
    texts, ids = [prompt.text for prompt in prompts], [prompt.id for prompt in prompts]
    return [StateSet(_PROMPTS, texts or None), StateSet(PROMPT_IDS, ids or None)]


def line_of_work(state: Checkpoint) -> list[int]:
    """Return the indices, in the thread's history, of all messages that were not taken back by a rewind, in order.

    Messages that a summary replaced for the model are included.
    """
    return [place for start, stop in _stretches(state) for place in range(start, stop)]


def _stretches(state: Checkpoint) -> list[tuple[int, int]]:
    """Return which messages of the thread's history were not taken back by a rewind: ranges (start, stop) of their
    indices, in order and without overlaps."""
    if state.view == ((0, len(state.history)),):
        return [*state.view]
    stops: dict[int, int] = {}
    for view in chain(state.marks, [state.view]):  # most views have the same starts, and differ only in their stops
        for start, stop in view:
            stops[start] = max(stop, stops.get(start, 0))
    found: list[tuple[int, int]] = []
    end = 0
    for start, stop in sorted(stops.items()):
        if stop > end:
            found.append((max(start, end), stop))
            end = stop
    return found


def turns_of_task(state: Checkpoint) -> int:
    """Count the model's responses since the user's last prompt, over all runs that worked on it."""
    turns = 0
    for start, stop in reversed(_stretches(state)):
        for place in range(stop - 1, start - 1, -1):
            if is_prompt(state.history[place]):
                return turns
            turns += type(state.history[place]) is Assistant
    return turns


NOTE = "clew:note"
"""The name of the thread's value that holds the text of a note for the model. It is added to the conversation before
the model is asked again."""


def note(text: str) -> User:
    """Return a message from Clew to the model, marked so that it is not taken for a prompt of the user."""
    return user(NOTE_MARK + text)


def note_waiting(state: Checkpoint) -> str:
    """Return the text of a recorded note (a message from Clew to the model) that the model has not been given yet, or
    "" if there is none."""
    return str(state.state.get(NOTE) or "")


def is_note(message: Message) -> bool:
    return type(message) is User and plain_text(message).startswith(NOTE_MARK)


def is_prompt(message: Message) -> bool:
    """Return whether a message is a prompt of the user. Notes, the messages from Clew to the model, also have the role
    of a user, but are not prompts."""
    return type(message) is User and not is_note(message)
