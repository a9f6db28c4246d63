"""Leases live in heads and need nothing of a store: position alone fences, clocks only decide when one may try."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from clew.checkpointers import Head, Lease, Owner
from clew.errors import ThreadBusy

__all__ = [
    "LEASE_TIME",
    "RENEW_AFTER",
    "boot",
    "check_free",
    "is_live",
    "new_lease",
    "provably_dead",
    "renewed",
    "this_process",
]


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


def this_process(label: str = "") -> Owner:
    """This process, told apart from every other one: also from a later one with the same pid, or one in a container."""
    pid = os.getpid()
    return Owner(host=socket.gethostname(), boot=boot(), pid=pid, started=_started(pid) or "", label=label)


def provably_dead(owner: Owner) -> bool:
    """True only if it is certain: the owner ran under this very boot and process table, and is not there any more."""
    if not owner.boot or owner.boot != boot():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    started = _started(owner.pid)
    return started is not None and started != owner.started


@functools.cache
def boot() -> str:
    """Names this boot of this machine and, on Linux, the table of process ids that containers have of their own."""
    try:
        if sys.platform == "linux":
            random = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{random}/{os.readlink('/proc/self/ns/pid')}"
        if sys.platform == "darwin":
            return _output("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
    except (OSError, subprocess.SubprocessError):
        return ""
    return ""


def _started(pid: int) -> str | None:
    """When a process started, in whatever way this system says it; "gone" for one that has ended; None if unknown."""
    try:
        if sys.platform == "linux":
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return "gone" if fields[0] in "ZX" else fields[19]
        if sys.platform == "darwin":
            return _output("/bin/ps", "-o", "lstart=", "-p", str(pid)) or "gone"
    except (OSError, subprocess.SubprocessError):
        return None
    return None


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603
