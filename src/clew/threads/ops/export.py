"""Export a thread to one portable `.clew` file, encrypted as in the store or plain, and import it again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from clew._runtime import files
from clew.checkpointers import Checkpointer, Head
from clew.errors import ClewError, Corrupt, InvalidInput, MissingBlob, ThreadNotFound
from clew.log import (
    FIRST,
    Compacted,
    Fold,
    FoldedState,
    Frame,
    Logged,
    MessageAdded,
    MessageOutline,
    Rewound,
    encode_entries,
    encode_frame,
    sealed_with,
)
from clew.log.trees import named_trees, rename_trees
from clew.log.weights import ENTRY, FLOOR, weigh
from clew.messages import Assistant
from clew.threads.frames import decoded
from clew.threads.heads import inbox_id, is_part, title_in_head, without_lease
from clew.threads.inbox import carry_posts, posts_in
from clew.threads.ops.archive import Archive, InboxPart, Manifest, TarWriter, format_of, frame_name
from clew.threads.ops.copy import transfer
from clew.threads.ops.gc import below
from clew.threads.reader import Progress, decoded_frames, frames
from clew.threads.trees import TreeMover

__all__ = ["Exported", "export", "import_"]

File = str | os.PathLike[str] | IO[bytes]

MEMORY = 50
"""The most memory that an import may take, as a multiple of the file's size in bytes. `FLOOR` bytes (8 MiB) are allowed
in addition."""
_RANGE = 20  # bytes of a pointer to a range of the history, and of its numbers as msgpack


class Exported(msgspec.Struct, frozen=True):
    """What `export` wrote: the thread, the numbers of frames and blobs, the file's size in bytes, and the id of the key
    that is needed to read the file."""

    thread_id: str
    frames: int
    blobs: int
    bytes: int
    key: str | None
    """The id of the key that is needed to read the file, or None if the file is not encrypted."""


async def export(
    checkpointer: Checkpointer,
    thread_id: str,
    file: File,
    *,
    plain: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write one thread to a `.clew` file: its whole log, its inbox, and every blob they refer to. The file is a tar
    archive.

    Frames are written as they are in the store: an encrypted thread stays encrypted, needs its key for an import, and
    needs no key for the export. With `plain=True` it is decrypted, and anyone who has the file can read it.

    `file` is a path or an open file. A path gets the complete file or nothing: the file is written under another name,
    synced and renamed, and only its owner can read it. If the path exists, `InvalidInput` is raised unless
    `overwrite=True`. The thread is written piece by piece, so it need not fit in memory as a whole. `progress` is
    called with the number of frames and blobs written so far and their total; with `plain=True`, it counts frames only.
    """
    head = await checkpointer.head(thread_id)
    if head is None or is_part(head):
        raise ThreadNotFound(thread_id)
    head = msgspec.structs.replace(without_lease(head), seal="")
    if not isinstance(file, str | os.PathLike):
        return await _write(checkpointer, head, file, plain, None, progress)
    path = Path(file)
    with _explained(path):
        async with _new_file(path, overwrite) as out:
            return await _write(checkpointer, head, out, plain, path.parent, progress)


async def import_(
    checkpointer: Checkpointer,
    file: File,
    *,
    thread_id: str | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Head:
    """Import a thread from a `.clew` file, under its own id or the id `thread_id`. Returns its head.

    Everything is checked before anything becomes visible: the file's members, sizes and digests, the chain of frames,
    the state that their entries add up to, and the head. A damaged or hostile file raises `Corrupt` or `InvalidInput`
    that names the member. What was posted to the thread's inbox and not taken in is in the inbox of the imported thread.
    To read an encrypted file, the checkpointer's keyring must have the file's key; otherwise
    `WrongKey` is raised. If the id is another, or the checkpointer encrypts with another key, the thread is encrypted
    again. A checkpointer without a key accepts only plain files.

    Raises `InvalidInput` if the import would take more memory than 50 times the file's size plus 8 MiB, because a few
    kilobytes can be made to fill any machine. `trust=True` allows it, for a file of your own with highly repetitive
    values.

    If an equal thread of that id exists, nothing is written. Any other thread of that id raises `Conflict`. `progress`
    is called with the number of frames imported so far and the number of all frames.
    """
    name = str(file) if isinstance(file, str | os.PathLike) else str(getattr(file, "name", "the file"))
    with _explained(Path(name)), contextlib.ExitStack() as opened:
        data = await asyncio.to_thread(_open, file, opened)
        archive = await asyncio.to_thread(Archive, data, name, checkpointer.keys)
        anew = checkpointer.keys is not None or archive.manifest.key is not None
        archive.direct = await _check(archive, name, None if trust else _Scales(archive, name, anew))
        source = archive.manifest.thread_id
        new_id = source if thread_id is None else thread_id
        await posts_in(
            archive, archive.inbox, None
        )  # raises an error if one cannot be read, before anything is written
        done = await transfer(archive, checkpointer, source, new_id, progress, extend=False)
        await carry_posts(archive, archive.inbox, checkpointer, new_id)
        return done.head


async def _write(
    checkpointer: Checkpointer, head: Head, out: IO[bytes], plain: bool, folder: Path | None, progress: Progress | None
) -> Exported:
    """Write the members of the `.clew` file to `out`: `clew.json`, the frames, the blobs, and the inbox. Returns the numbers
    of frames and blobs, the file's size, and the id of the key that is needed to read it.

    With `plain`, everything is decrypted. The decrypted frames and blobs go to temporary files in `folder` first,
    because `clew.json` comes before them in `out` and holds the digest of the last frame. `progress` is called with the
    number of frames and blobs written so far and their total; with `plain`, it counts frames only.
    """
    created = datetime.now(UTC)
    tar = TarWriter(out, created)
    inbox = await checkpointer.head(inbox_id(head.thread_id, head.log_id))
    part = None if inbox is None else InboxPart(log_id=inbox.log_id, frames=inbox.frames, digest=inbox.digest)
    if not plain:
        refs = await checkpointer.refs(head.thread_id)
        refs |= set() if inbox is None else await checkpointer.refs(inbox.thread_id)
        digests = sorted(await below(checkpointer, refs))
        last = await checkpointer.read(head.thread_id, start=head.frames - 1, stop=head.frames)
        manifest = _manifest(head, len(digests), sealed_with(last[0]) if last else None, created, part)
        await asyncio.to_thread(tar.add, "clew.json", manifest.encoded())
        async for number, data in frames(checkpointer, head):
            await asyncio.to_thread(tar.add, frame_name(number), data)
            _tell(progress, number + 1, head.frames + len(digests))
        for count, digest in enumerate(digests, 1):
            found = await checkpointer.get_blobs([digest])
            if not found:
                raise MissingBlob([digest], thread_id=head.thread_id)
            await asyncio.to_thread(tar.add, f"blobs/{digest}", found[digest])
            _tell(progress, head.frames + count, head.frames + len(digests))
        if inbox is not None:
            async for number, data in frames(checkpointer, inbox):
                await asyncio.to_thread(tar.add, frame_name(number, "inbox"), data)
    else:
        with (
            tempfile.TemporaryFile(dir=folder) as frame_file,
            tempfile.TemporaryFile(dir=folder) as blob_file,
            tempfile.TemporaryFile(dir=folder) as inbox_file,
        ):
            frame_tar, blob_tar = TarWriter(frame_file, created), TarWriter(blob_file, created)
            inbox_tar = TarWriter(inbox_file, created)
            previous, written = FIRST, set[str]()

            async def put(blobs: dict[str, bytes]) -> None:
                for digest in blobs.keys() - written:
                    await asyncio.to_thread(blob_tar.add, f"blobs/{digest}", blobs[digest])
                    written.add(digest)

            trees = TreeMover(checkpointer, None, put, head.thread_id)
            async for number, data in frames(checkpointer, head):
                frame = await decoded(checkpointer, head.thread_id, number, data)
                entries = rename_trees(frame.entries, await trees.move(named_trees(frame.entries)))
                opened = encode_frame([encode_entries(entries)], previous=previous, now=frame.time)
                previous = opened.digest
                await asyncio.to_thread(frame_tar.add, frame_name(number), opened.data)
                await put(opened.blobs)
                _tell(progress, number + 1, head.frames)
            head = msgspec.structs.replace(head, digest=previous.hex())
            if inbox is not None and part is not None:
                previous = FIRST
                async for number, frame in decoded_frames(checkpointer, inbox):
                    opened = encode_frame([encode_entries(frame.entries)], previous=previous, now=frame.time)
                    previous = opened.digest
                    await asyncio.to_thread(inbox_tar.add, frame_name(number, "inbox"), opened.data)
                    await put(opened.blobs)
                part = msgspec.structs.replace(part, digest=previous.hex())
            manifest = _manifest(head, len(written), None, created, part)
            await asyncio.to_thread(tar.add, "clew.json", manifest.encoded())
            await asyncio.to_thread(tar.add_members, frame_file)
            await asyncio.to_thread(tar.add_members, blob_file)
            await asyncio.to_thread(tar.add_members, inbox_file)
    await asyncio.to_thread(tar.end)
    return Exported(head.thread_id, head.frames, manifest.blobs, tar.size, manifest.key)


def _manifest(head: Head, blobs: int, key: str | None, created: datetime, inbox: InboxPart | None) -> Manifest:
    return Manifest(
        format=format_of(inbox),
        thread_id=head.thread_id,
        frames=head.frames,
        blobs=blobs,
        key=key,
        created=created,
        head=head,
        inbox=inbox,
    )


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


@asynccontextmanager
async def _new_file(path: Path, overwrite: bool) -> AsyncIterator[IO[bytes]]:
    """Create a file that only its owner can read, under a temporary name. On exit it is synced and renamed to `path`.

    After an error it is deleted instead. Raises `InvalidInput` if `path` exists, unless `overwrite` is set.
    """
    taken = InvalidInput(f"{path} exists and is left alone. Choose another name, or say overwrite=True.")
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")

    def create() -> IO[bytes]:
        if not overwrite and os.path.lexists(path):
            raise taken
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return open(os.open(temporary, flags, 0o600), "wb")

    def keep() -> None:
        out.flush()
        files.sync(out.fileno())
        out.close()
        if overwrite:
            os.replace(temporary, path)
        else:
            _name_unless_taken(temporary, path, taken)
        files.sync_folder(path.parent)

    out = await asyncio.to_thread(create)
    try:
        yield out
        await asyncio.to_thread(keep)
    finally:
        out.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _name_unless_taken(temporary: Path, path: Path, taken: InvalidInput) -> None:
    """Rename the file `temporary` to `path`, in one step where the file system supports it. Raises the error `taken` if
    `path` exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise taken from None
    except OSError:
        if os.path.lexists(path):
            raise taken from None
        os.rename(temporary, path)


def _open(file: File, opened: contextlib.ExitStack) -> IO[bytes]:
    """Return the file opened for reading, so that its position can be set. Data from a pipe is copied to an unnamed
    temporary file first.

    Files that this function opens are registered with `opened`, which closes them later.
    """
    if isinstance(file, str | os.PathLike):
        return opened.enter_context(open(file, "rb"))
    if file.seekable():
        return file
    aside = opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    while chunk := file.read(2**20):
        aside.write(chunk)
    return aside


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn the operating system's errors inside the `with` block into Clew's errors, which name `path`."""
    try:
        yield
    except ClewError:
        raise
    except FileNotFoundError as error:
        raise InvalidInput(f"{path}: there is no such file or folder.") from error
    except OSError as error:
        raise files.explain(error, path) from error


_NONSENSE = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors that folding can raise for entries that Clew itself never writes."""


async def _check(archive: Archive, name: str, scales: _Scales | None) -> set[str]:
    """Check that the entries of the log in an archive add up to a state, and that the archive's head agrees with that
    state. The file may be hostile.

    Returns the digests of the blobs that frames refer to directly. Raises `Corrupt` if a check fails. `scales` limits
    the memory that the import takes: each frame is added to it, and it raises `InvalidInput` if the frames take too
    much. With None there is no limit. `name` names the file in errors.
    """
    direct: set[str] = set()
    head, fold = archive.manifest.head, Fold(outline=MessageOutline)
    folded = -1
    async for number, data in frames(archive, head):
        what = f"{name}, member {frame_name(number)!r}"
        try:
            frame = await decoded(archive, head.thread_id, number, data)
            if not 0 <= frame.time < 2**64 or not all(map(_makes_sense, frame.entries)):
                raise Corrupt(f"{what} holds entries that Clew never writes. Export the thread again.")
            if scales is not None:
                scales.add(number, frame)
            direct |= frame.refs | named_trees(frame.entries)
            if number == head.snapshot:
                fold = Fold(outline=MessageOutline)
            fold.push(frame.entries)
            folded = number if any(type(entry) is FoldedState for entry in frame.entries) else folded
        except ClewError:
            raise
        except _NONSENSE as error:
            raise Corrupt(f"{what} cannot be folded ({type(error).__name__}). Export it again.") from error
        if number == head.snapshot and folded != number:
            raise Corrupt(f"{name}, member 'clew.json' says that frame {number} holds a folded state, and it does not.")
    try:
        wrong = _contradiction(head, fold)
    except _NONSENSE as error:
        raise Corrupt(f"{name} cannot be folded ({type(error).__name__}). Export it again.") from error
    if wrong:
        raise Corrupt(
            f"{name}, member 'clew.json': the {wrong} in its head differs from the log. Export the thread again."
        )
    return direct


class _Scales:
    """Refuses to import a thread that would take too much memory. Each frame is passed to `add`, which raises
    `InvalidInput` if the frames so far would take more memory than 50 times the size that they and their blobs have in
    the file, plus 8 MiB."""

    def __init__(self, archive: Archive, name: str, anew: bool) -> None:
        self._archive = archive
        self._name = name
        self._copies = 2 if anew else 0  # how many copies of a frame are in memory while it is encrypted again
        self._seen: set[str] = set()
        self._stored = 0
        self._held = 0.0
        self._ranges = 1

    def add(self, number: int, frame: Frame) -> None:
        """Add frame `number` to the estimate of the memory that the thread in a `.clew` file takes when it is imported.

        Raises `InvalidInput` if all frames added so far would take more memory than 50 times the size that they and
        their blobs have in the file, plus 8 MiB.
        """
        new = frame.refs - self._seen
        self._seen |= new
        self._stored += self._archive.stored(number, new)
        body = encode_entries(frame.entries).entries
        # The state keeps the entries' values, and is encoded once to be compared: this adds half the size of the body.
        self._held += weigh(body)[0] + ENTRY * len(frame.entries) + len(body) / 2
        self._held += _RANGE * sum(map(self._ranges_of, frame.entries))
        if self._held + self._copies * len(body) > MEMORY * self._stored + FLOOR:
            raise InvalidInput(
                f"{self._name}, member {frame_name(number)!r}: reading it would take more memory than {MEMORY} times "
                "its size. If the file is your own and its values are highly repetitive, import it with trust=True."
            )

    def _ranges_of(self, entry: Logged) -> int:
        """Return how many ranges of indices the thread's state has to hold because of this entry, to estimate its
        memory.

        For each response of the model, the state holds which messages the model then sees, as ranges of indices in the
        history. Each rewind to an earlier turn, and each summary that replaces messages, may split these into more
        ranges.
        """
        if type(entry) is FoldedState:
            self._ranges = len(entry.state.view) + 1
        elif type(entry) is Rewound or type(entry) is Compacted:
            self._ranges += 2
        elif type(entry) is not MessageAdded or type(entry.message) is not Assistant:
            return 0
        return self._ranges


def _makes_sense(entry: Logged) -> bool:
    """Return whether Clew can have written this entry. Only rewinds (entries that take the thread back to an earlier
    turn) and folded states (entries that hold the thread's whole state) are examined; for any other entry the result is
    True.

    The result is False for a rewind to a negative turn or number of messages. It is also False for a folded state whose
    indices do not fit its history, or in which the model sees more messages than the history has: such a state can be
    small and yet take very long to process.
    """
    if type(entry) is Rewound:
        return (entry.turn or 0) >= 0 and (entry.messages or 0) >= 0
    if type(entry) is not FoldedState:
        return True
    state = entry.state
    length = len(state.history)
    for ranges in (state.view, *state.marks):
        if any(not 0 <= start <= stop <= length for start, stop in ranges):
            return False
        if sum(stop - start for start, stop in ranges) > length:
            return False
    return (
        len(state.marks) > 0
        and -1 <= state.open_message < length
        and (state.open_message < 0 or type(state.history[state.open_message]) is Assistant)
    )


def _contradiction(head: Head, state: Fold) -> str | None:
    """Return the name of the first field in which the head differs from the state of the log, or None if it agrees."""
    said: dict[str, tuple[object, object]] = {
        "status": (head.status, "interrupted" if state.status == "running" else state.status),
        "title": (head.title or title_in_head(state.title), title_in_head(state.title)),
        "agent": (head.agent, state.agent),
        "model": (head.model, state.model),
        "turns": (head.turns, state.turns),
        "input_tokens": (head.input_tokens, state.usage.input_tokens),
        "output_tokens": (head.output_tokens, state.usage.output_tokens),
        "cost_usd": (head.cost_usd, state.cost_usd),
        "parent": (head.parent, state.parent),
        "tags": (head.tags, state.tags),
    }
    return next((field for field, (one, other) in said.items() if one != other), None)
