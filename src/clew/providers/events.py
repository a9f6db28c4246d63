"""The events in which every provider reports what its program does while it works on a prompt, and the protocols of the
objects that produce them: readers of the program's output, and watches for what it does not print."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
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
    """A piece of the model's text, or of its thinking, as it is written, before the response is complete."""

    text: str
    thinking: bool = False
    child: str = ""
    """The id of the tool call whose sub-agent wrote this; empty if the main conversation did. `child` means the same in
    the other events."""


class Response(msgspec.Struct, frozen=True):
    """Complete blocks of a model's response. Consecutive events with the same `id` are parts of one response. An empty
    `id` makes the event a response of its own."""

    blocks: tuple[Block, ...]
    id: str = ""
    model: str = ""
    child: str = ""


class Result(msgspec.Struct, frozen=True):
    """A tool call that the outside program (such as Claude Code) ran has ended, with this `result`."""

    result: ToolResult
    child: str = ""


class Retry(msgspec.Struct, frozen=True):
    """The program reports that a request to the model failed, and that the program itself will send it again. `seconds`
    is the pause before that; 0 if it is unknown."""

    reason: str
    seconds: float = 0.0
    is_refused: bool = False
    """Whether the vendor refused the attempt that failed, so that it was not charged. Has the same meaning as in
    `Failed`."""


class Finished(msgspec.Struct, frozen=True):
    """The prompt was answered, with `text`. `usage` and `cost_usd` are those of this prompt alone, or None if the
    program does not know them."""

    text: str
    usage: Usage | None = None
    cost_usd: float | None = None
    model: str = ""


Failure = Literal["login", "limit", "context", "session", "stopped", "failed"]
"""Why a prompt failed. `login`: not logged in. `limit`: a rate or usage limit. `context`: the conversation is too long.
`session`: there is no such conversation. `stopped`: the program was stopped or died. `failed`: anything else."""


class Failed(msgspec.Struct, frozen=True):
    """The prompt was not answered, for the reason given. `usage` and `cost_usd` say what the failed attempt used
    nevertheless; None if that is unknown."""

    kind: Failure
    reason: str
    usage: Usage | None = None
    cost_usd: float | None = None
    is_refused: bool = False
    """Whether the vendor refused the last request without running it, so that it is not charged. This is judged by the
    HTTP status of its answer. Set only for programs that report each further attempt with a `Retry`."""
    until: datetime | None = None
    """When the limit ends, for the kind `limit`; None if the program does not say."""


class Other(msgspec.Struct, frozen=True):
    """A line that the program printed and for which Clew has no event, unchanged. The line is not recorded in the
    thread, because the program's own files of the conversation hold it."""

    value: Any


ProviderEvent = Delta | Response | Result | Retry | Finished | Failed | Other


class Reader(Protocol):
    """Turns what a program prints during one run into events, line by line. Over the whole run it returns exactly one
    `Finished` or `Failed`."""

    def read(self, line: bytes) -> Iterable[ProviderEvent]:
        """Return the events of a line of the standard output. A line that is not JSON gives `Other`, never an error."""

    def end(self, status: int, stderr: str) -> Iterable[ProviderEvent]:
        """Return the last events. Called once, after the last line was read and the program has ended. `status` is its
        exit status, or the negative number of the signal that ended it. `stderr` is the end of its standard error."""


class Watch(Protocol):
    """Finds tool calls that a program has begun to run but not printed yet. The methods may block and are not async, so
    they are called in another OS thread than the event loop's."""

    def look(self) -> Iterable[bytes]:
        """Look for tool calls that the program has begun to run since this method was last called, for example in the
        program's database. Returns lines in the form in which the program prints them, to be passed to `Reader.read`:
        one for each such call, and before it one for each finished text or other part of the same response. No line is
        returned twice. Returns no lines if there is no new call, or if calls cannot be looked up. Called many times a
        second while the program works, and once more after it has ended."""

    def close(self) -> None:
        """Release what the watch holds, such as a connection to a database. Called once, after the last `look`."""
