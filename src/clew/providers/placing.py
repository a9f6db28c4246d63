"""Brings a conversation to where a provider's program looks for it, and takes it from there into the store.

What the program keeps travels as it is, as a tree of blobs. Where the program's own form of what the thread holds is not to
be had, because another provider or the built-in agent did the last turns, because the thread was rewound into the middle of
a turn, or because a crash came before it was captured, it is written anew from the messages on record.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from blake3 import blake3

from clew.agent.journal import Journal
from clew.checkpointers import Checkpointer
from clew.log import Checkpoint, ProviderKey
from clew.messages import ToolCall, ToolResult, User, tool_calls
from clew.messages.dialects import Loss
from clew.providers.base import Conversation, Provider
from clew.providers.registry import BUILT_IN_AGENT, find_provider
from clew.providers.translating import write_for
from clew.workspace import Workspace

__all__ = ["Placed", "Placing", "current_provider", "staging_folder"]

log = logging.getLogger("clew.providers")


def current_provider(state: Checkpoint) -> str:
    """Who did the last turns of a thread."""
    named = state.limits.get("provider")
    return named if isinstance(named, str) else BUILT_IN_AGENT


class Placed(msgspec.Struct, frozen=True):
    """Where the conversation goes on."""

    key: str
    losses: tuple[Loss, ...] = ()
    """What of it this provider cannot hold, if it was written anew."""


class Placing:
    """One thread's conversation at one provider."""

    def __init__(self, provider: Provider, store: Checkpointer, thread_id: str) -> None:
        self._provider = provider
        self._store = store
        self._thread_id = thread_id

    async def place(self, state: Checkpoint, asked_key: str = "") -> Placed:
        """See to it that the conversation is where the program finds it, and say by which key. `asked_key` is from a handle,
        for a thread that knows none."""
        known = state.providers.get(self._provider.name)
        if known is None and not state.messages:
            return Placed(asked_key or self._provider.new_key())
        if known is None:
            return await self._write(state, "")
        covers = _covers(known, state)
        if _in_line(known, state, self._thread_id) and (covers or current_provider(state) == self._provider.name):
            return await self._go_on(known, state, covers)
        return await self._install(known, "") if covers and known.native else await self._write(state, "")

    async def _go_on(self, known: ProviderKey, state: Checkpoint, covers: bool) -> Placed:
        """Under the same key: with what is on this machine, unless that is less than what is on record."""
        here = await asyncio.to_thread(self._provider.export, known.key, self._staging(known.key))
        if here and not known.native:
            return Placed(known.key)
        if here and (await self._snapshot(known.key)) == known.native:
            return Placed(known.key)
        if known.native:
            async with self._restored(known.native) as folder:
                standing = await asyncio.to_thread(self._provider.standing, known.key, folder)
            log.info("thread %r: its %s session here is %s", self._thread_id, self._provider.name, standing)
            if standing in ("same", "ahead"):
                return Placed(known.key)
            if covers:
                return await self._install(known, known.key if standing in ("absent", "behind") else "")
        if not state.messages:
            return Placed(known.key)
        return await self._write(state, "" if here else known.key)

    async def _install(self, known: ProviderKey, key: str) -> Placed:
        key = key or self._provider.new_key()
        async with self._restored(known.native) as folder:
            await asyncio.to_thread(self._provider.install_session, key, folder)
        log.info("thread %r: its %s session is put in place as %s", self._thread_id, self._provider.name, key)
        return Placed(key)

    async def _write(self, state: Checkpoint, key: str) -> Placed:
        key = key or self._provider.new_key()
        conversation = await self.conversation(state)
        with _scratch() as folder:
            lost = await asyncio.to_thread(
                write_for, self._provider, conversation, current_provider(state), key, folder
            )
            await asyncio.to_thread(self._provider.install_session, key, folder)
        log.info("thread %r: written as a %s session, %s", self._thread_id, self._provider.name, key)
        return Placed(key, lost)

    async def conversation(self, state: Checkpoint) -> Conversation:
        """As whoever did the last turns keeps it, if that is on record in full; else from the messages on record."""
        known = state.providers.get(current_provider(state))
        if known is not None and known.native and _covers(known, state):
            source = find_provider(known.provider)(self._provider.place)
            async with self._restored(known.native) as folder:
                return await asyncio.to_thread(source.read, folder)
        return Conversation(
            messages=state.messages,
            cwd=str(self._provider.place.cwd),
            title=state.title,
            model=state.model,
        )

    async def unsettled(self, key: str) -> tuple[ToolCall, ...]:
        """The calls that the program keeps without a result at the end of the conversation: not all programs tell of a call
        before it is done."""
        folder = self._staging(key)
        if not await asyncio.to_thread(self._provider.export, key, folder):
            return ()
        messages = (await asyncio.to_thread(self._provider.read, folder)).messages
        asked = [place for place, message in enumerate(messages) if isinstance(message, User)]
        last = messages[asked[-1] :] if asked else messages
        done = {block.call_id for message in last for block in message.content if isinstance(block, ToolResult)}
        return tuple(call for message in last for call in tool_calls(message) if call.id not in done)

    async def capture(self, journal: Journal, key: str) -> bool:
        """Take what the program keeps by now into the store; False if it keeps nothing under this key."""
        folder = self._staging(key)
        if not await asyncio.to_thread(self._provider.export, key, folder):
            return False
        digest = await self._snapshot(key)
        thread = journal.thread
        await journal.record(ProviderKey(self._provider.name, key, digest, thread.thread_id, thread.messages))
        return True

    async def _snapshot(self, key: str) -> str:
        return (await Workspace(self._staging(key), self._store).snapshot()).digest

    def _staging(self, key: str) -> Path:
        return staging_folder(self._provider, key)

    @asynccontextmanager
    async def _restored(self, digest: str) -> AsyncIterator[Path]:
        with _scratch() as folder:
            await Workspace(folder, self._store).restore(digest)
            yield folder


def staging_folder(provider: Provider, key: str) -> Path:
    """Our own copy of what a provider keeps, of which a snapshot is cheap: only what has changed is read. It may be lost."""
    cache = Path(provider.place.env.get("XDG_CACHE_HOME") or provider.place.home / ".cache")
    return cache / "clew" / "providers" / provider.name / blake3(key.encode()).hexdigest()[:32]


class _scratch:  # noqa: N801 - used like a function
    """A folder that is gone afterwards."""

    def __enter__(self) -> Path:
        self._top = Path(tempfile.mkdtemp(prefix="clew-"))
        folder = self._top / "session"
        folder.mkdir()
        return folder

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._top, ignore_errors=True)


def _covers(known: ProviderKey, state: Checkpoint) -> bool:
    """Whether what the provider kept then is all that the thread holds now."""
    return known.messages == (state.view[-1][1] if state.view else 0)


def _in_line(known: ProviderKey, state: Checkpoint, thread_id: str) -> bool:
    """Whether the thread has only gone on since: no rewind, and no fork of another."""
    if known.thread not in ("", thread_id):
        return False
    start, end = state.view[-1] if state.view else (0, 0)
    return end == len(state.history) and start <= known.messages
