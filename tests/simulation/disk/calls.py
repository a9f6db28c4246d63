"""The system calls of simulated processes: `os`, `fcntl.flock` and `io.open`, for paths under `/simulated`.

Before each call the seed may let another process run, kill the process or cut the power, or make the call fail. A killed
process makes no call any more: each raises `Killed`.
"""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace, TracebackType
from typing import Any
from unittest.mock import patch

from tests.crash.disk import SECTOR
from tests.simulation.disk.filesystem import FREE, FileSystem, Inode, Open, facts_of, failure
from tests.simulation.disk.strands import Killed, Strands
from tests.simulation.loop import EPOCH, Machine, SimulatedLoop, current_machine

__all__ = ["ROOT", "Calls"]

ROOT = "/simulated"
_FIRST = 1_000_000
"""The first descriptor of a simulated file. No real one is as high."""
_FAILING = {
    "open": (errno.EIO, errno.EMFILE, errno.ENOSPC),
    "read": (errno.EIO,),
    "write": (errno.EIO, errno.ENOSPC),
    "sync": (errno.EIO,),
    "sync names": (errno.EIO,),
    "truncate": (errno.EIO,),
    "rename": (errno.EIO, errno.ENOSPC),
    "make": (errno.EIO, errno.ENOSPC),
    "remove": (errno.EIO,),
    "touch": (errno.EIO,),
    "look": (errno.EIO,),
}
"""The kinds of calls that may fail, and with which errors."""


class Calls:
    """The system calls of all processes of one machine."""

    def __init__(self, loop: SimulatedLoop, strands: Strands) -> None:
        self.disk = FileSystem()
        self.rate = 0.0
        """How likely each call fails, if none has failed before in the same job of the store."""
        self.faults: dict[Machine, int] = {}
        """How many calls of each process have failed."""
        self.switches = 0.3
        """How likely another process or OS thread runs before a call."""
        self.before: Callable[[Machine, str], None] = lambda machine, kind: None
        """Called with the process and the kind of call before each call; may kill the process."""
        self._loop = loop
        self._dice = loop.dice
        self._strands = strands
        self._numbers = itertools.count(_FIRST)
        self._open: dict[Machine, dict[int, Open]] = {}

    def end(self, machine: Machine) -> None:
        """Close all files of a process that has ended, which releases its locks."""
        for opened in self._open.pop(machine, {}).values():
            opened.inode.pending = [(True, change) for _, change in opened.inode.pending]

    @contextmanager
    def replacing_the_system(self) -> Iterator[None]:
        """Send the calls for paths and descriptors of the simulated disk here, for as long as the block runs."""
        with ExitStack() as stack:
            for module, name, simulated in (
                *((os, name, getattr(self, name)) for name in _BY_PATH + _BY_DESCRIPTOR),
                (fcntl, "flock", self.flock),
                (io, "open", self.open_to_read),
            ):
                real = getattr(module, name)
                stack.enter_context(patch.object(module, name, _either(real, simulated)))
            yield

    # Calls by path

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        name = self._enter("open", path)
        found = self.disk.find(name)
        if found is None:
            if not flags & os.O_CREAT:
                raise failure(errno.ENOENT, path)
            found = self.disk.make(name, folder=False, now=self._now())
            self._say("makes %s", name)
        elif flags & os.O_EXCL:
            raise failure(errno.EEXIST, path)
        number = next(self._numbers)
        self._open.setdefault(current_machine(), {})[number] = Open(found, name)
        return number

    def open_to_read(self, path: Any, mode: str = "r", *given: Any, **options: Any) -> io.BytesIO:
        assert mode == "rb", "the model only knows how to read whole files"
        found = self.disk.get(self._enter("read", path))
        return io.BytesIO(bytes(found.content))

    def stat(self, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        return facts_of(self.disk.get(self._enter("look", path)))

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        name = self._enter("make", path)
        self.disk.make(name, folder=True, now=self._now())
        self._say("makes the folder %s", name)

    def unlink(self, path: Any) -> None:
        name = self._enter("remove", path)
        self.disk.remove(name, self._now())
        self._say("removes %s", name)

    def replace(self, source: Any, target: Any) -> None:
        old, new = self._enter("rename", source), _relative(target)
        self.disk.rename(old, new, self._now())
        self._say("renames %s to %s", old, new)

    def utime(self, path: Any, *, ns: tuple[int, int]) -> None:
        found = self.disk.get(self._enter("touch", path))
        found.modified, found.changed = ns[1], self._now()

    def listdir(self, path: Any) -> list[str]:
        return list(self.disk.get(self._enter("look", path)).now)

    def scandir(self, path: Any) -> _Entries:
        name = self._enter("look", path)
        return _Entries([_Entry(self, f"{path}/{child}", child) for child in self.disk.get(name).now])

    def statvfs(self, path: Any) -> SimpleNamespace:
        self._enter("look", path)
        return SimpleNamespace(f_bavail=FREE, f_blocks=FREE, f_bfree=FREE, f_frsize=1)

    # Calls by descriptor

    def close(self, fd: int) -> None:
        if current_machine().is_dead:
            raise Killed
        del self._open[current_machine()][fd]

    def read(self, fd: int, size: int) -> bytes:
        opened = self._opened("read", fd)
        if size > 1 and self._dice.random() < 0.02:
            size = self._dice.randint(1, size)
        data = bytes(opened.inode.content[opened.place : opened.place + size])
        opened.place += len(data)
        return data

    def write(self, fd: int, data: bytes | memoryview) -> int:
        opened = self._file(fd)

        def write_a_part() -> None:
            self._place(opened, self._first_part(opened, data))

        self._begin("write", opened.path, if_killed=write_a_part)
        if self._dice.random() < 0.1:
            data = self._first_part(opened, data) or data
        self._place(opened, data)
        return len(data)

    def _first_part(self, opened: Open, data: bytes | memoryview) -> bytes | memoryview:
        """Return what a write that is cut short has written. The system writes sector after sector."""
        ends = [place - opened.place for place in range(opened.place, opened.place + len(data)) if place % SECTOR == 0]
        return data[: self._dice.choice([0, *ends])]

    def _place(self, opened: Open, data: bytes | memoryview) -> None:
        opened.inode.write(opened.place, bytes(data), self._now())
        self._say("writes %d bytes at %d of %s", len(data), opened.place, opened.path)
        opened.place += len(data)

    def lseek(self, fd: int, place: int, whence: int) -> int:
        assert whence == os.SEEK_SET
        self._file(fd).place = place
        return place

    def fstat(self, fd: int) -> os.stat_result:
        return facts_of(self._file(fd).inode)

    def ftruncate(self, fd: int, size: int) -> None:
        opened = self._opened("truncate", fd)
        opened.inode.truncate(size, self._now())
        self._say("cuts %s to %d bytes", opened.path, size)

    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        opened = self._opened("write", fd)
        if offset + size > len(opened.inode.content):
            opened.inode.truncate(offset + size, self._now())

    def fsync(self, fd: int) -> None:
        inode = self._file(fd).inode
        try:
            opened = self._opened("sync names" if inode.folder else "sync", fd)
        except OSError:
            inode.fail_to_sync()
            raise
        opened.inode.sync()
        self._say("syncs %s", opened.path)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def flock(self, fd: int, how: int) -> None:
        opened = self._opened("lock", fd)
        if how & fcntl.LOCK_UN:
            opened.lock = ""
            return
        others = [each.lock for each in self._opens(opened.inode) if each is not opened]
        if "exclusive" in others or ("shared" in others and how & fcntl.LOCK_EX):
            raise failure(errno.EWOULDBLOCK)
        opened.lock = "exclusive" if how & fcntl.LOCK_EX else "shared"

    # What each call begins with

    def _enter(self, kind: str, path: Any) -> str:
        self._begin(kind, path)
        return _relative(path)

    def _opened(self, kind: str, fd: int) -> Open:
        opened = self._file(fd)
        self._begin(kind, opened.path)
        return opened

    def _file(self, fd: int) -> Open:
        if current_machine().is_dead:
            raise Killed
        return self._open[current_machine()][fd]

    def _begin(self, kind: str, what: object, if_killed: Callable[[], None] = lambda: None) -> None:
        """Let others run, if the seed says so, and fail the call, if it says so. If the process is killed in this very
        call, do what the kernel may have done of it."""
        machine = current_machine()
        if machine.is_dead:
            raise Killed
        if self._dice.random() < self.switches:
            self._strands.pause()
        self.before(machine, kind)
        if machine.is_dead:
            if_killed()
            raise Killed
        is_able = kind in _FAILING and not self._strands.has_failed()
        if self.rate and is_able and self._dice.random() < self.rate:
            self._strands.fail()
            code = self._dice.choice(_FAILING[kind])
            self.faults[machine] = self.faults.get(machine, 0) + 1
            self._say("fails to %s %s: %s", kind, what, errno.errorcode[code])
            raise failure(code, what)

    def _opens(self, inode: Inode) -> Iterator[Open]:
        for files in self._open.values():
            yield from (each for each in files.values() if each.inode is inode)

    def _now(self) -> int:
        return round((EPOCH + self._loop.time()) * 1e9)

    def _say(self, text: str, *values: object) -> None:
        self._loop.say(text, *values)


class _Entry:
    """What `os.scandir` yields."""

    def __init__(self, calls: Calls, path: str, name: str) -> None:
        self._calls = calls
        self.path = path
        self.name = name

    def stat(self) -> os.stat_result:
        return self._calls.stat(self.path)


class _Entries(list[_Entry]):
    def __enter__(self) -> _Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to close."""


_BY_PATH = ("open", "stat", "mkdir", "unlink", "replace", "utime", "listdir", "scandir", "statvfs")
_BY_DESCRIPTOR = ("close", "read", "write", "lseek", "fstat", "ftruncate", "posix_fallocate", "fsync", "fdatasync")


def _either(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `simulated` if its first argument is a path or a descriptor of the simulated disk."""

    def call(what: Any = ".", *given: Any, **options: Any) -> Any:
        is_ours = what >= _FIRST if isinstance(what, int) else str(what).startswith(ROOT)
        return (simulated if is_ours else real)(what, *given, **options)

    return call


def _relative(path: Any) -> str:
    return str(path).removeprefix(ROOT).strip("/")
