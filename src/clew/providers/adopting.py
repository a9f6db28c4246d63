"""Conversations that Clew has not seen before, taken into threads; and threads made ready for another provider."""

from __future__ import annotations

import asyncio
import secrets

from clew.agent.journal import Journal
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, SessionNotFound
from clew.log import Described, Logged, MessageAdded, ProviderKey, Rewound, StatusChanged, ThreadStarted
from clew.messages import User
from clew.providers.base import Place, Provider
from clew.providers.placing import Placed, Placing, staging_folder
from clew.providers.registry import default_place, find_provider
from clew.threads import Thread

__all__ = ["adopt", "adopt_into", "move", "take_back"]


async def adopt(
    session: str,
    checkpointer: Checkpointer,
    *,
    provider: str,
    thread_id: str | None = None,
    place: Place | None = None,
) -> str:
    """Take a session that a provider keeps on this machine into a thread, and return the thread's id.

    `session` is its id, an unambiguous part of it, or a path. `Agent(provider=…).resume_session(thread_id)` goes on with it,
    anywhere. The provider's own copy stays as it is.
    """
    source = find_provider(provider)(place or default_place())
    key = await asyncio.to_thread(source.find, session)
    if key is None:
        raise SessionNotFound(source.name, session)
    name = thread_id or f"{source.name}-{secrets.token_hex(6)}"
    if await checkpointer.head(name) is not None:
        raise InvalidInput(f"there is a thread {name!r} in this store already. Give another thread_id.")
    async with Thread.open(checkpointer, name) as thread, Journal(thread) as journal:
        await adopt_into(journal, checkpointer, source, key)
        await journal.record(StatusChanged("done"))
    return name


async def adopt_into(journal: Journal, store: Checkpointer, source: Provider, key: str) -> None:
    """Make a thread that holds nothing yet hold this conversation, as the provider keeps it and in Clew's own words."""
    folder = staging_folder(source, key)
    if not await asyncio.to_thread(source.export, key, folder):
        raise SessionNotFound(source.name, key)
    conversation = await asyncio.to_thread(source.read, folder)
    limits = {"provider": source.name, "cwd": conversation.cwd or str(source.place.cwd)}
    entries: list[Logged] = [ThreadStarted(source.name, conversation.model, limits=limits)]
    entries += map(MessageAdded, conversation.messages)
    if conversation.title:
        entries.append(Described(conversation.title))
    await journal.record(*entries, ProviderKey(source.name, key, thread=journal.thread.head.log_id))
    await Placing(source, store, journal.thread).capture(journal, key)


async def take_back(journal: Journal, place: int) -> None:
    """What was asked from this place of the history on, and could not even be begun with, is asked elsewhere: it stands in
    the conversation once."""
    state = journal.thread.checkpoint
    asked = len(state.history) - place
    if place >= 0 and all(type(message) is User for message in state.history[place:]):
        await journal.record(Rewound(messages=len(state.messages) - asked))


async def move(
    journal: Journal, store: Checkpointer, target: Provider, name: str = "", *, natively: bool = True
) -> Placed:
    """Write the thread's conversation for this provider, and put on record that it goes on there."""
    thread = journal.thread
    before = thread.checkpoint
    placing = Placing(target, store, thread)
    placed = await placing.place(before)
    limits = {**before.limits, "provider": target.name, "cwd": str(target.place.cwd)}
    await journal.record(
        ThreadStarted(name or target.name, "", before.system_prompt, limits=limits, parent=before.parent),
        ProviderKey(target.name, placed.key, thread=thread.head.log_id),
    )
    await placing.capture(journal, placed.key, natively=natively)
    await journal.record(StatusChanged("interrupted", f"moved to {target.name}"))
    return placed
