"""Starting the processes that are to be interrupted, and hearing from them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.crash.writer import Job
from tests.limits import PATIENCE
from tests.sampling import FULL
from tests.tally import count

__all__ = ["FULL", "PATIENCE", "ROOT", "STORES", "Speaker", "Writers", "url_of"]

ROOT = Path(__file__).parents[2]
STORES = ("sqlite", "files")


def url_of(kind: str, folder: Path) -> str:
    """A store in folders that are not there yet."""
    return f"sqlite:///{folder}/made/for/it/clew.db" if kind == "sqlite" else f"file://{folder}/made/for/it"


class Speaker:
    """A process that speaks in lines. Ended with the block, whatever state it is in."""

    def __init__(self, *arguments: str, quiet: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
        )
        self.pid = self._process.pid
        self._heard = b""

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def hear(self) -> str:
        """The next line, within a minute."""
        assert self._process.stdout is not None
        while b"\n" not in self._heard:
            assert select.select([self._process.stdout], [], [], PATIENCE)[0], "the process says nothing"
            more = os.read(self._process.stdout.fileno(), 65536)
            assert more, f"the process ended with {self._process.wait()}"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def ask(self, text: str) -> str:
        self.say(text)
        return self.hear()

    def signal(self, number: int) -> None:
        count(f"times {signal.Signals(number).name}")
        os.kill(self.pid, number)

    def wait(self) -> int:
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._process.communicate()


class Writers:
    """Writers one after the other, forked from a warm parent: each starts in a moment."""

    def __init__(self, parent: Speaker) -> None:
        self._parent = parent
        self.pid = 0

    @classmethod
    @contextmanager
    def ready(cls, *, quiet: bool = False) -> Iterator[Writers]:
        with Speaker("tests.crash.writer", quiet=quiet) as parent:
            yield cls(parent)

    def start(self, job: Job) -> None:
        self._parent.say(msgspec.json.encode(job).decode())
        word, pid = self._parent.hear().split(" ")
        assert word == "pid"
        self.pid = int(pid)

    def hear(self) -> str:
        return self._parent.hear()

    def kill(self, number: int) -> None:
        count(f"times {signal.Signals(number).name}")
        os.kill(self.pid, number)

    def rest(self) -> Iterator[str]:
        """What it said up to its end, then how it ended."""
        while not (line := self._parent.hear()).startswith("exit "):
            yield line
        yield line
