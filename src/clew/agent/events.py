"""What happens while an agent runs, for those who watch: `async for event in agent.stream(…)`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from clew.messages import ToolResult
from clew.models.base import Retrying, TextDelta, ThinkingDelta

__all__ = [
    "QUESTIONS",
    "CheckpointSaved",
    "Compacted",
    "Event",
    "Kind",
    "Question",
    "Retrying",
    "RunStarted",
    "SnapshotSaved",
    "TextDelta",
    "ThinkingDelta",
    "ToolFinished",
    "ToolInDoubt",
    "ToolReplayed",
    "ToolStarted",
    "TurnFinished",
    "TurnStarted",
    "Unwound",
    "Waiting",
]


class RunStarted(msgspec.Struct, frozen=True, tag="run-started"):
    """The first event of every run: the thread that it works on, or whose record answers it."""

    thread_id: str


class TurnStarted(msgspec.Struct, frozen=True, tag="turn-started"):
    """The model is asked for its next response."""

    turn: int


class TurnFinished(msgspec.Struct, frozen=True, tag="turn-finished"):
    """A response and all calls it asked for are done."""

    turn: int


class ToolStarted(msgspec.Struct, frozen=True, tag="tool-started"):
    """A tool's body is about to run; its intent is durable."""

    name: str
    call_id: str
    arguments: Any
    attempt: int = 1


class ToolFinished(msgspec.Struct, frozen=True, tag="tool-finished"):
    """A call's result is on record."""

    name: str
    call_id: str
    result: ToolResult


class ToolReplayed(msgspec.Struct, frozen=True, tag="tool-replayed"):
    """A call of the open turn that was done before the run was stopped: its result stands, and its body does not run."""

    name: str
    call_id: str
    result: ToolResult


class ToolInDoubt(msgspec.Struct, frozen=True, tag="tool-in-doubt"):
    """A call whose intent is on record and whose outcome is not, and what becomes of it."""

    name: str
    call_id: str
    becomes: Literal["run again", "reconciled", "told to the model", "asked"]


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """The conversation no longer fitted: for the model, a summary stands in place of what came before. History is whole."""

    turn: int


class Unwound(msgspec.Struct, frozen=True, tag="unwound"):
    """The conversation no longer fitted: for the model, its last response and the results are gone. History is whole."""

    turn: int


class CheckpointSaved(msgspec.Struct, frozen=True, tag="checkpoint-saved"):
    """A response and the results of its calls are durable: a crash from now on is resumed from there."""

    turn: int


class SnapshotSaved(msgspec.Struct, frozen=True, tag="snapshot-saved"):
    """The files of the workspace, as of the end of a turn, are in the store."""

    turn: int
    digest: str
    files: int


Kind = Literal["question", "approval", "in doubt"]
QUESTIONS = "clew:questions"
"""The thread's value that holds what it waits for."""


class Question(msgspec.Struct, frozen=True):
    """What a run waits for. Answer it with `agent.resume(thread_id=…, answer=…)`, in any process and at any time."""

    kind: Kind
    tool: str
    call_id: str
    text: str
    arguments: Any = None
    message: int = -1
    index: int = -1
    key: str = ""
    """Where the answer is recorded: the call, and the step of it."""

    @property
    def id(self) -> str:
        """What tells this question from every other of its thread: the key of its answer, where several are given."""
        return f"{self.message}:{self.index}:{self.key}"


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """The run ends here, until there are answers."""

    questions: tuple[Question, ...]


Event = (
    TextDelta
    | ThinkingDelta
    | Retrying
    | RunStarted
    | TurnStarted
    | TurnFinished
    | ToolStarted
    | ToolFinished
    | ToolReplayed
    | ToolInDoubt
    | CheckpointSaved
    | Compacted
    | Unwound
    | SnapshotSaved
    | Waiting
)
