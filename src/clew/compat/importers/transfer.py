"""Writes the conversations of another system into a store, each as a thread.

A thread is first made in a temporary store and then copied. So a conversation is in the store whole or not at all, even
if the import is killed. An import that is run again recognises by their tags the threads that it has made before, and
goes on with the other conversations.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec

from clew._runtime.batches import batches
from clew.agent.journal import Journal
from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer, SQLiteCheckpointer
from clew.compat.importers.base import Conversation, Source
from clew.compat.importers.growth import LOSSES, VERSION, extend
from clew.errors import ClewError, Conflict, InvalidInput, Unavailable, UsageError
from clew.log import Described, Logged, StateSet, StatusChanged
from clew.providers.placement import Placement
from clew.threads import Thread
from clew.threads.heads import is_hidden
from clew.threads.reader import Progress
from clew.workspace import Workspace

__all__ = ["AS", "FROM", "KEY", "LOSSES", "VERSION", "Imported", "Outcome", "import_all"]

FROM, KEY, AS = "imported_from", "imported_key", "imported_as"
"""Tags of an imported thread, beside `VERSION`: the kind of its source, the conversation's key there, and the thread's
id. A fork, or a copy with another id, has the tag `imported_as` of the original, and does not count as an import."""

Status = Literal["imported", "updated", "skipped", "failed"]

_OWN = "clew:"
_BATCH = 500
_SHOWN = 8
_IN_MEMORY = 64 * 2**20
"""The most bytes of files that a thread may have to be made in memory. With more it is made in a temporary SQLite file."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did with one conversation."""

    key: str
    """The key under which the source finds the conversation."""
    status: Status
    """`imported`: there is a new thread. `updated`: the conversation had grown since an earlier import, and the thread
    has grown with it. `skipped`: there is a thread, and nothing new. `failed`: `reason` says why there is none."""
    thread_id: str = ""
    reason: str = ""
    losses: tuple[str, ...] = ()
    """What could not be carried over, a sentence each. The thread has them on record too."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `import_all`: which threads are new, were extended or were left alone, which conversations failed
    and why, and what could not be carried over. Ids are in the order in which the threads were imported."""

    ids: tuple[str, ...] = ()
    """Ids of the new threads."""
    updated: tuple[str, ...] = ()
    """Ids of the threads of an earlier import that were extended, because their conversation had grown."""
    skipped: tuple[str, ...] = ()
    """Ids of the threads of an earlier import that were left alone, because their conversation has not changed."""
    failed: dict[str, str] = {}
    """For each conversation that could not be imported, the reason. The keys are those of the source."""
    losses: dict[str, tuple[str, ...]] = {}
    """For each thread of `ids` and `updated`, what could not be carried over, a sentence each. Threads without losses
    are left out."""


async def import_all(
    source: Source,
    store: Checkpointer,
    *,
    keys: Sequence[str] | None = None,
    thread_id: str | None = None,
    progress: Progress | None = None,
    tell: Callable[[Outcome], None] | None = None,
) -> Imported:
    """Write the conversations of another system into `store`, each as a thread. Nothing in the source is changed.

    - **Whole or not at all.** Each thread becomes visible in one step. Any agent can resume it. `clew resume` asks
      first, because nobody on this machine has agreed yet to the settings for an agent that the thread contains.
    - **Goes on.** Run again, after a crash or later, it leaves out the conversations that are in the store already, and
      extends the threads whose conversation has grown since. If the last prompt had no full answer at the earlier
      import, the thread is first rewound to the last message that it shares with the conversation. A thread is never
      changed if an agent worked on it since, or if its conversation was changed before its last prompt: both are
      reported in `failed` of the result.
    - **Says what is missing.** Parts that could not be carried over are listed in the result and in the thread's state.

    `keys` are the conversations to import, or beginnings of their keys; by default all. `thread_id` is the id for the
    thread if there is only one. A conversation that cannot be imported is reported in `failed` and does not stop the
    others. Raises `Unavailable` if the store does not answer.

    `progress` is called with the number of conversations done and the number of all, and `tell` with the outcome of
    each. Conversations are read on the event loop, and each is held in memory as a whole.
    """
    chosen = _chosen(source, keys)
    if thread_id is not None and len(chosen) != 1:
        raise InvalidInput(
            f"the id {thread_id!r} is for one thread, and there are {len(chosen)} conversations. Name the one to import."
        )
    known = await _imported_before(store, source.kind)
    outcomes = []
    for count, key in enumerate(chosen, 1):
        outcome = await _attempt(source, store, key, known.get(key, []), thread_id)
        outcomes.append(outcome)
        if tell is not None:
            tell(outcome)
        if progress is not None:
            progress(count, len(chosen))
    return _summed(outcomes)


def _chosen(source: Source, keys: Sequence[str] | None) -> list[str]:
    """Return the keys of the conversations to import, each once. `keys` are keys, or beginnings of keys that no other
    key has; None means all. Raises `InvalidInput` if one of `keys` fits no conversation of the source, or several."""
    there = list(source.keys())
    return there if keys is None else list(dict.fromkeys(_meant(source.kind, there, key) for key in keys))


def _meant(kind: str, there: Sequence[str], given: str) -> str:
    meant = [given] if given in there else [key for key in there if given and key.startswith(given)]
    if len(meant) == 1:
        return meant[0]
    shown = ", ".join((meant or there)[:_SHOWN]) + (" …" if len(meant or there) > _SHOWN else "")
    if meant:
        raise InvalidInput(f"{given!r} is the beginning of several keys: {shown}. Give more of it.")
    raise InvalidInput(
        f"there is no conversation {given!r} in this data of kind {kind!r}. It has {len(there)}: {shown}"
    )


def _summed(outcomes: Sequence[Outcome]) -> Imported:
    def ids(status: Status) -> tuple[str, ...]:
        return tuple(each.thread_id for each in outcomes if each.status == status)

    return Imported(
        ids=ids("imported"),
        updated=ids("updated"),
        skipped=ids("skipped"),
        failed={each.key: each.reason for each in outcomes if each.status == "failed"},
        losses={each.thread_id: each.losses for each in outcomes if each.losses},
    )


async def _imported_before(store: Checkpointer, kind: str) -> dict[str, list[Head]]:
    """Return the threads that earlier imports from this kind of system have made: a dict with the heads of the threads,
    by the keys of their conversations."""
    found: dict[str, list[Head]] = {}
    async for head in store.heads(HeadQuery(tags={FROM: kind})):
        if head.tags.get(AS) == head.thread_id and KEY in head.tags and not is_hidden(head):
            found.setdefault(head.tags[KEY], []).append(head)
    return found


async def _attempt(
    source: Source, store: Checkpointer, key: str, earlier: list[Head], thread_id: str | None
) -> Outcome:
    """Import the conversation with this key, and return the outcome. An error is returned as the outcome `failed`,
    except `Unavailable`, which is raised if the store does not answer, and `UsageError`. `earlier` are the heads of
    threads that earlier imports made of the conversation, and `thread_id` is the id for the thread, None for the one
    that the source gives."""
    try:
        return await _import(source, store, key, earlier, thread_id)
    except (Unavailable, UsageError):
        raise
    except (ClewError, OSError) as error:
        return Outcome(key=key, status="failed", reason=str(error))


async def _import(source: Source, store: Checkpointer, key: str, earlier: list[Head], thread_id: str | None) -> Outcome:
    """Import the conversation with this key, unless the store has its present version already, and return the outcome.
    `earlier` are the heads of threads that earlier imports made of the conversation. `thread_id` is the id for the
    thread, or None for the one that the source gives."""
    version = source.version(key)
    asked = [head for head in earlier if thread_id in (None, head.thread_id)]
    done = next((head for head in asked if head.tags.get(VERSION) == version), None)
    if done is not None:
        return Outcome(key=key, status="skipped", thread_id=done.thread_id)
    conversation = source.read(key)
    name = thread_id or conversation.thread_id
    before = next((head for head in asked if head.thread_id == name), asked[0] if asked else None)
    tags = {FROM: source.kind, KEY: key, VERSION: version, AS: name if before is None else before.thread_id}
    name = tags[AS]
    if before is None and await _is_taken(store, name, tags):
        return Outcome(key=key, status="skipped", thread_id=name)
    async with _scratch(conversation.files) as scratch:
        lost = await _write(scratch, name, conversation, tags)
        try:
            if before is not None and not await extend(scratch, store, name, before.tags[VERSION]):
                return Outcome(key=key, status="skipped", thread_id=name)
            if before is None:
                await Thread.copy(scratch, store, name)
        except Conflict as conflict:
            if await _is_taken(store, name, tags, before):
                return Outcome(key=key, status="skipped", thread_id=name)
            raise InvalidInput(f"{conflict} If another import is at work, run this one again after it.") from conflict
    return Outcome(key=key, status="imported" if before is None else "updated", thread_id=name, losses=lost)


async def _is_taken(store: Checkpointer, thread_id: str, tags: Mapping[str, str], before: Head | None = None) -> bool:
    """Return whether the store already has the thread that this import is to write: one with the id `thread_id` and
    with `tags`, which name the version of the conversation. Then another process has imported it meanwhile. Returns
    False if the store has no thread with this id.

    If the thread with this id has other tags, raises `InvalidInput`; but returns False if `before` is given, the head
    of the thread to extend. Also raises `InvalidInput` if the id begins with `clew:`: Clew uses such ids itself.
    """
    if thread_id.startswith(_OWN):
        raise InvalidInput(f"a thread cannot be named {thread_id!r}: ids that begin with {_OWN!r} are Clew's own.")
    head = await store.head(thread_id)
    if head is None or is_hidden(head):
        return False
    if all(head.tags.get(name) == value for name, value in tags.items()):
        return True
    if before is None:
        raise InvalidInput(
            f"the store has another thread {thread_id!r}, and it is left alone. Import the conversation under another id."
        )
    return False


@asynccontextmanager
async def _scratch(files: Path | None) -> AsyncIterator[Checkpointer]:
    """Open an empty store for one thread, and discard it when the context ends. It is in memory, or in a temporary file
    if the thread's files, those in the folder `files`, are large."""
    if files is None or _size(files) <= _IN_MEMORY:
        async with MemoryCheckpointer() as memory:
            yield memory
        return
    with tempfile.TemporaryDirectory(prefix="clew-") as folder:
        async with SQLiteCheckpointer(Path(folder, "scratch.db")) as database:
            yield database


def _size(folder: Path) -> int:
    """Return how many bytes the files in a folder have together. If they have more than `_IN_MEMORY`, the most bytes of
    files that are kept in memory, counting stops early, and the result is just some number above that."""
    total = 0
    for parent, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(parent, name)).st_size for name in names)
        if total > _IN_MEMORY:
            break
    return total


async def _write(
    scratch: Checkpointer, thread_id: str, conversation: Conversation, tags: Mapping[str, str]
) -> tuple[str, ...]:
    """Write a conversation as a thread of the temporary store `scratch`, with the id `thread_id`, these tags and the
    conversation's files. Returns a sentence for each part that could not be carried over. The log ends with these
    sentences, then the tags, then the conversation's status if its last entry is one."""
    entries = list(conversation.entries)
    ending = [entries.pop()] if entries and isinstance(entries[-1], StatusChanged) else []
    _check_tags(entries)
    lost = list(conversation.losses)
    async with Thread.open(scratch, thread_id, label="import") as thread:
        for batch in batches(entries, _BATCH):
            await thread.append(*batch)
        if conversation.files is not None:
            snapshot = await Workspace(conversation.files, scratch).snapshot()
            lost += [f"file {skipped.path}: {skipped.reason}" for skipped in snapshot.skipped]
            await thread.append(snapshot.entry())
        if conversation.native is not None:
            provider, key = conversation.native
            async with Journal(thread) as journal:
                await Placement(provider, scratch, thread).capture(journal, key)
        kept = [StateSet(LOSSES, lost)] if lost else []
        await thread.append(*kept, Described(tags={**thread.checkpoint.tags, **tags}), *ending)
    return tuple(lost)


def _check_tags(entries: Sequence[Logged]) -> None:
    """Raise `InvalidInput` if an entry sets a tag whose name begins with `clew:`. Such tags have a meaning for Clew,
    and data of another system could hide a thread with one."""
    for entry in entries:
        own = [tag for tag in (entry.tags or {}) if tag.startswith(_OWN)] if isinstance(entry, Described) else []
        if own:
            raise InvalidInput(
                f"the conversation has the tag {own[0]!r}, and tags that begin with {_OWN!r} are Clew's own."
            )
