"""A thread's head, which is a small summary that is read without the log, and the query that lists heads."""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import msgspec
from blake3 import blake3

from clew.errors import Corrupt, InvalidInput

__all__ = [
    "ORDERS",
    "STATUSES",
    "UNSEALED",
    "Head",
    "HeadQuery",
    "Lease",
    "Owner",
    "QueuePlace",
    "Status",
    "due_place",
    "grace_micros",
    "micros",
    "moment",
    "select",
    "thread_digest",
    "thread_key",
    "unlisted",
]

UNSEALED = "unsealed"
"""The value that `Head.seal` gets when a `SealedCheckpointer` reads a head without a seal (a signature), which its keys
allow. It marks the head as not signed."""

Status = Literal["running", "waiting", "interrupted", "failed", "done", "queued"]
STATUSES: tuple[Status, ...] = get_args(Status)
Order = Literal["updated", "created", "due"]
ORDERS: tuple[Order, ...] = get_args(Order)


class Owner(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The process that holds a lease. Host, boot, process id and start time together identify one process among all machines
    and boots."""

    host: str
    boot: str
    pid: int
    started: str
    label: str = ""

    def __str__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"process {self.pid} on {self.host}{label}"


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to append to a thread, held by one process. After `expires_at` another process may take it over, by
    appending to the thread's log. The former holder is not told. But its next append is meant for a position at which
    the log no longer ends, and so raises `Conflict`."""

    owner: Owner
    token: str
    expires_at: datetime


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a queued thread's head says about its place in the queue of the workers, besides the time it is due."""

    queued_at: datetime
    priority: int = 0
    tries: int = 0
    """How many runs of a worker, one after the other, have ended without a new turn and without an end of the work."""


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Summary of a thread, stored beside its log. Each append replaces the head in the same atomic step in which it
    adds frames."""

    thread_id: str
    frames: int
    """Number of frames in the log, including those of the append that wrote this head."""
    log_id: str = ""
    """Random id of the log, chosen at the first append. A thread that is deleted and made again gets a new one."""
    status: Status
    lease: Lease | None = None
    snapshot: int = -1
    """Number (from 0) of the newest frame that holds the thread's complete state as of that frame; -1 if there is none.
    """
    digest: str = ""
    """Digest of the last frame. It shows whether the end of the log was lost."""
    agent: str = ""
    title: str = ""
    model: str = ""
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    created_at: datetime
    updated_at: datetime
    parent: tuple[str, int] | None = None
    tags: dict[str, str] = {}
    seal: str = ""
    """A signature in hex: it shows that somebody with a key of the store wrote this head. Empty if the store has no
    key. A `SealedCheckpointer` checks the seal and returns the head with an empty one. If a stored head has no seal and
    the keys allow that, it returns the head with `UNSEALED` here."""
    due: datetime | None = None
    """When a worker should take the thread; None if no worker has to. While a worker runs the thread, this is the time
    at which its lease ends: if the worker dies, the thread is due again."""
    queue: QueuePlace | None = None
    """The thread's place in the queue, as long as `due` is set."""


class HeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects and orders heads for a listing. A head must meet every condition given. The empty query lists all heads,
    those with the newest append first."""

    prefix: str = ""
    """Select only threads whose id starts with exactly this text."""
    status: Status | tuple[Status, ...] | None = None
    agent: str | None = None
    tags: dict[str, str] = {}
    """Select only threads that have each of these tags (name to value) with the same value."""
    parent: str | None = None
    """Select only forks of the thread with this id, and threads of the sub-agents that it started."""
    updated_after: datetime | None = None
    """Select only threads whose last append was at this moment or later."""
    updated_before: datetime | None = None
    """Select only threads whose last append was before this moment."""
    title: str = ""
    """Select only threads whose title contains this text. Upper and lower case are not distinguished."""
    order: Order = "updated"
    """Which time sorts the listing: the last append or the first one, newest first; or the time at which a thread is
    due, earliest first. A listing by `due` has only threads that have such a time: those in the queue of the workers."""
    limit: int | None = None
    cursor: str | None = None
    """Where the listing goes on: the position of the last head of the previous page, as text. `after` returns a query
    in which it is set. None lists from the start."""

    def after(self, head: Head) -> HeadQuery:
        """Return a copy of this query that lists only the heads that come after `head` in the listing. Given the last
        head of a page, the copy is the query for the next page."""
        moment, key = self.position(head)
        return msgspec.structs.replace(self, cursor=f"{moment}:{key}")

    def position(self, head: Head) -> tuple[int, str]:
        """Return the sort key of a head: the time that `order` names, in microseconds since 1970, and the thread's key
        (the blake3 of its id). For the order `due`, the number is negative, because the earliest time comes first
        there. A listing goes from the highest to the lowest sort key. No two heads have the same sort key."""
        key = thread_key(head.thread_id)
        if self.order == "due":
            place = due_place(head)
            return (-_NEVER if place is None else place), key
        return micros(head.created_at if self.order == "created" else head.updated_at), key

    def start(self) -> tuple[int, str] | None:
        """Return the sort key that `cursor` holds, or None without a cursor. A sort key is a time in microseconds since
        1970, and a thread's key (the blake3 of its id). A listing with this cursor yields only heads with a lower sort
        key. Raises `InvalidInput` if the cursor is malformed."""
        if self.cursor is None:
            return None
        if not _CURSOR.fullmatch(self.cursor):
            raise InvalidInput(f"{self.cursor!r} is not a cursor. Take one from HeadQuery.after(head).")
        moment, _, key = self.cursor.partition(":")
        return int(moment), key

    def statuses(self) -> tuple[Status, ...] | None:
        return (self.status,) if isinstance(self.status, str) else self.status

    def matches(self, head: Head) -> bool:
        """Return whether this head meets every condition of the query. The query's cursor and limit are not looked at."""
        statuses = self.statuses()
        return (
            (self.order != "due" or head.due is not None)
            and head.thread_id.startswith(self.prefix)
            and (statuses is None or head.status in statuses)
            and (self.agent is None or head.agent == self.agent)
            and all(head.tags.get(name) == value for name, value in self.tags.items())
            and (self.parent is None or (head.parent is not None and head.parent[0] == self.parent))
            and (self.updated_after is None or head.updated_at >= self.updated_after)
            and (self.updated_before is None or head.updated_at < self.updated_before)
            and self.title.casefold() in head.title.casefold()
        )


def select(heads: Iterable[Head], query: HeadQuery) -> list[Head]:
    """Return the given heads that match the query, in the order that the query asks for. Only heads after its cursor
    are returned, and at most as many as its limit. Used by stores that cannot select and sort by themselves."""
    start = query.start()
    placed = [(query.position(head), head) for head in heads if query.matches(head)]
    placed = [place for place in placed if start is None or place[0] < start]
    if query.limit is not None and query.limit < len(placed):
        placed = heapq.nlargest(query.limit, placed, key=lambda place: place[0])
    else:
        placed.sort(key=lambda place: place[0], reverse=True)
    return [head for _, head in placed]


_NEVER = 2**62
_CURSOR = re.compile(r"-?[0-9]{1,18}:[0-9a-f]{64}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Return this moment in microseconds since 1970, exactly. Stores sort heads by this number."""
    return (moment - _EPOCH) // _MICROSECOND


def due_place(head: Head) -> int | None:
    """Return the number by which the order `due` sorts a head, or None if the thread is not in the queue of the
    workers: the time at which it is due, in microseconds since 1970, with the opposite sign. So the earliest time has
    the highest number, and a store can sort from the highest to the lowest number, as in every other order."""
    return None if head.due is None else -micros(head.due)


def moment(number: int) -> datetime:
    """Return the moment that is this number of microseconds after 1970 began; the reverse of `micros`."""
    return _EPOCH + number * _MICROSECOND


def grace_micros(untouched_for: timedelta) -> int:
    """Return this length of time in microseconds, but at most 2**62, so that a moment in microseconds minus the result
    still fits into 64 bits."""
    return min(untouched_for // _MICROSECOND, 2**62)


@functools.lru_cache(4096)
def thread_key(thread_id: str) -> str:
    """Return the key of a thread, the name under which stores keep it: the blake3 of its id, in hex. Some file systems
    and databases treat two different ids as the same, for example if only upper and lower case differ. Keys are safe on
    all of them."""
    return thread_digest(thread_id).hex()


@functools.lru_cache(4096)
def thread_digest(thread_id: str) -> bytes:
    """Return the blake3 of a thread's id as 32 bytes. `thread_key` returns the same in hex."""
    return blake3(thread_id.encode()).digest()


def unlisted(damaged: Sequence[Corrupt]) -> Corrupt:
    """Return the error that a listing raises after it has yielded all sound heads. `damaged` has one error for each
    damaged thread. The text of the result says how many there are, and quotes at most the first ten."""
    first = " ".join(map(str, damaged[:_NAMED]))
    more = f" And {len(damaged) - _NAMED} more." if len(damaged) > _NAMED else ""
    return Corrupt(f"{len(damaged)} thread(s) could not be listed: {first}{more}")


_NAMED = 10
"""The error that `unlisted` returns quotes the errors of at most this many damaged threads."""
