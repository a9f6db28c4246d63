"""Rekey: encrypt every thread of a store again after the key was changed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.heads import thread_key
from clew.checkpointers.sealed import without_keys
from clew.errors import Conflict, InvalidInput, ThreadBusy
from clew.log import sealed_with
from clew.threads.appends import append_frames
from clew.threads.heads import inbox_id, is_hidden, is_part, is_unsealed
from clew.threads.inbox import carry_posts, inbox_of
from clew.threads.leases import note_seen, wait_until_free
from clew.threads.ops.copy import transfer
from clew.threads.ops.purge import fence
from clew.threads.reader import Progress, frames

__all__ = ["Rekeyed", "rekey"]

log = logging.getLogger("clew.threads")

_HIDDEN = "clew:rekeying:"
_NAME, _LOG, _FRAMES = "clew:rekeying", "clew:rekeying-log", "clew:rekeying-frames"
"""Names of the tags on the hidden copy that `rekey` makes. Their values are the id of the copied thread, the id of that
thread's log, and the number of frames copied."""


_Seal = Callable[[Checkpointer, Head], Awaitable[bool]]
"""A function that seals a thread, or returns False if a process works on it."""


class Rekeyed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `rekey`: which threads were encrypted again, how many already had the current key, and which were
    in use."""

    sealed: tuple[str, ...] = ()
    """Ids of the threads that were encrypted with the current key now."""
    already: int = 0
    """Number of threads that were encrypted with the current key already."""
    busy: tuple[str, ...] = ()
    """Ids of threads that a process works on. They were not changed: run `rekey` again later."""


async def rekey(checkpointer: Checkpointer, progress: Progress | None = None) -> Rekeyed:
    """Encrypt again, with the first key of the checkpointer's keyring, every thread that has a frame which is plain or
    encrypted with another key. If only a thread's head has no seal, or that of another key, only the head is written
    again, with a seal. A seal is a code in the head that only somebody with the key can make; it shows that nobody else
    has changed the head. Returns which threads were changed.

    Plain threads and heads without a seal are accepted only if the keyring allows plain data. Otherwise `NotSealed` is
    raised: a seal on what somebody without a key has written would make it look genuine.

    A thread keeps its id, entries and times. What was posted to its inbox and is not taken in yet is encrypted again with
    it. No store can replace a log in one step, so a complete copy exists at every
    moment: the thread is copied to an id that listings leave out, its lease is taken, it is deleted and copied back,
    and then the hidden copy is deleted. If `rekey` is interrupted, run it again: it continues where it was. A thread
    that claims to be such a copy, but has another id or no seal, is left alone. Blobs of the old key are left to gc.
    Threads that a process works on are left out and reported. `progress` is called with the number of threads looked at
    so far and the number of all threads. Raises `InvalidInput` if the checkpointer has no key.
    """
    if checkpointer.keys is None:
        raise InvalidInput("rekey needs a key: open_checkpointer(url, key=[new, old])")
    heads = [head async for head in checkpointer.heads() if not is_part(head)]
    for hidden in [head for head in heads if _NAME in head.tags]:
        if _is_own_copy(hidden):
            await _finish(checkpointer, hidden)
        else:
            log.warning("thread %r has the tags of a copy that rekey makes, and is none: ignored", hidden.thread_id)
    for listed in heads:
        if listed.lease is not None:
            note_seen(listed)  # now, so that the waits for the ends of all these leases run at the same time
    sealed: list[str] = []
    busy: list[str] = []
    already = 0
    for count, listed in enumerate(heads, 1):
        head = await checkpointer.head(listed.thread_id)
        if head is not None and not is_hidden(head):
            seal = await _what_to_seal(checkpointer, head, checkpointer.keys.current)
            if seal is None:
                already += 1
            elif await _is_free(checkpointer, head) and await seal(checkpointer, head):
                sealed.append(head.thread_id)
            else:
                busy.append(head.thread_id)
        if progress is not None:
            progress(count, len(heads))
    return Rekeyed(sealed=tuple(sealed), already=already, busy=tuple(busy))


def _is_own_copy(hidden: Head) -> bool:
    """Return whether `rekey` has made this copy: it has the id that `rekey` gives to a copy of the thread that its tags
    name, and a valid seal, which only somebody with the key can make. A copy replaces the thread that it names, so its
    tags alone, which others can write too, must not be trusted."""
    name = hidden.tags[_NAME]
    return (
        hidden.thread_id == _HIDDEN + thread_key(name) and not is_unsealed(hidden) and {_LOG, _FRAMES} <= {*hidden.tags}
    )


async def _is_free(checkpointer: Checkpointer, head: Head) -> bool:
    try:
        await wait_until_free(checkpointer, head)
    except ThreadBusy:
        return False
    return True


async def _what_to_seal(checkpointer: Checkpointer, head: Head, key_id: str) -> _Seal | None:
    """Return the function that changes a thread to the key with this id. It is `_seal` if a frame is not encrypted with
    this key, and `_seal_head` if only the head's seal (a code that only somebody with the key can make) is missing or
    made with another key. Return None if frames and head have this key already."""
    async for _, data in frames(checkpointer, head):
        if sealed_with(data) != key_id:
            return _seal
    if not await _has_sealed_inbox(checkpointer, head.thread_id, key_id):
        return _seal
    stored = await without_keys(checkpointer).head(head.thread_id)
    return None if stored is not None and stored.seal.startswith(key_id) else _seal_head


async def _has_sealed_inbox(checkpointer: Checkpointer, thread_id: str, key_id: str) -> bool:
    """Return whether everything in the inbox of this thread is encrypted with the key with this id, or there is no
    inbox. An inbox is encrypted again together with its thread, because what was taken in is counted by its log."""
    name = await inbox_of(checkpointer, thread_id)
    stored = None if name is None else await without_keys(checkpointer).head(name)
    if name is None or stored is None:
        return True
    if not stored.seal.startswith(key_id):
        return False
    async for _, data in frames(checkpointer, stored):
        if sealed_with(data) != key_id:
            return False
    return True


async def _seal(checkpointer: Checkpointer, head: Head) -> bool:
    """Encrypt one thread again with the keyring's first key, and return True.

    Returns False, with the thread unchanged, if a process changed it or took its lease meanwhile.
    """
    name = _HIDDEN + thread_key(head.thread_id)
    if (there := await checkpointer.head(name)) is not None and is_unsealed(there):
        await checkpointer.delete(name)  # not by rekey, which seals its copies, and the thread itself is here
    copied = (await transfer(checkpointer, checkpointer, head.thread_id, name)).head
    if copied.frames != head.frames:
        await checkpointer.delete(name)
        return False
    tags = {**copied.tags, _NAME: head.thread_id, _LOG: head.log_id, _FRAMES: str(head.frames)}
    hidden = await _retag(checkpointer, copied, tags)
    try:
        await fence(checkpointer, head, "sealing it under another key")
    except Conflict:
        await checkpointer.delete(name)
        return False
    await checkpointer.delete(head.thread_id)
    await _finish(checkpointer, hidden)
    return True


async def _seal_head(checkpointer: Checkpointer, head: Head) -> bool:
    """Write this head again, so that it gets a seal: a code that only somebody with the current key can make. Returns
    True, or False if another process changed the thread meanwhile."""
    try:
        await append_frames(checkpointer, head, [], updated_at=head.updated_at)
    except Conflict:
        return False
    return True


async def _finish(checkpointer: Checkpointer, hidden: Head) -> None:
    """Replace a thread by its complete hidden copy (one that listings leave out), and delete the copy. `hidden` is the
    copy's head, whose tags name the thread.

    `rekey` takes the thread's lease before the thread is replaced. If the lease was not taken yet, or the thread has
    grown since, the thread stays as it is and only the copy is deleted.
    """
    name = hidden.tags[_NAME]
    there = await checkpointer.head(name)
    if there is not None and there.log_id == hidden.tags[_LOG]:
        if there.frames != int(hidden.tags[_FRAMES]) + 1:
            await checkpointer.delete(hidden.thread_id)
            return
        await checkpointer.delete(name)
    tags = {key: value for key, value in hidden.tags.items() if key not in (_NAME, _LOG, _FRAMES)}
    there = (await transfer(checkpointer, checkpointer, hidden.thread_id, name)).head
    if there.tags != tags:
        await _retag(checkpointer, there, tags)
    inbox = inbox_id(name, hidden.tags[_LOG])
    await carry_posts(checkpointer, inbox, checkpointer, name)
    await checkpointer.delete(inbox)
    await checkpointer.delete(hidden.thread_id)


async def _retag(checkpointer: Checkpointer, head: Head, tags: dict[str, str]) -> Head:
    return await append_frames(checkpointer, head, [], tags=tags, updated_at=head.updated_at)
