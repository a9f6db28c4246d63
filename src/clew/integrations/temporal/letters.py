"""Letters: prompts and answers in the agent's store, on their way to a thread. Temporal carries only their ids.

Each is a small thread of its own below the thread that it is for, until the thread has it on record. So it takes no
lease of that thread, it may be as long as a prompt may be, and it is encrypted and redacted as all that is stored.
"""

from __future__ import annotations

from typing import Any

from blake3 import blake3

from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, ThreadNotFound
from clew.log import Logged, StateSet, ThreadStarted
from clew.threads import Thread
from clew.threads.maintenance import put_aside
from clew.threads.redact import Redact, redactor

__all__ = ["deposit", "discard", "fetch"]

_SAYS = "clew:letter"
"""The name of the value in a letter's thread that holds what it says."""


async def deposit(store: Checkpointer, thread_id: str, letter_id: str, says: Any, redact: Redact | None = None) -> None:
    """Store what a letter says. It is durable when this returns. The same letter again changes nothing; raises
    `InvalidInput` if there is one with this id that says something else."""
    change = redactor(redact)
    entries: list[Logged] = [StateSet(_SAYS, [says])]
    (entry,) = entries if change is None else change(entries)
    assert isinstance(entry, StateSet)  # noqa: S101 - for the type checker
    kept = await fetch(store, thread_id, letter_id)
    if kept is None:
        started = ThreadStarted(agent="", model="", parent=(thread_id, 0))
        await put_aside(store, _place(thread_id, letter_id), started, entry)
    elif kept != entry.value:
        raise InvalidInput(
            f"thread {thread_id!r}: the id {letter_id!r} was sent before with other words. Give each prompt its own."
        )


async def fetch(store: Checkpointer, thread_id: str, letter_id: str) -> list[Any] | None:
    """Return what a letter says, as a list of one value, or None if the store does not have the letter."""
    try:
        state = await Thread.load(store, _place(thread_id, letter_id))
    except ThreadNotFound:
        return None
    says = state.state.get(_SAYS)
    return says if isinstance(says, list) else None


async def discard(store: Checkpointer, thread_id: str, letter_id: str) -> None:
    """Delete a letter whose thread has it on record."""
    await store.delete(_place(thread_id, letter_id))


def _place(thread_id: str, letter_id: str) -> str:
    """Return the id of the thread that holds a letter. It has the form of a sub-agent's, so that listings leave it out
    and the deletion of the thread deletes it too."""
    return f"{thread_id}/inbox:{blake3(letter_id.encode()).hexdigest()[:16]}"
