"""Which of the threads that are due a worker takes next, so that none of those who wait is left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from clew.checkpointers import Head
from clew.errors import InvalidInput
from clew.threads.heads import is_reserved

__all__ = ["Limits", "Shares", "applying", "check_limits"]

Limits = Mapping[str, int]
"""How many threads may run at a time, by what they have in common: `agent:NAME`, `tag:NAME`, `tag:NAME=VALUE`, or
`tenant` for all threads of a store."""


def _names(head: Head) -> list[str]:
    """Return the names under which limits apply to this thread."""
    tags = [(name, value) for name, value in sorted(head.tags.items()) if not is_reserved(name)]
    of_tags = [text for name, value in tags for text in (f"tag:{name}", f"tag:{name}={value}")]
    return ["tenant", f"agent:{head.agent}", *of_tags]


def check_limits(limits: Limits) -> None:
    """Raise `InvalidInput` unless each limit has a name that a thread can have, and is 1 or more."""
    for name, most in limits.items():
        if name != "tenant" and not name.startswith(("agent:", "tag:")):
            raise InvalidInput(f"{name!r} is no limit. Write agent:NAME, tag:NAME, tag:NAME=VALUE or tenant.")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidInput(f"the limit {name} is a number of threads, 1 or more, not {most!r}")


class Shares:
    """Counts what a worker runs, and chooses what it takes next: a thread of the group of which the fewest run. A group
    is an agent and a set of tags. Within a group, the thread that is due first comes first."""

    def __init__(self) -> None:
        self._running: Counter[tuple[str, ...]] = Counter()
        self._served: dict[tuple[str, ...], int] = {}
        """When each group was last served, as a number that grows with each thread that is taken."""
        self._clock = 0

    def choose(self, due: Sequence[Head], count: int) -> list[Head]:
        """Return at most `count` of these heads, in the order in which to take them. They are given in the order in which
        they are due."""
        waiting: dict[tuple[str, ...], list[Head]] = {}
        for head in due:
            waiting.setdefault(_group(head), []).append(head)
        planned: Counter[tuple[str, ...]] = Counter()
        chosen: list[Head] = []
        while waiting and len(chosen) < count:
            group = min(waiting, key=lambda one: (self._running[one] + planned[one], self._served.get(one, 0)))
            planned[group] += 1
            chosen.append(waiting[group].pop(0))
            if not waiting[group]:
                del waiting[group]
        return chosen

    def begin(self, head: Head) -> None:
        self._clock += 1
        self._running[_group(head)] += 1
        self._served[_group(head)] = self._clock
        if len(self._served) > _MOST_GROUPS:
            del self._served[min(self._served, key=self._served.__getitem__)]

    def end(self, head: Head) -> None:
        self._running[_group(head)] -= 1
        self._running += Counter()  # drops the groups of which none runs


_MOST_GROUPS = 10_000


def _group(head: Head) -> tuple[str, ...]:
    return (head.agent, *(f"{name}={value}" for name, value in sorted(head.tags.items()) if not is_reserved(name)))


def applying(limits: Limits, head: Head) -> list[tuple[str, int]]:
    """Return the limits that apply to this thread, by name."""
    return [(name, limits[name]) for name in _names(head) if name in limits]
