"""What a process really asks of the system, as strace sees it: one event where a call starts and one where it is done."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.crash.processes import ROOT
from tests.crash.writer import Job
from tests.servers.running import lacking

__all__ = ["Call", "Event", "events", "strace_program", "trace", "traced_writer"]

CALLS = (
    "open openat openat2 creat close dup dup2 dup3 fcntl lseek read readv preadv preadv2 write pwrite64 writev pwritev "
    "pwritev2 ftruncate truncate fallocate fsync fdatasync sync_file_range rename renameat renameat2 link linkat symlink "
    "symlinkat unlink unlinkat mkdir mkdirat rmdir mmap copy_file_range sendfile splice clone clone3 fork vfork"
)
RAW = "read,?readv,?preadv,?preadv2"
"""Only where these leave the file's position matters, not what they read."""


class Call(NamedTuple):
    """One call to the system; `result` is known once it is done."""

    name: str
    arguments: str
    strings: list[bytes]

    def argument(self, number: int) -> str:
        """An argument that is no text, by its place among those that are not."""
        return self.arguments.split(", ")[number].strip()

    def number(self, number: int) -> int:
        return int(self.argument(number), 0)


class Event(NamedTuple):
    call: Call
    result: int | None
    """None where the call starts."""


def strace_program() -> str:
    """The path of strace. Without it, the test is skipped; not in CI, where it would go unseen."""
    found = shutil.which("strace")
    if found is None:
        lacking("no strace to prove by that syncs are made", install="strace")
    return str(found)


def trace(command: list[str], log: Path) -> None:
    """Run this under strace. Where that cannot be, the test is skipped; not in CI, where it would go unseen."""
    strace = strace_program()
    wanted = ",".join(f"?{name}" for name in CALLS.split())
    options = ["-f", "-q", "-xx", "-s", "100000000", "-e", f"trace={wanted}", "-e", f"raw={RAW}", "-e", "signal=none"]
    done = subprocess.run([strace, *options, "-o", str(log), *command], cwd=ROOT, capture_output=True, text=True)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        lacking(f"strace may not trace here: {done.stderr.strip()}", install="a kernel setting that allows ptrace")
    assert done.returncode == 0, done.stderr


def traced_writer(job: Job, log: Path) -> None:
    trace([sys.executable, "-m", "tests.crash.writer", msgspec.json.encode(job).decode()], log)


_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_RESULT = re.compile(r"\) += (-?\d+|0x[0-9a-f]+|\?)[^)]*(\([^)]*\))?$")


def events(log: Path) -> Iterator[Event]:
    """All calls, each where it starts and where it is done, in the order in which the system saw them."""
    unfinished: dict[str, str] = {}
    started: dict[str, Call] = {}
    with log.open(encoding="ascii") as lines:
        for line in lines:
            found = _LINE.fullmatch(line.rstrip("\n"))
            assert found is not None, f"strace wrote a line that nobody understands: {line[:200]!r}"
            process, text = found.groups()
            if text.startswith(("+++", "---")):
                continue
            if text.endswith("<unfinished ...>"):
                unfinished[process] = text.removesuffix("<unfinished ...>").rstrip()
                started[process] = _call(unfinished[process])
                yield Event(started[process], None)
                continue
            if resumed := _RESUMED.match(text):
                text = unfinished.pop(process) + resumed[1]
                call = started.pop(process)
            else:
                call = _call(text)
                yield Event(call, None)
            result = _RESULT.search(text)
            assert result is not None, f"a call without a result: {text[:200]!r}"
            if result[1] != "?":  # the process ended in it
                yield Event(call, int(result[1], 0))


def _call(text: str) -> Call:
    name, _, rest = text.partition("(")
    strings: list[bytes] = []

    def take(found: re.Match[str]) -> str:
        assert not found[2], "strace cut a text short"
        strings.append(bytes.fromhex(found[1].replace("\\x", "")))
        return "text"

    if '"' in rest:
        rest = _TEXT.sub(take, rest)
    return Call(name, _RESULT.sub("", rest), strings)
