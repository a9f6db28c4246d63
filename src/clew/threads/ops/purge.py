"""Erasure: bytes that are removed now, and not when the next gc comes by."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.heads import thread_key
from clew.errors import Conflict, ThreadNotFound
from clew.log import FIRST, Checkpoint, FoldedState, LeaseTaken, encode_entries, encode_frame
from clew.log.checkpoint import TURN_MARK, Fact, Ranges, provider_key
from clew.log.fold import TITLE_LENGTH
from clew.log.trees import named_trees
from clew.messages import Message, User, plain_text
from clew.threads.heads import PART, head_of
from clew.threads.leases import check_free, new_lease
from clew.threads.ops.gc import Cutoff, below, remove_blobs, unreached
from clew.threads.reader import load
from clew.threads.trees import keep_trees

__all__ = ["Purged", "fence", "purge", "purge_rewound", "trimmed"]

_PAUSE = 0.3
"""Seconds between the moment from which on a touch protects a blob and the look at who reaches it: what a store may take
to get to a deletion without harm."""
_OLD_LOG, _NEW_LOG = "clew:old-log", "clew:new-log"


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased."""

    thread_id: str
    messages: int = 0
    """Messages that `purge_rewound` took out of the history."""
    blobs: int = 0
    freed: int = 0
    """Bytes of those blobs, as they were stored."""


async def purge(checkpointer: Checkpointer, thread_id: str) -> Purged:
    """Delete a thread and, at once, those of its blobs that no other thread reaches, however lately they were touched.

    The thread goes first: what is cut short leaves blobs that nobody reaches, and never a thread that misses some. `gc`
    removes them after its grace; a thread that is not there is `ThreadNotFound`. A blob that somebody else touches while
    this runs is left to `gc` as well. One that somebody has put and not yet pointed at may go: the append that was to
    point at it is `MissingBlob` then, writes nothing, and can be made again after another put.

    Asks for no lease: a process that holds the thread gets `LeaseLost` at its next append. What an interrupted
    `purge_rewound` has kept of the thread goes with it. Forks and copies are threads of their own and stay. If it cannot be
    read what the thread reaches, that is `Corrupt` and nothing is deleted; if that is so of another thread, this one is
    deleted and its blobs are left to `gc`.
    """
    copy_id = _copy_id(thread_id)
    threads = [name for name in (thread_id, copy_id) if await checkpointer.head(name) is not None]
    if not threads:
        raise ThreadNotFound(thread_id)
    refs: set[str] = set()
    for name in threads:
        refs |= await checkpointer.refs(name)
    blobs = await below(checkpointer, refs)
    for name in threads:
        await checkpointer.delete(name)
    deleted, freed = await _erase_blobs(checkpointer, blobs)
    return Purged(thread_id=thread_id, blobs=deleted, freed=freed)


async def purge_rewound(checkpointer: Checkpointer, thread_id: str) -> Purged:
    """Write a thread anew without what no rewind can bring back, and remove the bytes of the old log now.

    What stays is the state: the messages in view and those that the end of some turn can be rewound to, usage, values,
    pending calls. What goes is every other message, and with the old log each earlier form of everything else. A title
    that was taken from a message that goes is taken from the first that stays. Places in the history move: messages that
    stay close up.

    The thread must be free, else `ThreadBusy`; its lease is taken meanwhile. No store can replace a log in one step, so
    it goes in four, and two copies exist at every moment that matters:

    1. the new log is written under a hidden name, with refs to all that the old log pointed at;
    2. the old log is deleted;
    3. the new log is written under the thread's own name;
    4. all blobs of the old log that nobody else reaches are deleted, and then the copy, which remembered them.

    If it is interrupted, call it again. The hidden copy names the old log and the new one, so that it is known how far it
    came. The old log is there (after 1): it is the thread, perhaps with more in it by now, so the copy is dropped and all
    is done again. No log is there (after 2): the new one is written from the copy. The new log is there (after 3): what is
    left is 4. Between 2 and 3 the thread is not found; if somebody makes another one of its name there, that is a
    `Conflict` and nothing is lost: the copy stays until that thread is deleted and this is called again.
    """
    copy = await checkpointer.head(_copy_id(thread_id))
    removed = 0
    if copy is not None:
        here = await checkpointer.head(thread_id)
        if here is not None and here.log_id == copy.tags.get(_OLD_LOG):
            await checkpointer.delete(copy.thread_id)
            copy = None
    if copy is None:
        copy, removed = await _write_copy(checkpointer, thread_id)
        await checkpointer.delete(thread_id)
    await _write_final(checkpointer, thread_id, copy)
    blobs = await below(checkpointer, await checkpointer.refs(copy.thread_id))
    deleted, freed = await _erase_blobs(checkpointer, blobs, but=copy.thread_id)
    await checkpointer.delete(copy.thread_id)
    return Purged(thread_id=thread_id, messages=removed, blobs=deleted, freed=freed)


def _copy_id(thread_id: str) -> str:
    """The name of the hidden copy: of a fixed length, since the thread's own may be as long as names get."""
    return f"clew:purging:{thread_key(thread_id)}"


async def _write_copy(checkpointer: Checkpointer, thread_id: str) -> tuple[Head, int]:
    """Step 1, with the lease of the thread taken; and how many messages the copy lacks."""
    loaded = await load(checkpointer, thread_id)
    check_free(loaded.head)
    fenced = await fence(checkpointer, loaded.head, "purging what was rewound")
    state = trimmed(loaded.state)
    old = await checkpointer.refs(thread_id)
    tags = {PART: "1", _OLD_LOG: fenced.log_id, _NEW_LOG: secrets.token_hex(16)}
    base = msgspec.structs.replace(loaded.head, thread_id=_copy_id(thread_id), log_id=secrets.token_hex(16), lease=None)
    old -= await checkpointer.missing_blobs(old)
    copy = await _write_state(checkpointer, base, state, tags=tags, refs=old)
    now = await checkpointer.head(thread_id)
    if now is None or (now.log_id, now.frames) != (fenced.log_id, fenced.frames):
        await checkpointer.delete(copy.thread_id)
        raise Conflict(thread_id, "it was taken over while it was being rewritten, and was left as it is")
    return copy, len(loaded.state.history) - len(state.history)


async def _write_final(checkpointer: Checkpointer, thread_id: str, copy: Head) -> None:
    """Step 3, unless that is done already."""
    log_id = copy.tags[_NEW_LOG]
    here = await checkpointer.head(thread_id)
    if here is None:
        state = (await load(checkpointer, copy.thread_id)).state
        base = msgspec.structs.replace(copy, thread_id=thread_id, log_id=log_id)
        await _write_state(checkpointer, base, state, tags=state.tags)
    elif here.log_id != log_id:
        raise Conflict(
            thread_id,
            f"another thread of this name was made while it was being rewritten; what was to be kept is in the hidden "
            f"thread {copy.thread_id!r}. Fork or delete the new one, then purge again",
        )


async def _write_state(
    checkpointer: Checkpointer, base: Head, state: Checkpoint, *, tags: dict[str, str], refs: Collection[str] = ()
) -> Head:
    """A new log of one folded state."""
    frame = encode_frame(
        [encode_entries([FoldedState(state)])], previous=FIRST, thread_id=base.thread_id, keys=checkpointer.keys
    )
    base = msgspec.structs.replace(
        base, frames=1, snapshot=0, digest=frame.digest.hex(), updated_at=datetime.now(UTC), lease=None
    )
    head = head_of(state, base, encrypted=checkpointer.keys is not None)
    head = msgspec.structs.replace(head, tags=tags)
    if frame.blobs:
        await checkpointer.put_blobs(frame.blobs)
    trees = named_trees([FoldedState(state)])
    await keep_trees(checkpointer, trees, base.thread_id)
    await checkpointer.append(head.thread_id, [frame.data], at=0, head=head, refs={*frame.blobs, *trees, *refs})
    return head


async def _erase_blobs(checkpointer: Checkpointer, blobs: Sequence[str], *, but: str | None = None) -> tuple[int, int]:
    """Delete those of these that no thread reaches. One that is touched from now on is left alone, with what is below it.

    Should this be cut short, what was below a tree that is gone already is left to gc.
    """
    if not blobs:
        return 0, 0
    cutoff = Cutoff()
    await asyncio.sleep(_PAUSE)
    listing = Cutoff()
    doomed = await unreached(checkpointer, blobs, but=but)
    return await remove_blobs(checkpointer, sorted(doomed), cutoff, listing, but=but)


async def fence(checkpointer: Checkpointer, head: Head, label: str) -> Head:
    """Take the lease of a thread that is about to go, by a marker right behind this head; `Conflict` if it has moved on.

    From here on nobody else can open the thread unless it takes over, and no former holder can append to it.
    """
    lease = new_lease(label)
    frame = encode_frame(
        [encode_entries([LeaseTaken(str(lease.owner), lease.token)])],
        previous=bytes.fromhex(head.digest) or FIRST,
        thread_id=head.thread_id,
        number=head.frames,
        keys=checkpointer.keys,
    )
    fenced = msgspec.structs.replace(
        head,
        frames=head.frames + 1,
        digest=frame.digest.hex(),
        status="running",
        lease=lease,
        updated_at=datetime.now(UTC),
    )
    await checkpointer.append(head.thread_id, [frame.data], at=head.frames, head=fenced)
    return fenced


def trimmed(state: Checkpoint) -> Checkpoint:
    """The same state without the messages that neither the view nor the end of any turn holds. Pure."""
    kept = {place for ranges in (state.view, *state.marks) for start, stop in ranges for place in range(start, stop)}
    if state.open_message >= 0:
        kept.add(state.open_message)
    places = {old: new for new, old in enumerate(sorted(kept))}
    return msgspec.structs.replace(
        state,
        history=tuple(state.history[place] for place in sorted(kept)),
        view=_moved(state.view, places),
        marks=tuple(_moved(ranges, places) for ranges in state.marks),
        open_message=places.get(state.open_message, -1),
        title=_title(state, kept),
        facts=tuple(filter(None, (_moved_fact(fact, places) for fact in state.facts))),
    )


def _moved_fact(fact: Fact, places: dict[int, int]) -> Fact | None:
    """What says something of a place in the history says it of where that is now; None if it is gone."""
    if fact.kind == "turn" and fact.key.startswith(TURN_MARK):
        place = places.get(int(fact.key.removeprefix(TURN_MARK)))
        return None if place is None else msgspec.structs.replace(fact, key=f"{TURN_MARK}{place}")
    if fact.kind == "provider" and (known := provider_key(fact)).messages:
        length = sum(old < known.messages for old in places)
        return msgspec.structs.replace(fact, value=[known.key, known.native, known.thread, length])
    return fact


def _moved(ranges: Ranges, places: dict[int, int]) -> Ranges:
    """The same messages where they are now; stretches that have become neighbours are one."""
    moved: list[tuple[int, int]] = []
    for start, stop in ranges:
        if start >= stop:
            continue
        here = places[start]
        if moved and moved[-1][1] == here:
            here = moved.pop()[0]
        moved.append((here, places[stop - 1] + 1))
    return tuple(moved)


def _title(state: Checkpoint, kept: Collection[int]) -> str:
    """The title, unless it was taken from a message that goes."""
    gone = {_title_of(message) for place, message in enumerate(state.history) if place not in kept}
    left = [_title_of(message) for place, message in enumerate(state.history) if place in kept]
    if not state.title or state.title not in gone or state.title in left:
        return state.title
    return next(filter(None, left), "")


def _title_of(message: Message) -> str:
    return " ".join(plain_text(message).split())[:TITLE_LENGTH] if isinstance(message, User) else ""
