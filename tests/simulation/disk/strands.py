"""The OS threads of simulated processes: each runs until its next system call, then the seed decides who goes on.

A strand is a real OS thread, but never runs at the same time as another one or as the event loop: each hands the right to
run to the next. So a run is the same every time, and jobs of the store can be interrupted in the middle, wait for each
other's locks, and be killed there.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from types import SimpleNamespace, TracebackType
from typing import Any
from unittest.mock import patch

from clew._runtime import aio
from clew.checkpointers.files import log, root, store, threads
from tests.simulation.loop import Machine, SimulatedLoop, current_machine

__all__ = ["Killed", "Strands"]


class Killed(BaseException):
    """Raised in a strand of a process that was killed, at each of its system calls, so that it ends without any effect."""


class _Strand:
    """One job on an OS thread of its own."""

    def __init__(self, loop: SimulatedLoop, job: aio.Job, ended: Callable[[_Strand], None]) -> None:
        self.machine = current_machine()
        self.is_done = False
        self.has_failed = False
        self._loop = loop
        self._job = job
        self._ended = ended
        self._pause = 0.0
        self._go, self._back = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._back.acquire()
        context = copy_context()
        _thread.start_new_thread(context.run, (self._run,))

    def step(self) -> None:
        """Let the strand run until it pauses or ends. Called on the event loop, as a callback of the strand's process."""
        self._switch()
        if self.is_done:
            self._ended(self)
            self._job.settle()
        elif self._pause:
            self._loop.call_later(self._pause, self.step)
        else:
            self._loop.call_soon(self.step)

    def end(self) -> None:
        """End the strand of a process that was killed."""
        while not self.is_done:
            self._switch()

    def pause(self, seconds: float) -> None:
        """Let others run, for at least this long. Called on the strand. Raises `Killed` if its process is dead."""
        if not self.machine.is_dead:
            self._pause = seconds
            self._back.release()
            self._go.acquire()
        if self.machine.is_dead:
            raise Killed

    def _switch(self) -> None:
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        _here.strand = self
        try:
            if not self.machine.is_dead:
                self._job.outcome = self._work()
        except BaseException as error:  # noqa: BLE001 - handed to the waiter, whatever it is
            self._job.error = error
        self.is_done = True
        self._back.release()

    def _work(self) -> object:
        """Do the job, and again after a pause as long as it is put off."""
        while True:
            try:
                return self._job.work(None)
            except aio.PutOff as error:
                self.pause(error.seconds)


_here = threading.local()


class Strands:
    """All strands of one run."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._all: dict[_Strand, None] = {}

    def pause(self, seconds: float = 0.0) -> None:
        """Let another process or OS thread run. Called inside a job."""
        strand: _Strand | None = getattr(_here, "strand", None)
        if strand is not None:
            strand.pause(seconds)

    def has_failed(self) -> bool:
        """Return whether a system call of this job has failed."""
        strand: _Strand | None = getattr(_here, "strand", None)
        return strand is None or strand.has_failed

    def fail(self) -> None:
        """Note that a system call of this job fails."""
        _here.strand.has_failed = True

    def end(self, machine: Machine) -> None:
        """End all strands of a process that was killed, except the one that calls this."""
        mine = getattr(_here, "strand", None)
        for strand in [each for each in self._all if each.machine is machine and each is not mine]:
            strand.end()
            del self._all[strand]

    def end_all(self) -> None:
        for machine in {strand.machine: None for strand in self._all}:
            machine.is_dead = True
            self.end(machine)

    @contextmanager
    def replacing_threads(self) -> Iterator[None]:
        """Let the file store run its jobs as strands, for as long as the block runs."""
        locks = SimpleNamespace(Lock=lambda: _Lock(self))
        with ExitStack() as stack:
            stack.enter_context(patch.object(store, "WorkerPool", lambda *given: _Pool(self)))
            stack.enter_context(patch("time.sleep", self.pause))
            for module in (log, root, threads):
                stack.enter_context(patch.object(module, "threading", locks))
            try:
                yield
            finally:
                self.end_all()

    def start(self, work: Callable[[Any], Any], loop: SimulatedLoop) -> aio.Job:
        job = aio.new_job(work, loop)
        strand = _Strand(loop, job, lambda strand: self._all.pop(strand, None))
        self._all[strand] = None
        loop.call_soon(strand.step)
        return job


class _Pool:
    """Stands in for `WorkerPool`: each job is a strand."""

    def __init__(self, strands: Strands) -> None:
        self._strands = strands

    async def run(self, work: Callable[[Any], Any], loop: asyncio.AbstractEventLoop) -> Any:
        assert isinstance(loop, SimulatedLoop)
        return await self._strands.start(work, loop)

    def stop(self) -> None:
        """There is nothing to stop: each strand ends with its job."""


class _Lock:
    """Stands in for `threading.Lock`: waiting for it lets other strands run."""

    def __init__(self, strands: Strands) -> None:
        self._strands = strands
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            self._strands.pause()
        self._is_held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_held = False
