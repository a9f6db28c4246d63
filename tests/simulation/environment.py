"""What a simulated machine sees of the world instead of the real one: clocks, chance, threads, its own identity."""

from __future__ import annotations

import gc
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from clew._runtime import aio
from clew.agent import job
from clew.checkpointers.files import store as file_store
from clew.checkpointers.heads import Owner
from clew.checkpointers.objects import base as buckets
from clew.log import codec
from clew.threads import leases, writer
from tests.simulation.loop import EPOCH, Machine, NumberedUncancelledTask, SimulatedLoop, current_machine

__all__ = ["simulated"]


class _Global(NamedTuple):
    """A global variable of a module that each process has for itself, and a function that makes its first value."""

    module: ModuleType
    name: str
    new: Callable[[], Any]


_GLOBALS = (
    _Global(leases, "_seen", dict),
    _Global(leases, "_given_up", set),
    _Global(writer, "_rounds", dict),
    _Global(buckets, "_proven", dict),
    _Global(codec, "_nonces", deque),
)


class InlinePool:
    """Stands in for `WorkerPool`: jobs run on the event loop, each as one callback of the machine that asks."""

    def __init__(self, name: str, size: int, make: Callable[[], Any], close: Callable[[Any], None]) -> None:
        self._resource = make()
        self._close = close

    async def run(self, work: Callable[[Any], Any], loop: SimulatedLoop) -> Any:
        job = aio.new_job(work, loop)
        loop.call_soon(self._do, job)
        return await job

    def stop(self) -> None:
        if self._resource is not None:
            self._close(self._resource)

    def _do(self, job: aio.Job) -> None:
        try:
            job.outcome = job.work(self._resource)
        except BaseException as error:  # noqa: BLE001 - handed to the waiter, whatever it is
            job.error = error
        job.settle()


class _Told(logging.Handler):
    """Adds what Clew logs to the trace."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.INFO)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        self._loop.say("logs: %s", record.getMessage())


@contextmanager
def simulated(loop: SimulatedLoop) -> Iterator[None]:
    """Replace clocks, chance and threads of this process by those of the simulation, for as long as the block runs.

    `time.*` give the loop's time as the clocks of the current machine show it. Random bytes come from the loop's dice.
    A thread that is started and a real sleep raise an error. No garbage is collected meanwhile: it would run code at a
    moment that no seed decides.
    """
    entropy = random.Random(loop.dice.random())
    state = random.getstate()
    with ExitStack() as stack:
        for module, name, value in (
            *_clocks(loop),
            (os, "urandom", entropy.randbytes),
            (random, "_urandom", entropy.randbytes),
            (threading.Thread, "start", _no_thread),
            (aio, "_UncancelledTask", NumberedUncancelledTask),
            (file_store, "WorkerPool", InlinePool),
            (leases, "boot", lambda: f"boot of {_host()}"),
            (leases, "this_process", _this_process),
            (job, "this_process", _this_process),
            (leases, "provably_dead", lambda owner: _provably_dead(loop, owner)),
        ):
            stack.enter_context(patch.object(module, name, value))
        for each in _GLOBALS:
            stack.enter_context(patch.object(each.module, each.name, each.new()))
        stack.enter_context(_logging_to(loop))
        loop.on_switch = _put_belongings
        random.seed(entropy.random())
        gc.disable()
        try:
            yield
        finally:
            loop.dispose()
            random.setstate(state)
            gc.enable()


def _put_belongings(machine: Machine) -> None:
    """Give the modules of Clew the global variables of the process that runs next."""
    for each in _GLOBALS:
        key = f"{each.module.__name__}.{each.name}"
        if key not in machine.belongings:
            machine.belongings[key] = each.new()
        setattr(each.module, each.name, machine.belongings[key])


def _clocks(loop: SimulatedLoop) -> Iterator[tuple[Any, str, Callable[[], float]]]:
    def wall() -> float:
        return EPOCH + loop.time() + current_machine().ahead

    def steady() -> float:
        return loop.time() + current_machine().steady

    def sleep(seconds: float = 0.0) -> float:
        raise AssertionError(f"a simulated machine sleeps for {seconds} s outside the event loop")

    yield time, "time", wall
    yield time, "time_ns", lambda: round(wall() * 1e9)
    for name in ("monotonic", "perf_counter"):
        yield time, name, steady
        yield time, f"{name}_ns", lambda: round(steady() * 1e9)
    yield time, "sleep", sleep


def _no_thread(thread: threading.Thread) -> None:
    raise AssertionError(f"a simulated machine starts the thread {thread.name}")


def _host() -> str:
    """The name of the machine, without the number of its process: `m1` for the process `m1.2`."""
    return current_machine().name.partition(".")[0]


def _this_process(label: str = "") -> Owner:
    name = current_machine().name
    number = int(name.partition(".")[2] or 0)
    return Owner(host=_host(), boot=f"boot of {_host()}", pid=1000 + number, started=name, label=label)


def _provably_dead(loop: SimulatedLoop, owner: Owner) -> bool:
    """Return whether this process runs on the host of `owner` and can see that it has ended."""
    if owner.host != _host():
        return False
    return not any(machine.name == owner.started and not machine.is_dead for machine in loop.machines)


@contextmanager
def _logging_to(loop: SimulatedLoop) -> Iterator[None]:
    logger, handler = logging.getLogger("clew"), _Told(loop)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
