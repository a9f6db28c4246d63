"""The store of an agent: one that the user gave, or one that is opened on first use and closed together with the agent."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import EllipsisType
from typing import Generic, NamedTuple, TypeVar

from clew._runtime.text import ago
from clew.agent.handles import without_credentials
from clew.checkpointers import Checkpointer, FileCheckpointer, Head, HeadQuery, MemoryCheckpointer, open_checkpointer
from clew.checkpointers.base import is_absent
from clew.checkpointers.checks import Guard, WaysOut
from clew.checkpointers.heads import STATUSES
from clew.errors import InvalidInput, ThreadNotFound, Unavailable, UsageError
from clew.threads import Thread
from clew.threads.heads import is_child
from clew.threads.inbox import remove
from clew.threads.leases import Takeover, is_live
from clew.threads.redact import Redact
from clew.threads.thread import Durability

__all__ = ["LastRun", "Ran", "Store", "answers_within"]

log = logging.getLogger("clew.agent")

S = TypeVar("S")
_WAYS_OUT = WaysOut(
    made="first used",
    closed="Make another.",
    child="Make agents of its own in the child.",
    loop="Every asyncio.run has its own: put all of it into one, make an agent in each, or use clew.sync.",
)
_LISTED = 10
"""How many unfinished threads an error lists at most."""
_UNFINISHED = tuple(status for status in STATUSES if status != "done")


@asynccontextmanager
async def answers_within(timeout: float | None, thread_id: str) -> AsyncIterator[None]:
    """Limit the code inside this context, which reads from a store, to `timeout` seconds. After that raise
    `Unavailable`, with a message that the run on this thread did not begin. If `timeout` is None, only the store's own
    timeouts apply."""
    try:
        async with asyncio.timeout(timeout) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise Unavailable(
            f"the timeout of the run was over before the store had opened thread {thread_id!r}, so nothing was asked. Try "
            "again, or give it more time."
        ) from error


class Ran(NamedTuple, Generic[S]):
    """The thread that an agent worked on last, the store that holds it, and the agent's settings at that time."""

    thread_id: str
    store: Store
    settings: S


class LastRun(Generic[S]):
    """Remembers which thread an agent object ran last. Copies of the agent that work in another folder or store share
    this memory with the original."""

    def __init__(self) -> None:
        self.ran: Ran[S] | None = None

    async def or_newest(self, name: str, store: Store, settings: S) -> Ran[S]:
        """Return the thread that `resume` goes on with when it is given no id, with the store and the settings to use.

        It is the thread that this agent object ran last; raises `ThreadNotFound` if that was deleted since. If the
        object has run nothing, it is the newest thread in `store` of an agent named `name`, and the result has this
        `store` and these `settings`; raises `UsageError` if there is no such thread, or if several are unfinished.
        """
        if self.ran is None:
            return Ran(await store.newest_thread(name), store, settings)
        await self.ran.store.check(
            self.ran.thread_id,
            "It is the thread that this agent ran last, and was deleted since, as a task is once it is done. To go on with "
            "another: resume(thread_id=…)",
        )
        return self.ran


class Store:
    """The store of an agent, opened on first use. Copies of the agent for another folder share this object, and so do
    sub-agents without a store of their own."""

    def __init__(self, given: Checkpointer | str | EllipsisType | None) -> None:
        """`given` is a store, its URL, `...` for the default store, or None to keep everything in memory only."""
        if not (given is None or given is ... or isinstance(given, str | Checkpointer)):
            raise InvalidInput(
                f"checkpointer={given!r} is not a store. Give a checkpointer, its URL such as 'sqlite:///clew.db', or None."
            )
        self._given = given
        self._opened: Checkpointer | None = None
        self._guard: Guard | None = None
        """Ties the store to one process and one event loop. It is made at the first use, so that an agent which was
        made before a fork can be used in the child process."""

    @classmethod
    def given(
        cls, checkpointer: Checkpointer | str | EllipsisType | None, data_dir: str | os.PathLike[str] | None
    ) -> Store:
        """Make the `Store` of an agent from the agent's arguments `checkpointer=` and `data_dir=`. It is opened later,
        on first use.

        `checkpointer` is a store, its URL, None to keep everything in memory, or `...` if the user gave none.
        `data_dir` is the folder for a store of files, or None if the user gave none. If neither was given, the default
        store is used. Raises `InvalidInput` if both were given.
        """
        if data_dir is None:
            return cls(checkpointer)
        if checkpointer is not ...:
            raise InvalidInput(
                "data_dir= is a store of files in a folder, and checkpointer= is a store: give one of them."
            )
        return cls(FileCheckpointer(os.path.abspath(data_dir)))

    @property
    def url(self) -> str:
        """The URL of the store if the user gave a URL; else empty."""
        return self._given if isinstance(self._given, str) else ""

    @property
    def is_default(self) -> bool:
        """Whether no store was given, so that the default store is used."""
        return self._given is ...

    def enter(self) -> None:
        """Check that the agent may be used here and now. Raises `UsageError` if the agent was closed, or if it is used
        in a forked child process or on a second event loop. Callers do this check first, so that the error names the
        agent and not one of the objects that the agent uses."""
        self._guarded().enter()

    def _guarded(self) -> Guard:
        if self._guard is None:
            self._guard = Guard("this agent", _WAYS_OUT)
        return self._guard

    @property
    def is_inherited(self) -> bool:
        """True if the agent was used before this process was forked from its parent, so that it cannot be used here."""
        return self._guard is not None and self._guard.is_inherited

    def open(self) -> Checkpointer:
        """Return the checkpointer, and open it on first use."""
        self.enter()
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
        self,
        thread_id: str,
        *,
        takeover: Takeover,
        durability: Durability,
        redact: Redact | None,
        label: str = "",
        timeout: float | None = None,
    ) -> AsyncIterator[Thread]:
        """Open a thread and hold its lease inside this context. If another process holds the lease, raise `ThreadBusy`
        or, if `takeover` says so, take it from that process. `label` names this process in the lease. If opening takes
        longer than `timeout` seconds, raise `ThreadBusy` or `Unavailable`. `durability` says when entries are stored,
        and `redact` removes secrets from them.

        If the store cannot be reached at the end of the context, the lease stays until it expires. Then, if a
        cancellation or an `Unavailable` stopped the work inside the context, that error is raised; otherwise an
        `Unavailable` is raised, because the lease could not be given back.
        """
        opening = Thread.open(
            self.open(),
            thread_id,
            takeover=takeover,
            durability=durability,
            label=label,
            redact=redact,
            wait=timeout,
        )
        stopped: asyncio.CancelledError | Unavailable | None = None
        try:
            async with AsyncExitStack() as stack:
                async with answers_within(timeout, thread_id):
                    thread = await stack.enter_async_context(opening)
                try:
                    yield thread
                except (asyncio.CancelledError, Unavailable) as error:
                    stopped = error
                    raise
        except Unavailable as error:
            opening.abandon()
            if stopped is not None and stopped is not error:
                stopped.add_note(f"the lease of thread {thread_id!r} could not be given back: {error}")
                raise stopped from error
            raise

    async def newest_thread(self, agent: str) -> str:
        """Return the id of the thread that an agent of this name worked on last. Used for an agent object that has run
        nothing itself.

        Threads of sub-agents are left out. Raises `UsageError` if there is no such thread, or if several of them are
        unfinished: it is then not clear which one is meant, and they may belong to different users.
        """
        if not agent:
            raise UsageError(
                "this agent has run nothing yet and has no name, so nothing says which thread to resume. Give the thread: "
                "resume(thread_id=…), or give the agent the name that it had: Agent(…, name=…)"
            )
        store = self.open()
        if not is_absent(store):
            await _check_at_most_one(store, agent)
            async for head in Thread.list(store, HeadQuery(agent=agent)):
                if not is_child(head):
                    log.info("agent %r: resumes its newest thread, %r (%s)", agent, head.thread_id, head.status)
                    return head.thread_id
        raise UsageError(f"the agent {agent!r} has no thread in {self._words} yet. Start one with agent.run(…)")

    async def check(self, thread_id: str, advice: str = "") -> None:
        """Raise `ThreadNotFound`, with `advice` in its message, unless the store has this thread. A store that does not
        exist yet is not created."""
        store = self.open()
        if is_absent(store) or await store.head(thread_id) is None:
            raise ThreadNotFound(
                thread_id, self._words, advice or "If it is in another store, give that one: Agent(…, checkpointer=…)"
            )

    async def forget(self, thread_id: str) -> None:
        """Delete a thread, its inbox, and the threads of its sub-agents, the agents that it called as tools, and of
        theirs in turn."""
        store = self.open()
        children = [head.thread_id async for head in store.heads(HeadQuery(parent=thread_id)) if is_child(head)]
        await remove(store, thread_id)
        for child in children:
            await self.forget(child)

    @property
    def _words(self) -> str:
        """The name of the store for error messages, without credentials."""
        if self.is_default:
            return "the default store"
        if self._given is None:
            return "the memory of this agent (checkpointer=None)"
        shown = without_credentials(self.url)
        return f"the store {shown}" if shown else "this store"

    async def close(self) -> None:
        """Close the checkpointer if this object opened it; a checkpointer that the user gave is left open. The agent
        cannot be used afterwards."""
        self._guarded().close()
        if self._opened is not None and self._opened is not self._given:
            opened, self._opened = self._opened, None
            await opened.close()


async def _check_at_most_one(store: Checkpointer, agent: str) -> None:
    """Raise `UsageError`, with a list of the threads, if several threads of the agent of this name are unfinished."""
    found: list[Head] = []
    async for head in Thread.list(store, HeadQuery(agent=agent, status=_UNFINISHED)):
        if not is_child(head):
            found.append(head)
    if len(found) < 2:
        return
    lines = [f"  {head.thread_id!r}: {_how_it_stands(head)}" for head in found[:_LISTED]]
    if len(found) > _LISTED:
        lines.append(f"  and {len(found) - _LISTED} more")
    raise UsageError(
        f"{len(found)} threads of the agent {agent!r} are unfinished, and this agent has run none of them itself. Say which "
        "one to resume: resume(thread_id=…)\n" + "\n".join(lines)
    )


def _how_it_stands(head: Head) -> str:
    holder = f", held by {head.lease.owner}" if head.lease is not None and is_live(head.lease) else ""
    return f"{head.status}{holder}, last changed {ago(head.updated_at)} ago"
