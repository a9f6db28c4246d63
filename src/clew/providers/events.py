"""What a coding agent's command says while it works, in one vocabulary to which each provider translates its own."""

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
    "Happening",
    "Other",
    "Reader",
    "Response",
    "Result",
    "Retry",
    "Watch",
]


class Delta(msgspec.Struct, frozen=True):
    """Words as they are written, before the response that holds them is whole."""

    text: str
    thinking: bool = False
    child: str = ""
    """The call whose sub-agent this is of; empty for the conversation itself. The same below."""


class Response(msgspec.Struct, frozen=True):
    """Blocks of a model's response, whole. Several with one `id`, one after the other, are parts of one response."""

    blocks: tuple[Block, ...]
    id: str = ""
    model: str = ""
    child: str = ""


class Result(msgspec.Struct, frozen=True):
    """What a tool call came to."""

    result: ToolResult
    child: str = ""


class Retry(msgspec.Struct, frozen=True):
    """The program tries again by itself: why, and in how many seconds, where it says so."""

    reason: str
    seconds: float = 0.0
    is_refused: bool = False
    """Whether the attempt before was refused, as in `Failed`."""


class Finished(msgspec.Struct, frozen=True):
    """The prompt is answered. `usage` and `cost_usd` are of this prompt alone; None where the program does not know it."""

    text: str
    usage: Usage | None = None
    cost_usd: float | None = None
    model: str = ""


Failure = Literal["login", "limit", "context", "session", "stopped", "failed"]
"""Not logged in; rate or usage limit; conversation too long; no such conversation; the program died; anything else."""


class Failed(msgspec.Struct, frozen=True):
    """The prompt was not answered. What it cost all the same, where that is known."""

    kind: Failure
    reason: str
    usage: Usage | None = None
    cost_usd: float | None = None
    is_refused: bool = False
    """Whether the vendor did not carry out the last request, by the HTTP status of its answer: that one is not charged.
    Only for programs that tell of each further attempt with a `Retry`."""


class Other(msgspec.Struct, frozen=True):
    """A line that says nothing Clew has a word for, as it came. It goes no further: what the program keeps has it."""

    value: Any


Happening = Delta | Response | Result | Retry | Finished | Failed | Other


class Reader(Protocol):
    """Reads what one run of a program prints, line by line. Exactly one `Finished` or `Failed` comes of it."""

    def read(self, line: bytes) -> Iterable[Happening]:
        """What this line of the standard output means. One that is no JSON is `Other`, and never an error."""

    def end(self, status: int, stderr: str) -> Iterable[Happening]:
        """What is still to be said now that the program has ended, with this exit status (below 0: the signal's number) and
        with this as the end of what it wrote to its standard error. Asked once, after the last line."""


class Watch(Protocol):
    """Looks for what one run of a program has begun and not printed yet. Not async: it is asked off the event loop."""

    def look(self) -> Iterable[bytes]:
        """Lines for the reader, in the form in which the program prints them; each once. Asked many times a second while
        the program works, and once more when it has ended. Where nothing can be seen, it returns nothing."""

    def close(self) -> None:
        """Asked once, after the last look."""
