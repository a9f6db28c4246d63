"""Private servers for tests: each in a folder of its own, reached from this machine alone, ended with whoever started it."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import pytest

from clew.checkpointers import Checkpointer
from tests.limits import PATIENCE
from tests.report import install_hint

__all__ = ["Frozen", "ServerProcess", "free_port", "lacking"]


def lacking(what: str, *, install: str) -> NoReturn:
    """Skip a test because something is missing, and name what to install; the end of the run lists it. In CI, where it
    must be there, fail instead."""
    reason = install_hint(what, install)
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (in CI this must be there)")
    pytest.skip(reason)


def free_port() -> int:
    """A port that nobody listens on, nor on the one 10,000 above, which some servers take too. Neither is one that the
    system gives to whoever asks for any, so that nobody gets it before the server does."""
    while True:
        port = random.randrange(12_000, 22_000)
        if port not in _given and all(map(_is_free, (port, port + 10_000))):
            _given.add(port)
            return port


_given: set[int] = set()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class ServerProcess:
    """A server in a process of its own. It can be killed and started again on the same port and folder, and it ends with
    this process, whatever ends that."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        is_up: Callable[[], bool],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
    ) -> None:
        self._command = list(command)
        self._log = log
        self._is_up = is_up
        self._env = None if env is None else dict(env)
        self._cwd = cwd
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not started"
        return self._process.pid

    def start(self) -> None:
        """Start it, and return once it answers."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env,
                cwd=self._cwd,
                user=self._user,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                said = self._log.read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"{self._command[0]} did not start: {said}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return self._is_up()
        except OSError:
            return False

    def kill(self) -> None:
        """As a crash would end it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order; or not, if it does not hear."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Frozen:
    """A checkpointer and the processes of its server, which can be stopped and continued, children included."""

    answering: Collection[str] = ()

    def __init__(self, store: Checkpointer, *pids: int, timeout: float) -> None:
        self.store = store
        self.timeout = timeout
        self._pids = pids
        self._stopped: list[int] = []

    def freeze(self) -> None:
        """Stop all processes of the server, and return once every thread of them stands still. A parent comes first, so
        that it starts no more children while they are looked for."""
        self._stopped = []
        left = list(self._pids)
        while left:
            pid = left.pop()
            with suppress(ProcessLookupError):  # a child may end by itself
                os.kill(pid, signal.SIGSTOP)
                self._stopped.append(pid)
                while _is_moving(pid):
                    time.sleep(0.01)
                left += _children(pid)

    def thaw(self) -> None:
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _is_moving(pid: int) -> bool:
    try:
        states = {
            thread.read_text().rpartition(")")[2].split()[0] for thread in Path(f"/proc/{pid}/task").glob("*/stat")
        }
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended, so others may run
        return True
    return not states <= {"T", "Z", "X"}


def _children(pid: int) -> list[int]:
    """What the threads of a process that stands still have started."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def _die_with_parent() -> None:
    """Have the kernel end this process when the thread that started it ends: start servers from the main thread."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
