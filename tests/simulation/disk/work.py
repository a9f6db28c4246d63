"""Runs of the simulated disk: processes that append, read, list, delete and collect blobs, while the seed fails system
calls, kills processes between any two of them, and cuts the power."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from blake3 import blake3

from clew.checkpointers import Head, HeadQuery
from clew.checkpointers.files.store import FileCheckpointer
from clew.errors import ClewError, Conflict, MissingBlob, Unavailable
from tests.simulation.disk.calls import ROOT, Calls
from tests.simulation.disk.history import Append, Broken, Deletion, History, Read
from tests.simulation.disk.strands import Strands
from tests.simulation.environment import simulated
from tests.simulation.loop import EPOCH, Machine, SimulatedLoop
from tests.simulation.seeds import failure

__all__ = ["STORE", "Run", "simulate"]

STORE = f"{ROOT}/a/store"
GRACE = timedelta(seconds=100)
"""How long a blob must not have been touched before it is collected."""


class Run:
    """One run: what happened, and what the processes were told."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(f"disk {seed}")
        self.dice = self.loop.dice
        self.strands = Strands(self.loop)
        self.calls = Calls(self.loop, self.strands)
        self.calls.before = self._before
        self.history = History(self.loop, self.calls)
        self.names = [f"t{number}" for number in range(self.dice.randint(1, 3))]
        self._deletions = self.dice.choice((0, 0, 1, 4))
        """How often processes delete: an append is made 8 times as often as a deletion of 1."""
        self._made = self._processes = 0
        self.queues = True
        """Whether some appends put their thread into the queue of the workers, which takes more system calls."""
        self._alive: dict[Machine, None] = {}
        self._doom: dict[Machine, int] = {}
        """After how many more system calls each process is killed, of those that are."""
        self._cut_in = 0
        """After how many more system calls the power is cut; 0 for never."""
        self._counted = ""
        """The kind of system calls that count for this; all if it is empty."""

    async def main(self) -> None:
        """Let processes work in several rounds, each after the last has ended or was killed. Then look at what is there,
        and go on with it."""
        self.calls.switches = self.dice.choice((0.05, 0.3, 0.8))
        rate = self.dice.choice((0.0, 0.0, 0.01, 0.05))
        for _ in range(self.dice.randint(1, 4)):
            self.calls.rate = rate
            await self._round()
        self.calls.rate = 0.0
        self._doom.clear()
        self._cut_in = 0
        await self.loop.start(self._new_process(), self._last())

    async def _round(self) -> None:
        processes = [self._new_process() for _ in range(self.dice.randint(1, 3))]
        self._counted = self.dice.choice(("", "sync", "sync", "sync names", "write", "rename"))
        most = 40 if self._counted else 1000
        self._doom = {each: self.dice.randint(1, most // 2) for each in processes if self.dice.random() < 0.4}
        self._cut_in = self.dice.choice((0, self.dice.randint(1, most // 10), self.dice.randint(1, most)))
        work = {each: self.loop.start(each, self._process()) for each in processes}
        while waiting := [task for process, task in work.items() if not process.is_dead and not task.done()]:
            await asyncio.wait(waiting, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        for process, task in work.items():
            if task.done() and not process.is_dead:
                task.result()
                self._end(process)
        self.loop.say("the round is over")

    # Processes

    def _new_process(self) -> Machine:
        self._processes += 1
        process = self.loop.new_machine(f"m.{self._processes}")
        self._alive[process] = None
        return process

    async def _process(self) -> None:
        """One process: several tasks on one store, which is closed when they have ended."""
        store = FileCheckpointer(STORE)
        tasks = [asyncio.create_task(self._task(store)) for _ in range(self.dice.randint(1, 3))]
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _task(self, store: FileCheckpointer) -> None:
        for _ in range(self.dice.randint(2, 6)):
            await asyncio.sleep(self.dice.choice((0.0, 0.001, 1.0, 60.0)) * self.dice.random())
            thread = self.dice.choice(self.names)
            act = self.dice.choices(
                (self._append, self._read, self._list, self._delete, self._blobs, self._collect),
                (8, 3, 2, self._deletions, 3, 1),
            )[0]
            work = asyncio.ensure_future(act(store, thread))
            if self.dice.random() < 0.05:
                await asyncio.sleep(0.01 * self.dice.random())
                work.cancel()
            await asyncio.wait([work])
            if not work.cancelled() and (error := work.exception()) is not None and not isinstance(error, ClewError):
                raise error

    async def _append(self, store: FileCheckpointer, thread: str) -> None:
        """Append at the end that the store tells, and again with the same frames if the outcome is unknown."""
        log, at = await self._end_of(store, thread)
        append = self._new(thread, log, at)
        for _ in range(self.dice.choice((1, 2, 5))):
            try:
                await self._make(store, append)
                return
            except Unavailable:
                await asyncio.sleep(self.dice.random())

    async def _end_of(self, store: FileCheckpointer, thread: str) -> tuple[str, int]:
        head = await self.history.call(f"head {thread}", store.head(thread))
        if head is None:
            self._made += 1
            return f"log{self._made}", 0
        return head.log_id, head.frames

    def _new(self, thread: str, log: str, at: int) -> Append:
        """Note a new append of one or more frames, each of which is unlike all others."""
        self._made += 1
        count = self.dice.choice((1, 1, 3))
        frames = []
        for number in range(count):
            size = self.dice.choice((0, 0, 100, 700, 3000))
            frames.append(f"{self._made}.{number}".encode().ljust(size, self.dice.choice((b".", b"\0"))))
        append = Append(thread, log, at, tuple(frames), (), self.loop.time())
        self.history.appends.append(append)
        return append

    async def _make(self, store: FileCheckpointer, append: Append) -> None:
        now = datetime.fromtimestamp(EPOCH + self.loop.time(), UTC)
        head = Head(
            thread_id=append.thread,
            frames=append.at + len(append.frames),
            log_id=append.log,
            status="running",
            created_at=now,
            updated_at=now,
            due=datetime.fromtimestamp(EPOCH + 60 * append.at, UTC) if self.queues and append.at % 3 else None,
        )
        call = store.append(append.thread, append.frames, at=append.at, head=head, refs=append.refs)
        await self.history.append(append, call)

    async def _read(self, store: FileCheckpointer, thread: str) -> None:
        began = self.loop.time()
        frames = await self.history.call(f"read {thread}", store.read(thread))
        self.loop.say("read %s", [frame[:12].decode() for frame in frames])
        self.history.reads.append(Read(thread, frames, began, self.loop.time(), self.history.epoch))

    async def _list(self, store: FileCheckpointer, thread: str) -> None:
        """List all threads: each that has an append which had returned must be among them, unless it may be deleted."""
        began = self.loop.time()

        async def heads() -> dict[str, Head]:
            return {head.thread_id: head async for head in store.heads(HeadQuery(prefix="t"))}

        if self._made % 2:
            await self._list_queue(store)
            return
        found = await self.history.call("list", heads())
        self.loop.say("listed %s", {name: head.frames for name, head in found.items()})
        for append in self.history.appends:
            is_due = append.outcome == "stored" and append.ended < began
            head = found.get(append.thread)
            is_there = head is not None and head.log_id == append.log and head.frames >= append.at + len(append.frames)
            if is_due and not is_there and not self.history._may_be_deleted(append):
                raise Broken(f"a listing at {began} lacks an append that had returned: {append}")

    async def _list_queue(self, store: FileCheckpointer) -> None:
        """List the queue of the workers, which also removes markers that a crash left behind."""

        async def heads() -> list[Head]:
            return [head async for head in store.heads(HeadQuery(order="due"))]

        found = await self.history.call("list the queue", heads())
        self.loop.say("queued %s", [head.thread_id for head in found])
        if any(head.due is None for head in found):
            raise Broken(f"a thread that is not due is in the queue: {found}")

    async def _delete(self, store: FileCheckpointer, thread: str) -> None:
        deletion = Deletion(thread, self.loop.time())
        self.history.deletions.append(deletion)
        await self.history.call(f"delete {thread}", store.delete(thread))
        deletion.ended = self.loop.time()

    async def _blobs(self, store: FileCheckpointer, thread: str) -> None:
        """Put a blob, which others may put too, and append with it; or append with a blob that was never put."""
        self._made += 1
        number = self.dice.choice((self._made, self.dice.randint(0, 3)))
        data = f"blob {number}".encode().ljust(self.dice.choice((0, 3000)), b".")
        digest = blake3(data).hexdigest()
        is_put = self.dice.random() < 0.8
        if is_put:
            await self.history.call("put", store.put_blobs({digest: data}))
            missing = await self.history.call("missing", store.missing_blobs([digest]))
            found = await self.history.call("get", store.get_blobs([digest]))
            if missing or found != {digest: data}:
                raise Broken(f"a blob that was put is not there: {digest}")
        log, at = await self._end_of(store, thread)
        append = self._new(thread, log, at)
        append.refs = (digest,) if is_put else (blake3(b"never put").hexdigest(),)
        try:
            await self._make(store, append)
        except MissingBlob:
            if is_put:
                raise Broken(f"a blob that was put is missing: {digest}") from None
        except Conflict:
            return
        else:
            if not is_put:
                raise Broken(f"an append without its blob was taken: {append}")

    async def _collect(self, store: FileCheckpointer, thread: str) -> None:
        """Delete the blobs that no thread refers to and that nobody has touched for a while."""

        async def old() -> set[str]:
            return {digest async for digest in store.blobs(untouched_for=GRACE)}

        found = await self.history.call("blobs", old())
        for name in self.names:
            found -= await self.history.call(f"refs {name}", store.refs(name))
        await self.history.call(f"collect {len(found)}", store.delete_blobs(sorted(found), untouched_for=GRACE))

    async def _last(self) -> None:
        """Look at everything through a new store, without faults, and go on with every thread."""
        store = FileCheckpointer(STORE)
        logs = {}
        for name in self.names:
            await self._read(store, name)
            head = await self.history.call(f"head {name}", store.head(name))
            frames = self.history.reads[-1].frames
            if (0 if head is None else head.frames) != len(frames):
                raise Broken(f"{name} has {len(frames)} frames and the head {head}")
            logs[name] = ("" if head is None else head.log_id, frames)
        self.history.check(logs)
        await self._check_queue(store)
        for name in self.names:
            refs = await self.history.call(f"refs {name}", store.refs(name))
            if lost := refs - (await self.history.call("get", store.get_blobs(sorted(refs)))).keys():
                raise Broken(f"{name} refers to blobs that are gone: {lost}")
            before = len(self.history.appends)
            await self._append(store, name)
            if self.history.appends[before].outcome != "stored":
                raise Broken(f"{name} does not go on: {self.history.appends[before]}")
            await self._read(store, name)
        await self._list(store, "")
        await self._check_queue(store)

    async def _check_queue(self, store: FileCheckpointer) -> None:
        """Check that the queue of the workers is exactly the threads whose head says so, while nobody writes."""
        query = HeadQuery(order="due")
        every = [head for name in self.names if (head := await store.head(name)) is not None]
        expected = sorted(filter(query.matches, every), key=query.position, reverse=True)
        if (found := [head async for head in store.heads(query)]) != expected:
            raise Broken(f"the queue is {found} and should be {expected}")

    # Faults

    def _before(self, process: Machine, kind: str) -> None:
        """Kill the process, or cut the power, if it is time."""
        if self._counted not in ("", kind):
            return
        if process in self._doom:
            self._doom[process] -= 1
            if self._doom[process] == 0:
                self._kill(process)
        if self._cut_in:
            self._cut_in -= 1
            if self._cut_in == 0:
                self._cut_power()

    def _kill(self, process: Machine) -> None:
        self.loop.kill(process)
        self._end(process)

    def _cut_power(self) -> None:
        for process in list(self._alive):
            self._kill(process)
        self.history.epoch += 1
        kept = self.calls.disk.cut_power(self.dice)
        self.loop.say("the power is cut; it left %s", kept)

    def _end(self, process: Machine) -> None:
        del self._alive[process]
        process.is_dead = True
        self.strands.end(process)
        self.calls.end(process)


def simulate(
    seed: int,
    check: Callable[[Run], object] = lambda run: None,
    main: Callable[[Run], Coroutine[Any, Any, None]] = Run.main,
) -> list[str]:
    """Run one seed, and return its trace. Raises `Broken`, with the end of the trace, if a promise was broken."""
    run = Run(seed)
    try:
        with simulated(run.loop), run.calls.replacing_the_system(), run.strands.replacing_threads():
            run.loop.run(main(run))
        if run.loop.failures:
            raise Broken(f"errors that nobody was told: {run.loop.failures}")
    except AssertionError as error:
        raise Broken(failure("disk", seed, error, run.loop.trace)) from error
    check(run)
    return run.loop.trace
