"""The command as users run it: a process of its own, in a pipe or at a terminal, on a copy of the sample threads."""

from __future__ import annotations

import atexit
import functools
import json
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.cli.samples import make_samples
from tests.limits import PATIENCE
from tests.sqlite_files import database

__all__ = ["Samples", "clew", "environment", "hear_signals", "objects", "path_with_clew", "terminal"]

_FORCING = {"FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "CLEW_STORE", "CLEW_KEY"}


@functools.cache
def _template() -> Path:
    folder = _scratch("samples")
    make_samples(f"sqlite:///{folder / 'clew.db'}", folder)
    return folder


@functools.cache
def _scratch(what: str) -> Path:
    """A folder for all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix=f"clew-{what}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Samples:
    """The sample threads in a folder of the test's own: `clew.db`, and `trip` with its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "samples"
        shutil.copytree(_template(), self.folder)
        self.database = self.folder / "clew.db"
        self.url = f"sqlite:///{self.database}"
        self.files = self.folder / "trip"

    def damage_frame(self, thread_id: str, number: int) -> None:
        """One byte of a frame is another."""
        with database(self.database) as db:
            place = db.execute("SELECT id FROM heads WHERE thread_id = ?", (thread_id,)).get
            data = db.execute("SELECT data FROM frames WHERE thread = ? AND number = ?", (place, number)).get
            broken = data[:60] + bytes([data[60] ^ 1]) + data[61:]
            db.execute("UPDATE frames SET data = ? WHERE thread = ? AND number = ?", (broken, place, number))

    def damage_head(self, thread_id: str) -> None:
        with database(self.database) as db:
            db.execute("UPDATE heads SET head = ? WHERE thread_id = ?", (b"\x00broken", thread_id))

    def clew(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return clew(*arguments, store=self.url, cwd=self.folder, **how)


def environment(store: str | None, more: dict[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _FORCING}
    own = {"COLUMNS": "100", "CLEW_CACHE": str(_scratch("cache")), "XDG_STATE_HOME": str(_scratch("state"))}
    return {**kept, **own, **({"CLEW_STORE": store} if store else {}), **(more or {})}


def path_with_clew(folder: Path) -> str:
    """A PATH for shells, in which `clew` is the one that is tested."""
    folder.mkdir()
    command = folder / "clew"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m clew "$@"\n')
    command.chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def clew(
    *arguments: str,
    store: str | None = None,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    given: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """In pipes, with this store as CLEW_STORE. No error of a user is ever told by a traceback."""
    run = subprocess.run(
        [sys.executable, "-m", "clew", *arguments],
        cwd=cwd,
        env=environment(store, env),
        input=given or "",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "Traceback" not in run.stderr, run.stderr
    return run


def objects(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The JSON lines that it printed, and nothing but those."""
    return [json.loads(line) for line in run.stdout.splitlines()]


class Terminal:
    """A command that runs at a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            assert self._read(), f"it ended: {self.shown}"

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Its exit code; all that it showed is in `shown`."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], PATIENCE)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


def hear_signals() -> None:
    """In a child: it hears Ctrl+C also where the tests themselves were started in the background, and do not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def terminal(
    *arguments: str,
    store: str | None = None,
    cwd: Path | None = None,
    output: IO[bytes] | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Terminal]:
    """The command with a terminal for its input and both outputs; or with a file for what was asked for."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "clew", *arguments],
        cwd=cwd,
        env=environment(store, {"TERM": "xterm", **(env or {})}),
        stdin=slave,
        stdout=output or slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=hear_signals,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
