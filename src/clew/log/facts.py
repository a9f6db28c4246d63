"""`Facts`, which holds the facts of a thread while the thread's state is computed from its log. A fact is a value in
the thread's state that holds from a turn on. `Facts` finds the newest fact of a kind and key without a search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clew.log.checkpoint import Fact, Kind

__all__ = ["Facts"]


class Facts:
    """The facts of a thread, in the order in which they were recorded. A fact is a value in the thread's state that
    holds from a turn on, until a newer fact of the same kind and key replaces it."""

    __slots__ = ("_all", "_newest")

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._all: list[Fact] = list(facts)
        self._index()

    def _index(self) -> None:
        self._newest: dict[tuple[Kind, str], int] = {
            (fact.kind, fact.key): place for place, fact in enumerate(self._all)
        }

    def add(self, fact: Fact) -> None:
        """Add a fact (a value of the thread's state that holds from a turn on). It replaces a fact of the same turn,
        kind and key. The replaced fact is never needed again, because a rewind goes to the end of a turn, and at that
        end the newer fact holds."""
        last = self._newest.get((fact.kind, fact.key))
        if last is not None and self._all[last].turn == fact.turn:
            self._all[last] = fact
        else:
            self._newest[fact.kind, fact.key] = len(self._all)
            self._all.append(fact)

    def cut(self, turn: int) -> None:
        """Remove the facts (values that hold from a turn on) of all turns after turn `turn`. Called when the thread is
        rewound to the end of that turn. Only this object changes, nothing that is stored."""
        self._all = [fact for fact in self._all if fact.turn <= turn]
        self._index()

    def value(self, kind: Kind, key: str = "") -> Any:
        """Return the value of the newest fact with this kind and key, or None if there is none. A fact is a value in
        the thread's state that holds from a turn on. The call takes equally long however many facts there are."""
        place = self._newest.get((kind, key))
        return None if place is None else self._all[place].value

    def has(self, kind: Kind, key: str = "") -> bool:
        """Return whether there is a fact (a value in the thread's state that holds from a turn on) with this kind and
        key."""
        return (kind, key) in self._newest

    def all(self) -> tuple[Fact, ...]:
        """Return all facts of the thread, oldest first. A fact is a value in the thread's state that holds from a turn
        on."""
        return tuple(self._all)
