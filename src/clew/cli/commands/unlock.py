"""`clew unlock`: take the lease of a thread from the process that holds it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.deferred import leases, maintenance
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId, Yes
from clew.cli.output.console import confirm, hint, print_json, say
from clew.cli.stores import find_thread, on_store

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Lease

__all__ = ["unlock"]


@report_errors
def unlock(
    thread: ThreadId,
    force: Annotated[bool, typer.Option("--force", help="Also from a live process; asks first.")] = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Take a thread's lease from the process that has it.

    Takes it from a process that is gone, so that you need not wait until the lease expires. A resume on the same
    machine does this by itself. With --force it also takes it from a live process, which then cannot write any more and
    notices at its next step.

    \b
    Examples:
      clew unlock report
    """
    logging.getLogger("clew.threads").addHandler(logging.NullHandler())  # the old holder is printed below
    thread_id, lease, was_live = on_store(store, lambda opened: _unlock(opened, thread, force, yes))
    holder = None if lease is None else str(lease.owner)
    if json:
        expires = None if lease is None else lease.expires_at
        print_json({"thread_id": thread_id, "holder": holder, "was_live": was_live, "expires_at": expires})
    elif holder is None:
        say(f"{thread_id}: nobody holds it")
    else:
        say(f"{thread_id}: taken from {holder}, which {'was still working' if was_live else 'is gone'}")


async def _unlock(store: Checkpointer, given: str, force: bool, yes: bool) -> tuple[str, Lease | None, bool]:
    thread_id = await find_thread(store, given)
    head = await store.head(thread_id)
    was_live = head is not None and leases.is_live(head.lease)
    if head is not None and head.lease is not None and not leases.is_over(head.lease):
        if force:
            confirm(f"{thread_id} is held by {head.lease.owner}, which may be alive. Take it anyway?", yes)
        elif not was_live:
            seconds = leases.lease_time(head)
            hint(f"Waiting up to {seconds:.0f} s to see whether {head.lease.owner} renews its lease")
    return thread_id, await maintenance.unlock(store, thread_id, takeover=force), was_live
