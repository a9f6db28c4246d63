"""Defines which turns of a thread a timeline reader keeps, all or only some to save memory (`Window`), and stores them
together with their marks (`KeptTurns`). Marks stand for what happened between turns, such as a crash."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Sequence

import msgspec

from clew.messages import Assistant
from clew.threads.views.timeline_parts import DraftTurn, Mark

__all__ = ["KeptTurns", "Window"]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Says which turns of a thread a timeline reader keeps whole: the newest, and those in `positions` or `numbers`. A
    turn's position counts all turns before it; its number leaves out the turns that a rewind took back.

    Of each other turn only a few bytes are kept, so that a long thread takes little memory.
    """

    newest: int = 1
    """How many turns to keep from the end, counted with the rewound ones. At least 1."""
    positions: Container[int] = ()
    numbers: Container[int] = ()
    """Numbers of turns to keep. If a turn was rewound and a later turn got the same number, the later one is kept."""

    def keeps(self, turn: DraftTurn, total: int) -> bool:
        """Return whether to keep this turn, now that `total` turns were read: if it is one of the newest, or if its
        position or its number is one to keep."""
        if turn.position >= total - self.newest or turn.position in self.positions:
            return True
        return not turn.rewound and turn.number in self.numbers


class KeptTurns:
    """The turns of a thread that are kept while its log is read, and the marks after them. A mark stands for something
    that happened between turns, such as a crash.

    A window says which turns to keep; without one, all turns are kept. Turns that are no longer in the window are
    dropped, and the function `on_settled`, if given, is called with each of them and the marks after it.
    """

    def __init__(
        self, window: Window | None, on_settled: Callable[[DraftTurn, Sequence[Mark]], None] | None = None
    ) -> None:
        self.total = 0
        """Number of turns so far, including rewound ones."""
        self.last: DraftTurn | None = None
        """The last turn that was not rewound. If a rewind leads to a turn that is not kept, an empty one stands for it."""
        self.has_marks = False
        self._window = window
        self._on_settled = on_settled
        self._kept: dict[int, DraftTurn] = {}
        """The turns that are kept, by position."""
        self._line = array("q")
        """Positions of the turns that were not rewound, in order. That of the turn with number n is at index n - 1."""
        self._marks: dict[int, list[Mark]] = {}
        """Marks by position: those of position 0, and those that follow turns that are kept."""
        self._changed_late: set[int] = set()

    def __len__(self) -> int:
        """Return the number of turns so far, kept or not, without those that a rewind took back."""
        return len(self._line)

    @property
    def marks(self) -> list[Mark]:
        return [mark for some in self._marks.values() for mark in some]

    def marks_at(self, position: int) -> Sequence[Mark]:
        """Return the marks with this position, which is the number of turns before them. A mark stands for an event
        such as a crash."""
        return self._marks.get(position, ())

    @property
    def changed_late(self) -> set[int]:
        """Positions of the turns that were changed, or may still be changed, after a newer turn was added. This happens
        only if a rewind takes back the newer turns: what is recorded next then belongs to the last turn that is left.
        For the turns that were taken back, that alone does not count as a change."""
        later = {self._line[-1]} if self._line and self._line[-1] < self.total - 1 else set()
        return self._changed_late | later

    def position_of(self, number: int) -> int | None:
        """Return the position of the turn with this number, or None if there is none. Positions count all turns from 0;
        numbers count only the turns that no rewind took back, from 1."""
        return self._line[number - 1] if 1 <= number <= len(self._line) else None

    def is_rewound(self, position: int) -> bool:
        """Return whether a rewind took back the turn at this position. Positions count all turns from 0."""
        place = bisect_left(self._line, position)
        return not (place < len(self._line) and self._line[place] == position)

    def holds(self, start: int, stop: int, *, rewound: bool = True) -> bool:
        """Return whether all turns at the positions from `start` up to, but not including, `stop` are still in memory.
        With `rewound=False`, turns that a rewind took back may be missing."""
        return all(
            position in self._kept or (not rewound and self.is_rewound(position)) for position in range(start, stop)
        )

    def between(self, start: int, stop: int) -> list[DraftTurn]:
        """Return those turns that are kept, at the positions from `start` up to, but not including, `stop`, in order.
        Positions count all turns from 0."""
        if stop - start > len(self._kept):
            return [turn for position, turn in sorted(self._kept.items()) if start <= position < stop]
        return [self._kept[position] for position in range(start, stop) if position in self._kept]

    def add(self, turn: DraftTurn) -> None:
        """Add a new turn at the end of the conversation. If there is a window, which says which turns to keep, drop the
        turns that are no longer in it."""
        before, self.last = self.last, turn
        self._kept[turn.position] = turn
        self._line.append(turn.position)
        self.total += 1
        if self._window is not None:
            oldest = self._kept.get(turn.position - self._window.newest)
            for other in (before, oldest):
                if other is not None:
                    self._drop(other)

    def rewind(self, turns: int) -> list[DraftTurn]:
        """Mark the turns after turn number `turns` as rewound, because the thread was taken back to the end of that
        turn. Return those of them that this object still has; the others were dropped before to save memory."""
        gone = self._line[turns:]
        if not gone:
            return []
        del self._line[turns:]
        self.last = self._kept.get(self._line[-1], _empty(self._line[-1], turns)) if self._line else None
        found = [self._kept[position] for position in gone if position in self._kept]
        for turn in found:
            turn.rewound = True
            self._drop(turn)
        return found

    def changed(self, turn: DraftTurn) -> None:
        """Record that something other than a rewind has changed this turn. If it is no longer the newest turn, its
        position is added to `changed_late`, the positions of turns that changed after a newer one was added."""
        if turn.position < self.total - 1:
            self._changed_late.add(turn.position)

    def mark(self, mark: Mark) -> None:
        """Add a mark, which stands for an event between turns, such as a crash. The mark is stored if it comes before
        the first turn, or if the turn before it is still in memory. Otherwise only the fact that there are marks is
        noted."""
        self.has_marks = True
        if mark.position == 0 or mark.position - 1 in self._kept:
            self._marks.setdefault(mark.position, []).append(mark)

    def _drop(self, turn: DraftTurn) -> None:
        """Drop this turn and the marks after it (events such as a crash), unless the window, which says which turns to
        keep, still includes the turn. Pass both to the function `on_settled` if one was given to the constructor.
        Without a window all turns are kept, and this does nothing."""
        if self._window is None or turn.position not in self._kept or self._window.keeps(turn, self.total):
            return
        marks = self._marks.pop(turn.position + 1, [])
        del self._kept[turn.position]
        if self._on_settled is not None:
            self._on_settled(turn, marks)


def _empty(position: int, number: int) -> DraftTurn:
    """Return an empty turn with this position and number. It stands for a turn whose content was dropped from memory.
    The index of its response is -2, which no message has, so that no entry of the log is taken to belong to it."""
    return DraftTurn(position, number, -2, Assistant(()), -1)
