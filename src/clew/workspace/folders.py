"""Folder operations by file descriptor, so that no symbolic link can lead one out of the root.

A path here is relative to the root: names joined by slashes, and the root itself is empty. It is never given to the system
whole. Each of its folders is opened from the one above, and one that is a link is refused.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clew.errors import ClewError, InvalidInput, Unavailable
from clew.workspace.manifest import FileNode, LinkNode, Node, shown

__all__ = [
    "TEMPORARY",
    "Folders",
    "absolute",
    "changed",
    "check_unchanged",
    "explain",
    "explained",
    "is_unchanged",
    "join",
    "split",
    "temporary",
    "temporary_name",
]

TEMPORARY = re.compile(rb"\.clew-[0-9a-f]{16}\.tmp")
"""Names of files that a restore is in the middle of writing: never part of a snapshot, removed by the next restore."""

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_WORKABLE = stat.S_IRWXU


class Folders:
    """The folders below one root, one of which is open at a time. For one thread."""

    def __init__(self, root: int) -> None:
        """`root` is a descriptor of the root, which stays the caller's."""
        self._root = root
        self._path = b""
        self._fd = root
        self._workable = False

    def at(self, path: bytes) -> int:
        """A descriptor of this folder, good until the next call."""
        if path == self._path:
            return self._fd
        if not self._path:
            fd, rest = self._root, path
        elif path.startswith(self._path + b"/"):
            fd, rest = self._fd, path[len(self._path) + 1 :]
        else:
            self.close()
            fd, rest = self._root, path
        self._path, self._fd, self._workable = path, self._walk(fd, rest, path), False
        return self._fd

    def work_at(self, path: bytes) -> int:
        """The same, of a folder in which names are to be made or removed: its owner is allowed to, if it was not."""
        fd = self.at(path)
        if not self._workable:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            if mode & _WORKABLE != _WORKABLE:
                os.fchmod(fd, mode | _WORKABLE)
            self._workable = True
        return fd

    def close(self) -> None:
        if self._fd != self._root:
            os.close(self._fd)
        self._path, self._fd, self._workable = b"", self._root, False

    def _walk(self, start: int, rest: bytes, path: bytes) -> int:
        """Open what lies below a descriptor that is no longer needed, unless it is the root."""
        fd = start
        self._path, self._fd, self._workable = b"", self._root, False
        try:
            for name in rest.split(b"/") if rest else ():
                above, fd = fd, os.open(name, _FOLDER, dir_fd=fd)
                if above != self._root:
                    os.close(above)
        except OSError:
            if fd != self._root:
                os.close(fd)
            raise
        return fd


def absolute(path: str | os.PathLike[str]) -> Path:
    """A path as somebody gave it, `~` for their home, from the root of the system. What can be none is an error."""
    if "\0" in os.fspath(path):
        raise InvalidInput(f"{os.fspath(path)!r}: a path cannot hold NUL characters")
    try:
        full = os.path.abspath(Path(path).expanduser())
        os.fsencode(full)
    except (UnicodeEncodeError, RuntimeError) as error:
        raise InvalidInput(f"{os.fspath(path)!r} is no path: {error}") from error
    return Path(full)


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def split(path: bytes) -> tuple[bytes, bytes]:
    """The folder and the name in it."""
    folder, _, name = path.rpartition(b"/")
    return folder, name


def temporary_name() -> bytes:
    return b".clew-%016x.tmp" % secrets.randbits(64)


@contextmanager
def temporary(fd: int) -> Iterator[bytes]:
    """A temporary name in this folder for something that is to be renamed; gone afterwards if it was not."""
    name = temporary_name()
    try:
        yield name
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=fd)
        raise


def check_unchanged(fd: int, name: bytes, was: Node | None, path: bytes) -> bool:
    """Whether something has this name, made certain to be what a snapshot saw; with `was=None`, that nothing has it.

    So nothing is replaced or removed that no snapshot holds.
    """
    try:
        facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if was is None or not is_unchanged(facts, was, path):
        raise changed(path)
    return True


def is_unchanged(facts: os.stat_result, was: Node, path: bytes) -> bool:
    if facts.st_mtime_ns != was.mtime:
        return False
    if isinstance(was, LinkNode):
        return stat.S_ISLNK(facts.st_mode)
    if not stat.S_ISREG(facts.st_mode) or not isinstance(was, FileNode):
        return False
    return facts.st_size == was.size or was.same_as not in (b"", path)


def changed(path: bytes) -> Unavailable:
    return Unavailable(
        f"{shown(path)!r} was changed by somebody else while its folder was being restored. It was left as it is; "
        "restore again once nobody writes there."
    )


@contextmanager
def explained(path: bytes) -> Iterator[None]:
    """Errors of the operating system within, in Clew's words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT):
            raise changed(path) from error
        raise explain(error, path) from error


def explain(error: OSError, path: bytes) -> ClewError:
    """An operating system's error in Clew's words: what happened, to which file, and what to do."""
    hint = {
        errno.ENOSPC: "the disk is full. Free some space",
        errno.EDQUOT: "the disk quota is used up. Free some space",
        errno.EFBIG: "the file may not grow so large here. Choose another disk",
        errno.EROFS: "the file system is read-only. Make it writable",
        errno.EACCES: "permission denied. Make the folder writable for this user",
        errno.EPERM: "not permitted. Make the folder writable for this user, on a file system that allows this",
        errno.EMFILE: "too many open files. Raise the limit with ulimit -n",
    }.get(error.errno or 0)
    if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.ELOOP):
        return InvalidInput(f"{shown(path)!r} cannot be restored here: {error.strerror}. Restore into another folder.")
    return Unavailable(f"{shown(path)!r}: {hint or error.strerror or error}, then restore again: it goes on from here.")
