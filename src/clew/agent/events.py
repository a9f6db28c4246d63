"""The events that `async for event in agent.stream(…)` gives while an agent runs, and the questions of a waiting run."""

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
    """The first event of every run. Names the thread that the run works on, or whose record already has the answer."""

    thread_id: str


class TurnStarted(msgspec.Struct, frozen=True, tag="turn-started"):
    """The model is about to be asked for its next response. `turn` is the number of that response."""

    turn: int


class TurnFinished(msgspec.Struct, frozen=True, tag="turn-finished"):
    """The model has responded, and all tool calls of the response have a result."""

    turn: int


class ToolStarted(msgspec.Struct, frozen=True, tag="tool-started"):
    """The body of a tool is about to run. The intent to run it is already durable."""

    name: str
    call_id: str
    arguments: Any
    attempt: int = 1


class ToolFinished(msgspec.Struct, frozen=True, tag="tool-finished"):
    """A tool call has ended, and its result is on record."""

    name: str
    call_id: str
    result: ToolResult


class ToolReplayed(msgspec.Struct, frozen=True, tag="tool-replayed"):
    """A call of the resumed turn was done before the run was stopped. Its recorded result is used; its body does not run."""

    name: str
    call_id: str
    result: ToolResult


class ToolInDoubt(msgspec.Struct, frozen=True, tag="tool-in-doubt"):
    """A run was stopped during this call: its intent is on record, but no outcome. `becomes` says how that is resolved."""

    name: str
    call_id: str
    becomes: Literal["run again", "reconciled", "told to the model", "asked"]


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """The conversation no longer fitted, so the model now sees a summary of the older messages. The history keeps them."""

    turn: int


class Unwound(msgspec.Struct, frozen=True, tag="unwound"):
    """The conversation no longer fitted, so the model no longer sees its last turn. The history keeps that turn."""

    turn: int


class CheckpointSaved(msgspec.Struct, frozen=True, tag="checkpoint-saved"):
    """A response and the results of its calls are durable. After a crash, a resume goes on from here."""

    turn: int


class SnapshotSaved(msgspec.Struct, frozen=True, tag="snapshot-saved"):
    """The files of the workspace, as they were at the end of a turn, are in the store."""

    turn: int
    digest: str
    files: int


Kind = Literal["question", "approval", "in doubt"]
QUESTIONS = "clew:questions"
"""The key in the thread's state that holds its open questions."""


class Question(msgspec.Struct, frozen=True):
    """A question that a run waits for. Answer with `agent.resume(thread_id=…, answer=…)`, in any process, at any time."""

    kind: Kind
    tool: str
    call_id: str
    text: str
    arguments: Any = None
    message: int = -1
    index: int = -1
    key: str = ""
    """The step under which the answer is recorded. `message` and `index` name the tool call that the step is part of."""

    @property
    def id(self) -> str:
        """Identifies this question within its thread. It is the key in a dict that answers several questions."""
        return f"{self.message}:{self.index}:{self.key}"


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """The run ends here, and a resume with answers to these questions goes on."""

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
