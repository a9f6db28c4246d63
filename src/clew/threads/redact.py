"""Redaction: remove secrets from entries before they are recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.log import (
    InboxRead,
    LeaseTaken,
    Logged,
    ModelCallStarted,
    Posted,
    ProviderKey,
    Queued,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    Streamed,
    ThreadStarted,
    ToolIntent,
    UnknownEntry,
    WorkspaceSnapshot,
)
from clew.log.checkpoint import ANSWERS, PROMPT_IDS, TURN_MARK
from clew.messages import Assistant, Json, Opaque, Thinking, ToolCall, ToolResult

__all__ = ["REDACTED", "Redact", "both", "redactor"]

REDACTED = "[redacted]"

Redact = Callable[[str], str] | Iterable[str | re.Pattern[str]]
"""What to redact: a function from text to text, or patterns whose matches are replaced by `[redacted]`."""

_KEPT: dict[type, frozenset[str]] = {
    Assistant: frozenset({"model", "stop"}),
    InboxRead: frozenset({"inbox"}),
    LeaseTaken: frozenset({"owner", "token"}),
    ModelCallStarted: frozenset({"model", "request"}),
    Posted: frozenset({"prompt_id"}),
    ProviderKey: frozenset({"provider", "key", "native", "thread"}),
    Queued: frozenset({"log"}),
    StateSet: frozenset({"scope"}),
    StatusChanged: frozenset({"status"}),
    StepIntent: frozenset({"key"}),
    StepOutcome: frozenset({"key"}),
    Streamed: frozenset({"call"}),
    Thinking: frozenset({"signature", "encrypted"}),
    ThreadStarted: frozenset({"agent", "model", "tools"}),
    ToolCall: frozenset({"id", "name"}),
    ToolIntent: frozenset({"key"}),
    ToolResult: frozenset({"call_id"}),
    WorkspaceSnapshot: frozenset({"digest"}),
}
"""For each class of entry, message or block: the fields that are never redacted, because they hold names, keys and
digests by which one record refers to another."""
_FREE: dict[type, frozenset[str]] = {
    Json: frozenset({"value"}),
    Opaque: frozenset({"value"}),
    Posted: frozenset({"answer"}),
    StateSet: frozenset({"value"}),
    StepOutcome: frozenset({"value"}),
    ToolCall: frozenset({"arguments"}),
}
"""For each class of entry or block: the fields that hold values of any kind, given by users, tools and models. Numbers are
redacted only in these. All other numbers are counters and positions of Clew, or fields of vendors."""
_ARGUMENTS = "arguments"
"""The key of a tool call's arguments in what Clew itself keeps in a thread's state, such as an open question."""
_OWN = "clew:"
"""Prefix of the keys that Clew itself uses in a thread's state."""
_IDS = (TURN_MARK, PROMPT_IDS)
"""Prefixes of keys under which Clew keeps ids, statuses and numbers in a thread's state. Their values are not redacted.

If such a value contains text of the conversation, that text was redacted before it was put into the value.
"""


def both(first: Redact | None, second: Redact | None) -> Redact | None:
    """Return a redaction that applies `first` and then `second`. None stands for no redaction.

    A redaction is a function from text to text, or a list of regular expressions whose matches are replaced.
    """
    if first is None or second is None:
        return first or second
    one, other = (given if callable(given) else _replacing(given) for given in (first, second))
    return lambda text: other(one(text))


def redactor(redact: Redact | None) -> Callable[[Sequence[Logged]], Sequence[Logged]] | None:
    """Return a function that takes entries and returns them with secrets removed. Returns None if `redact` is None.

    `redact` is a function from text to text, or a list of regular expressions whose matches are replaced. It is applied
    to every text in an entry: messages, arguments, results, state, titles, and keys of dictionaries. In arguments,
    results, JSON blocks and state it is also applied to numbers, written as text; if it changes that text, the changed
    text replaces the number. Clew's and the vendors' own names, keys and numbers stay, and so do the bytes of images
    and files. The returned function raises `InvalidInput` for an entry of an unknown kind.
    """
    if redact is None:
        return None
    change = redact if callable(redact) else _replacing(redact)
    return lambda entries: [_redacted(entry, change) for entry in entries]


def _replacing(patterns: Iterable[str | re.Pattern[str]]) -> Callable[[str], str]:
    if isinstance(patterns, str):
        raise InvalidInput("redact takes a function or a list of patterns; for one pattern write redact=[pattern]")
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        raise InvalidInput(f"a pattern to redact is not a valid regular expression: {error}") from error

    def change(text: str) -> str:
        for pattern in compiled:
            text = pattern.sub(REDACTED, text)
        return text

    return change


def _changed(text: str, change: Callable[[str], Any]) -> str:
    """Return the text after applying the user's function `change` to it.

    Raises `InvalidInput` if that does not return text, because recording it would make the log unreadable.
    """
    changed = change(text)
    if not isinstance(changed, str):
        raise InvalidInput(
            f"redact returned {type(changed).__name__} for a text, so nothing of it is recorded. It must return text in "
            "every case: the text itself if there is nothing to take out."
        )
    return changed


def _redacted(value: Any, change: Callable[[str], str], *, numbers: bool = False) -> Any:
    """Return this value, such as an entry, with the function `change` applied to every text inside it that may hold a
    secret. With `numbers`, it is applied to numbers too."""
    if isinstance(value, str):
        return _changed(value, change)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _redacted_number(value, change) if numbers else value
    if isinstance(value, UnknownEntry):
        raise InvalidInput(
            "an entry of a kind that this version does not know cannot be redacted, so it is not recorded"
        )
    if isinstance(value, msgspec.Struct):
        changed = {}
        kept, free = (fields.get(type(value), frozenset[str]()) for fields in (_KEPT, _FREE))
        if type(value) is StateSet and value.key.startswith(_OWN):
            kept |= {"key", "value"} if value.key.startswith(_IDS) else {"key"}
            free = free if value.key == ANSWERS else frozenset()
        for field in value.__struct_fields__:
            old = getattr(value, field)
            new = old if field in kept else _redacted(old, change, numbers=numbers or field in free)
            if new is not old:
                changed[field] = new
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, dict):
        return {
            _redacted(key, change, numbers=numbers): _redacted(item, change, numbers=numbers or key == _ARGUMENTS)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_redacted(item, change, numbers=numbers) for item in value]
    if isinstance(value, tuple):
        return tuple(_redacted(item, change, numbers=numbers) for item in value)
    return value


def _redacted_number(number: float, change: Callable[[str], str]) -> float | str:
    """Apply `change` to a number written as text. Return the changed text, or the number itself if the text stays as it
    is."""
    text = msgspec.json.encode(number).decode()
    changed = _changed(text, change)
    return number if changed == text else changed
