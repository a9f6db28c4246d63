"""A worker process, heard line by line, and killed where that is wanted."""

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
    """What became of a worker process."""

    pid: int
    ended: int
    """Its exit code; that of one ended by a signal is the negative of the signal."""
    lines: tuple[Line, ...]
    opened_after: float
    """Seconds from its start to the first that it said."""

    def all(self, kind: type[Line]) -> list[Line]:
        return [line for line in self.lines if isinstance(line, kind)]

    @property
    def result(self) -> Ended | None:
        """None: it did not come to its end."""
        last = self.lines[-1] if self.lines else None
        return last if isinstance(last, Ended) else None


def run_worker(
    folder: Path, began: Callable[[int], None], heard: Heard, *, kill_at: int = 0, effect: Effect
) -> Process:
    """Start a worker and listen until it ends. With `kill_at` it is killed in this turn: once the money is gone and the
    other call of the turn is on record, while the payment's own outcome is not."""
    command = [sys.executable, "-P", "-m", "clew.demo.worker", str(folder), "--effect", effect]
    command += ["--slow-at", str(kill_at)] if kill_at else []
    env = {**os.environ, "CLEW_CACHE": str(Places(folder).cache)}
    started, opened_after = time.perf_counter(), 0.0
    lines: list[Line] = []
    # in a group of its own, so that Ctrl+C ends the demo with one message and not with one of each process
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
    """Whether of the two calls of the turn one is on record, and the other has taken effect and is not."""
    in_bank = next((line for line in lines if isinstance(line, InBank)), None)
    return in_bank is not None and any(
        isinstance(line, ToolFinished) and line.call_id.startswith(f"call_{in_bank.turn}_") for line in lines
    )
