"""Make the head of a thread (the summary that is stored beside its log) from the thread's state, tell from a head what
kind of thread it belongs to, and list the heads of a store."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec
from blake3 import blake3

from clew._runtime.clock import now
from clew.checkpointers import Checkpointer, Head, HeadQuery, Lease
from clew.checkpointers.heads import UNSEALED, QueuePlace, Status, moment
from clew.log import Checkpoint, Fold, Present, Queued, StatusChanged
from clew.threads.leases import is_crashed

__all__ = [
    "INBOX",
    "PART",
    "REPAIR_OF",
    "head_of",
    "inbox_id",
    "is_child",
    "is_hidden",
    "is_inbox",
    "is_part",
    "is_reserved",
    "is_unsealed",
    "left_as",
    "listed",
    "new_head",
    "queued_in",
    "title_in_head",
    "without_lease",
]

_PAGE = 50
"""The fewest heads to ask the store for at a time, because a listing leaves some of them out."""

_LONGEST_TITLE = 4096
"""The most characters of a title that a head has. Heads are small; the log has the whole title."""


def title_in_head(title: str) -> str:
    """Return a thread's title as the thread's head has it: cut to 4096 characters, because heads must be small."""
    return title[:_LONGEST_TITLE]


def head_of(state: Fold | Checkpoint, base: Head, *, encrypted: bool, **changes: Any) -> Head:
    """Return the head `base` with all fields set that follow from the thread's state, such as status, turns and cost.

    `encrypted` says whether the thread is encrypted. If so, its title is left empty, because heads are not encrypted.
    Tags of the state whose names are reserved for Clew are left out: anybody who may append can write them into the
    log, and such a tag in a head would hide the thread from listings. `changes` are values for the other fields that
    differ from `base`.

    A thread in the queue of the workers is due at the time that its log says. While it runs, it is due when the lease
    ends.
    """
    usage = state.usage
    fields: dict[str, Any] = {
        "status": state.status,
        "agent": state.agent,
        "title": "" if encrypted else title_in_head(state.title),
        "model": state.model,
        "turns": state.turns,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": state.cost_usd,
        "parent": state.parent,
        "tags": {name: value for name, value in state.tags.items() if not is_reserved(name)},
    }
    if state.queued is not None or base.due is not None or state.status == "queued":
        fields |= _queue_fields(state, base.log_id, changes.get("lease", base.lease))
    return msgspec.structs.replace(base, **changes, **fields)


def queued_in(state: Fold | Checkpoint | Present, log_id: str) -> Queued | None:
    """Return the entry that put the thread with this log into the queue of the workers, or None if it is not in the
    queue. An entry that was copied from the log of another thread does not count."""
    return state.queued if state.queued is not None and state.queued.log == log_id else None


def left_as(state: Fold | Checkpoint, head: Head) -> StatusChanged:
    """Return the status of a running thread that its holder gives up without saying how its work ended: interrupted or,
    if the thread is in the queue of the workers, queued as before."""
    queued = queued_in(state, head.log_id)
    return StatusChanged("interrupted") if queued is None else StatusChanged("queued", queued.reason)


def _queue_fields(state: Fold | Checkpoint, log_id: str, lease: Lease | None) -> dict[str, Any]:
    """Return the fields of a head that say where the thread is in the queue. `lease` is the lease that the head has. A
    thread that only the log it was copied from calls queued is shown as interrupted."""
    queued = queued_in(state, log_id)
    if queued is None:
        return {"due": None, "queue": None, **({"status": "interrupted"} if state.status == "queued" else {})}
    due = lease.expires_at if state.status == "running" and lease is not None else moment(queued.due)
    place = QueuePlace(queued_at=moment(queued.queued_at), priority=queued.priority, tries=queued.tries)
    return {"due": due, "queue": place}


def new_head(thread_id: str, status: Status = "interrupted", created_at: datetime | None = None) -> Head:
    """Return the head of a new log without any frames. `created_at` is by default the current time.

    The head gets a random log id. If a thread is deleted and made again under the same id, its log id shows that.
    """
    moment = now()
    return Head(
        thread_id=thread_id,
        frames=0,
        log_id=secrets.token_hex(16),
        status=status,
        created_at=created_at or moment,
        updated_at=moment,
    )


def without_lease(head: Head) -> Head:
    """Return the head that a copy of the thread gets: without a lease and a place in the queue, and with status
    "interrupted" instead of "running" and "queued"."""
    status: Status = "interrupted" if head.status in ("running", "queued") else head.status
    return msgspec.structs.replace(head, lease=None, due=None, queue=None, status=status)


PART = "clew:part"
"""Tag that marks a thread as incomplete while a copy, repair or purge writes it. The thread is hidden until it is
complete."""
REPAIR_OF = "clew:repair-of"
"""Tag that `repair` gives to a thread while it writes it: the id of the damaged thread."""
INBOX = "clew:inbox"
"""Tag of an inbox. Its value is the random id of the log of the thread that the inbox belongs to."""
_OWN = "clew:"


def is_reserved(name: str) -> bool:
    """Return whether a thread id or the name of a tag begins with `clew:`, which is reserved for Clew's own use."""
    return name.startswith(_OWN)


def is_part(head: Head) -> bool:
    """Return whether this thread is incomplete, because a copy, repair or purge is still writing it or was interrupted
    while writing it."""
    return PART in head.tags


def is_hidden(head: Head) -> bool:
    """Return whether listings leave this thread out: it is a copy that is not yet complete, or Clew made it for its own
    use."""
    return is_part(head) or is_reserved(head.thread_id)


def inbox_id(thread_id: str, log_id: str) -> str:
    """Return the id of the hidden thread that is the inbox of a thread. `log_id` is the random id of the thread's log. So
    a copy or a fork, and a thread that was deleted and made again, have other inboxes."""
    words = f"{thread_id}\0{log_id}"
    return f"{INBOX}:" + blake3(words.encode()).hexdigest()


def is_inbox(head: Head) -> bool:
    """Return whether this is the head of an inbox."""
    return head.thread_id.startswith(f"{INBOX}:")


_CHILD = re.compile(r"/[A-Za-z0-9_-]{1,64}:[0-9a-f]{1,16}")
"""Matches the end of the id of a sub-agent's thread. Such an id is the parent's id, then the sub-agent's name, then the
key of the tool call."""


def is_unsealed(head: Head) -> bool:
    """Return whether this head has no seal although the store has a key. A seal is a code in the head that only
    somebody with the key can make; it shows that nobody else has changed the head. Heads without one are read only if
    plain data is allowed; listings mark them."""
    return head.seal == UNSEALED


def is_child(head: Head) -> bool:
    """Return whether this thread belongs to a sub-agent. A fork has a parent too, but does not count as a child."""
    if head.parent is None:
        return False
    return _CHILD.fullmatch(head.thread_id.removeprefix(head.parent[0])) is not None


async def listed(checkpointer: Checkpointer, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
    """Yield the heads of the threads that match the query, newest first.

    A thread that was running when its process died is shown as interrupted.
    """
    statuses = query.statuses()
    asked = query
    if statuses is not None and "interrupted" in statuses:
        asked = msgspec.structs.replace(asked, status=tuple({*statuses, "running"}))
    left = query.limit
    if left == 0:
        return
    async for stored in _paged(checkpointer, asked):
        head = msgspec.structs.replace(stored, status="interrupted") if is_crashed(stored) else stored
        if query.matches(head) and not is_hidden(head):
            yield head
            left = None if left is None else left - 1
            if left == 0:  # before the next step, which might fetch another page
                return


async def _paged(checkpointer: Checkpointer, query: HeadQuery) -> AsyncIterator[Head]:
    """Yield all heads that match the query. If the query has a `limit`, they are read from the store in pages of that
    size, but at least `_PAGE`. The `limit` does not end the listing, because the caller skips some heads and stops when
    it has enough."""
    if query.limit is not None:
        query = msgspec.structs.replace(query, limit=max(query.limit, _PAGE))
    while True:
        last, count = None, 0
        async for head in checkpointer.heads(query):
            last, count = head, count + 1
            yield head
        if last is None or query.limit is None or count < query.limit:
            return
        query = query.after(last)
