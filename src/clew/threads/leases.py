"""Leases: which process may append to a thread.

A lease is stored in the head, so that stores need no support for it. An append succeeds only if the writer names the
current end of the log. This alone keeps two processes from writing at once. Clocks only decide when another process may
try to take over.
"""

from __future__ import annotations

import functools
import os
import secrets
import socket
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

from clew._runtime.clock import now
from clew.checkpointers import Head, Lease, Owner
from clew.checkpointers.heads import Status
from clew.errors import ThreadBusy

__all__ = [
    "LEASE_TIME",
    "RENEW_AFTER",
    "boot",
    "check_free",
    "is_crashed",
    "is_live",
    "new_lease",
    "provably_dead",
    "renewed",
    "shown_status",
    "this_process",
]


LEASE_TIME = timedelta(seconds=30)
"""How long a lease lasts after its holder last appended or renewed the lease."""
RENEW_AFTER = LEASE_TIME / 3


def new_lease(label: str = "") -> Lease:
    """Return a lease of this process with a new random token, valid for 30 seconds (`LEASE_TIME`). `label` says in a
    few words what the process does."""
    return Lease(owner=this_process(label), token=secrets.token_hex(8), expires_at=now() + LEASE_TIME)


def renewed(lease: Lease, now: datetime) -> Lease:
    return Lease(owner=lease.owner, token=lease.token, expires_at=now + LEASE_TIME)


def is_live(lease: Lease | None) -> bool:
    """Return whether a process may still be working under this lease: it has not expired, and its owner may be alive."""
    return lease is not None and lease.expires_at > now() and not provably_dead(lease.owner)


def is_crashed(head: Head) -> bool:
    """Return whether the thread has status "running" although no live process holds its lease."""
    return head.status == "running" and not is_live(head.lease)


def shown_status(head: Head) -> Status:
    """Return the status to show to people: "interrupted" if the process that ran the thread is gone, else the status on
    record."""
    return "interrupted" if is_crashed(head) else head.status


def check_free(head: Head) -> None:
    """Raise `ThreadBusy` if a live process holds this thread.

    The error names the process and the seconds left of its lease.
    """
    lease = head.lease
    if lease is not None and is_live(lease):
        left = (lease.expires_at - now()).total_seconds()
        raise ThreadBusy(head.thread_id, str(lease.owner), left)


def this_process(label: str = "") -> Owner:
    """Return the identity of this process: host, boot, pid and start time. `label` says in a few words what the process
    does.

    A later process with the same pid has another identity, also in containers.
    """
    pid = os.getpid()
    return Owner(host=socket.gethostname(), boot=boot(), pid=pid, started=_started(pid) or "", label=label)


def provably_dead(owner: Owner) -> bool:
    """Return True only if it is certain that the process `owner` no longer runs.

    That can be certain only if it was started in this machine's current boot, in the same pid namespace. For any other
    process the result is False.
    """
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
    """Return a text that identifies the current boot of this machine and, on Linux, the process's pid namespace.

    Returns "" if the operating system does not tell.
    """
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
    """Return when the process with this pid started, as a text in the operating system's own format.

    Returns "gone" if the process has ended, and None if the operating system does not tell.
    """
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
