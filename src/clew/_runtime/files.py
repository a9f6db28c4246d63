"""File system helpers for the stores that keep their data in files on this machine: private files, durable writes,
locks, and clear errors."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from clew.errors import ClewError, InvalidInput, Unavailable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "NO_MEMORY",
    "Reserve",
    "explain",
    "is_full",
    "lock",
    "make_private",
    "make_private_file",
    "make_private_folder",
    "network_file_system",
    "publish",
    "size",
    "special_kind",
    "sync",
    "sync_folder",
    "sync_path",
    "try_lock",
    "unlock",
    "write_all",
    "write_beside",
]


_NETWORK = {
    "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs",
    "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb2", "smb3", "smbfs",
}  # fmt: skip


def sync(fd: int) -> None:
    """Write the data of this open file to the disk, and wait until it is there. Where the operating system can do so,
    the data is also written out of the drive's own cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif sys.platform == "win32":
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def sync_folder(path: Path) -> None:
    """Make sure that files created, renamed or removed in this folder stay so after a power cut. Does nothing on
    Windows, which has no such call."""
    if sys.platform == "win32":
        return  # Windows has no such call; NTFS journals its folders
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_NO_SYNC = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP}
"""Error numbers (`errno`) that mean that this process may not open a folder, or that its file system cannot sync
folders."""


def sync_path(folder: Path) -> None:
    """Make sure that an existing folder, and every folder above it, still exists under its name after a power cut.
    Another process may have created some of them just before, and may have been killed before their names were on the
    disk. Skips folders that this process has no right to open, and file systems that cannot sync folders."""
    for above in folder.parents:
        try:
            sync_folder(above)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents, for this user only (mode 0700). When the call returns, they survive a
    power cut. Existing folders are left as they are."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        sync_folder(folder.parent)


def make_private_file(path: Path) -> None:
    """Create an empty file, for this user only (mode 0600). When the call returns, it survives a power cut. An existing
    file is left as it is. It is not even opened, because closing it would release the locks that this process holds on
    it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
    except FileExistsError:
        return
    sync_folder(path.parent)


def make_private(*paths: Path) -> None:
    """Restrict each of these files to this user (mode 0600) if it exists, belongs to this user and gives other
    users any access. Does nothing on Windows."""
    if sys.platform == "win32":
        return
    for path in paths:
        try:
            facts = path.stat()
        except FileNotFoundError:
            continue
        if facts.st_mode & 0o077 and facts.st_uid == os.geteuid():
            path.chmod(0o600)


def write_all(fd: int, data: bytes) -> None:
    """Write all of these bytes to the open file. If the operating system writes only a part of them, the rest is
    written with further calls."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def write_beside(path: Path, data: bytes, *, durable: bool) -> Path:
    """Write `data` to a new private file in the folder of `path`, under a temporary name that ends in `.tmp`. Returns
    the path of that file; the caller renames it to `path`. With `durable`, the data is synced to the disk before this
    returns. On an error the temporary file is removed."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        write_all(fd, data)
        if durable:
            sync(fd)
    except BaseException:
        os.close(fd)
        temporary.unlink()
        raise
    os.close(fd)
    return temporary


def size(path: str | Path) -> int:
    """Return the size of a file in bytes, or 0 if there is no such file."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def special_kind(path: Path) -> str | None:
    """Return a word for what is at this path, such as "named pipe", if it is neither a file nor a folder. Return None
    if it is a file or a folder, or if nothing is there. The path is not opened, because to open a pipe can wait for
    ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    kinds = {
        stat.S_IFIFO: "named pipe",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
    }
    return kinds.get(stat.S_IFMT(mode))


def publish(temporary: Path, path: Path) -> bool:
    """Sync a finished file to the disk and give it the name `path`. Returns True when this is done and the name
    survives a power cut. Returns False if there is a file of that name already; then neither file is changed.

    The file also keeps the name `temporary`, which the caller removes. Only on a file system without links is it
    renamed, so that the temporary name is gone.
    """
    fd = os.open(temporary, os.O_RDWR)
    try:
        sync(fd)
    finally:
        os.close(fd)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)
    sync_folder(path.parent)
    return True


def network_file_system(folder: Path) -> str | None:
    """Return the type of the network file system that this folder is on, such as `nfs4`. Returns None if the file
    system is local or its type cannot be found out."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    real = os.path.realpath(folder)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    return kind if kind in _NETWORK else None


class Reserve:
    """A file of `size` bytes that reserves disk space. Deleting from a store takes some disk space too. So when the
    disk is full, this file is removed, and the deletion has room."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def hold(self) -> None:
        """Create the reserve file, unless it exists or the free space on the disk is less than twice its size. Raises
        no error if the file cannot be created: only a deletion on a full disk needs the space that this file
        reserves."""
        with suppress(OSError):
            if self.is_short():
                return
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                if sys.platform == "linux":
                    os.posix_fallocate(fd, 0, self._size)
                else:
                    write_all(fd, bytes(self._size))
            except OSError:
                self.release()
            finally:
                os.close(fd)

    def is_short(self) -> bool:
        """Return whether the disk has less free space than twice the size of the file that reserves space on it."""
        return shutil.disk_usage(self._path.parent).free < 2 * self._size

    def release(self) -> bool:
        """Remove the reserve file, so that a deletion on a full disk can use its space. Returns False if there is no
        such file, or if it cannot be removed."""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True


def is_full(error: BaseException | None) -> bool:
    """Return whether an error of the operating system says that there is no room on the disk."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


NO_MEMORY = (
    "this process got no memory; nothing stored was harmed. End other work on this machine, or give the process more "
    "memory, then try again"
)
"""The message of the `Unavailable` that is raised if a call runs out of memory."""


def explain(error: OSError | MemoryError, path: Path) -> ClewError:
    """Return the `ClewError` to raise in place of an error of the operating system or a lack of memory. Its message
    says what happened, to which file (`path`), and what the user can do."""
    if isinstance(error, MemoryError):
        return Unavailable(f"{path}: out of memory: {NO_MEMORY}.")
    hint = {
        errno.ENOSPC: "the disk is full; nothing stored was harmed. Free some space and try again",
        errno.EDQUOT: "the disk quota is used up; nothing stored was harmed. Free some space and try again",
        errno.EFBIG: "the file may not grow further; nothing stored was harmed. Raise the file size limit",
        errno.EROFS: "the file system is read-only; make it writable or choose another folder",
        errno.EACCES: "permission denied; make the file and its folder writable for this user",
        errno.EPERM: "permission denied; make the file and its folder writable for this user",
        errno.ENOMEM: NO_MEMORY,
        errno.EMFILE: "too many open files; raise the limit with ulimit -n",
    }.get(error.errno or 0)
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return InvalidInput(f"{path}: {error.strerror}. Choose another path for the store.")
    return Unavailable(f"{path}: {error.strerror or error}: {hint or 'check the disk, then try again'}.")


_WAIT = 30.0
"""Seconds that `lock` waits for the lock of a file before it raises `Unavailable`."""
_FIRST_NAP = 0.0005
_LONGEST_NAP = 0.025

if sys.platform == "win32":
    _BYTE = 2**31 - 2  # Windows locks also prevent reads, so lock a byte that is beyond the end of every file

    def try_lock(fd: int, *, shared: bool) -> bool:
        os.lseek(fd, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # msvcrt has no shared locks, so readers wait for each other
        except PermissionError:
            return False
        return True

    def unlock(fd: int) -> None:
        os.lseek(fd, _BYTE, os.SEEK_SET)
        with suppress(OSError):  # unlocked already
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:

    def try_lock(fd: int, *, shared: bool) -> bool:
        """Lock this open file if no other lock is in the way. Several locks with `shared=True` can be held on a file at
        the same time; a lock with `shared=False` excludes all others. Returns whether the file is now locked."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Release the lock on this open file at once. Closing the file is not enough: a child process that was forked
        meanwhile may have a copy of the descriptor, which keeps the lock."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock(fd: int, path: str | Path, *, shared: bool) -> None:
    """Lock this open file, and wait while another lock is in the way. Several locks with `shared=True` can be held on a
    file at the same time; a lock with `shared=False` excludes all others. Raises `Unavailable` after 30 seconds. `path`
    names the file in the error."""
    nap = _FIRST_NAP
    deadline = time.monotonic() + _WAIT
    while not try_lock(fd, shared=shared):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{path}: another process held its lock for {_WAIT:.0f} s. Try again, or end that process."
            )
        time.sleep(nap)
        nap = min(nap * 1.5, _LONGEST_NAP)
