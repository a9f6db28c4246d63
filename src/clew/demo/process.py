"""Run a worker process of the demo, read the events that it prints, and kill it in a given turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from clew.agent import ToolFinished
from clew.demo.job import Ended, InBank, Line, Places, decode
from clew.tools import Effect

__all__ = ["Heard", "Process", "run_worker"]

Heard = Callable[[Line], None]


class Process(msgspec.Struct, frozen=True):
    """A worker process that has ended: how it ended, and the events that it printed."""

    pid: int
    ended: int
    """The exit code, or the negative number of the signal that ended it."""
    lines: tuple[Line, ...]
    opened_after: float
    """Seconds from the start of the process to its first event."""

    def all(self, kind: type[Line]) -> list[Line]:
        return [line for line in self.lines if isinstance(line, kind)]

    @property
    def result(self) -> Ended | None:
        """The event `Ended`, the last one that a process of the demo prints; None if the process was stopped before."""
        last = self.lines[-1] if self.lines else None
        return last if isinstance(last, Ended) else None


def run_worker(
    folder: Path, began: Callable[[int], None], heard: Heard, *, kill_at: int = 0, effect: Effect
) -> Process:
    """Start a worker process in `folder`, and return when it has ended. Calls `began` with its process id, and `heard`
    with each event that it prints.

    If `kill_at` is not 0, the worker is killed in the turn with that number, at the worst moment: the payment has been
    made but its outcome is not stored, while the outcome of the turn's other call is stored. `effect` is what the
    payment tool declares about running twice.
    """
    command = [sys.executable, "-P", "-m", "clew.demo.worker", str(folder), "--effect", effect]
    command += ["--slow-at", str(kill_at)] if kill_at else []
    env = {**os.environ, "CLEW_CACHE": str(Places(folder).cache)}
    started, opened_after = time.perf_counter(), 0.0
    lines: list[Line] = []
    # its own process group: otherwise Ctrl+C makes every process print a message
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, process_group=0) as worker:  # noqa: S603 - our own
        try:
            began(worker.pid)
            for said in worker.stdout or ():
                opened_after = opened_after or time.perf_counter() - started
                lines.append(decode(said))
                heard(lines[-1])
                if kill_at and _is_in_doubt(lines):
                    worker.send_signal(signal.SIGKILL)
        except BaseException:
            worker.kill()
            raise
    return Process(worker.pid, worker.returncode, tuple(lines), opened_after)


def _is_in_doubt(lines: list[Line]) -> bool:
    """Return whether a worker is at the worst moment for a kill: it has made the payment to which the bank answers
    late, and has not stored its outcome, while the outcome of the turn's other call is stored. `lines` are the events
    that the worker has printed."""
    in_bank = next((line for line in lines if isinstance(line, InBank)), None)
    return in_bank is not None and any(
        isinstance(line, ToolFinished) and line.call_id.startswith(f"call_{in_bank.turn}_") for line in lines
    )
