"""What many writers of one event loop have to do at the same time, done one right after the other.

To make a frame is mostly to compress, which a processor does in half the time if it did just the same a moment ago. Measured
with 64 sessions: the appends of all of them take a fifth less time if their frames are made in a row than if each is made
between other work.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Round", "round_of"]


class _Asked(NamedTuple):
    work: Callable[[], None]
    turn: asyncio.Future[None]


class Round:
    """The work that one event loop's writers ask for until it comes to it."""

    def __init__(self) -> None:
        self.writing = 0
        """How many writers have an append under way: one that is alone has nobody to wait for."""
        self._asked: list[_Asked] = []

    def join(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Have this done after what the others ask for now, and be told. What nobody waits for any more is not done."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._asked:
            loop.call_soon(self._work_through)
        self._asked.append(_Asked(work, turn))
        return turn

    def _work_through(self) -> None:
        asked, self._asked = self._asked, []
        for work, turn in asked:
            if turn.done():
                continue
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - whoever asked gets it, and the others their turn
                turn.set_exception(error)
            else:
                turn.set_result(None)


_rounds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Round] = weakref.WeakKeyDictionary()


def round_of(loop: asyncio.AbstractEventLoop) -> Round:
    """The round that all writers of this event loop share."""
    found = _rounds.get(loop)
    if found is None:
        for other in [*_rounds]:
            if other.is_closed():  # in the middle of a round, which would keep it for ever
                _rounds.pop(other, None)
        found = _rounds[loop] = Round()
    return found
