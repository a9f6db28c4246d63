"""A thread's head: its small searchable summary, readable without its log; and the query that lists heads."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

import msgspec
from blake3 import blake3

from clew.errors import Corrupt, InvalidInput

__all__ = [
    "STATUSES",
    "Head",
    "HeadQuery",
    "Lease",
    "Owner",
    "Status",
    "micros",
    "thread_digest",
    "thread_key",
    "unlisted",
]

Status = Literal["running", "waiting", "interrupted", "failed", "done"]
STATUSES: tuple[Status, ...] = get_args(Status)


class Owner(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The process that holds a lease, told apart from every other process of every machine and boot."""

    host: str
    boot: str
    pid: int
    started: str
    label: str = ""

    def __str__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"process {self.pid} on {self.host}{label}"


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to append to a thread. Position fences; the expiry only says when another may try."""

    owner: Owner
    token: str
    expires_at: datetime


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a store knows of a thread without reading its log. Written with each append, as one with its frames."""

    thread_id: str
    frames: int
    """Frames in the log once this append is done."""
    log_id: str = ""
    """Random, made with the first append: a thread deleted and made again is another log."""
    status: Status
    lease: Lease | None = None
    snapshot: int = -1
    """The newest frame that holds a whole folded state; -1 if there is none."""
    digest: str = ""
    """Of the last frame, so that a log cut short shows."""
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


class HeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which heads to list, in which order. Every given condition must hold; the empty query lists all, newest first."""

    prefix: str = ""
    """The thread id starts with this text, letter for letter."""
    status: Status | tuple[Status, ...] | None = None
    agent: str | None = None
    tags: dict[str, str] = {}
    """Each of these tags is set to this value."""
    parent: str | None = None
    """Forks and children of this thread."""
    updated_after: datetime | None = None
    """Changed at this moment or later."""
    updated_before: datetime | None = None
    """Changed before this moment."""
    title: str = ""
    """The title holds this text, in upper or lower case."""
    order: Literal["updated", "created"] = "updated"
    limit: int | None = None
    cursor: str | None = None
    """Where the page before this one ended; `after` makes it."""

    def after(self, head: Head) -> HeadQuery:
        """The same query, going on after this head: how a caller asks for the next page."""
        moment, key = self.position(head)
        return msgspec.structs.replace(self, cursor=f"{moment}:{key}")

    def position(self, head: Head) -> tuple[int, str]:
        """Where a head stands in this order. Positions fall along a listing, and no two heads share one."""
        return micros(head.created_at if self.order == "created" else head.updated_at), thread_key(head.thread_id)

    def start(self) -> tuple[int, str] | None:
        """The position the cursor names: the listing holds what stands strictly below it."""
        if self.cursor is None:
            return None
        if not _CURSOR.fullmatch(self.cursor):
            raise InvalidInput(f"{self.cursor!r} is not a cursor. Take one from HeadQuery.after(head).")
        moment, _, key = self.cursor.partition(":")
        return int(moment), key

    def statuses(self) -> tuple[Status, ...] | None:
        return (self.status,) if isinstance(self.status, str) else self.status

    def matches(self, head: Head) -> bool:
        """Whether this head meets every condition but the cursor and the limit."""
        statuses = self.statuses()
        return (
            head.thread_id.startswith(self.prefix)
            and (statuses is None or head.status in statuses)
            and (self.agent is None or head.agent == self.agent)
            and all(head.tags.get(name) == value for name, value in self.tags.items())
            and (self.parent is None or (head.parent is not None and head.parent[0] == self.parent))
            and (self.updated_after is None or head.updated_at >= self.updated_after)
            and (self.updated_before is None or head.updated_at < self.updated_before)
            and self.title.casefold() in head.title.casefold()
        )


_CURSOR = re.compile(r"-?[0-9]{1,18}:[0-9a-f]{64}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Microseconds since 1970, exact: what stores sort by."""
    return (moment - _EPOCH) // _MICROSECOND


@functools.lru_cache(4096)
def thread_key(thread_id: str) -> str:
    """The name a thread has inside a store: equal ids and only equal ids share it, on every file system and collation."""
    return thread_digest(thread_id).hex()


@functools.lru_cache(4096)
def thread_digest(thread_id: str) -> bytes:
    """The same as bytes, for a store that keeps those."""
    return blake3(thread_id.encode()).digest()


def unlisted(damaged: Sequence[Corrupt]) -> Corrupt:
    """What a listing raises once all other heads have come."""
    first = " ".join(map(str, damaged[:_NAMED]))
    more = f" And {len(damaged) - _NAMED} more." if len(damaged) > _NAMED else ""
    return Corrupt(f"{len(damaged)} thread(s) could not be listed: {first}{more}")


_NAMED = 10
"""Of many threads that are damaged, so many are named."""
