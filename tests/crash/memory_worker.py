"""A process that gets no memory now and then: works on a store meanwhile, and reports what came of it.

There are two ways to run out of memory. With `allocations.c`, compiled, in LD_PRELOAD, calls of malloc by SQLite and its
wrapper fail: all that such a call does before and after is real. Python's own allocations cannot be failed one by one like
this, because some extensions and Python itself end the process then; so `MemoryError` is raised at chosen lines of the
store's own code, as if the line had asked for memory. Reads one `Task` for each line and answers each with one `Report`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import linecache
import random
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

import msgspec

import clew
from clew._runtime.aio import WorkerPool
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.checkpointers.sqlite.engine import Engine
from clew.errors import ClewError, Unavailable
from tests.crash.work import Ledger, Op, blobs_of, check, frames_of, go_on, head_of, next_op

__all__ = ["Report", "Task", "Whose"]

OPERATIONS = 12
TRIES = 40
T = TypeVar("T")
Whose = Literal["library", "lines"]


class Task(msgspec.Struct, frozen=True):
    """Work on the store at this URL while the allocations, or the lines of code, from number `first` to `last` fail."""

    url: str
    whose: Whose
    first: int
    last: int


class Report(msgspec.Struct):
    """What the process was told: a `Ledger` can be fed with `said`. `wrong` is what broke a promise, `failed` how many
    calls ended with an error of Clew, and `counted` how many allocations or lines there were."""

    said: list[str] = []
    wrong: list[str] = []
    failed: int = 0
    counted: int = 0


class Library:
    """Fails allocations of the library that brings SQLite."""

    def __init__(self) -> None:
        self._shim = ctypes.CDLL(None)
        self._shim.allocations_end.restype = ctypes.c_long
        self._shim.allocations_fail.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_char_p]

    def start(self, first: int, last: int) -> None:
        assert self._shim.allocations_fail(first, last, b"site-packages/apsw/")

    def end(self) -> int:
        counted: int = self._shim.allocations_end()
        return counted


class Lines:
    """Raises `MemoryError` at lines of the stores' code, on the OS threads that work for a store."""

    _FOLDERS = tuple(
        str(Path(clew.__file__).parent / name)
        for name in ("checkpointers/files/", "checkpointers/sqlite/", "_runtime/files.py")
    )
    _SPARED = re.compile(
        r"\s*(try:|finally:|else:|except|raise|return|yield|pass|with |if [^(]*:$"
        r"|(os|db|connection|self)\.\w*(close|_close|roll_back|forget|unlink)\(|temporary\.unlink|files\.unlock|fcntl\.flock|self\._opening\.release"
        r"|roll_back|self\._?\w+ = )"
    )
    """Lines that ask for no memory, most of which clean up after a failure. A `with` is one: Python comes to its line once
    more to leave it, and an error there would leave a lock held."""

    def __init__(self) -> None:
        self._first = self._last = self._counted = 0
        for name in ("_transact", "_connect_writer"):
            setattr(Engine, name, self._counting(getattr(Engine, name)))
        run = WorkerPool.run

        async def run_counting(pool: WorkerPool, work: Callable[[Any], T], loop: asyncio.AbstractEventLoop) -> T:
            return await run(pool, self._counting(work), loop)

        WorkerPool.run = run_counting  # type: ignore[method-assign, assignment]

    def start(self, first: int, last: int) -> None:
        self._first, self._last, self._counted = first, last, 0

    def end(self) -> int:
        self._first = self._last = 0
        return self._counted

    def _counting(self, work: Callable[..., T]) -> Callable[..., T]:
        def run(*given: Any, **options: Any) -> T:
            sys.settrace(self._trace if self._last else None)
            try:
                return work(*given, **options)
            finally:
                sys.settrace(None)

        return run

    def _trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        if not path.startswith(self._FOLDERS):
            return None
        if event == "line" and not self._SPARED.match(linecache.getline(path, frame.f_lineno)):
            self._counted += 1
            if self._first <= self._counted <= self._last:
                raise MemoryError(f"{Path(path).name}:{frame.f_lineno}")
        return self._trace


async def work(task: Task, faults: Library | Lines, report: Report) -> None:
    """Append, read and delete while memory is missing, then check that all is well when it is there again."""
    dice, ledger = random.Random(task.url), Ledger()

    def say(line: str) -> None:
        report.said.append(line)
        ledger.feed(line)

    async with open_checkpointer(task.url) as store:
        faults.start(task.first, task.last)
        for _ in range(OPERATIONS):
            await step(store, dice, say, report)
        report.counted = faults.end()
        report.wrong += await check(store, ledger)
        report.wrong += await go_on(store, ledger, dice, ["t0", "t1", "t2", "another"])
        report.wrong += await check(store, ledger)
    for ops in ledger.settled.values():
        report.said += [f"ack {op}" for op in ops]


async def step(store: Checkpointer, dice: random.Random, say: Callable[[str], None], report: Report) -> None:
    """Make one operation of a thread, then read the thread and list all."""
    thread = f"t{dice.randrange(3)}"
    op = next_op(dice, thread, await insist(report, "head", lambda: store.head(thread)), deletes=0.15)
    await insist(report, str(op), lambda: attempt(store, op, say))
    say(f"ack {op}")
    frames = await insist(report, "read", lambda: store.read(thread))
    if op.kind == "append" and frames[op.at :] != frames_of(op):
        report.wrong.append(f"{op} is acknowledged and not read")

    async def listed() -> set[str]:
        return {head.thread_id async for head in store.heads()}

    if (thread in await insist(report, "list", listed)) is not (op.kind == "append"):
        report.wrong.append(f"{op} is acknowledged and not listed")


async def attempt(store: Checkpointer, op: Op, say: Callable[[str], None]) -> None:
    blobs = blobs_of(op)
    if blobs:
        await store.put_blobs(blobs)
    say(f"start {op}")
    if op.kind == "delete":
        await store.delete(op.thread)
    else:
        await store.append(op.thread, frames_of(op), at=op.at, head=head_of(op), refs=blobs)


async def insist(report: Report, what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Make this call again until it succeeds. Notes an error that is not `Unavailable`."""
    for _ in range(TRIES):
        try:
            return await call()
        except Unavailable:
            report.failed += 1
        except ClewError as error:
            report.failed += 1
            report.wrong.append(f"{what}: {error!r}, from {error.__cause__!r}")
        except BaseException as error:
            report.wrong.append(f"{what}: a raw {error!r}")
            raise
    raise AssertionError(f"{what} does not succeed, with memory for everything")


def main() -> None:
    faults = Library() if sys.argv[1] == "library" else Lines()
    for line in sys.stdin:
        task, report = msgspec.json.decode(line, type=Task), Report()
        try:
            asyncio.run(work(task, faults, report))
        except BaseException as error:  # noqa: BLE001 - told to the test
            faults.end()
            report.wrong.append(f"{type(error).__name__}: {error}")
        gc.collect()
        print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
