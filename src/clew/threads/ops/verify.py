"""Verify: check every byte that a store holds of a thread, and report what is wrong and what can still be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from clew._runtime.text import plural
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.checkpointers.sealed import without_keys
from clew.errors import ClewError, Corrupt, MissingBlob, NewerFormat, ThreadNotFound, WrongKey
from clew.log import (
    DIGEST,
    FIRST,
    PREVIOUS,
    Fold,
    FoldedState,
    Frame,
    MessageOutline,
    decode_frame,
    is_sound,
    sealed_with,
)
from clew.log.blobs import tree_refs, unpack_blob
from clew.log.trees import named_trees
from clew.threads.heads import title_in_head
from clew.threads.reader import next_window

__all__ = ["Problem", "Seen", "Verdict", "is_snapshot", "scan", "verify", "verify_all"]

_CHUNK = 64
"""Number of frames to read from the store at first. Their sizes decide how many are read then."""
_GIVE_UP = 8
"""If the length of the log is unknown, reading stops after this many frames in a row that could not be read."""
_BLOBS = 8
"""Number of blobs to read from the store at once, at most. Blobs may be large."""
_DAMAGE = (Corrupt, NewerFormat)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a thread, in words. Names the frame by number or the blob by digest.

    If neither is set, the problem is in the head.
    """

    what: str
    frame: int | None = None
    blob: str | None = None

    def __str__(self) -> str:
        frame = f"frame {self.frame}" if self.frame is not None else ""
        blob = f"blob {self.blob}" if self.blob is not None else ""
        return f"{', '.join(filter(None, (frame, blob))) or 'head'}: {self.what}"


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


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of a log as it was found in the store, with everything that is wrong with it."""

    number: int
    problems: tuple[Problem, ...] = ()
    frame: Frame | None = None
    """The decoded frame, or None if it could not be read."""
    digest: bytes | None = None
    """The frame's own digest, which the next frame should name as its predecessor's. None if it is unknown."""
    refs: frozenset[str] = frozenset()
    error: ClewError | None = None
    sealed: bool = False
    follows: bool = True
    """False if the predecessor that the frame names, by its digest, is not the frame before it."""

    @property
    def sound(self) -> bool:
        """True if this frame could be decoded and follows the frame before it."""
        return self.frame is not None and self.follows


async def verify(checkpointer: Checkpointer, thread_id: str) -> Verdict:
    """Check everything that a store holds of a thread, and return what is wrong. Takes no lease and changes nothing.

    Checks that each frame is intact and follows the one before it. Checks each folded state (the thread's whole state,
    stored in its log) against the state that the frames before it add up to, and the head against the log, except its
    `log_id`, lease and times. Checks that the thread's list of needed blobs names all blobs that its frames refer to,
    and that these, and all blobs that they point at, exist, are intact and can be unpacked.

    Damage is reported in the result, and never raised. Raises `Unavailable` and `ThreadNotFound`. If the key of an
    encrypted thread is missing, all is checked that can be checked without it.
    """
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
    """Verify the threads that the query lists one after the other, newest first. Yields a verdict for each.

    `progress` is called with the number of threads verified so far and the number of all. If some threads are too
    damaged to be listed, a last verdict with an empty `thread_id` holds the store's own error.
    """
    found: list[str] = []
    unlisted: Corrupt | None = None
    try:
        async for head in without_keys(checkpointer).heads(query):  # `verify` checks each head
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
    except _DAMAGE as error:
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
        except _DAMAGE as error:
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
            blobs, damaged = await _get_blobs(self._checkpointer, batch)
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


def is_snapshot(frame: Frame) -> bool:
    """Return whether reading a log can start at this frame, because it holds a folded state (the thread's state at this
    point) and nothing else."""
    return len(frame.entries) == 1 and isinstance(frame.entries[0], FoldedState)


class _Raw(NamedTuple):
    """A frame as it was read from the store: its number, its bytes, and what went wrong.

    If all is well, `error` is None. If the frame cannot be read, `data` is None. Both are set if the frame itself can
    be read and the damage lies elsewhere, such as between it and the frame before it.
    """

    number: int
    data: bytes | None
    error: ClewError | None


async def scan(checkpointer: Checkpointer, thread_id: str, count: int | None) -> AsyncIterator[Seen]:
    """Yield every frame of a log, with what is wrong with it.

    A damaged frame is yielded too, and does not stop the others. `count` is the number of frames that the log should
    have. If it is None, frames are read up to the log's end.
    """
    previous: bytes | None = FIRST
    async for number, data, error in _raw_frames(checkpointer, thread_id, count):
        seen = await _look_at(checkpointer, thread_id, number, data, error)
        link = None if data is None or seen.digest is None else data[PREVIOUS]
        if previous is not None and link is not None and link != previous:
            broken = Problem("it does not follow the frame before it", frame=number)
            seen = msgspec.structs.replace(seen, problems=(*seen.problems, broken), follows=False)
        previous = seen.digest
        yield seen


async def _raw_frames(checkpointer: Checkpointer, thread_id: str, count: int | None) -> AsyncIterator[_Raw]:
    start, window = 0, _CHUNK
    while count is None or start < count:
        stop = start + window if count is None else min(start + window, count)
        overlap = 1 if start else 0  # so that damage between two chunks is found too
        try:
            chunk = (await checkpointer.read(thread_id, start=start - overlap, stop=stop))[overlap:]
            found = [_Raw(number, data, None) for number, data in enumerate(chunk, start)]
            window = next_window(window, chunk)
        except _DAMAGE as error:
            if window > _CHUNK:  # look for the damage in smaller parts
                window = _CHUNK
                continue
            found = await _one_by_one(checkpointer, thread_id, start, stop, error, known=count is not None)
        for raw in found:
            yield raw
        if len(found) < stop - start:
            return
        start = stop


async def _one_by_one(
    checkpointer: Checkpointer, thread_id: str, start: int, stop: int, blame: ClewError, *, known: bool
) -> list[_Raw]:
    """Read the frames from `start` up to, but not including, `stop` one at a time, because reading them together failed
    with the error `blame`. Return one item for each frame: its bytes, or the error of reading it.

    If every single read succeeds, the last item gets the error `blame`, so that the damage is reported all the same. If
    the log's length is not known (`known` is False), failed reads at the end are left out: the log ends before them.
    """
    found: list[_Raw] = []
    failed = 0
    for number in range(start, stop):
        try:
            one = await checkpointer.read(thread_id, start=number, stop=number + 1)
            if not one:
                break
            between = await _damage_before(checkpointer, thread_id, number) if number else None
            found.append(_Raw(number, one[0], between))
            failed = 0
        except _DAMAGE as error:
            found.append(_Raw(number, None, error))
            failed += 1
            if failed >= _GIVE_UP and not known:
                break
    if not known:
        del found[len(found) - failed :]
    if found and all(raw.error is None for raw in found):
        found[-1] = found[-1]._replace(error=blame)
    return found


async def _damage_before(checkpointer: Checkpointer, thread_id: str, number: int) -> ClewError | None:
    """Read a frame together with the one before it, and return the error that this raises, or None if it raises none.

    So damage between the two is found, where stores may keep records. None if the frame before cannot be read alone.
    """
    try:
        await checkpointer.read(thread_id, start=number - 1, stop=number)
    except _DAMAGE:
        return None
    try:
        await checkpointer.read(thread_id, start=number - 1, stop=number + 1)
    except _DAMAGE as error:
        return error
    return None


async def _look_at(
    checkpointer: Checkpointer, thread_id: str, number: int, data: bytes | None, error: ClewError | None
) -> Seen:
    """Decode one frame with the blobs it refers to, and return it with everything that is wrong with it.

    `data` is the frame as read from the store, or None. `error` is the error of reading it, if there was one.
    """
    problems = [] if error is None else [Problem(str(error), frame=number)]
    if data is None:
        return Seen(number=number, problems=tuple(problems), error=error)
    refs: frozenset[str] = frozenset()
    frame: Frame | None = None
    blobs: dict[str, bytes] = {}
    try:
        frame = decode_frame(data, thread_id, number, keys=checkpointer.keys)
        while frame.missing:
            refs |= frame.refs
            missing = sorted(refs - blobs.keys())
            found, damaged = await _get_blobs(checkpointer, missing)
            blobs |= found
            if absent := set(missing) - found.keys():
                for digest in sorted(absent):
                    what = damaged.get(digest, "it is not in the store")
                    problems.append(Problem(what, frame=number, blob=digest))
                error = error or MissingBlob(absent, thread_id=thread_id)
                frame = None
                break
            frame = decode_frame(data, thread_id, number, blobs, checkpointer.keys)
    except WrongKey as wrong:
        error, frame = wrong, None
        if wrong.key_id is None:
            problems.append(Problem(str(wrong), frame=number))
    except _DAMAGE as damage:
        error, frame = damage, None
        problems.append(Problem(str(damage), frame=number))
    return Seen(
        number=number,
        problems=tuple(problems),
        frame=frame,
        digest=frame.digest if frame is not None else _own_digest(data),
        refs=refs if frame is None else refs | frame.refs,
        error=error,
        sealed=len(data) > 1 and sealed_with(data) is not None,
    )


def _own_digest(data: bytes) -> bytes | None:
    """Return the digest at the end of a frame that cannot be decoded, or None if it does not match the frame's bytes."""
    return data[DIGEST] if is_sound(data) else None


async def _get_blobs(checkpointer: Checkpointer, digests: Collection[str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read these blobs. Return the bytes of each intact blob, and what is wrong with each damaged blob, both by digest.

    Missing blobs are in neither dictionary.
    """
    try:
        return await checkpointer.get_blobs(digests), {}
    except _DAMAGE as error:
        if len(digests) == 1:
            return {}, dict.fromkeys(digests, str(error))
    blobs: dict[str, bytes] = {}
    damaged: dict[str, str] = {}
    for digest in digests:
        found, wrong = await _get_blobs(checkpointer, [digest])
        blobs |= found
        damaged |= wrong
    return blobs, damaged
