"""How commands show a thread's head: its status with a sign and a colour, the process that holds its lease, and the
head as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.cli.deferred import leases, thread_heads
from clew.cli.output.tables import Cell

if TYPE_CHECKING:
    from clew.checkpointers import Head, Lease

__all__ = ["head_object", "holder", "status_cell", "status_style"]

_SIGNS = {
    "running": ("●", "cyan"),
    "waiting": ("?", "yellow"),
    "interrupted": ("!", "magenta"),
    "failed": ("✗", "red"),
    "done": ("✓", "green"),
    "queued": ("…", "blue"),
}


def status_style(status: str) -> str:
    return _SIGNS[status][1]


def status_cell(status: str) -> Cell:
    """Return a cell of a table with a thread's status: a sign, the word, and a colour. The sign is for people who do
    not see the colour."""
    sign, style = _SIGNS[status]
    return Cell(f"{sign} {status}", style)


def holder(head: Head) -> str:
    """Return the live process that holds the thread's lease as `host:pid (label)`; empty if there is none. The label
    says what the process does; without one, the brackets are left out."""
    lease = _live(head)
    if lease is None:
        return ""
    label = f" ({lease.owner.label})" if lease.owner.label else ""
    return f"{lease.owner.host}:{lease.owner.pid}{label}"


def head_object(head: Head) -> dict[str, Any]:
    """Return a head as the object that --json prints, with the same keys in every command.

    The lease token is left out: it is a secret.
    """
    lease = _live(head)
    return {
        "thread_id": head.thread_id,
        "status": head.status,
        "title": head.title,
        "agent": head.agent,
        "model": head.model,
        "turns": head.turns,
        "input_tokens": head.input_tokens,
        "output_tokens": head.output_tokens,
        "cost_usd": head.cost_usd,
        "created_at": head.created_at,
        "updated_at": head.updated_at,
        "parent": None if head.parent is None else {"thread_id": head.parent[0], "turn": head.parent[1]},
        "tags": head.tags,
        "holder": None
        if lease is None
        else {
            "host": lease.owner.host,
            "pid": lease.owner.pid,
            "label": lease.owner.label,
            "expires_at": lease.expires_at,
        },
        "queue": None
        if head.due is None or head.queue is None
        else {
            "due": head.due,
            "queued_at": head.queue.queued_at,
            "priority": head.queue.priority,
            "tries": head.queue.tries,
        },
        **({"sealed": False} if thread_heads.is_unsealed(head) else {}),
    }


def _live(head: Head) -> Lease | None:
    return head.lease if leases.is_live(head.lease) else None
