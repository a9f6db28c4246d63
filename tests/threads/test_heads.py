"""What the head of a thread says of its place in the queue of the workers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from clew.checkpointers import Head, MemoryCheckpointer, QueuePlace
from clew.log import LeaseTaken, MessageAdded, Queued, StatusChanged, fold
from clew.messages import user
from clew.threads import Thread
from clew.threads.heads import head_of, new_head, without_lease
from clew.threads.leases import new_lease

AT = 1_800_000_000_000_000
THEN = datetime.fromtimestamp(AT / 1_000_000, UTC)


def head_after(*entries: object, log: str = "", lease: bool = False) -> Head:
    base = new_head("t")
    state = fold([Queued(log or base.log_id, AT, AT, priority=2, tries=1), *entries])  # type: ignore[list-item]
    return head_of(state, base, encrypted=False, lease=new_lease() if lease else None)


def test_the_head_of_a_queued_thread_says_when_it_is_due() -> None:
    head = head_after()
    assert (head.status, head.due) == ("queued", THEN)
    assert head.queue == QueuePlace(queued_at=THEN, priority=2, tries=1)


def test_a_thread_that_runs_is_due_again_when_its_lease_ends() -> None:
    head = head_after(LeaseTaken("me", "token"), lease=True)
    assert head.lease is not None
    assert (head.status, head.due) == ("running", head.lease.expires_at)


def test_a_thread_that_has_ended_is_not_in_the_queue() -> None:
    head = head_after(StatusChanged("done"))
    assert (head.status, head.due, head.queue) == ("done", None, None)


def test_a_thread_whose_log_was_copied_from_a_queued_one_is_not_in_the_queue() -> None:
    assert (head_after(log="another").status, head_after(log="another").due) == ("interrupted", None)
    copy = without_lease(head_after())
    assert (copy.status, copy.due, copy.queue) == ("interrupted", None, None)


@pytest.mark.anyio
async def test_a_queued_thread_that_somebody_opened_and_left_is_queued_as_before() -> None:
    store = MemoryCheckpointer()
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Go.")), Queued(thread.head.log_id, AT, AT))
    async with Thread.open(store, "t") as thread:
        assert thread.checkpoint.status == "running"
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.due, head.lease) == ("queued", THEN, None)
