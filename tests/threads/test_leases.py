"""Leases: a thread whose process died is recognised by its head."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from clew.threads.heads import new_head, without_lease
from clew.threads.leases import is_crashed, new_lease, shown_status

DAY = timedelta(days=1)
LIVE = msgspec.structs.replace(new_lease(), expires_at=datetime.now(UTC) + DAY)
EXPIRED = msgspec.structs.replace(new_lease(), expires_at=datetime.now(UTC) - DAY)
HELD = msgspec.structs.replace(new_head("door", "running"), lease=LIVE)


def test_a_thread_that_a_live_process_runs_has_not_crashed() -> None:
    assert not is_crashed(HELD)
    assert shown_status(HELD) == "running"


def test_a_running_thread_without_a_live_lease_has_crashed_and_is_shown_as_interrupted() -> None:
    for lease in (None, EXPIRED):
        head = msgspec.structs.replace(HELD, lease=lease)
        assert is_crashed(head)
        assert shown_status(head) == "interrupted"


def test_a_thread_that_waits_without_a_lease_has_not_crashed() -> None:
    head = msgspec.structs.replace(HELD, status="waiting", lease=None)
    assert not is_crashed(head)
    assert shown_status(head) == "waiting"


def test_a_copy_has_no_lease_and_is_not_running() -> None:
    copied = without_lease(HELD)
    assert (copied.lease, copied.status) == (None, "interrupted")
    assert without_lease(msgspec.structs.replace(HELD, status="done")).status == "done"
