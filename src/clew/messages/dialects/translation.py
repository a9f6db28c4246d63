"""The public functions that translate conversations to and from dialects, the formats of vendors' APIs: `to_dialect`,
`from_dialect` and `losses`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from clew.errors import InvalidInput
from clew.messages.dialects import anthropic, gemini, openai_chat, openai_responses
from clew.messages.dialects.losses import Loss, Notes
from clew.messages.model import Message

__all__ = ["DIALECTS", "Dialect", "from_dialect", "losses", "to_dialect"]

Dialect = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]
DIALECTS: tuple[str, ...] = get_args(Dialect)


class _Translator(NamedTuple):
    write: Callable[[Sequence[Message], Notes], Any]
    read: Callable[[Any], tuple[Message, ...]]


_TRANSLATORS = {
    "anthropic": _Translator(anthropic.write, anthropic.read),
    "openai-chat": _Translator(openai_chat.write, openai_chat.read),
    "openai-responses": _Translator(openai_responses.write, openai_responses.read),
    "gemini": _Translator(gemini.write, gemini.read),
}


def to_dialect(conversation: Sequence[Message], dialect: Dialect) -> Any:
    """Return the conversation in a dialect, the format that a vendor's API takes, as plain JSON values.

    Works for every conversation. Calls without a result get one, neighbouring messages are joined where the API wants
    alternating roles, and ids and names are changed where the API would refuse them. `losses` lists what the payload
    does not keep. Reading the payload and writing it again gives the same payload, so a conversation that moves between
    vendors many times loses something at most once. The payload shares no objects with the conversation.
    """
    return _write(conversation, dialect, Notes())


def losses(conversation: Sequence[Message], dialect: Dialect) -> list[Loss]:
    """Return what would be lost if the conversation were written in this dialect, the format of a vendor's API, and
    read back. The losses are in the order of the conversation.

    If the list is empty, `from_dialect(to_dialect(c, dialect), dialect)` equals `c`, except for differences in form,
    which are listed in docs/dialects.md: neighbouring messages are joined, and empty texts, empty messages, and the
    model and the stop reason of a response are lost.
    """
    notes = Notes()
    _write(conversation, dialect, notes)
    return notes.losses()


def from_dialect(payload: Any, dialect: Dialect) -> tuple[Message, ...]:
    """Return the messages of a vendor's payload: a request or a response, given as plain JSON values. `dialect` names
    the format of the vendor's API.

    Fields that have no counterpart in Clew are kept in a block's `extra`, under the name of the dialect. Blocks of an
    unknown kind are kept as `Opaque`. Raises `InvalidInput`, which names the place and the key at fault, if the payload
    is not valid.
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
        raise InvalidInput(f"{dialect!r} is not a dialect. Give one of {', '.join(DIALECTS)}.")
    return _TRANSLATORS[dialect]
