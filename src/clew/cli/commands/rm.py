"""`clew rm`: delete threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import clew
from clew import advice
from clew._runtime.text import size
from clew.cli.deferred import checkpointers, leases, thread_heads, thread_inbox, thread_purge
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, Yes, complete_thread
from clew.cli.output.console import confirm, hint, print_json, say
from clew.cli.stores import find_any, on_store, shown_store
from clew.errors import Corrupt

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head

__all__ = ["rm"]

_SHOWN = 10


@report_errors
def rm(
    threads: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="Threads: their ids, or unambiguous beginnings of them.",
            autocompletion=complete_thread,
        ),
    ],
    children: Annotated[bool, typer.Option("--children", help="Also the threads of their sub-agents.")] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete at once the large values and files that only they have.")
    ] = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Remove threads from the store.

    This cannot be undone. Forks of a thread stay. A thread that a live process holds is never removed. Large values
    stay until `clew gc`, unless --purge is given.

    \b
    Examples:
      clew rm report --yes
      clew rm trip old --purge --yes
    """

    def tell(gone: dict[str, Any]) -> None:
        if json:
            print_json(gone)
        else:
            freed = f", {gone['blobs']} values with it ({size(gone['freed'])})" if purge else ""
            say(f"{gone['thread_id']}: deleted{freed}")

    on_store(store, lambda opened: _remove(opened, threads, children, purge, yes, tell, store))
    if not (json or purge):
        hint(f"Large values that no thread needs any more stay until: {advice.collect(store=shown_store(store))}")


async def _remove(
    store: Checkpointer,
    given: Sequence[str],
    children: bool,
    purge: bool,
    yes: bool,
    tell: Callable[[dict[str, Any]], None],
    url: str | None,
) -> None:
    """Delete the threads that `given` names and, with `children`, the threads of their sub-agents. With `purge`, their
    large values are deleted too. `url` is the URL of the store, for messages.

    Before the first deletion it checks that all of these threads exist, and raises `ThreadBusy` if a live process holds
    one. Then it asks the user, unless `yes` is set, and exits the command if the answer is no. After each deletion,
    `tell` is called with the object that --json prints for it.
    """
    named = await find_any(store, given)
    doomed = dict.fromkeys([*named, *[child for name in named for child in await _below(store, name, children)]])
    heads = {name: await _head(store, name) for name in doomed}
    for head in heads.values():
        if head is not None:
            await leases.wait_until_free(store, head)
    listed = ", ".join([*doomed][:_SHOWN]) + (f" and {len(doomed) - _SHOWN} more" if len(doomed) > _SHOWN else "")
    what = "thread" if len(doomed) == 1 else f"{len(doomed)} threads"
    confirm(f"Delete {what} {listed}{', with their large values' if purge else ''}?", yes)
    for name, head in heads.items():
        tell(await _delete(store, name, head, purge, url))


async def _below(store: Checkpointer, thread_id: str, wanted: bool) -> list[str]:
    """Return the ids of all threads that sub-agents made below this thread: its sub-agents, their sub-agents, and so
    on. Returns an empty list unless `wanted` is set."""
    if not wanted:
        return []
    children = [
        head.thread_id
        async for head in store.heads(checkpointers.HeadQuery(parent=thread_id))
        if thread_heads.is_child(head)
    ]
    return [found for child in children for found in [child, *await _below(store, child, wanted)]]


async def _head(store: Checkpointer, thread_id: str) -> Head | None:
    """Return the head of a thread; None if there is no such thread, or if its head is damaged.

    If the head has a lease, this also notes when the lease was seen: the lease counts as abandoned if its holder does
    not renew it for some time after that. Call this for all threads first, so that the waiting times for their leases
    run at the same time.
    """
    try:
        head = await store.head(thread_id)
    except Corrupt:
        return None
    if head is not None and head.lease is not None:
        leases.note_seen(head)
    return head


async def _delete(
    store: Checkpointer, thread_id: str, head: Head | None, purge: bool, url: str | None
) -> dict[str, Any]:
    """Delete a thread and, with `purge`, its large values. Returns the object that --json prints. `url` is the URL of
    the store, for a command that an error advises.

    `head` is the thread's head as it was read before; None if it could not be read. Unless `head` is None, the thread's
    lease is taken first. If another process has appended to the thread since `head` was read, this raises `Conflict`
    and deletes nothing.
    """
    if head is not None:
        await thread_purge.fence(store, head, "deleting")
    blobs = freed = 0
    if purge:
        try:
            purged = await clew.Thread.purge(store, thread_id)
        except Corrupt as damage:
            rest = advice.collect(store=shown_store(url))
            damage.add_note(f"What it refers to cannot be read. Delete it without --purge, and then run: {rest}")
            raise
        blobs, freed = purged.blobs, purged.freed
    else:
        await thread_inbox.remove(store, thread_id)
    return {"thread_id": thread_id, "deleted": True, "blobs": blobs, "freed": freed}
