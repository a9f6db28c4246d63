"""What becomes of a thread after a run of a worker: it is done with, tried again later, or set aside."""

from __future__ import annotations

import random

import msgspec

from clew.agent.exchanges import reason_of
from clew.agent.run import DRAINED
from clew.errors import ClewError, InvalidInput, Retry
from clew.log import Logged, Queued, StatusChanged
from clew.workers.places import place

__all__ = ["SET_ASIDE", "Retries", "ending_of", "next_try", "retry_of"]

SET_ASIDE = "set aside after "
"""How the reason begins with which a thread was taken out of the queue after too many tries."""
_CANCELLED = "cancelled"
_UNKNOWN = Retry("later")
"""How an error counts that is not one of Clew's, such as one that a tool of the user raised on purpose to stop the run."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often a thread is tried, and how long a worker waits before it tries the thread again.

    Only tries one after the other that brought no new turn are counted. So an agent that works for days is not set aside
    because its machines were restarted now and then.
    """

    most: int = 5
    """After so many tries without a new turn, the thread is set aside: its status becomes `failed`, with the reason."""
    first: float = 1.0
    """Seconds before the second try. Each further pause is twice as long."""
    longest: float = 300.0

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise InvalidInput(f"most is the number of tries, 1 or more, not {self.most!r}")
        for name in ("first", "longest"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise InvalidInput(f"{name} is a number of seconds, 0 or more, not {value!r}")

    def pause(self, tries: int, least: float) -> float:
        """Return how many seconds to wait after this many tries without a new turn. `least` is the shortest time after
        which the call may succeed, according to its error. The result varies by a fifth, so that threads that failed
        together are not tried together."""
        doubled: float = self.first * 2 ** min(tries - 1, 30)
        return max(least, min(self.longest, doubled) * random.uniform(0.8, 1.2))  # noqa: S311 - no secret


def retry_of(error: BaseException) -> Retry:
    """Return whether a run that failed with this error is tried again."""
    return error.retry if isinstance(error, ClewError) else _UNKNOWN


def next_try(retries: Retries, queued: Queued, turns: int, reason: str, retry: Retry) -> Logged:
    """Return the entry that puts a thread back into the queue after a run that did not end its work, or that sets it
    aside.

    `queued` is the entry that the run was taken from the queue with, and `turns` is how many turns the thread has now.
    `reason` says why the run ended, and `retry` whether another can succeed.
    """
    tries = 1 if turns > queued.turns else queued.tries + 1
    if retry.when == "never":
        return StatusChanged("failed", reason)
    if tries >= retries.most:
        return StatusChanged("failed", f"{SET_ASIDE}{tries} tries without a new turn; the last one: {reason}")
    delay = 0.0 if retry.when == "now" else retries.pause(tries, retry.seconds)
    return place(queued, tries=tries, delay=delay, reason=reason, turns=turns)


def ending_of(
    retries: Retries, queued: Queued, turns: int, ending: StatusChanged, error: BaseException | None
) -> Logged:
    """Return the entry with which a run of a worker ends, instead of `ending`, the status with which any other run would
    end. `error` is the error with which it failed or was stopped, if any.

    A run that was ended because its worker shuts down goes back to the place in the queue that it had. Work that is
    done, waits for a person or has reached a limit leaves the queue.
    """
    if ending.status == "interrupted" and ending.reason.startswith((DRAINED, _CANCELLED)):
        return place(queued, tries=queued.tries, reason="its worker was shut down", turns=turns, keeps_place=True)
    if ending.status != "failed":
        return ending
    reason = ending.reason if error is None or ending.reason else reason_of(error)
    return next_try(retries, queued, turns, reason, _UNKNOWN if error is None else retry_of(error))
