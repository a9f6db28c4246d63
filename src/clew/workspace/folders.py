"""Folder operations by file descriptor, so that no symbolic link can lead out of a root folder.

A path here is relative to the root folder: names joined by slashes. The root folder itself is the empty path. A path is
never given to the operating system whole: each of its folders is opened from the one above, and a folder that is a link
is refused.
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
"""Matches the temporary names under which a restore writes files. Files with such a name are never part of a snapshot,
and the next restore removes those that an interrupted one left."""

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_WORKABLE = stat.S_IRWXU


class Folders:
    """Opens folders below one root folder, and keeps one of them open at a time. It must be used by one OS thread only."""

    def __init__(self, root: int) -> None:
        """`root` is a descriptor of the folder to which all paths are relative. This object never closes it: the caller
        does, when this object is not used any more."""
        self._root = root
        self._path = b""
        self._fd = root
        self._workable = False

    def at(self, path: bytes) -> int:
        """Open the folder `path`, which is relative to the root, and return its descriptor. The descriptor is valid
        until the next call of a method. Raises `OSError` if the folder, or one on the way to it, is missing or is a
        link."""
        if path == self._path:
            return self._fd
        if not self._path:
            fd, rest = self._root, path
        elif path.startswith(self._path + b"/"):
            fd, rest = self._fd, path[len(self._path) + 1 :]
        else:
            self.close()
            fd, rest = self._root, path
        self._path, self._fd, self._workable = path, self._walk(fd, rest), False
        return self._fd

    def work_at(self, path: bytes) -> int:
        """Open the folder `path`, in which names are to be made or removed, and return its descriptor. The descriptor
        is valid until the next call of a method. If the mode of the folder does not let its owner make and remove
        names, the mode is changed so that it does."""
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

    def _walk(self, start: int, rest: bytes) -> int:
        """Open a folder and return its descriptor. `rest` is its path relative to the folder that is open as `start`.
        Closes `start` and all folders in between, except the top folder of this object, which stays open."""
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
    """Return a path that a user gave as an absolute path, with `~` expanded. Raises `InvalidInput` if it cannot be a
    path."""
    if "\0" in os.fspath(path):
        raise InvalidInput(f"{os.fspath(path)!r}: a path must not hold NUL characters")
    try:
        full = os.path.abspath(Path(path).expanduser())
        os.fsencode(full)
    except (UnicodeEncodeError, RuntimeError) as error:
        raise InvalidInput(f"{os.fspath(path)!r} is not a path: {error}") from error
    return Path(full)


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def split(path: bytes) -> tuple[bytes, bytes]:
    """Split a path into the path of its folder and its last name. The folder's path is empty if `path` is a single
    name."""
    folder, _, name = path.rpartition(b"/")
    return folder, name


def temporary_name() -> bytes:
    return b".clew-%016x.tmp" % secrets.randbits(64)


@contextmanager
def temporary(fd: int) -> Iterator[bytes]:
    """Give a new temporary name for a file in the folder that is open as `fd`. The code in the `with` block creates a
    file of that name there and renames it. If the block fails, a file that still has the temporary name is removed."""
    name = temporary_name()
    try:
        yield name
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=fd)
        raise


def check_unchanged(fd: int, name: bytes, was: Node | None, path: bytes) -> bool:
    """Return whether the name exists in the folder that is open as `fd`. Raises `Unavailable` if it exists but is no
    longer the file or link `was`, which the last snapshot saw there. `was` is None if the snapshot saw nothing.

    Call this before a name is replaced or removed, so that nothing is lost that no snapshot holds. `path` names the
    file in the error.
    """
    try:
        facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if was is None or not is_unchanged(facts, was, path):
        raise changed(path)
    return True


def is_unchanged(facts: os.stat_result, was: Node, path: bytes) -> bool:
    """Return whether a file or link still has the kind, modification time and size that a snapshot saw. `facts` is its
    stat result now, `was` is what the snapshot lists, and `path` is its path from the root. For a further name of a
    file (a hard link) the size is not compared, because a snapshot keeps the right size only at the first name. Returns
    False for every folder."""
    if facts.st_mtime_ns != was.mtime:
        return False
    if isinstance(was, LinkNode):
        return stat.S_ISLNK(facts.st_mode)
    if not stat.S_ISREG(facts.st_mode) or not isinstance(was, FileNode):
        return False
    return facts.st_size == was.size or was.same_as not in (b"", path)


def changed(path: bytes) -> Unavailable:
    return Unavailable(
        f"{shown(path)!r} was changed by another program while its folder was being restored. It was left as it is; "
        "restore again once no program writes there."
    )


@contextmanager
def explained(path: bytes) -> Iterator[None]:
    """Turn an `OSError` inside the `with` block into a Clew error that names `path` and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT):
            raise changed(path) from error
        raise explain(error, path) from error


def explain(error: OSError, path: bytes) -> ClewError:
    """Return the Clew error for an error of the operating system. It says what happened, to which file, and what to do."""
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
    return Unavailable(
        f"{shown(path)!r}: {hint or error.strerror or error}, then restore again. It continues from here."
    )
