"""The events in which every provider reports what its program does, and the protocols of what reads and watches a
program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Protocol

import msgspec

from clew.log import Usage
from clew.messages import Block, ToolResult

__all__ = [
    "Delta",
    "Failed",
    "Failure",
    "Finished",
    "Other",
    "ProviderEvent",
    "Reader",
    "Response",
    "Result",
    "Retry",
    "Watch",
]


class Delta(msgspec.Struct, frozen=True):
    """A piece of text as it is written, before its response is complete."""

    text: str
    thinking: bool = False
    child: str = ""
    """The id of the tool call whose sub-agent wrote this; empty for the conversation itself. The same holds in the
    other events."""


class Response(msgspec.Struct, frozen=True):
    """Complete blocks of a model's response. Consecutive ones with the same `id` are parts of one response."""

    blocks: tuple[Block, ...]
    id: str = ""
    model: str = ""
    child: str = ""


class Result(msgspec.Struct, frozen=True):
    """The result of a tool call."""

    result: ToolResult
    child: str = ""


class Retry(msgspec.Struct, frozen=True):
    """The program tries again by itself. `seconds` is the pause, if it is known."""

    reason: str
    seconds: float = 0.0
    is_refused: bool = False
    """Whether the vendor refused the attempt before, as in `Failed`."""


class Finished(msgspec.Struct, frozen=True):
    """The prompt was answered. `usage` and `cost_usd` are those of this prompt alone, or None if the program does not
    know them."""

    text: str
    usage: Usage | None = None
    cost_usd: float | None = None
    model: str = ""


Failure = Literal["login", "limit", "context", "session", "stopped", "failed"]
"""Why a prompt failed: not logged in, rate or usage limit, conversation too long, no such conversation, the program
died, or anything else."""


class Failed(msgspec.Struct, frozen=True):
    """The prompt was not answered. `usage` and `cost_usd` say what it used all the same, or None if that is unknown."""

    kind: Failure
    reason: str
    usage: Usage | None = None
    cost_usd: float | None = None
    is_refused: bool = False
    """Whether the vendor refused the last request, by the HTTP status of its answer, so that the request is not
    charged. Set only for programs that report each further attempt with a `Retry`."""


class Other(msgspec.Struct, frozen=True):
    """A line for which Clew has no event, unchanged. It is not recorded; the program's own session has it."""

    value: Any


ProviderEvent = Delta | Response | Result | Retry | Finished | Failed | Other


class Reader(Protocol):
    """Reads the output of one run, line by line. Over the whole run it returns exactly one `Finished` or `Failed`."""

    def read(self, line: bytes) -> Iterable[ProviderEvent]:
        """Return the events of a line of the standard output. A line that is not JSON gives `Other`, never an error."""

    def end(self, status: int, stderr: str) -> Iterable[ProviderEvent]:
        """Return the last events, after the program has ended. Called once, after the last line. `status` is the exit
        status, or the negative number of a signal; `stderr` is the end of the standard error."""


class Watch(Protocol):
    """Finds what a program has begun but not printed yet. Its methods are not async: they are called outside the event
    loop."""

    def look(self) -> Iterable[bytes]:
        """Return new lines for the reader, in the form that the program prints, each once; nothing if nothing can be
        seen. Called many times a second while the program works, and once more after it has ended."""

    def close(self) -> None:
        """Release what the watch holds. Called once, after the last look."""
