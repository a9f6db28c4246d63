"""Verify: check every byte that a store holds of a thread, and report what is wrong and what can still be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable

import msgspec

from clew._runtime.text import plural
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.checkpointers.sealed import without_keys
from clew.errors import Corrupt, ThreadNotFound, WrongKey
from clew.log import (
    FIRST,
    Fold,
    FoldedState,
    MessageOutline,
)
from clew.log.blobs import tree_refs, unpack_blob
from clew.log.trees import named_trees
from clew.threads.heads import inbox_id, is_hidden, is_inbox, title_in_head
from clew.threads.ops.scan import DAMAGE, Problem, Seen, get_blobs, is_snapshot, scan

__all__ = ["Verdict", "verify", "verify_all"]

_BLOBS = 8
"""Number of blobs to read from the store at once, at most. Blobs may be large."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify` for one thread: whether it is sound, its problems, and how many of its frames can be read."""

    thread_id: str
    frames: int
    """Number of frames that the log should have. If the head cannot be read, the number that was found."""
    readable: int
    """Number of undamaged frames at the start of the log, before the first damaged one."""
    sound: bool
    """True if no problem was found, so that `problems` is empty."""
    problems: tuple[Problem, ...] = ()
    key_missing: bool = False
    """True if something could not be decrypted because its key was not given.

    Everything that needs no key was checked.
    """


async def verify(checkpointer: Checkpointer, thread_id: str) -> Verdict:
    """Check everything that a store holds of a thread, and return what is wrong. Takes no lease and changes nothing.

    Checks that each frame is intact and follows the one before it. Checks each folded state (the thread's whole state,
    stored in its log) against the state that the frames before it add up to, and the head against the log, except its
    `log_id`, lease and times. Checks that the thread's list of needed blobs names all blobs that its frames refer to,
    and that these, and all blobs that they point at, exist, are intact and can be unpacked.

    The thread's inbox is checked too: its problems are in the result, and say that they are in the inbox.

    Damage is reported in the result, and never raised. Raises `Unavailable` and `ThreadNotFound`. If the key of an
    encrypted thread is missing, all is checked that can be checked without it.
    """
    verdict = await _verify_log(checkpointer, thread_id)
    try:
        head, _ = await _read_head(checkpointer, thread_id)
        if head is None or is_hidden(head):
            return verdict
        inbox = await _verify_log(checkpointer, inbox_id(thread_id, head.log_id))
    except ThreadNotFound:  # it has no inbox
        return verdict
    return msgspec.structs.replace(
        verdict,
        sound=verdict.sound and inbox.sound,
        problems=(*verdict.problems, *(Problem(f"in the thread's inbox, {problem}") for problem in inbox.problems)),
        key_missing=verdict.key_missing or inbox.key_missing,
    )


async def _verify_log(checkpointer: Checkpointer, thread_id: str) -> Verdict:
    """Check everything that a store holds of a thread, except the thread's inbox. Damage is reported in the result."""
    while True:
        head, problems = await _read_head(checkpointer, thread_id)
        verdict = await _Check(checkpointer, thread_id, head, problems).run()
        if verdict.sound or head is None:
            return verdict
        again, _ = await _read_head(checkpointer, thread_id)
        if again is None or again.log_id == head.log_id:
            return verdict


async def verify_all(
    checkpointer: Checkpointer,
    query: HeadQuery = HeadQuery(),
    *,
    progress: Callable[[int, int | None], None] | None = None,
) -> AsyncIterator[Verdict]:
    """Verify the threads that the query lists one after the other, newest first. Yields a verdict for each. Inboxes
    are checked with their threads.

    `progress` is called with the number of threads verified so far and the number of all. If some threads are too
    damaged to be listed, a last verdict with an empty `thread_id` holds the store's own error.
    """
    found: list[str] = []
    unlisted: Corrupt | None = None
    try:
        async for head in without_keys(checkpointer).heads(query):  # `verify` checks each head
            if not is_inbox(head):
                found.append(head.thread_id)
    except Corrupt as error:
        unlisted = error
    for done, thread_id in enumerate(found, start=1):
        try:
            verdict = await verify(checkpointer, thread_id)
        except ThreadNotFound:  # deleted since it was listed
            continue
        finally:
            if progress is not None:
                progress(done, len(found))
        yield verdict
    if unlisted is not None:
        yield Verdict(thread_id="", frames=0, readable=0, sound=False, problems=(Problem(str(unlisted)),))


async def _read_head(checkpointer: Checkpointer, thread_id: str) -> tuple[Head | None, list[Problem]]:
    try:
        head = await checkpointer.head(thread_id)
    except WrongKey as error:
        return await without_keys(checkpointer).head(thread_id), [Problem(str(error))]
    except DAMAGE as error:
        return None, [Problem(str(error))]
    if head is None:
        raise ThreadNotFound(thread_id)
    return head, []


class _Check:
    """The check of one thread while it runs: the problems so far, and the state that the frames add up to."""

    def __init__(
        self, checkpointer: Checkpointer, thread_id: str, head: Head | None, problems: Iterable[Problem]
    ) -> None:
        self._checkpointer = checkpointer
        self._thread_id = thread_id
        self._head = head
        self._problems = list(problems)
        self._fold: Fold | None = Fold(outline=MessageOutline)
        self._locked: dict[str, list[int]] = {}
        self._locked_blobs: dict[str, list[str]] = {}
        self._snapshot = -1
        self._sealed = False

    async def run(self) -> Verdict:
        found = readable = 0
        last: bytes | None = FIRST
        used: dict[str, int] = {}
        count = None if self._head is None else self._head.frames
        async for seen in scan(self._checkpointer, self._thread_id, count):
            found = seen.number + 1
            readable += seen.sound and readable == seen.number
            last = seen.digest
            for digest in seen.refs if seen.frame is None else {*seen.refs, *named_trees(seen.frame.entries)}:
                used.setdefault(digest, seen.number)
            self._sealed |= seen.sealed
            self._take(seen)
        await self._check_refs(used)
        self._report_keys()
        if self._head is not None:
            self._check_end(self._head, found, last)
        problems = tuple(dict.fromkeys(self._problems))
        return Verdict(
            thread_id=self._thread_id,
            frames=found if self._head is None else self._head.frames,
            readable=readable,
            sound=not problems,
            problems=problems,
            key_missing=bool(self._locked or self._locked_blobs),
        )

    def _take(self, seen: Seen) -> None:
        """Record a frame's problems, and apply its entries to the state.

        After a damaged frame the state is unknown until the next folded state (an entry that holds the thread's whole
        state). A folded state that differs from the state that the frames before it add up to is a problem too.
        """
        self._problems += seen.problems
        if isinstance(seen.error, WrongKey) and seen.error.key_id is not None:
            self._locked.setdefault(seen.error.key_id, []).append(seen.number)
        if not seen.sound:
            self._fold = None
        if seen.frame is None:
            return
        if is_snapshot(seen.frame):
            self._snapshot = seen.number
        for entry in seen.frame.entries:
            try:
                if isinstance(entry, FoldedState):
                    self._take_folded(seen.number, entry)
                elif self._fold is not None:
                    self._fold.push([entry])
            except (LookupError, TypeError, ValueError) as error:
                self._problems.append(Problem(f"its entries cannot be folded: {error!r}", frame=seen.number))
                self._fold = None

    def _take_folded(self, number: int, entry: FoldedState) -> None:
        """Take the folded state (the thread's whole state) in frame `number` as the state from which the check goes on.
        Adds a problem if it differs from the state that the frames before it add up to."""
        before, self._fold = self._fold, Fold(entry.state, outline=MessageOutline)
        if before is not None and number and before.outline() != self._fold.outline():
            what = "it holds a folded state that differs from the fold of the log before it"
            self._problems.append(Problem(what, frame=number))

    async def _check_refs(self, used: dict[str, int]) -> None:
        try:
            refs = await self._checkpointer.refs(self._thread_id)
        except DAMAGE as error:
            self._problems.append(Problem(f"the list of blobs it refers to cannot be read: {error}"))
            refs = set()
        else:
            for digest in sorted(used.keys() - refs):
                what = "the frame refers to this blob and the thread's refs do not name it: gc would delete it"
                self._problems.append(Problem(what, frame=used[digest], blob=digest))
        await self._check_blobs(refs | used.keys(), used)

    async def _check_blobs(self, wanted: Collection[str], used: dict[str, int]) -> None:
        """Note a `Problem` for each of these blobs, and each blob they point at, that is missing or cannot be unpacked.

        `used` gives the number of the frame that refers to a blob, by the blob's digest.
        """
        known = set(wanted)
        waiting = sorted(wanted)
        while waiting:
            batch, waiting = waiting[:_BLOBS], waiting[_BLOBS:]
            blobs, damaged = await get_blobs(self._checkpointer, batch)
            for digest in batch:
                if digest not in blobs:
                    what = damaged.get(digest, "it is not in the store")
                    self._problems.append(Problem(what, frame=used.get(digest), blob=digest))
                    continue
                try:
                    unpack_blob(digest, blobs[digest], self._checkpointer.keys)
                    below = set().union(*tree_refs(blobs[digest])) - known
                except WrongKey as error:
                    self._locked_blobs.setdefault(error.key_id or "", []).append(digest)
                    below = set().union(*tree_refs(blobs[digest])) - known
                except Corrupt as error:
                    self._problems.append(Problem(str(error), frame=used.get(digest), blob=digest))
                    continue
                known |= below
                waiting += sorted(below)

    def _report_keys(self) -> None:
        """Add one problem for each missing key, however many frames or blobs are encrypted with it."""
        for key, frames in self._locked.items():
            what = f"{plural(len(frames), 'frame')} from this one on cannot be opened without key {key}"
            self._problems.append(Problem(what, frame=frames[0]))
        for key, blobs in self._locked_blobs.items():
            what = f"{plural(len(blobs), 'blob')} like this one cannot be opened without key {key}"
            self._problems.append(Problem(what, blob=blobs[0]))

    def _check_end(self, head: Head, found: int, last: bytes | None) -> None:
        """Check that the head names the last frame of the log, and agrees with the state that the log leads to.

        Records each problem. `found` is the number of frames that were found, and `last` is the digest of the last one.
        """
        if head.thread_id != self._thread_id:
            self._problems.append(Problem(f"it is the head of thread {head.thread_id!r}"))
        if found != head.frames or not found:
            self._problems.append(
                Problem(f"it is missing: the log should have {head.frames} frame(s) and ends here", frame=found)
            )
        elif last is not None and last.hex() != head.digest:
            self._problems.append(Problem("it is not the frame that the head names as the last", frame=found - 1))
        if self._fold is not None and found == head.frames:
            for field, stated, true in _differences(head, self._fold, self._snapshot, self._sealed):
                shown = "" if field in ("title", "tags") else f": {stated!r} instead of {true!r}"
                self._problems.append(Problem(f"its {field} does not agree with the log{shown}"))


def _differences(head: Head, fold: Fold, snapshot: int, sealed: bool) -> list[tuple[str, object, object]]:
    """Return the head's fields that differ from the state in `fold`, as (field, value in the head, value from the log).

    `snapshot` is the number of the newest frame that holds the thread's whole state (a folded state). `sealed` says
    that the thread is encrypted.
    """
    usage = fold.usage
    crashed = fold.status == "running" and head.lease is None  # copies drop the lease and say "interrupted"
    status = "interrupted" if crashed and head.status == "interrupted" else fold.status
    pairs: list[tuple[str, object, object]] = [
        ("status", head.status, status),
        ("snapshot", head.snapshot, snapshot),
        ("agent", head.agent, fold.agent),
        ("model", head.model, fold.model),
        ("turns", head.turns, fold.turns),
        ("input_tokens", head.input_tokens, usage.input_tokens),
        ("output_tokens", head.output_tokens, usage.output_tokens),
        ("cost_usd", repr(head.cost_usd), repr(fold.cost_usd)),
        ("parent", head.parent, fold.parent),
        ("tags", head.tags, fold.tags),
    ]
    if not (sealed and not head.title):  # the head of an encrypted thread has no title
        pairs.append(("title", head.title, title_in_head(fold.title)))
    return [pair for pair in pairs if pair[1] != pair[2]]
