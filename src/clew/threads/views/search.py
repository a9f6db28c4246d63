"""Search the threads of a store for a text, without an index: each thread is read and its messages are searched."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from clew import advice
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.errors import ClewError, Conflict, Corrupt, InvalidInput, MissingBlob, NewerFormat, WrongKey
from clew.log import Fold, MessageRoles
from clew.log.checkpoint import Ranges
from clew.messages import File, Json, Message, Text, Thinking, ToolCall, ToolResult
from clew.threads.reader import Progress, decoded_frames, from_folded
from clew.threads.thread import Thread
from clew.threads.views.render import plain_object

__all__ = ["Found", "Hit", "Unreadable", "pattern_of", "search"]

_AROUND = 80
"""Number of characters to show before a match, and as many after it, at most."""
_UNREADABLE = (Corrupt, MissingBlob, NewerFormat, WrongKey)

Where = Literal["title", "system", "user", "assistant", "thinking", "call", "result"]
Unreadable = Callable[[Head, ClewError], None]
"""Type of a function that is called with the head of each thread that could not be read, and the error.

Such a thread may contain the text that is searched for all the same.
"""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One place in a thread where the text that is searched for was found.

    `where` names the part of the thread: the title, a kind of message, thinking, a call or a result.
    """

    where: Where
    text: str
    """The text that was found, with some text before and after it."""
    turn: int | None = None
    """The turn in which the text was found. None for a title, a message without a response, and a rewound message."""
    message: int | None = None
    """The index, in the thread's history, of the message with the text. None for a title."""


class Found(msgspec.Struct, frozen=True):
    """A thread that contains the text that is searched for: its head, and the places where the text was found."""

    head: Head
    hits: tuple[Hit, ...]


async def search(
    checkpointer: Checkpointer,
    text: str,
    query: HeadQuery = HeadQuery(),
    *,
    unreadable: Unreadable,
    progress: Progress | None = None,
) -> AsyncGenerator[Found, None]:
    """Yield those threads that the query lists and that contain this text, ignoring case and kinds of white space.

    The threads with the text in the title of their head come first, then those that have it only elsewhere; within both
    groups, the newest first. Messages that a rewind took back are searched too. If a thread cannot be read,
    `unreadable` is called with its head and the error, and the search goes on. `progress` is called with the number of
    threads searched so far and the number of all threads to search. Raises `InvalidInput` if `text` is blank.
    """
    pattern = pattern_of(text)
    heads = [head async for head in Thread.list(checkpointer, query)]
    for done, head in enumerate(sorted(heads, key=lambda head: not pattern.search(head.title))):
        hits = await _hits(checkpointer, head, pattern, unreadable)
        if progress is not None:
            progress(done + 1, len(heads))
        if hits:
            yield Found(head, tuple(hits))


def pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern that finds this text, ignoring case and kinds of white space.

    Raises `InvalidInput` if the text is blank.
    """
    words = text.split()
    if not words:
        raise InvalidInput(f"a search needs a word to search for. List all threads with: {advice.list_in_program()}")
    return re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)


async def _hits(checkpointer: Checkpointer, head: Head, pattern: re.Pattern[str], unreadable: Unreadable) -> list[Hit]:
    title = [Hit(where="title", text=head.title)] if pattern.search(head.title) else []
    hits: list[Hit] = []
    fold = Fold(outline=partial(_Searched, pattern=pattern, hits=hits))
    try:
        now = await checkpointer.head(head.thread_id)
        if now is None:
            return []
        async for _, frame in decoded_frames(checkpointer, now, **from_folded(now)):
            fold.push(frame.entries)
    except Conflict:  # deleted meanwhile
        return []
    except _UNREADABLE as error:
        unreadable(head, error)
        return title
    if not title and pattern.search(fold.title):  # the head of an encrypted thread has no title
        title = [Hit(where="title", text=fold.title)]
    turns = _turns(fold.sketch().marks, [hit.message for hit in hits if hit.message is not None])
    return [*title, *(msgspec.structs.replace(hit, turn=turns.get(hit.message)) for hit in hits)]


class _Searched(MessageRoles):
    """A thread's history for which nothing but the roles of the messages is kept. Each message that is added to it is
    searched for the pattern, and what is found is put into the list `hits`.

    An entry that holds the thread's whole state begins a new history, with all earlier messages. So a new history
    empties `hits` first; otherwise places in these messages would be listed twice.
    """

    __slots__ = ("_hits", "_pattern")

    def __init__(self, messages: Iterable[Message], pattern: re.Pattern[str], hits: list[Hit]) -> None:
        self._pattern, self._hits = pattern, hits
        hits.clear()
        super().__init__(messages)

    def append(self, message: Message) -> None:
        for block in message.content:
            words = _words(block)
            if words and (found := self._pattern.search(words)):
                where: Any = _KINDS.get(type(block)) or message.__struct_config__.tag
                self._hits.append(Hit(where=where, text=_around(words, found), message=len(self)))
        super().append(message)


_KINDS: dict[type, Where] = {Thinking: "thinking", ToolCall: "call", ToolResult: "result"}


def _words(block: Any) -> str:
    if isinstance(block, Text | Thinking):
        return block.text
    if isinstance(block, ToolCall):
        return f"{block.name} {_json(block.arguments)}"
    if isinstance(block, ToolResult):
        return " ".join(map(_words, block.content))
    if isinstance(block, Json):
        return _json(block.value)
    return block.name if isinstance(block, File) else ""


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(plain_object(value), enc_hook=repr).decode()


def _around(words: str, found: re.Match[str]) -> str:
    start, stop = max(0, found.start() - _AROUND), min(len(words), found.end() + _AROUND)
    return ("…" if start else "") + words[start:stop] + ("…" if stop < len(words) else "")


def _turns(marks: Iterable[Ranges], places: Sequence[int]) -> dict[int | None, int]:
    """Return the number of the turn to which each of these messages belongs, by the message's index: the first turn at
    whose end the model saw the message. Messages without such a turn are left out.

    `places` are the indices of the messages in the history, in ascending order. `marks` has, for each turn, the ranges
    of indices that the model saw at its end.
    """
    found: dict[int | None, int] = {}
    seen: dict[int, int] = {}  # for each place where a range begins, how far it has been looked at
    for number, view in enumerate(marks if places else ()):
        for start, stop in view:
            since = seen.get(start, start)
            if stop > since:
                for place in places[bisect_left(places, since) : bisect_left(places, stop)]:
                    found.setdefault(place, number)
                seen[start] = stop
    return found
