"""What is asked of an agent: what can be, what was, and what waits for its turn."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec
from blake3 import blake3

from clew import advice
from clew.errors import InvalidInput
from clew.log import Checkpoint, Logged, MessageAdded, StateSet
from clew.log.checkpoint import PROMPT_IDS
from clew.messages import Assistant, Message, User, plain_text, user
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
"""The thread's value that holds what is to be asked once the open calls are done."""
_MADE = "clew:"
"""How the ids begin that are made here."""
_LONGEST_ID = 1024
_LONGEST_QUOTE = 60


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that somebody asks: its words, and what it is known by."""

    text: str
    words: str
    """The text as it is on record, with what must not be there taken out."""
    id: str
    is_exact: bool
    """Whether the id was given, or stands for the number of the prompt in its session. Else it is new with each call, and
    an unfinished prompt with the same words is taken for the same."""
    is_numbered: bool = False

    def among(self, prompts: Sequence[WaitingPrompt]) -> WaitingPrompt | None:
        """The one of these that is this prompt; None if none is. Without a given id it is known by its words."""
        for other in reversed(prompts):
            if other.id == self.id or (not self.is_exact and other.text == self.words):
                return other
        return None

    def check_words(self, thread_id: str, known: str) -> None:
        """Refuse an id that stands for other words on record."""
        if known != self.words:
            raise InvalidInput(
                f"thread {thread_id!r}: the prompt_id {self.id!r} is on record with other words: {_quoted(known)}, and not "
                f"{_quoted(self.words)}. Give each prompt an id of its own."
            )


def asked(text: str, redact: Redact | None, *, prompt_id: str | None = None, number: int | None = None) -> Asked:
    """A prompt with its id: the one that was given; or made from its number in its session and its words; or a new one."""
    words = _on_record(text, redact)
    if prompt_id is not None:
        return Asked(text=text, words=words, id=prompt_id, is_exact=True)
    if number is not None:
        digest = blake3(words.encode("utf-8", "replace")).hexdigest()[:16]
        return Asked(text=text, words=words, id=f"{_MADE}{number + 1}:{digest}", is_exact=True, is_numbered=True)
    return Asked(text=text, words=words, id=made_id(), is_exact=False)


def made_id() -> str:
    """A new id, for a prompt that was given none."""
    return f"{_MADE}{secrets.token_hex(8)}"


def _on_record(text: str, redact: Redact | None) -> str:
    change = redactor(redact)
    entries: list[Logged] = [MessageAdded(user(text))]
    (entry,) = entries if change is None else change(entries)
    return plain_text(entry.message) if isinstance(entry, MessageAdded) else text


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _LONGEST_QUOTE else f"{line[: _LONGEST_QUOTE - 1]}…")


def check_prompt(prompt: str, prompt_id: str | None = None) -> None:
    """Refuse what cannot be asked, before anything is touched."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidInput(
            f"a prompt is a text that is not empty, and not {prompt!r}. To go on with a thread without one: "
            f"{advice.resume_in_program('…')}"
        )
    _check_storable("a prompt", prompt)
    if prompt_id is None:
        return
    if not isinstance(prompt_id, str) or not prompt_id.strip() or len(prompt_id) > _LONGEST_ID:
        raise InvalidInput(f"a prompt_id is a text of 1 to {_LONGEST_ID} characters, and not {prompt_id!r}")
    if prompt_id.startswith(_MADE):
        raise InvalidInput(f"the prompt_id {prompt_id!r} begins like those that Clew makes. Choose another.")
    _check_storable("a prompt_id", prompt_id)


def check_resumed(prompt: str | None, prompt_id: str | None) -> None:
    """Refuse what a resume cannot ask. Without a prompt it goes on with what is on record, and an id would name nothing."""
    if prompt is not None:
        check_prompt(prompt, prompt_id)
    elif prompt_id is not None:
        raise InvalidInput(
            "a prompt_id is the id of a prompt, and there is none. Give both: resume(prompt, prompt_id=…)"
        )


def _check_storable(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} is text that can be written as UTF-8, and not {_quoted(text)}: half a surrogate pair is at character "
            f"{error.start + 1}"
        ) from None


class WaitingPrompt(msgspec.Struct, frozen=True):
    """A prompt that is on record, and is asked once the calls of the open turn are done."""

    text: str
    id: str


def prompts_waiting(state: Checkpoint) -> list[WaitingPrompt]:
    """The prompts to be asked once the calls of the open turn are done, the first to be asked first."""
    values = state.state
    texts, ids = values.get(_PROMPTS) or [], values.get(PROMPT_IDS) or []
    known = [*ids, *(made_id() for _ in texts[len(ids) :])]
    return [WaitingPrompt(text, prompt_id) for text, prompt_id in zip(texts, known, strict=False)]


def waiting_prompts(prompts: list[WaitingPrompt]) -> list[Logged]:
    """Put on record which prompts wait. Ids are apart from the words, so that only words are redacted."""
    texts, ids = [prompt.text for prompt in prompts], [prompt.id for prompt in prompts]
    return [StateSet(_PROMPTS, texts or None), StateSet(PROMPT_IDS, ids or None)]


def line_of_work(state: Checkpoint) -> list[int]:
    """Places in the history of all that the current line of work holds, in order: also what a summary stands for now, and
    nothing that was rewound."""
    if state.view == ((0, len(state.history)),):
        return list(range(len(state.history)))
    places: list[int] = []
    for start, stop in sorted({stretch for view in (*state.marks, state.view) for stretch in view}):
        places.extend(range(max(start, places[-1] + 1 if places else 0), stop))
    return places


def turns_of_task(state: Checkpoint) -> int:
    """Responses since the last prompt."""
    turns = 0
    for place in reversed(line_of_work(state)):
        if is_prompt(state.history[place]):
            break
        turns += type(state.history[place]) is Assistant
    return turns


NOTE = "clew:note"
"""The thread's value that holds what the model is to be told before it is asked again."""
_MARK = "[clew] "


def note(text: str) -> User:
    """A message from Clew to the model."""
    return user(_MARK + text)


def note_waiting(state: Checkpoint) -> str:
    """What the model is to be told before it is asked again; empty if nothing. Calls that are open are settled first."""
    return str(state.state.get(NOTE) or "")


def is_note(message: Message) -> bool:
    return type(message) is User and plain_text(message).startswith(_MARK)


def is_prompt(message: Message) -> bool:
    """Whether a message is a user's own."""
    return type(message) is User and not is_note(message)
