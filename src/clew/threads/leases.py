"""Leases live in heads and need nothing of a store: position alone fences, clocks only decide when one may try."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from clew.checkpointers import Head, Lease
from clew.errors import ThreadBusy
from clew.threads.owners import provably_dead, this_process

__all__ = ["LEASE_TIME", "RENEW_AFTER", "check_free", "is_live", "new_lease", "renewed"]

LEASE_TIME = timedelta(seconds=30)
"""How long a lease lasts beyond the last sign of life of its holder."""
RENEW_AFTER = LEASE_TIME / 3


def new_lease(label: str = "") -> Lease:
    return Lease(owner=this_process(label), token=secrets.token_hex(8), expires_at=datetime.now(UTC) + LEASE_TIME)


def renewed(lease: Lease, now: datetime) -> Lease:
    return Lease(owner=lease.owner, token=lease.token, expires_at=now + LEASE_TIME)


def is_live(lease: Lease | None) -> bool:
    """Whether somebody may still be working under this lease."""
    return lease is not None and lease.expires_at > datetime.now(UTC) and not provably_dead(lease.owner)


def check_free(head: Head) -> None:
    """Refuse a thread that a live process holds, naming the holder and when its lease ends."""
    lease = head.lease
    if lease is not None and is_live(lease):
        left = (lease.expires_at - datetime.now(UTC)).total_seconds()
        raise ThreadBusy(head.thread_id, str(lease.owner), left)
