"""The store of an agent: given, or opened on first use and closed with the agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import EllipsisType

from clew.checkpointers import Checkpointer, FileCheckpointer, HeadQuery, MemoryCheckpointer, open_checkpointer
from clew.errors import InvalidInput, Unavailable, UsageError
from clew.threads import Thread
from clew.threads.lineage import is_child
from clew.threads.redacting import Redact
from clew.threads.thread import Durability

__all__ = ["Store"]


class Store:
    """One for an agent and all forms of it: those in another folder, and its children that have none of their own."""

    def __init__(self, given: Checkpointer | str | EllipsisType | None) -> None:
        """A store, its URL, nothing said (the default store), or None: nothing is kept beyond the process."""
        if not (given is None or given is ... or isinstance(given, str | Checkpointer)):
            raise InvalidInput(
                f"checkpointer={given!r} is no store. Give a checkpointer, its URL such as 'sqlite:///clew.db', or None."
            )
        self._given = given
        self._opened: Checkpointer | None = None
        self._closed = False

    @classmethod
    def given(
        cls, checkpointer: Checkpointer | str | EllipsisType | None, data_dir: str | os.PathLike[str] | None
    ) -> Store:
        """As an agent's user says it: a store, or a folder to keep everything in."""
        if data_dir is None:
            return cls(checkpointer)
        if checkpointer is not ...:
            raise InvalidInput(
                "data_dir= is a store of files in a folder, and checkpointer= is a store: give one of them."
            )
        return cls(FileCheckpointer(os.path.abspath(data_dir)))

    @property
    def url(self) -> str:
        """As it was given; empty for a store that has no URL that is known here."""
        return self._given if isinstance(self._given, str) else ""

    @property
    def is_default(self) -> bool:
        """Whether nobody said which."""
        return self._given is ...

    def open(self) -> Checkpointer:
        """The store, opened if it is not yet."""
        if self._closed:
            raise UsageError("this agent is closed. Make another.")
        if self._opened is None:
            if isinstance(self._given, Checkpointer):
                self._opened = self._given
            elif self._given is None:
                self._opened = MemoryCheckpointer()
            else:
                self._opened = open_checkpointer(None if self._given is ... else self._given)
        return self._opened

    @asynccontextmanager
    async def thread(
        self, thread_id: str, *, takeover: bool, durability: Durability, redact: Redact | None
    ) -> AsyncIterator[Thread]:
        """A thread of it, held: `ThreadBusy` if another process has it. If the store goes away meanwhile it is let go of
        without another word, and that the store is away is what is raised."""
        opening = Thread.open(self.open(), thread_id, takeover=takeover, durability=durability, redact=redact)
        try:
            async with opening as thread:
                yield thread
        except Unavailable:
            opening.abandon()
            raise

    async def last_thread(self, agent: str) -> str:
        """The thread that the agent of this name worked on last; those of its children are not its own."""
        if not agent:
            raise UsageError("resume without a thread_id goes by the agent's name. Give it one: Agent(…, name=…)")
        async for head in Thread.list(self.open(), HeadQuery(agent=agent)):
            if not is_child(head):
                return head.thread_id
        raise UsageError(f"the agent {agent!r} has no thread in this store yet. Start one with agent.run(…)")

    async def close(self) -> None:
        """Close what was opened here; a store that was given is its giver's."""
        self._closed = True
        if self._opened is not None and self._opened is not self._given:
            opened, self._opened = self._opened, None
            await opened.close()
