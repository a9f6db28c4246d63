"""Small replacements for the parts of a thread's state that grow with its log, so that the state can be computed from a
log of any length in little memory.

A `Fold` (the object that computes the state) that uses these classes keeps a few bytes for each message and turn
instead of the messages. Each replacement has a digest of what it replaces. Two states are equal if these digests and
the other parts of the states are equal.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from blake3 import blake3

from clew.log.checkpoint import Fact, Kind, Ranges
from clew.messages import NOTE_MARK, Assistant, Message, System, Tool, ToolCall, User, plain_text, tool_calls, user

__all__ = ["FactOutline", "MessageOutline", "MessageRoles", "ViewOutline"]

_encode = msgspec.msgpack.Encoder().encode
_decode_fact = msgspec.msgpack.Decoder(Fact).decode
_AT_ONCE = 4096
"""Number of turns whose views (what the model saw at the end of each) are encoded together for a digest."""

_EMPTY: dict[type[Message], Message] = {User: User(()), System: System(()), Tool: Tool(()), Assistant: Assistant(())}
_CALLING = Assistant((ToolCall("", "", None),))
_STOPPED = {stop: Assistant((), stop=stop) for stop in ("interrupted", "pause_turn")}
_NOTE = user(NOTE_MARK)


def _stand_in(message: Message) -> Message:
    """Return an empty message of the same role, which is kept in place of this message to save memory. The empty
    message still shows whether a response called tools or was cut off, and whether a user's message is a note from
    Clew."""
    if type(message) is Assistant:
        if tool_calls(message):
            return _CALLING
        if message.stop in _STOPPED:
            return _STOPPED[message.stop]
    elif type(message) is User and plain_text(message).startswith(NOTE_MARK):
        return _NOTE
    return _EMPTY[type(message)]


class MessageRoles(list[Message]):
    """A thread's history in little memory: a list that holds, in place of each message, an empty message of the same
    role.

    Two kinds of messages are kept whole: the newest response, because its tool calls may not all have results yet, and
    each message for which `keep`, a function that can be given to the constructor, returns True.
    """

    __slots__ = ("_keep", "_open")

    def __init__(self, messages: Iterable[Message] = (), keep: Callable[[Message], bool] | None = None) -> None:
        super().__init__()
        self._keep = keep
        self._open = -1
        """Index of the newest response if it is kept only for its calls, else -1."""
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        kept = self._keep is not None and self._keep(message)
        if type(message) is Assistant:
            if self._open >= 0:
                self[self._open] = _stand_in(self[self._open])
            self._open = -1 if kept else len(self)
            super().append(message)
        else:
            super().append(message if kept else _stand_in(message))


class MessageOutline(MessageRoles):
    """A thread's history in little memory: a list of empty messages in place of the real ones, except for the newest
    response. It also computes a digest of the real messages, by which two histories can be compared."""

    __slots__ = ("_hash",)

    def __init__(self, messages: Iterable[Message] = (), keep: Callable[[Message], bool] | None = None) -> None:
        self._hash = blake3()
        super().__init__(messages, keep)

    def append(self, message: Message) -> None:
        self._hash.update(_encode(message))
        super().append(message)

    def digest(self) -> bytes:
        """Return a digest of all messages of the history, in order. It is computed from the real messages, although
        this object keeps empty messages in place of most of them."""
        return self._hash.digest()


class ViewOutline:
    """For each turn of a thread, which messages the model saw at its end, in little memory. This is called the turn's
    view: ranges (start, stop) of indices of messages in the history.

    Takes 24 bytes for each turn. Mostly only the last range of a view differs from turn to turn, so equal ranges before
    the last one are stored once for many turns.
    """

    __slots__ = ("_older", "_shared", "_starts", "_stops")

    def __init__(self, views: Iterable[Ranges]) -> None:
        self._shared: list[Ranges] = []
        self._older, self._starts, self._stops = array("q"), array("q"), array("q")
        for view in views:
            self.append(view)

    def __len__(self) -> int:
        return len(self._older)

    def __iter__(self) -> Iterator[Ranges]:
        return (self[turn] for turn in range(len(self)))

    def copy(self) -> ViewOutline:
        """Return a copy of this object. Later changes of this object do not change the copy."""
        made = ViewOutline(())
        made._shared = list(self._shared)
        made._older, made._starts, made._stops = self._older[:], self._starts[:], self._stops[:]
        return made

    def append(self, view: Ranges) -> None:
        older, (start, stop) = self._packed(view)
        self._older.append(older)
        self._starts.append(start)
        self._stops.append(stop)

    def _packed(self, view: Ranges) -> tuple[int, tuple[int, int]]:
        """Split a view (the messages that the model saw at the end of a turn, as ranges of indices) into its last range
        and the other ranges. Store the others as one item at the end of the list `_shared`, unless its last item is
        equal. Return the index of that item, and the last range. For an empty view, the index is -1 and the range is
        (0, 0)."""
        if not view:
            return -1, (0, 0)
        older = view[:-1]
        if not self._shared or self._shared[-1] != older:
            self._shared.append(older)
        return len(self._shared) - 1, view[-1]

    def __getitem__(self, turn: int) -> Ranges:
        older = self._older[turn]
        return () if older < 0 else (*self._shared[older], (self._starts[turn], self._stops[turn]))

    def __setitem__(self, turn: int, view: Ranges) -> None:
        self._older[turn], (self._starts[turn], self._stops[turn]) = self._packed(view)

    def __delitem__(self, turns: slice) -> None:
        del self._older[turns], self._starts[turns], self._stops[turns]

    def digest(self) -> bytes:
        """Return a digest of the views of all turns, in order. A view is the messages that the model saw at the end of
        a turn."""
        found = blake3()
        for start in range(0, len(self), _AT_ONCE):
            found.update(_encode([self[turn] for turn in range(start, min(start + _AT_ONCE, len(self)))]))
        return found.digest()


class FactOutline:
    """The facts of a thread in a quarter of the memory that the class `Facts` takes, because they are kept encoded. A
    fact is a value that holds from a turn on, until a newer fact of the same kind and key replaces it."""

    __slots__ = ("_data", "_newest", "_of_turn", "_starts", "_turn")

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._data = bytearray()
        self._starts = array("q")
        self._newest: dict[tuple[Kind, str], int] = {}
        self._of_turn: dict[str, int] = {}
        """For each key, the index of the fact of kind "turn" that belongs to turn `_turn`. Facts of this kind that
        belong to other turns are never looked up."""
        self._turn = -1
        for fact in facts:
            self.add(fact)

    def add(self, fact: Fact) -> None:
        """Add a fact (a value of the thread's state that holds from a turn on). It replaces a fact of the same turn,
        kind and key. The replaced fact is never needed again, because a rewind goes to the end of a turn, and at that
        end the newer fact holds."""
        last = self._place(fact.kind, fact.key, fact.turn)
        if last is not None and self._at(last).turn == fact.turn:
            after = [self._at(place) for place in range(last + 1, len(self._starts))]
            self._shorten(last)
            for each in (fact, *after):
                self._append(each)
            return
        if fact.kind == "turn":
            self._of_turn[fact.key] = len(self._starts)
        else:
            self._newest[fact.kind, fact.key] = len(self._starts)
        self._append(fact)

    def _place(self, kind: Kind, key: str, turn: int) -> int | None:
        if kind != "turn":
            return self._newest.get((kind, key))
        if turn != self._turn:
            self._turn = turn
            self._of_turn.clear()
        return self._of_turn.get(key)

    def _at(self, place: int) -> Fact:
        stop = self._starts[place + 1] if place + 1 < len(self._starts) else len(self._data)
        return _decode_fact(memoryview(self._data)[self._starts[place] : stop])

    def _append(self, fact: Fact) -> None:
        self._starts.append(len(self._data))
        self._data += _encode(fact)

    def _shorten(self, count: int) -> None:
        """Remove all facts (values that hold from a turn on) except the first `count` of them."""
        if count < len(self._starts):
            del self._data[self._starts[count] :]
            del self._starts[count:]

    def cut(self, turn: int) -> None:
        """Remove the facts (values that hold from a turn on) of all turns after turn `turn`. Called when the thread is
        rewound to the end of that turn. Only this object changes, nothing that is stored."""
        count = len(self._starts)
        while count and self._at(count - 1).turn > turn:
            count -= 1
        if count == len(self._starts):
            return
        self._shorten(count)
        self._newest, self._of_turn, self._turn = {}, {}, turn
        for place in range(count):
            fact = self._at(place)
            if fact.kind != "turn":
                self._newest[fact.kind, fact.key] = place
            elif fact.turn == turn:
                self._of_turn[fact.key] = place

    def value(self, kind: Kind, key: str = "") -> Any:
        """Return the value of the newest fact with this kind and key, or None if there is none. A fact is a value in
        the thread's state that holds from a turn on. Always None for the kind "turn" (metadata of single turns)."""
        place = self._newest.get((kind, key))
        return None if place is None else self._at(place).value

    def has(self, kind: Kind, key: str = "") -> bool:
        """Return whether there is a fact (a value in the thread's state that holds from a turn on) with this kind and
        key. Always False for the kind "turn" (metadata of single turns)."""
        return (kind, key) in self._newest

    def all(self) -> tuple[Fact, ...]:
        """Return all facts of the thread, oldest first. A fact is a value in the thread's state that holds from a turn
        on."""
        return tuple(self._at(place) for place in range(len(self._starts)))

    def newest(self) -> tuple[Fact, ...]:
        """Return the facts (values in the thread's state) that hold now, oldest first: those that no newer fact of the
        same kind and key has replaced. Facts of kind "turn", the metadata of single turns, are left out."""
        return tuple(self._at(place) for place in sorted(self._newest.values()))

    def digest(self) -> bytes:
        """Return a digest of all facts that this object holds, in order. A fact is a value in the thread's state that
        holds from a turn on, such as a snapshot of the files. Two states with the same digest have the same facts."""
        return blake3(self._data).digest()
