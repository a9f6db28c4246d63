"""What the embedded stores need of a file system: privacy, durable folders, full syncs, and errors in clear words."""

from __future__ import annotations

import errno
import os
import secrets
import sys
import time
from pathlib import Path

from clew.errors import ClewError, InvalidInput, Unavailable

__all__ = [
    "WAIT",
    "explain",
    "lock",
    "make_private",
    "make_private_file",
    "make_private_folder",
    "network_file_system",
    "sync",
    "sync_folder",
    "unlock",
    "write_all",
    "write_beside",
]


_NETWORK = {
    "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs",
    "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb2", "smb3", "smbfs",
}  # fmt: skip


def sync(fd: int) -> None:
    """Bring this file's bytes to the disk itself, past the drive's cache where the system allows."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif sys.platform == "win32":
        os.fsync(fd)
    else:
        os.fdatasync(fd)


def sync_folder(path: Path) -> None:
    """Make names created or removed in this folder durable."""
    if sys.platform == "win32":
        return  # no such call there; NTFS journals its folders
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private_folder(path: Path) -> None:
    """Make a folder and those above it, 0700, with their names durable. Folders that exist are left as they are."""
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
    """Make an empty file 0600 with its name durable. One that is there is left as it is, and not even opened: closing
    it would drop the locks that this process holds on it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
    except FileExistsError:
        return
    sync_folder(path.parent)


def make_private(*paths: Path) -> None:
    """Take these files away from the eyes of others, those that are there and ours."""
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
    """Write all of it: one call to the system, and more only if that stops short."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def write_beside(path: Path, data: bytes, *, durable: bool) -> Path:
    """Write a private file that is to take this name, under a temporary one (`.tmp`) in the same folder, ready to rename."""
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


def network_file_system(folder: Path) -> str | None:
    """The kind of network file system this folder is on, or None if it is local or cannot be told."""
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


def explain(error: OSError, path: Path) -> ClewError:
    """An operating system's error in Clew's words: what happened, to which file, and what to do."""
    hint = {
        errno.ENOSPC: "the disk is full; nothing stored was harmed. Free some space and try again",
        errno.EDQUOT: "the disk quota is used up; nothing stored was harmed. Free some space and try again",
        errno.EFBIG: "the file may not grow further; nothing stored was harmed. Raise the file size limit",
        errno.EROFS: "the file system is read-only; make it writable or choose another folder",
        errno.EACCES: "permission denied; make the file and its folder writable for this user",
        errno.EPERM: "permission denied; make the file and its folder writable for this user",
        errno.EMFILE: "too many open files; raise the limit with ulimit -n",
    }.get(error.errno or 0)
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return InvalidInput(f"{path}: {error.strerror}. Choose another path for the store.")
    return Unavailable(f"{path}: {error.strerror or error}: {hint or 'check the disk, then try again'}.")


WAIT = 30.0
"""Seconds to wait for the other holders of a lock before a call is `Unavailable`."""
_FIRST_NAP = 0.0005
_LONGEST_NAP = 0.025

if sys.platform == "win32":
    import msvcrt
    from contextlib import suppress

    _BYTE = 2**31 - 2  # locks there also keep others from reading; so the byte locked is one no file reaches

    def _try(fd: int, shared: bool) -> bool:
        os.lseek(fd, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # knows no shared locks: readers take turns
        except PermissionError:
            return False
        return True

    def unlock(fd: int) -> None:
        os.lseek(fd, _BYTE, os.SEEK_SET)
        with suppress(OSError):  # unlocked already
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try(fd: int, shared: bool) -> bool:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Let go at once. Closing alone would not: a child forked meanwhile may hold a copy of the descriptor."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock(fd: int, path: str | Path, *, shared: bool) -> None:
    """Wait for this lock; `Unavailable` naming the file if others hold it for too long."""
    nap = _FIRST_NAP
    deadline = time.monotonic() + WAIT
    while not _try(fd, shared):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{path}: another process held its lock for {WAIT:.0f} s. Try again, or end that process."
            )
        time.sleep(nap)
        nap = min(nap * 1.5, _LONGEST_NAP)
