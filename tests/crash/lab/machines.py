"""Machines of the lab: each runs one worker after the other, in a PID namespace of its own, as if on another host."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from tests.crash.lab.nursery import Birth
from tests.crash.lab.worker import Job
from tests.crash.processes import PATIENCE, Speaker
from tests.servers.running import lacking
from tests.tally import count

__all__ = ["Kill", "Machine", "Machines"]


def _need_namespaces() -> None:
    """Skip the test unless processes can be put into PID namespaces of their own here."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "hostname", "elsewhere"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        lacking("no unshare here", install="util-linux")
    if done.returncode:
        lacking(f"no PID namespaces here: {done.stderr.strip()}", install="a kernel setting that allows namespaces")


class Kill(NamedTuple):
    """When the process called `life` was killed, in microseconds since 1970."""

    life: str
    at: int


class Machine:
    """One machine: a name, a folder of its own for the files of threads, and a worker, started again when it is killed."""

    def __init__(self, nursery: Speaker, number: int, folder: Path, job: Job, *, apart: bool) -> None:
        """`apart` puts each worker into namespaces of its own, with the name of this machine."""
        self._nursery = nursery
        self._name = f"machine-{number}"
        files = folder / self._name
        files.mkdir(exist_ok=True)
        self.job = msgspec.structs.replace(job, files=str(files))
        self._log = folder / f"{self._name}.log"
        self._apart = apart
        self._lives = 0
        self.pid = 0
        self._process = -1
        """A file that stands for the process; -1 if none was started."""
        self._namespaces: list[int] = []
        """Open files that keep the PID namespaces of dead workers, so that no later one gets the same number."""

    @property
    def is_up(self) -> bool:
        return self._process >= 0

    @property
    def life(self) -> str:
        return f"{self._name}.{self._lives}"

    def start(self) -> None:
        self._lives += 1
        job = msgspec.structs.replace(self.job, life=self.life)
        birth = Birth(job=job, log=str(self._log), host=self._name if self._apart else "")
        word, _, pid = self._nursery.ask(msgspec.json.encode(birth).decode()).partition(" ")
        assert word == "pid", f"{self.life} was not started: {self.said()}"
        self.pid = int(pid)
        self._process = os.pidfd_open(self.pid)
        if self._apart:
            self._namespaces.append(os.open(f"/proc/{self.pid}/ns/pid", os.O_RDONLY))

    def has_ended(self, wait: float = 0.0) -> bool:
        """Return whether the worker has ended, waiting so many seconds for it at most."""
        return bool(select.select([self._process], [], [], wait)[0])

    def kill(self) -> Kill:
        """Kill the worker with SIGKILL, and return when. Fails if it has ended by itself before."""
        assert not self.has_ended(), f"{self.life} ended by itself: {self.said()}"
        at = time.time_ns() // 1000
        self.signal(signal.SIGKILL)
        assert self.has_ended(PATIENCE)
        self._close()
        return Kill(self.life, at)

    def drain(self) -> None:
        """Ask the worker to end in order, and wait until it has."""
        deadline = time.monotonic() + PATIENCE
        while not self.has_ended(0.2):  # a worker that is just being started does not hear the first times
            assert time.monotonic() < deadline, f"{self.life} does not end: {self.said()}"
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        count(f"times {number.name}")
        signal.pidfd_send_signal(self._process, number)

    def end(self) -> None:
        if self.is_up:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self.has_ended(PATIENCE)
            self._close()
        for number in self._namespaces:
            os.close(number)
        self._namespaces.clear()

    def _close(self) -> None:
        os.close(self._process)
        self._process = -1

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


class Machines:
    """A fleet of machines, on which workers run while the context is open."""

    def __init__(self, count: int, folder: Path, job: Job, *, apart: bool = True) -> None:
        """`apart` gives each machine namespaces of its own, so that none can see whether a process of another one lives."""
        if apart:
            _need_namespaces()
        self._count = count
        self._folder = folder
        self._job = job
        self._apart = apart
        self._stack = ExitStack()
        self.each: list[Machine] = []
        self.kills: list[Kill] = []
        self.is_store_away = False
        """Whether the store is away at times, so that a worker that lives may not be able to renew or give back leases."""
        self.frozen: set[str] = set()
        """The lives of workers that were frozen and went on later."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            nursery = stack.enter_context(Speaker("tests.crash.lab.nursery"))
            for number in range(self._count):
                machine = Machine(nursery, number, self._folder, self._job, apart=self._apart)
                stack.callback(machine.end)
                self.each.append(machine)
                machine.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def kill_one(self, spared: Collection[int] = ()) -> None:
        """Kill the worker of any machine but those with these numbers, and start another one there."""
        machine = random.choice([machine for number, machine in enumerate(self.each) if number not in spared])
        self.kills.append(machine.kill())
        machine.start()

    async def freeze(self, places: Collection[int], seconds: float) -> None:
        """Stop the workers of the machines with these numbers for so long, and let them go on."""
        for place in places:
            self.frozen.add(self.each[place].life)
            self.each[place].signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        for place in places:
            self.each[place].signal(signal.SIGCONT)

    def leave_only(self, *places: int) -> None:
        """Kill all workers, and start others on the machines with these numbers alone."""
        for machine in self.each:
            if machine.is_up:
                self.kills.append(machine.kill())
        for place in places:
            self.each[place].start()

    def replace_dead(self) -> None:
        """Start another worker where one has killed itself."""
        for machine in self.each:
            if machine.has_ended():
                count("times SIGKILL")
                self.kills.append(Kill(machine.life, time.time_ns() // 1000))
                machine.end()
                machine.start()

    def replace_all(self, **job: object) -> None:
        """Kill all workers, and start others, whose job has these changes."""
        self.replace_dead()
        for machine in self.each:
            machine.job = msgspec.structs.replace(machine.job, **job)
            self.kills.append(machine.kill())
            machine.start()

    def said(self) -> str:
        return "\n".join(machine.said() for machine in self.each)
