"""Leases: which process may append to a thread.

A lease is stored in the head, so that stores need no support for it. An append succeeds only if the writer names the
current end of the log. This alone keeps two processes from writing at once. Clocks only decide when another process may
try to take over.

The clocks of two machines may be apart by any amount, so a lease is never taken because of the time that is written in
it. It is taken if its owner is certainly gone, or if this process has seen it unchanged for the whole time that it
lasts, by its own clock. A live owner renews its lease several times within that time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from pathlib import Path

from clew._runtime.clock import Moment, now
from clew.checkpointers import Checkpointer, Head, HeadQuery, Lease, Owner
from clew.checkpointers.heads import Status
from clew.errors import ThreadBusy

__all__ = [
    "LEASE_TIME",
    "RENEW_AFTER",
    "Takeover",
    "boot",
    "give_up",
    "has_ended",
    "is_crashed",
    "is_live",
    "is_over",
    "lease_time",
    "new_lease",
    "note_seen",
    "provably_dead",
    "renewed",
    "shown_status",
    "takes_over_from",
    "this_process",
    "time_left",
    "wait_until_free",
]

log = logging.getLogger("clew.threads")


LEASE_TIME = timedelta(seconds=30)
"""How long a lease lasts after its holder last appended or renewed the lease."""
RENEW_AFTER = LEASE_TIME / 3
Takeover = bool | Callable[[Lease], bool]
"""Whether to take a thread from a process that still holds its lease: always, never, or as a function decides that is
given the lease."""


def new_lease(label: str = "") -> Lease:
    """Return a lease of this process with a new random token, valid for 30 seconds (`LEASE_TIME`). `label` says in a
    few words what the process does."""
    return Lease(owner=this_process(label), token=secrets.token_hex(8), expires_at=now() + LEASE_TIME)


def renewed(lease: Lease, now: datetime) -> Lease:
    return Lease(owner=lease.owner, token=lease.token, expires_at=now + LEASE_TIME)


def has_ended(held: Moment) -> bool:
    """Return whether a lease that this process last renewed at the moment `held` may have ended by now, according to
    the clocks of this machine."""
    return held.age() >= LEASE_TIME.total_seconds()


def time_left(held: Moment) -> float:
    """Return for how many seconds a lease that this process last renewed at the moment `held` is certain to last on,
    according to the clocks of this machine. Returns 0.0 if it may have ended."""
    return max(0.0, LEASE_TIME.total_seconds() - held.age())


def lease_time(head: Head) -> float:
    """Return for how many seconds the lease in this head lasts after it was last renewed.

    That is the time from the head's last change to the lease's end. The holder's clock gave both, so it does not matter
    whether that clock is right. Returns the usual time, `LEASE_TIME`, if the end is not after the change.
    """
    assert head.lease is not None  # noqa: S101 - the callers checked
    seconds = (head.lease.expires_at - head.updated_at).total_seconds()
    return seconds if seconds > 0 else LEASE_TIME.total_seconds()


def is_live(lease: Lease | None) -> bool:
    """Return whether a process probably still works under this lease: the time of expiry in the lease has not passed by
    the clock of this machine, and its owner may be alive.

    This is for listings and reports, which cannot wait. The result is wrong if the clock of the owner's machine and the
    clock of this machine differ. So never take or delete a thread because of this result: call `wait_until_free` first.
    """
    return lease is not None and lease.expires_at > now() and not is_over(lease)


def is_crashed(head: Head) -> bool:
    """Return whether the thread has status "running" although probably no live process holds its lease (`is_live`)."""
    return head.status == "running" and not is_live(head.lease)


def shown_status(head: Head) -> Status:
    """Return the status to show to people: "interrupted" if the process that ran the thread is gone, else the status on
    record."""
    return "interrupted" if is_crashed(head) else head.status


def takes_over_from(lease: Lease | None, takeover: Takeover) -> bool:
    """Return whether a process that was given this `takeover` takes the thread from the holder of the lease, without
    waiting until the lease has ended. A function is asked only if there is a lease whose holder may be alive."""
    if isinstance(takeover, bool):
        return takeover
    return lease is not None and not is_over(lease) and takeover(lease)


def is_over(lease: Lease) -> bool:
    """Return True only if it is certain that nobody works under this lease any more: the process that held the lease is
    gone, or this process held it and has given it up."""
    return lease.token in _given_up or provably_dead(lease.owner)


_given_up: set[str] = set()


def give_up(lease: Lease) -> None:
    """Remember that this process has stopped working under this lease of its own, although the store still names it.
    From then on `is_over` returns True for the lease in this process, so nobody here waits for its end."""
    _given_up.add(lease.token)


_seen: dict[str, tuple[Hashable, float]] = {}
"""For each log id, the lease that this process has seen there and since when, by `time.monotonic`. The log that was
looked at last is at the end."""
_REMEMBERED = 10_000


def note_seen(head: Head, asked: float | None = None) -> float:
    """Remember that this process saw the lease in this head now. Return for how many seconds it has seen the same lease
    without a renewal; 0.0 if it has not seen this lease before.

    `asked` is the time, by `time.monotonic`, at which the store was asked for the head; by default now. The seconds are
    counted up to that time, because the holder may have renewed the lease while the answer was on its way.
    """
    lease = head.lease
    assert lease is not None  # noqa: S101 - the callers checked
    moment = time.monotonic()
    seen = (lease.token, lease.expires_at, head.frames, head.updated_at)
    before, since = _seen.pop(head.log_id, (None, moment))
    since = since if before == seen else moment
    while len(_seen) >= _REMEMBERED:
        del _seen[next(iter(_seen))]
    _seen[head.log_id] = seen, since
    return max(0.0, (moment if asked is None else asked) - since)


async def wait_until_free(checkpointer: Checkpointer, head: Head, wait: float | None = None) -> None:
    """Return once no live process can hold the thread under the lease in this head. Raise `ThreadBusy` if one may hold
    it.

    Returns at once if there is no lease, if it is certain that its holder is gone, or if this process has seen the
    lease unchanged for the whole time that a lease lasts (usually 30 seconds). Otherwise the time of expiry that is
    written in the lease decides:

    - If it is in the future, raises `ThreadBusy` at once. A time more than twice as far ahead as a lease lasts is not
      believed: a clock must be wrong then.
    - If it has passed or is not believed, logs a warning and waits until this process has seen the lease unchanged for
      the whole time. Raises `ThreadBusy` if the lease is renewed or taken meanwhile.

    `wait` is the most seconds to wait: if more could be needed, raises `ThreadBusy` at once. With None, waits as long
    as needed.

    During the wait the holder may have appended and given the lease back. Then `head` is no longer the end of the log,
    and an append after it raises `Conflict`.
    """
    is_fresh = is_waiting = False
    current: Head | None = head
    asked = time.monotonic()
    while current is not None and current.lease is not None and not is_over(current.lease):
        lasts, unchanged = lease_time(current), note_seen(current, asked)
        if unchanged >= lasts and is_fresh:
            return
        if unchanged < lasts:
            written = (current.lease.expires_at - now()).total_seconds()
            is_renewed = is_fresh and not unchanged
            if is_renewed or (not is_waiting and 0 < written <= 2 * lasts):
                raise ThreadBusy(current.thread_id, str(current.lease.owner), min(max(written, 1.0), lasts))
            if not is_waiting and wait is not None and lasts - unchanged > wait:
                raise ThreadBusy(current.thread_id, str(current.lease.owner), lasts - unchanged)
            if not is_waiting:
                log.warning(
                    "thread %r: %s may still hold it. Waiting up to %.0f s to see whether it renews its lease.",
                    current.thread_id,
                    current.lease.owner,
                    lasts - unchanged,
                )
                await _note_children(checkpointer, current.thread_id)
            is_waiting = True
            await asyncio.sleep(min(lasts - unchanged, lasts / 10))
        asked = time.monotonic()
        current = await checkpointer.head(current.thread_id)
        is_fresh = True


async def _note_children(checkpointer: Checkpointer, thread_id: str) -> None:
    """Remember that this process saw the leases of this thread's sub-agents, and of their sub-agents, now.

    A process that takes over this thread goes on with the threads of the sub-agents too. Before that it must have seen
    each of their leases unchanged for as long as a lease lasts. Because all of them are noted now, these times pass
    together and not one after the other.
    """
    found = [head async for head in checkpointer.heads(HeadQuery(parent=thread_id)) if head.lease is not None]
    for head in found:
        note_seen(head)
        await _note_children(checkpointer, head.thread_id)


def this_process(label: str = "") -> Owner:
    """Return the identity of this process: host, boot, pid and start time. `label` says in a few words what the process
    does.

    A later process with the same pid has another identity, also in containers.
    """
    pid = os.getpid()
    return Owner(host=socket.gethostname(), boot=boot(), pid=pid, started=_started(pid) or "", label=label)


def provably_dead(owner: Owner) -> bool:
    """Return True only if it is certain that the process `owner` no longer runs.

    That can be certain only if the process was started in this machine's current boot, in the same pid namespace. For
    any other process the result is False. It is False too if a process with the same pid runs, and the operating system
    did not tell the start time of one of the two.
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
    return owner.started != "" and started is not None and started != owner.started


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
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603 - a fixed command
