"""The event loop of the simulation: virtual time, and machines whose turns a seed decides.

Each machine stands for one process with an event loop of its own. Its callbacks run in the order in which they were
scheduled, as asyncio promises. Which machine runs its next callback is drawn from the seed. Time passes only in two
ways: each callback takes `STEP` seconds, and if no machine has anything to do, the clock jumps to the next timer. No
real time is looked at, so a run takes as long as its work takes the processor.

A callback belongs to the machine whose task scheduled it: the context variable `current` says which machine runs now.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar

from clew._runtime import aio

__all__ = ["STEP", "Machine", "SimulatedLoop", "Stuck", "current_machine"]

STEP = 20e-6
"""Seconds of virtual time that one callback takes."""
LONGEST = 2_000_000
"""The most callbacks of one run. More of them mean that something runs in circles."""
EPOCH = 1_750_000_000.0
"""The time of day at which each run begins, in seconds since 1970."""

T = TypeVar("T")


class Stuck(AssertionError):
    """Raised if nothing will ever happen again although the run has not ended, or if it goes on without end."""


class Machine:
    """A machine of the simulation: one process, with clocks of its own.

    `ahead` is how many seconds its time of day is ahead of the real one. Its steady clock started at another moment than
    those of other machines, `steady` seconds before the run.
    """

    def __init__(self, name: str, *, ahead: float = 0.0, steady: float = 0.0) -> None:
        self.name = name
        self.ahead = ahead
        self.steady = steady
        self.wakes = 0.0
        """The machine is frozen, as by SIGSTOP, until the loop's time is this. Its steady clock goes on."""
        self.is_dead = False
        self.belongings: dict[str, Any] = {}
        """What this process has in its modules' global variables. `Environment` puts it there while the machine runs."""
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return self.name


_NOWHERE = Machine("nowhere")
"""What runs when no simulation runs, such as the end of a coroutine that is dropped. It is dead: it schedules nothing."""
_NOWHERE.is_dead = True
current: ContextVar[Machine] = ContextVar("current", default=_NOWHERE)


def current_machine() -> Machine:
    """Return the machine whose code runs now."""
    return current.get()


class _NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number. So sets of tasks have the same order in every run; the usual hash is the task's
    place in memory."""

    def __init__(
        self, coro: Coroutine[Any, Any, T], *, loop: SimulatedLoop, context: Context | None = None, **options: Any
    ) -> None:
        self._number = next(loop.numbers)
        self.context = copy_context() if context is None else context
        super().__init__(coro, loop=loop, context=self.context, **options)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    def __init__(self, *, loop: SimulatedLoop) -> None:
        self._number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class NumberedUncancelledTask(aio._UncancelledTask[T]):
    """The task of `clew._runtime.aio.settling`, with its number as its hash."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, loop: SimulatedLoop, **options: Any) -> None:
        self._number = next(loop.numbers)
        self.context = copy_context()
        super().__init__(coro, loop=loop, context=self.context, **options)
        loop.note(self)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time, for any number of machines. `seed` decides all that chance decides."""

    def __init__(self, seed: int | str) -> None:
        super().__init__()
        self.dice = Random(f"simulation {seed}")
        """The source of all chance of this run."""
        self.numbers = itertools.count()
        self.trace: list[str] = []
        """What happened, one line for each event."""
        self.outside = Machine("-")
        """Runs what belongs to no machine: the network, the disks, and the faults. It is never frozen."""
        self.machines: list[Machine] = [self.outside]
        self.steps = 0
        self.on_switch: Callable[[Machine], object] = lambda machine: None
        """Called with a machine before it runs, if another one ran before."""
        self.failures: list[str] = []
        """What went wrong in callbacks, where nobody waits for it."""
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._ran: Machine | None = None

    def new_machine(self, name: str, *, ahead: float = 0.0, steady: float = 0.0) -> Machine:
        machine = Machine(name, ahead=ahead, steady=steady)
        self.machines.append(machine)
        return machine

    def start(self, machine: Machine, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start this coroutine as a task of the machine."""
        context = copy_context()
        context.run(current.set, machine)
        return self.create_task(work, context=context)

    def freeze(self, machine: Machine, seconds: float) -> None:
        """Stop a machine for this long, as SIGSTOP does. Timers that are due meanwhile fire when it goes on."""
        machine.wakes = max(machine.wakes, self._now + seconds)
        self.say("freezes for %.1f s", seconds, machine=machine)

    def kill(self, machine: Machine) -> None:
        """End a machine's process as SIGKILL does: nothing of it ever runs again."""
        machine.is_dead = True
        machine.ready.clear()
        self.say("is killed", machine=machine)

    def say(self, text: str, *values: object, machine: Machine | None = None) -> None:
        """Add a line to the trace: the time, the machine (by default the one that runs) and this text."""
        self.trace.append(f"{self._now:12.6f} {machine or current.get()} {text % values if values else text}")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this coroutine, which belongs to no machine, until it ends. Returns its result. Raises `Stuck` if it can
        never end."""
        asyncio._set_running_loop(self)
        try:
            task = self.start(self.outside, work)
            while not task.done():
                self._run_once()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def dispose(self) -> None:
        """Drop all tasks that have not ended, without running any more of their code than Python insists on. Tasks that
        they start on their way out belong to no machine, and are dropped too."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda told: None  # of coroutines that await on their way out
        asyncio._set_running_loop(self)
        try:
            for machine in (*self.machines, _NOWHERE):
                machine.is_dead = True
                machine.ready.clear()
                for task in machine.tasks:
                    if not task.done():
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        with suppress(Exception, asyncio.CancelledError):  # it awaits on its way out, or raises
                            task.context.run(task.get_coro().close)  # type: ignore[attr-defined]
        finally:
            asyncio._set_running_loop(None)
            sys.unraisablehook = hook
        _NOWHERE.tasks.clear()
        self._timers.clear()
        self.close()

    # What asyncio asks of an event loop.

    def time(self) -> float:
        return self._now

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        machine = current.get() if context is None else context.get(current, _NOWHERE)
        if not machine.is_dead:
            machine.ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self.numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(delay, 0.0), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers stay in the queue and are skipped there."""

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = _NumberedTask(coro, loop=self, name=name, context=context)
        self.note(task, context)
        return task

    def note(self, task: asyncio.Task[Any], context: Context | None = None) -> None:
        """Remember which machine this new task belongs to."""
        machine = current.get() if context is None else context.get(current, _NOWHERE)
        machine.tasks.append(task)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run what would run on another OS thread on this one instead, as one callback of the machine that asks."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - handed to the waiter, whatever it is
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_soon(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(f"{context.get('message')}: {error!r}")
        self.say("%s: %r", context.get("message"), error)

    def _run_once(self) -> None:
        """Run one callback of one machine. If none has anything to do, move the clock to when one will have."""
        self._now += STEP
        self.steps += 1
        if self.steps > LONGEST:
            raise Stuck(f"the run goes on without end: {LONGEST} callbacks")
        machine = self._next_machine()
        handle = machine.ready.popleft()
        if machine is not self._ran:
            self._ran = machine
            self.on_switch(machine)
        if not handle.cancelled():
            handle._run()

    def _next_machine(self) -> Machine:
        while True:
            self._fire_timers()
            able = [machine for machine in self.machines if machine.ready and machine.wakes <= self._now]
            if able:
                return able[0] if len(able) == 1 else self.dice.choice(able)
            moments = [machine.wakes for machine in self.machines if machine.ready]
            if self._timers:
                moments.append(self._timers[0][0])
            if not moments:
                raise Stuck("no machine has anything to do, now or later, and the run has not ended")
            self._now = max(self._now, min(moments))

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            _, _, timer = heapq.heappop(self._timers)
            machine = timer._context.get(current, _NOWHERE)  # type: ignore[attr-defined]
            if not timer.cancelled() and not machine.is_dead:
                machine.ready.append(timer)
