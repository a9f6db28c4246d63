"""`BaseCheckpointer`, a class with the methods of the checkpointers in Locus (another agent library). It keeps its data
in a store of Clew."""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import re
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec

from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.compat.locus.conversion import state_of
from clew.compat.locus.memory.record import KEPT, check_state, check_values, dated, entries_for, kept_in, newest
from clew.compat.locus.state import AgentState
from clew.errors import InvalidInput, ThreadNotFound, UsageError
from clew.log import Checkpoint, Described, StateSet
from clew.threads import Thread
from clew.threads.heads import is_child
from clew.threads.views.search import search

__all__ = ["BaseCheckpointer", "CheckpointerCapabilities"]

log = logging.getLogger("clew.compat.locus")

_TURN = re.compile(r"turn-([1-9][0-9]{0,8})")


class CheckpointerCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpointer can do. Every store of Clew can do all of it, except that threads expire only in Redis."""

    search: bool = False
    metadata_query: bool = False
    vacuum: bool = False
    branching: bool = False
    ttl: bool = False
    list_threads: bool = False
    list_with_metadata: bool = False
    persistent_checkpoint_ids: bool = False


class BaseCheckpointer:
    """Saves and loads states of Locus agents (`AgentState`) in `store`, a checkpointer of Clew.

    Nothing in a thread's log is written again: `save` appends what is new in a state. So every turn can be loaded, not
    only the states that were saved. A state that was saved has the id that `save` returned. The turns that an agent ran
    have the ids `turn-1`, `turn-2` and so on.

    A thread that does not exist, a store that cannot be reached and damaged data are three different results. `load`
    returns None only if the store says that there is no such thread; otherwise it raises `clew.errors.Unavailable` or
    `clew.errors.Corrupt`.
    """

    expires = False
    """Whether the store deletes threads by itself after a time."""

    def __init_subclass__(cls, **others: Any) -> None:
        """Raise `InvalidInput` for a subclass with a `save` or a `load` of its own, because an agent of Clew calls
        neither."""
        super().__init_subclass__(**others)
        if own := [name for name in ("save", "load") if name in vars(cls)]:
            raise InvalidInput(
                f"{cls.__name__} has {' and '.join(own)} of its own, which an agent of Clew does not call: it records each "
                "step. Write a clew.checkpointers.Checkpointer instead, and pass that to the agent."
            )

    def __init__(self, store: Checkpointer) -> None:
        if not isinstance(store, Checkpointer):
            raise InvalidInput(f"a BaseCheckpointer is made of a checkpointer of Clew, not of {store!r}")
        self.store = store
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def follow(self, thread_id: str, run: asyncio.Task[None]) -> asyncio.Task[None] | None:
        """Note that `run` works on the thread. Returns the asyncio task of the run before it, if that still works, else
        None. Agents call this and wait for the task, so that two runs on one thread come one after the other, even if
        they are of different agents."""
        earlier = self._under_way.get(thread_id)
        self._under_way[thread_id] = run

        def forget(done: asyncio.Task[None]) -> None:
            if self._under_way.get(thread_id) is done:
                del self._under_way[thread_id]

        run.add_done_callback(forget)
        return None if earlier is None or earlier.done() else earlier

    @property
    def capabilities(self) -> CheckpointerCapabilities:
        return CheckpointerCapabilities(
            search=True,
            metadata_query=True,
            vacuum=True,
            branching=True,
            ttl=self.expires,
            list_threads=True,
            list_with_metadata=True,
            persistent_checkpoint_ids=True,
        )

    async def save(
        self,
        state: AgentState,
        thread_id: str,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Make `state` the state of the thread, and return the id with which it can be loaded later: `checkpoint_id`,
        or a new id if that is None.

        Messages that the thread has and `state` lacks are taken out of the conversation, but stay in the thread's
        history. `metadata` is added to that of the save before, and is found by `get_metadata` and `query_by_metadata`.
        It becomes tags of the thread, which are not encrypted in a store with a key. Raises `ThreadBusy` if a run works
        on the thread.
        """
        if not isinstance(state, AgentState):
            raise InvalidInput(f"save takes a state and then the thread's id, not {state!r}")
        name = uuid4().hex if checkpoint_id is None else checkpoint_id
        if not isinstance(name, str) or not name or _TURN.fullmatch(name):
            raise InvalidInput(
                f"checkpoint_id={name!r}: an id is a text that is not empty, and not turn- and a number, which names a turn"
            )
        check_state(state)
        tags = _tags(metadata or {})
        async with Thread.open(self.store, thread_id, label="save") as thread:
            before = thread.checkpoint
            entries = entries_for(thread_id, before, state, name, dict(metadata or {}))
            if tags:
                entries.append(Described(tags={**before.tags, **tags}))
            await thread.append(*entries)
        return name

    async def note(self, thread_id: str, values: Mapping[str, Any]) -> None:
        """Set values of a thread, which tools read as `ctx.state`. Makes the thread if there is none."""
        check_values(values)
        async with Thread.open(self.store, thread_id, label="metadata") as thread:
            await thread.append(*(StateSet(key, value) for key, value in values.items()))

    async def load(self, thread_id: str, checkpoint_id: str | None = None) -> AgentState | None:
        """Return the thread's newest state or, if `checkpoint_id` is given, the state with that id. Returns None if
        there is no such thread or state."""
        found = await self._found(thread_id)
        return None if found is None else await self._loaded(*found, checkpoint_id)

    async def _found(self, thread_id: str) -> tuple[Head, Checkpoint] | None:
        """Return the head and the present state of a thread, or None if there is no such thread."""
        head = await self.store.head(thread_id)
        try:
            return None if head is None else (head, await Thread.load(self.store, thread_id))
        except ThreadNotFound:
            return None

    async def _loaded(self, head: Head, state: Checkpoint, checkpoint_id: str | None) -> AgentState | None:
        if checkpoint_id is None:
            return newest(head, state)
        if (kept := kept_in(state).get(checkpoint_id)) is not None:
            return kept.state(head.thread_id, state.history)
        if not 0 < (turn := _turn_of(checkpoint_id)) <= state.turns:
            return None
        then = await Thread.load(self.store, head.thread_id, at_turn=turn)
        return dated(state_of(head.thread_id, then, then.messages), head)

    async def list_checkpoints(self, thread_id: str, limit: int = 10) -> list[str]:
        """Return the ids of the thread's states, newest first and at most `limit`: those of states that were saved, and
        those of turns that agents ran."""
        found = await self._found(thread_id)
        return [] if found is None else _ids(found[1])[: _checked_limit(limit)]

    async def exists(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        """Return whether the thread exists or, if `checkpoint_id` is given, whether the thread has a state with that
        id."""
        if checkpoint_id is None:
            return await self.store.head(thread_id) is not None
        found = await self._found(thread_id)
        return found is not None and checkpoint_id in _ids(found[1])

    async def delete(self, thread_id: str, checkpoint_id: str | None = None) -> bool:
        """Delete the thread, with the threads of its sub-agents. If `checkpoint_id` is given, delete only the saved
        state with that id. Returns False if there is no such thread or state. Raises `ThreadBusy` if a run works on the
        thread.

        A turn that an agent ran cannot be deleted by itself, because the turns after it build on it. Its id raises
        `InvalidInput`.
        """
        if checkpoint_id is not None:
            return await self._forget(thread_id, checkpoint_id)
        if await self.store.head(thread_id) is None:
            return False
        children = [head.thread_id async for head in self.store.heads(HeadQuery(parent=thread_id)) if is_child(head)]
        async with Thread.open(self.store, thread_id, label="delete") as thread:
            await thread.delete()
        for child in children:
            await self.delete(child)
        return True

    async def _forget(self, thread_id: str, checkpoint_id: str) -> bool:
        if _TURN.fullmatch(checkpoint_id):
            raise InvalidInput(
                f"{checkpoint_id} is a turn of the thread, and later turns build on it. Delete the whole thread, or go back "
                "with save(await load(thread_id, checkpoint_id), thread_id)."
            )
        found = await self._found(thread_id)
        if found is None or checkpoint_id not in kept_in(found[1]):
            return False
        async with Thread.open(self.store, thread_id, label="delete") as thread:
            await thread.append(StateSet(KEPT + checkpoint_id, None))
        return True

    async def search(self, query: str, limit: int = 10) -> list[dict[str, Any]]:
        """Return the threads in which the text `query` was found, in messages, tool calls or results, at most `limit`.
        Each is a dict with `thread_id`, `data` (the newest state), `score` (how often the text was found), `text` (the
        first place, with some text around it) and `updated_at`."""
        found: list[dict[str, Any]] = []
        async for hit in search(self.store, query, unreadable=_raise):
            if len(found) >= _checked_limit(limit):
                break
            if not is_child(hit.head) and (item := await self._with_data(hit.head.thread_id)):
                found.append({**item, "score": float(len(hit.hits)), "text": hit.hits[0].text})
        return found

    async def query_by_metadata(self, key: str, value: Any, limit: int = 100) -> list[dict[str, Any]]:
        """Return the threads whose newest metadata has `value` under `key`, the last changed first and at most `limit`.
        Each is a dict with `thread_id`, `data` (the newest state), `metadata` and `updated_at`."""
        query = HeadQuery(tags=_tags({key: value}), limit=_checked_limit(limit))
        found: list[dict[str, Any]] = []
        async for head in Thread.list(self.store, query):
            if item := await self._with_data(head.thread_id):
                found.append(item)
        return found

    async def _with_data(self, thread_id: str) -> dict[str, Any] | None:
        found = await self._found(thread_id)
        state = None if found is None else await self._loaded(*found, None)
        if found is None or state is None:
            return None
        return {**(_about(*found, None) or {}), "data": state.to_checkpoint()}

    async def get_metadata(self, thread_id: str, checkpoint_id: str | None = None) -> dict[str, Any] | None:
        """Return a dict about a state of the thread: `thread_id`, `checkpoint_id`, `created_at`, `updated_at` and
        `metadata`. The state is the one with the id `checkpoint_id`, by default the newest. Returns None if there is no
        such state."""
        found = await self._found(thread_id)
        return None if found is None else _about(*found, checkpoint_id)

    async def list_with_metadata(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return what `get_metadata` returns, a dict with the id, the times and the metadata of a thread's newest
        state, for each of the threads that were changed last, at most `limit`."""
        found = [await self.get_metadata(thread_id) for thread_id in await self.list_threads(limit)]
        return [about for about in found if about is not None]

    async def list_threads(self, limit: int = 100, pattern: str = "*") -> list[str]:
        """Return the ids of threads that match `pattern`, the last changed first and at most `limit`. The pattern is
        written like one for file names, such as `user-*`."""
        wanted = _checked_limit(limit)
        literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        found: list[str] = []
        async for head in Thread.list(self.store, HeadQuery(prefix=literal)):
            if len(found) >= wanted:
                break
            if not is_child(head) and fnmatch.fnmatchcase(head.thread_id, pattern):
                found.append(head.thread_id)
        return found

    async def vacuum(self, older_than_days: float = 30) -> int:
        """Delete the threads that were not changed for `older_than_days` days, and the blobs that only they used.
        Returns how many threads were deleted. A thread on which a run works stays."""
        if not isinstance(older_than_days, int | float) or not 0 <= older_than_days <= 36_500:
            raise InvalidInput(f"older_than_days is a number of days from 0 to 36500, not {older_than_days!r}")
        pruned = await Thread.prune(self.store, older_than=timedelta(days=older_than_days))
        try:
            if pruned.deleted:
                await Thread.gc(self.store)
        except UsageError as error:  # a token of clew serve may delete threads and not collect what they needed
            log.warning(
                "%d threads are deleted, and what only they needed is left to clew gc: %s", len(pruned.deleted), error
            )
        return len(pruned.deleted)

    async def copy_thread(self, source_thread_id: str, dest_thread_id: str) -> bool:
        """Copy a thread, with all its states, to the id `dest_thread_id`. Returns True, or False if the thread does not
        exist. An earlier copy of it with that id is brought up to date; any other thread with that id raises
        `Conflict`."""
        try:
            await Thread.copy(self.store, self.store, source_thread_id, new_id=dest_thread_id)
        except ThreadNotFound:
            return False
        return True

    async def close(self) -> None:
        """Wait for the runs that are under way, then close the store."""
        while runs := [run for run in self._under_way.values() if run is not asyncio.current_task()]:
            await asyncio.wait(runs)
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"


def _ids(state: Checkpoint) -> list[str]:
    """Return the ids of all states of a thread, newest first: those of saved states, and `turn-1`, `turn-2` and so on
    for turns that an agent ran. A turn that came into the thread as part of a saved state has no id."""
    saved = kept_in(state)
    placed = [(kept.end, order, name) for order, (name, kept) in enumerate(saved.items())]
    covered = {turn for kept in saved.values() for turn in range(kept.since + 1, kept.turn + 1)}
    for turn, seen in enumerate(state.marks):
        if turn > 0 and turn not in covered:
            placed.append((seen[-1][1] if seen else 0, -1, f"turn-{turn}"))
    return [name for _, _, name in sorted(placed, reverse=True)]


def _about(head: Head, state: Checkpoint, checkpoint_id: str | None) -> dict[str, Any] | None:
    """Return what `get_metadata` returns about a state: a dict with its id, times and metadata. `checkpoint_id` is the
    id of the state; None stands for the newest. Returns None if the thread has no state with this id."""
    ids, saved = _ids(state), kept_in(state)
    if checkpoint_id is not None and checkpoint_id not in ids:
        return None
    kept = next(reversed(saved.values()), None) if checkpoint_id is None else saved.get(checkpoint_id)
    is_newest = checkpoint_id is None or checkpoint_id == ids[0]
    return {
        "thread_id": head.thread_id,
        "checkpoint_id": checkpoint_id or next(iter(ids), None),
        "created_at": head.created_at.isoformat(),
        "updated_at": head.updated_at.isoformat() if is_newest or kept is None else kept.at.isoformat(),
        "metadata": {} if kept is None else kept.metadata,
    }


def _turn_of(checkpoint_id: str) -> int:
    found = _TURN.fullmatch(checkpoint_id)
    return int(found[1]) if found else 0


def _tags(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Convert metadata to tags of a thread, by which listings can select threads. A value that is not a text becomes
    JSON text. Raises `InvalidInput` if a key is not a text or begins with `clew:`, or if a value cannot be written as
    JSON."""
    for key in metadata:
        if not isinstance(key, str) or key.startswith("clew:"):
            raise InvalidInput(f"metadata: a key is a text that does not begin with clew:, not {key!r}")
    return {key: value if isinstance(value, str) else _json(value) for key, value in metadata.items()}


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except TypeError as error:
        raise InvalidInput(f"metadata is made of texts, numbers, lists and dicts: {error}") from None


def _checked_limit(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidInput(f"limit is a whole number, 0 or more, not {limit!r}")
    return limit


def _raise(head: Head, error: Exception) -> None:
    raise error
