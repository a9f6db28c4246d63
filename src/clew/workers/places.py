"""Places in the queue: when a thread is due."""

from __future__ import annotations

from datetime import datetime, timedelta

from clew._runtime.clock import now
from clew._runtime.text import elapsed, plural
from clew.checkpointers import Head
from clew.checkpointers.heads import micros
from clew.errors import InvalidInput
from clew.log import Queued

__all__ = ["HIGHEST", "STEP", "first_place", "place", "place_words", "waits_since"]

HIGHEST = 9
"""The highest priority; the lowest is the negative number."""
STEP = timedelta(hours=1)
"""How much earlier a thread is due for each step of its priority. So a thread of priority 1 is taken before every thread
of priority 0 that was queued less than an hour before it; and no thread waits for ever, however many more important ones
come."""


def first_place(log_id: str, *, priority: int = 0, delay: float = 0.0, turns: int = 0) -> Queued:
    """Return the entry that puts a thread into the queue, to be taken after `delay` seconds. `log_id` is the random id of
    its log, and `turns` is how many turns it has."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not -HIGHEST <= priority <= HIGHEST:
        raise InvalidInput(f"priority is a whole number from -{HIGHEST} to {HIGHEST}, not {priority!r}")
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= _LONGEST_DELAY:
        raise InvalidInput(f"a delay is a number of seconds, 0 or more and at most 10 years, not {delay!r}")
    moment = now()
    early = timedelta(0) if delay else priority * STEP
    due = moment + timedelta(seconds=delay) - early
    return Queued(log_id, micros(due), micros(moment), priority=priority, turns=turns)


_LONGEST_DELAY = 10 * 365 * 24 * 3600.0


def place(
    before: Queued, *, tries: int, reason: str, turns: int, delay: float = 0.0, keeps_place: bool = False
) -> Queued:
    """Return the entry that puts a thread back into the queue, after `delay` seconds or, with `keeps_place`, at the place
    that it had."""
    moment = now()
    due = before.due if keeps_place else micros(moment + timedelta(seconds=delay))
    return Queued(before.log, due, before.queued_at, priority=before.priority, tries=tries, reason=reason, turns=turns)


def waits_since(head: Head) -> datetime | None:
    """Return since when a thread could have been taken; a moment to come if it is to be taken later. A priority, which
    moves a thread to the front, does not count. None if it is not in the queue."""
    if head.due is None or head.queue is None:
        return None
    return max(head.due, head.queue.queued_at)


def place_words(head: Head) -> str:
    """Return in words where a thread is in the queue: when it is due, its priority, and how often it was tried. Empty if
    it is not in the queue, or if a worker runs it."""
    since = waits_since(head)
    if head.status != "queued" or since is None or head.queue is None:
        return ""
    waited = (now() - since).total_seconds()
    parts = [f"due in {elapsed(-waited)}" if waited < 0 else f"due for {elapsed(waited)}" if waited >= 1 else "due now"]
    parts += [f"priority {head.queue.priority}"] if head.queue.priority else []
    parts += [f"tried {plural(head.queue.tries, 'time')}"] if head.queue.tries else []
    return ", ".join(parts)
