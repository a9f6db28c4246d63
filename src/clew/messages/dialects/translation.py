"""To a dialect, from a dialect, and what is lost on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from clew.errors import InvalidInput
from clew.messages.dialects import anthropic, openai_chat, openai_responses
from clew.messages.dialects.losses import Loss, Notes
from clew.messages.model import Message

__all__ = ["DIALECTS", "Dialect", "from_dialect", "losses", "to_dialect"]

Dialect = Literal["anthropic", "openai-chat", "openai-responses"]
DIALECTS: tuple[str, ...] = get_args(Dialect)


class _Translator(NamedTuple):
    write: Callable[[Sequence[Message], Notes], Any]
    read: Callable[[Any], tuple[Message, ...]]


_TRANSLATORS = {
    "anthropic": _Translator(anthropic.write, anthropic.read),
    "openai-chat": _Translator(openai_chat.write, openai_chat.read),
    "openai-responses": _Translator(openai_responses.write, openai_responses.read),
}


def to_dialect(conversation: Sequence[Message], dialect: Dialect) -> Any:
    """The conversation as the vendor's API takes it, whatever it holds. Plain JSON that shares nothing with it.

    Calls without results get one, neighbours are joined where the API wants turns, ids and names are made to fit.
    `losses` says what of the conversation the payload does not hold. Reading the payload and writing it again gives the
    same payload, so a conversation may change worlds as often as it likes and is worn down once at most.
    """
    return _write(conversation, dialect, Notes())


def losses(conversation: Sequence[Message], dialect: Dialect) -> list[Loss]:
    """What would not come back as it is from this dialect, in the order of the conversation.

    If it is empty, `from_dialect(to_dialect(c, dialect), dialect)` equals `c`, but for what docs/dialects.md names as
    mere form: joined neighbours, empty texts and messages, a response's model and reason to stop.
    """
    notes = Notes()
    _write(conversation, dialect, notes)
    return notes.losses()


def from_dialect(payload: Any, dialect: Dialect) -> tuple[Message, ...]:
    """The messages of a vendor's payload: what was sent, or what came back, as plain JSON values.

    What canonical blocks have no word for is kept, under the name of the dialect. A payload that is none raises
    `InvalidInput` with the place and the key that is amiss.
    """
    translator = _translator(dialect)
    try:
        return translator.read(payload)
    except RecursionError:
        raise InvalidInput(f"the {dialect} payload is nested too deeply to be read") from None


def _write(conversation: Sequence[Message], dialect: str, notes: Notes) -> Any:
    translator = _translator(dialect)
    try:
        return translator.write(conversation, notes)
    except RecursionError:
        raise InvalidInput("a value in the conversation is nested too deeply to be sent") from None


def _translator(dialect: str) -> _Translator:
    if dialect not in DIALECTS:
        raise InvalidInput(f"no dialect {dialect!r}; there are {', '.join(DIALECTS)}")
    return _TRANSLATORS[dialect]
