"""Carry out the plan of a restore: remove, write and link files. Each name changes in one step. Files are reached by
descriptors of their folders only, so that no symbolic link can lead elsewhere."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from clew._runtime.aio import WorkerPool, cancel_and_wait
from clew._runtime.batches import batches
from clew._runtime.files import write_all
from clew.checkpointers import Checkpointer
from clew.log.blobs import unpack_blob
from clew.log.keys import Keyring
from clew.workspace.folders import (
    Folders,
    changed,
    check_unchanged,
    explained,
    is_unchanged,
    join,
    split,
    temporary,
    temporary_name,
)
from clew.workspace.ignore import IGNORE_FILE
from clew.workspace.manifest import FileNode, FolderNode, LinkNode, Node, Progress, Skipped, shown
from clew.workspace.plan import FileWork, LinkWork, NameWork, RestorePlan, TouchWork
from clew.workspace.reader import Places, check_length, data_size, fetch, unpack_file

__all__ = ["Output", "apply_plan"]

T = TypeVar("T")

_LANES = 2
"""The most batches of files that are handled at once: while one is written, the next is fetched and unpacked."""
_BATCH_BYTES = 8 * 2**20
_BATCH_FILES = 256
_MOST_CHUNKS = 64
"""The most chunks that are in memory at once for one large file. A chunk is a blob that holds a part of a file."""
_RULES = IGNORE_FILE.encode()
_OLD = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


async def apply_plan(
    root: int, plan: RestorePlan, checkpointer: Checkpointer, progress: Progress | None = None
) -> tuple[Skipped, ...]:
    """Carry out the plan of a restore in the folder that is open as the descriptor `root`. Returns the files, folders
    and links that should have been removed and had to stay, with the reasons. `progress`, if given, is called with the
    number of files written so far and the number of files to write.

    At any time, what is at each path is either as it was before or as the plan wants it. Cancelling waits until the
    files being written are done. A restore that stops half-way, for whatever reason, only has to be run again. Files
    are fetched in batches, and the first batch before anything is changed. So if a restore has only one batch and that
    cannot be fetched, nothing is changed.
    """
    restorer = _Restorer(root, plan, checkpointer, progress)
    try:
        return await restorer.run()
    finally:
        restorer.pool.stop()


class _Restorer:
    """Carries out one plan of a restore. One OS thread writes files while another unpacks their data.

    Measured on two cores, 10,000 files with 413 MB in total were written to a file system in memory in 1.8 s. With two
    OS threads that both unpack and write it took 2.0 s and more processor time, because the two wait for the
    interpreter's lock.
    """

    def __init__(self, root: int, plan: RestorePlan, checkpointer: Checkpointer, progress: Progress | None) -> None:
        self._plan = plan
        self._checkpointer = checkpointer
        self._progress = progress
        self._done = 0
        self._loop = asyncio.get_running_loop()
        self.pool = WorkerPool("clew-restore", 1, partial(Folders, root), Folders.close)

    async def run(self) -> tuple[Skipped, ...]:
        files = batches(self._plan.files, _BATCH_FILES, size=_weight, largest=_BATCH_BYTES)
        first = next(files, [])
        data = await self._load(first)
        kept = await self._run(partial(_clear, self._plan))
        if first:
            await self._write_all(first, data, files)
        await self._run(partial(_finish, self._plan))
        return kept

    async def _run(self, work: Callable[[Folders], T]) -> T:
        return await self.pool.run(work, self._loop)

    async def _load(self, batch: Sequence[FileWork]) -> Sequence[Sequence[bytes]]:
        """Fetch and unpack the data of a batch of files. Returns for each file, in the order of the batch, its data as
        a list of pieces (bytes). A large file is alone in its batch and is fetched while it is written: for it, returns
        an empty sequence."""
        if not batch or _is_large(batch[0]):
            return ()
        packed = await fetch(self._checkpointer, {digest for work in batch for digest in work.item.leaves})
        keys = self._checkpointer.keys
        return await asyncio.to_thread(lambda: [unpack_file(work.path, work.item, packed, keys) for work in batch])

    async def _write_all(
        self, first: Sequence[FileWork], data: Sequence[Sequence[bytes]], others: Iterator[Sequence[FileWork]]
    ) -> None:
        async def write_first() -> None:
            await self._write(first, data)
            await write_more()

        async def write_more() -> None:
            for batch in others:
                await self._write(batch, await self._load(batch))

        lanes = [asyncio.create_task(write_first()), *(asyncio.create_task(write_more()) for _ in range(1, _LANES))]
        try:
            await asyncio.gather(*lanes)
        finally:
            await cancel_and_wait(lanes)

    async def _write(self, batch: Sequence[FileWork], data: Sequence[Sequence[bytes]]) -> None:
        if data:
            await self._run(partial(_write_files, batch, data))
        else:
            await self._write_large(batch[0])
        self._done += len(batch)
        if self._progress is not None:
            self._progress(self._done, len(self._plan.files))

    async def _write_large(self, work: FileWork) -> None:
        """Fetch a file and write it a few chunks (parts of the file) at a time, because it is too large to be in memory
        as a whole."""
        large = _Large(work)
        leaves = work.item.leaves
        step = min(_MOST_CHUNKS, max(1, _BATCH_BYTES * len(leaves) // work.size))
        try:
            await self._run(large.open)
            for start in range(0, len(leaves), step):
                part = leaves[start : start + step]
                packed = await fetch(self._checkpointer, part)
                data = await asyncio.to_thread(_unpack, part, packed, self._checkpointer.keys)
                await self._run(partial(large.write, data))
            await self._run(large.finish)
        finally:
            large.close()


def _unpack(leaves: Sequence[str], packed: Mapping[str, bytes], keys: Keyring | None) -> list[bytes]:
    return [unpack_blob(digest, packed[digest], keys) for digest in leaves]


def _weight(work: FileWork) -> int:
    """Return how many bytes a file counts for when files are grouped into batches. A large file counts for more than a
    batch can hold, so that it is always alone in its batch."""
    return _BATCH_BYTES + 1 if _is_large(work) else work.size


def _is_large(work: FileWork) -> bool:
    return work.size > _BATCH_BYTES or len(work.item.leaves) > _MOST_CHUNKS


def _write_files(batch: Sequence[FileWork], data: Sequence[Sequence[bytes]], folders: Folders) -> None:
    for work, pieces in zip(batch, data, strict=True):
        output = Output(work.path, work.node, work.was)
        with explained(work.path):
            try:
                output.open(folders.work_at(split(work.path)[0]))
                for piece in pieces:
                    output.write(piece)
                output.finish()
            except BaseException:
                output.abandon()
                raise


class _Large:
    """Writes a large file in several calls of `write`, and keeps the folder that holds it open until `close`."""

    def __init__(self, work: FileWork) -> None:
        self._path = work.path
        self._output = Output(work.path, work.node, work.was)
        self._folder = -1

    def open(self, folders: Folders) -> None:
        with explained(self._path):
            self._folder = os.dup(folders.work_at(split(self._path)[0]))
            self._output.open(self._folder)

    def write(self, data: Sequence[bytes], _: Folders) -> None:
        with explained(self._path):
            for piece in data:
                self._output.write(piece)

    def finish(self, _: Folders) -> None:
        with explained(self._path):
            self._output.finish()

    def close(self) -> None:
        if self._folder >= 0:
            self._output.abandon()
            os.close(self._folder)


def _clear(plan: RestorePlan, folders: Folders) -> tuple[Skipped, ...]:
    """Prepare the folder for the files of a restore: remove the files, folders and links that the plan removes, and the
    temporary files of an interrupted restore, and create the new folders. Returns what should have been removed and had
    to stay, with the reasons."""
    if plan.leftovers:
        _remove_leftovers(folders, plan.leftovers)
    kept = _remove_all(plan, folders)
    for path in plan.new_folders:
        folder, name = split(path)
        with explained(path):
            os.mkdir(name, 0o700, dir_fd=folders.work_at(folder))
    return tuple(kept)


def _remove_all(plan: RestorePlan, folders: Folders) -> list[Skipped]:
    """Remove the files, folders and links that the plan of a restore removes. Returns those that had to stay, with the
    reasons.

    A `.clewignore` is removed only together with its folder. If the folder has to stay because of the ignored files in
    it, its `.clewignore` stays too. Without it, these files would become part of the next snapshot.
    """
    kept: list[Skipped] = []
    going = {path for path, was in plan.removals if isinstance(was, FolderNode)}
    rules: dict[bytes, Node] = {}
    for path, was in reversed(plan.removals):
        folder, name = split(path)
        with explained(path):
            if isinstance(was, FolderNode):
                kept += _remove_folder(plan, folders, path, was, rules.pop(path, None))
            elif name == _RULES and folder in going:
                rules[folder] = was
            else:
                _remove(folders, path, was)
    return kept[::-1]


def _remove(folders: Folders, path: bytes, was: Node) -> None:
    folder, name = split(path)
    fd = folders.work_at(folder)
    if check_unchanged(fd, name, was, path):
        os.unlink(name, dir_fd=fd)


def _remove_folder(
    plan: RestorePlan, folders: Folders, path: bytes, was: FolderNode, rules: Node | None
) -> list[Skipped]:
    """Remove an empty folder, the last step of removing a folder whose files are gone already. If `rules` is given, the
    folder may still have that `.clewignore`, which is then removed too.

    The folder has to stay if it holds other files, or if something is mounted there. Then its permissions, which were
    loosened for the removal, become those of `was` (the folder as the last snapshot saw it), and its `.clewignore`
    stays too. Returns what had to stay, the folder and its `.clewignore`, with the reasons; an empty list if the folder
    is gone.
    """
    if rules is not None:
        with suppress(FileNotFoundError):
            if set(os.listdir(folders.at(path))) <= {IGNORE_FILE}:
                _remove(folders, join(path, _RULES), rules)
                rules = None
    folder, name = split(path)
    try:
        os.rmdir(name, dir_fd=folders.work_at(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            reason = "it holds files that are in no snapshot"
        elif error.errno == errno.EBUSY and path not in plan.emptied:
            reason = "something is mounted there"
        else:
            raise
    else:
        return []
    os.fchmod(folders.at(path), was.mode)
    kept = [Skipped(shown(path), reason)]
    if rules is not None:
        kept.insert(0, Skipped(shown(join(path, _RULES)), "it says what is ignored in a folder that has to stay"))
    return kept


def _remove_leftovers(folders: Folders, paths: Collection[bytes]) -> None:
    """Remove the temporary files of an interrupted restore. Skips those that are gone by now or cannot be removed."""
    for path in paths:
        with suppress(OSError):
            _unlink_quietly(folders, path)


def _unlink_quietly(folders: Folders, path: bytes) -> None:
    """Remove a file. The mode and the time of the folder that holds it are afterwards as they were before."""
    folder, name = split(path)
    facts = os.fstat(folders.at(folder))
    fd = folders.work_at(folder)
    try:
        os.unlink(name, dir_fd=fd)
    finally:
        os.fchmod(fd, stat.S_IMODE(facts.st_mode))
        os.utime(fd, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _finish(plan: RestorePlan, folders: Folders) -> None:
    """Do what comes after all files are written: make their further names (hard links) and the symbolic links, and set
    modes and times. Symbolic links come after all files, so that no file is ever written through one. Modes and times
    of folders come last, because work in a folder changes its time."""
    for name in plan.names:
        with explained(name.path):
            _make_name(folders, name)
    for link in plan.links:
        with explained(link.path):
            _make_link(folders, link)
    for touch in plan.touches:
        with explained(touch.path):
            _touch(folders, touch)
    for path in sorted(plan.settled, key=lambda path: path.count(b"/") if path else -1, reverse=True):
        node = plan.settled[path]
        with explained(path):
            fd = folders.at(path)
            os.fchmod(fd, node.mode)
            os.utime(fd, ns=(node.mtime, node.mtime))


def _make_name(folders: Folders, work: NameWork) -> None:
    first_folder, first_name = split(work.first)
    folder, name = split(work.path)
    source = os.dup(folders.at(first_folder))
    try:
        fd = folders.work_at(folder)
        if _is_same(source, first_name, fd, name):
            return
        check_unchanged(fd, name, work.was, work.path)
        with temporary(fd) as other:
            os.link(first_name, other, src_dir_fd=source, dst_dir_fd=fd, follow_symlinks=False)
            os.rename(other, name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(source)


def _is_same(source: int, first: bytes, fd: int, name: bytes) -> bool:
    """Return whether two names are hard links to the same file already. The names are `first`, in the folder that is
    open as `source`, and `name`, in the folder that is open as `fd`. Renaming one over the other would then do nothing
    at all."""
    there = os.stat(first, dir_fd=source, follow_symlinks=False)
    try:
        return os.path.samestat(there, os.stat(name, dir_fd=fd, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _make_link(folders: Folders, work: LinkWork) -> None:
    folder, name = split(work.path)
    fd = folders.work_at(folder)
    with temporary(fd) as other:
        os.symlink(work.node.target, other, dir_fd=fd)
        os.utime(other, ns=(work.node.mtime, work.node.mtime), dir_fd=fd, follow_symlinks=False)
        check_unchanged(fd, name, work.was, work.path)
        os.rename(other, name, src_dir_fd=fd, dst_dir_fd=fd)


def _touch(folders: Folders, work: TouchWork) -> None:
    folder, name = split(work.path)
    fd, node = folders.at(folder), work.item.node
    times = (node.mtime, node.mtime)
    if isinstance(node, LinkNode):
        if check_unchanged(fd, name, work.was, work.path):
            os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)
        return
    file = os.open(name, _OLD, dir_fd=fd)
    try:
        facts = os.fstat(file)
        if not is_unchanged(facts, work.was, work.path) or facts.st_nlink > 1:
            raise changed(work.path)
        os.fchmod(file, node.mode)
        os.utime(file, ns=times)
    finally:
        os.close(file)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Output:
    """Writes one file under a temporary name, and renames it to its real name when it is complete.

    Call `open`, then `write` for each piece of data, then `finish`. If anything fails, call `abandon`, which deletes
    the temporary file and leaves the real name as it was.
    """

    def __init__(self, path: bytes, node: FileNode, was: Node | None) -> None:
        """Prepare to write the file at `path` with the size, mode and time that `node` gives. `was` is the file or link
        that is at `path` now, or None if nothing is. If that has changed by the time the new file is complete, the
        method `finish` raises `Unavailable` and replaces nothing."""
        self._path = path
        self._node = node
        self._was = was
        self._temporary = temporary_name()
        self._places = Places(node.extents) if node.extents is not None else None
        self._written = 0
        self._folder = self._fd = -1

    def open(self, folder: int) -> None:
        """Create the temporary file in the folder that is open as the descriptor `folder`. The caller must keep the
        descriptor open until the method `finish` or `abandon` has returned."""
        self._folder = folder
        self._fd = os.open(self._temporary, _NEW, 0o600, dir_fd=folder)

    def write(self, piece: bytes) -> None:
        self._written += len(piece)
        if self._written > data_size(self._node):
            check_length(self._path, self._node, self._written)
        if self._places is None:
            write_all(self._fd, piece)
            return
        for offset, part in self._places.take(piece):
            done = 0
            while done < len(part):
                done += os.pwrite(self._fd, part[done:], offset + done)

    def finish(self) -> None:
        node = self._node
        check_length(self._path, node, self._written)
        if self._places is not None:
            os.ftruncate(self._fd, node.size)
        os.fchmod(self._fd, node.mode)
        os.utime(self._fd, ns=(node.mtime, node.mtime))
        self._close()
        name = split(self._path)[1]
        check_unchanged(self._folder, name, self._was, self._path)
        os.rename(self._temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def abandon(self) -> None:
        self._close()
        if self._folder >= 0:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
