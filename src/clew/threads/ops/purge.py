"""Purge: erase a thread, or its messages that a rewind took back, at once instead of at the next gc (garbage
collection)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Sequence

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.base import frees_room
from clew.checkpointers.heads import thread_key
from clew.errors import Conflict, ThreadNotFound
from clew.log import FIRST, Checkpoint, LeaseTaken, encode_entries, encode_frame
from clew.log.checkpoint import TURN_MARK, Fact, Ranges, provider_key
from clew.log.fold import TITLE_LENGTH
from clew.messages import Message, User, plain_text
from clew.threads.appends import append_frames, append_state
from clew.threads.heads import PART, inbox_id, is_part
from clew.threads.inbox import carry_posts, inbox_of
from clew.threads.leases import new_lease, wait_until_free
from clew.threads.ops.gc import Cutoff, below, remove_blobs, unreached
from clew.threads.reader import load

__all__ = ["Purged", "fence", "purge", "purge_rewound", "remove_part", "trimmed"]

_PAUSE = 0.3
"""Seconds to wait before checking which threads reach the blobs that are to be deleted.

A blob that a writer stores or asks for after the start of this wait is not deleted. So if a store takes at most this
many seconds to delete a batch of blobs, no blob is deleted that a thread has begun to need meanwhile. If a store takes
longer, the threads have to be read again.
"""
_OLD_LOG, _NEW_LOG = "clew:old-log", "clew:new-log"


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What `purge` or `purge_rewound` erased: the thread's id, the numbers of messages and blobs, and the bytes freed."""

    thread_id: str
    messages: int = 0
    """Number of messages that `purge_rewound` removed from the history."""
    blobs: int = 0
    freed: int = 0
    """Number of bytes that the deleted blobs took in the store."""


async def purge(checkpointer: Checkpointer, thread_id: str) -> Purged:
    """Delete a thread, and at once every blob that only this thread reaches, however recently it was touched.

    To touch a blob is to store it or to ask for it as a writer, which keeps it from gc for a time. The thread is
    deleted first. So an interruption leaves blobs that no thread reaches, which `gc` deletes later, and never a thread
    that lacks blobs. Raises `ThreadNotFound` if there is no such thread. A blob that another process touches meanwhile
    is left to `gc`. A blob that another process has put but not yet pointed at may be deleted: then its append raises
    `MissingBlob`, writes nothing, and can be made again after another put.

    Takes no lease: a process that holds the thread gets `LeaseLost` at its next append. The inbox of the thread and the
    copy that an interrupted `purge_rewound` left are deleted too. Forks and copies are separate threads and stay. Raises
    `Corrupt` and deletes nothing if the blobs of this thread cannot be determined. If that fails for another thread,
    this one is deleted and its blobs are left to `gc`.
    """
    copy_id = _copy_id(thread_id)
    threads = [name for name in (thread_id, copy_id) if await checkpointer.head(name) is not None]
    if not threads:
        raise ThreadNotFound(thread_id)
    threads = [*await _inboxes(checkpointer, thread_id), *threads]
    refs: set[str] = set()
    for name in threads:
        refs |= await checkpointer.refs(name)
    blobs = await below(checkpointer, refs)
    for name in threads:
        await checkpointer.delete(name)
    deleted, freed = await _erase_blobs(checkpointer, blobs)
    return Purged(thread_id=thread_id, blobs=deleted, freed=freed)


async def _inboxes(checkpointer: Checkpointer, thread_id: str) -> list[str]:
    """Return the ids of the thread's inbox and of the inbox of its old log, if `purge_rewound` was interrupted while it
    replaced that log. Ids of inboxes that do not exist are left out."""
    copy = await checkpointer.head(_copy_id(thread_id))
    inbox = await inbox_of(checkpointer, thread_id)
    old = None if copy is None else inbox_id(thread_id, copy.tags.get(_OLD_LOG, ""))
    if old in (None, inbox) or await checkpointer.head(old) is None:
        old = None
    return [name for name in (inbox, old) if name is not None]


async def purge_rewound(checkpointer: Checkpointer, thread_id: str) -> Purged:
    """Rewrite a thread without the messages that the model can no longer see, not even after a rewind to an earlier
    turn, and erase the old log at once.

    The state stays: the messages that the model sees, those at the end of any turn, usage, values and pending calls.
    Every other message goes, and with the old log every earlier version of everything else. If the title came from a
    message that goes, it is taken from the first user message that stays. Messages move up in the history, so their
    places change.

    Raises `ThreadBusy` if a live process holds the thread; its lease is taken meanwhile. No store can replace a log in
    one step, so this takes four, and two copies exist whenever an interruption could do harm:

    1. The new log is written under a hidden id, and lists all blobs of the old log as needed.
    2. The old log is deleted.
    3. The new log is written under the thread's own id.
    4. The posts in the inbox that are not taken in yet are brought to the inbox of the new log. The old inbox and the
       blobs of the old log that nobody else reaches are deleted, and then the hidden copy.

    If this is interrupted, call it again. The hidden copy names the old and the new log, so it is known which steps are
    done. If the old log exists (after 1), it may have grown, so the copy is dropped and everything starts over. If
    neither exists (after 2), the new log is written from the copy. If the new log exists (after 3), step 4 remains; then
    everything starts over if the thread has messages to erase, whatever the copy says.
    Between 2 and 3 the thread is not found. If someone creates a thread of this id then, `Conflict` is raised and
    nothing is lost: the copy stays until that thread is deleted and this is called again.
    """
    copy = await checkpointer.head(_copy_id(thread_id))
    blobs = freed = 0
    if copy is not None:
        here = await checkpointer.head(thread_id)
        if here is not None and here.log_id == copy.tags.get(_OLD_LOG):
            await checkpointer.delete(copy.thread_id)
        else:
            blobs, freed = await _finish(checkpointer, thread_id, copy)
            if await _is_trimmed(checkpointer, thread_id):
                return Purged(thread_id=thread_id, blobs=blobs, freed=freed)
    copy, removed = await _write_copy(checkpointer, thread_id)
    await checkpointer.delete(thread_id)
    more, room = await _finish(checkpointer, thread_id, copy)
    return Purged(thread_id=thread_id, messages=removed, blobs=blobs + more, freed=freed + room)


async def _is_trimmed(checkpointer: Checkpointer, thread_id: str) -> bool:
    """Return whether a thread's log holds nothing that `purge_rewound` would erase. Then the log is a single frame, and
    the model sees each of its messages now, or would see it after a rewind to an earlier turn.

    `purge_rewound` asks this after it has finished the work of an earlier, interrupted call. The tags of a hidden copy
    alone do not prove that the thread was rewritten, because others than `purge_rewound` can write tags too, and the
    thread may have grown since.
    """
    loaded = await load(checkpointer, thread_id)
    return loaded.head.frames == 1 and trimmed(loaded.state) == loaded.state


async def _finish(checkpointer: Checkpointer, thread_id: str, copy: Head) -> tuple[int, int]:
    """Do the last steps of `purge_rewound`, which has deleted the thread's old log. Steps that were done before a crash
    are not done again. Returns how many blobs were deleted, and their size in bytes.

    Write the new log from the hidden copy of the thread (one that listings leave out), whose head is `copy`. The copy
    lacks the messages that the model can no longer see, not even after a rewind to an earlier turn. Then bring the
    posts that are not taken in yet to the inbox of the new log, and delete the old inbox, the blobs that no thread needs
    any more, and the copy.
    """
    await _write_final(checkpointer, thread_id, copy)
    inbox = inbox_id(thread_id, copy.tags.get(_OLD_LOG, ""))
    await carry_posts(checkpointer, inbox, checkpointer, thread_id)
    refs = await checkpointer.refs(copy.thread_id) | await checkpointer.refs(inbox)
    blobs = await below(checkpointer, refs)
    await checkpointer.delete(inbox)
    erased = await _erase_blobs(checkpointer, blobs, but=copy.thread_id)
    await checkpointer.delete(copy.thread_id)
    return erased


def _copy_id(thread_id: str) -> str:
    """Return the id of the hidden copy (one that listings leave out) that `purge_rewound` makes of a thread.

    It is derived from the thread's id and has a fixed length, because that id may be as long as the limit allows.
    """
    return f"clew:purging:{thread_key(thread_id)}"


async def _write_copy(checkpointer: Checkpointer, thread_id: str) -> tuple[Head, int]:
    """Take the thread's lease, and write a copy of the thread's state that listings leave out. The copy lacks the
    messages that the model can no longer see, not even if the thread is rewound to an earlier turn. This is the first
    step of `purge_rewound`, which deletes these messages.

    Returns the copy's head, and how many messages the copy lacks. Raises `ThreadBusy` if a live process holds the
    thread, and `Conflict` if it is taken over meanwhile.
    """
    loaded = await load(checkpointer, thread_id)
    await wait_until_free(checkpointer, loaded.head)
    fenced = await fence(checkpointer, loaded.head, "purging what was rewound")
    state = trimmed(loaded.state)
    old = await checkpointer.refs(thread_id)
    tags = {PART: "1", _OLD_LOG: fenced.log_id, _NEW_LOG: secrets.token_hex(16)}
    base = msgspec.structs.replace(loaded.head, thread_id=_copy_id(thread_id), log_id=secrets.token_hex(16), lease=None)
    old -= await checkpointer.missing_blobs(old)
    copy = await append_state(checkpointer, base, state, source_id=thread_id, refs=old, tags=tags)
    now = await checkpointer.head(thread_id)
    if now is None or (now.log_id, now.frames) != (fenced.log_id, fenced.frames):
        await checkpointer.delete(copy.thread_id)
        raise Conflict(thread_id, "it was taken over while it was being rewritten, and was left as it is")
    return copy, len(loaded.state.history) - len(state.history)


async def _write_final(checkpointer: Checkpointer, thread_id: str, copy: Head) -> None:
    """Write the new log of the thread, unless that is already done. The log is taken from the hidden copy (one that
    listings leave out) that `purge_rewound` has made of the thread, without the messages that the model can no longer
    see, not even after a rewind to an earlier turn; `copy` is the head of this copy. The old log must have been deleted
    before.

    Raises `Conflict` if there is another thread of this id, and if `copy` is not a copy that `purge_rewound` has made.
    """
    log_id = copy.tags.get(_NEW_LOG, "")
    if not is_part(copy) or not log_id:
        raise Conflict(
            copy.thread_id,
            f"it has the id of the copy that a purge of {thread_id!r} makes, and is no such copy. Delete it",
        )
    here = await checkpointer.head(thread_id)
    if here is None:
        state = (await load(checkpointer, copy.thread_id)).state
        base = msgspec.structs.replace(copy, thread_id=thread_id, log_id=log_id)
        await append_state(checkpointer, base, state, source_id=thread_id)
    elif here.log_id != log_id:
        raise Conflict(
            thread_id,
            f"another thread of this name was made while it was being rewritten; what was to be kept is in the hidden "
            f"thread {copy.thread_id!r}. Fork or delete the new one, then purge again",
        )


async def _erase_blobs(checkpointer: Checkpointer, blobs: Sequence[str], *, but: str | None = None) -> tuple[int, int]:
    """Delete each of these blobs that no thread reaches. The thread with the id `but` is ignored.

    Returns how many were deleted, and how many bytes they took. A blob that a writer stores or asks for from now on
    stays, with the blobs below it. If the deletion is interrupted, blobs below a deleted tree (a blob that points at
    others) are left to gc.
    """
    if not blobs:
        return 0, 0
    cutoff = Cutoff()
    await asyncio.sleep(_PAUSE)
    listing = Cutoff()
    doomed = await unreached(checkpointer, blobs, but=but)
    return await remove_blobs(checkpointer, sorted(doomed), cutoff, listing, but=but)


async def fence(checkpointer: Checkpointer, head: Head, label: str) -> Head:
    """Take the lease of a thread that is about to be deleted, and return its new head. `label` says what the lease is
    for.

    The lease is taken by an append directly after `head`. Raises `Conflict` if the log has grown since. From here on
    nobody else can open the thread without `takeover`, and no former holder can append to it.
    """
    lease = new_lease(label)
    frame = encode_frame(
        [encode_entries([LeaseTaken(str(lease.owner), lease.token)])],
        previous=bytes.fromhex(head.digest) or FIRST,
        thread_id=head.thread_id,
        number=head.frames,
        keys=checkpointer.keys,
    )
    before = frees_room.set(True)
    try:
        return await append_frames(checkpointer, head, [frame], status="running", lease=lease)
    finally:
        frees_room.reset(before)


async def remove_part(checkpointer: Checkpointer, part: Head) -> None:
    """Delete a copy of a thread that was begun and not completed. `part` is its head.

    A frame is appended first: a process that still writes the copy then gets `Conflict`, and cannot complete it. If that
    process has written more since `part` was read, this raises `Conflict` and deletes nothing. Raises `ThreadBusy` if
    another live process is deleting the copy.
    """
    await wait_until_free(checkpointer, part)
    try:
        await fence(checkpointer, msgspec.structs.replace(part, seal=""), "deleting an incomplete copy")
    except Conflict as conflict:
        raise Conflict(
            part.thread_id, "another process is writing a copy with this id. Try again when it has ended"
        ) from conflict
    await checkpointer.delete(part.thread_id)


def trimmed(state: Checkpoint) -> Checkpoint:
    """Return the state without the messages that the model sees neither now nor after any rewind to the end of a turn.

    Has no side effects.
    """
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
    """Return a fact (a value that holds from a turn on) as it is after messages have moved in the history.

    A fact that refers to a message gets the message's new index, or becomes None if the message is gone. Other facts
    are returned unchanged. `places` gives the new index of each message that stays, by its old index.
    """
    if fact.kind == "turn" and fact.key.startswith(TURN_MARK):
        place = places.get(int(fact.key.removeprefix(TURN_MARK)))
        return None if place is None else msgspec.structs.replace(fact, key=f"{TURN_MARK}{place}")
    if fact.kind == "provider" and (known := provider_key(fact)).messages:
        length = sum(old < known.messages for old in places)
        return msgspec.structs.replace(fact, value=[known.key, known.native, known.thread, length])
    return fact


def _moved(ranges: Ranges, places: dict[int, int]) -> Ranges:
    """Return these ranges of indices in the history as ranges of the new indices. Ranges that have become adjacent are
    joined.

    `places` gives the new index of each message that stays, by its old index.
    """
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
    """Return the thread's title. If it was made from a message that is removed, return one made from the first message
    of the user that stays and has text, or an empty title if there is none.

    `kept` are the indices in the history of the messages that stay.
    """
    gone = {_title_of(message) for place, message in enumerate(state.history) if place not in kept}
    left = [_title_of(message) for place, message in enumerate(state.history) if place in kept]
    if not state.title or state.title not in gone or state.title in left:
        return state.title
    return next(filter(None, left), "")


def _title_of(message: Message) -> str:
    return " ".join(plain_text(message).split())[:TITLE_LENGTH] if isinstance(message, User) else ""
