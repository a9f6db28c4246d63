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
    """The first event of every run. It names the thread that the run works on."""

    thread_id: str


class TurnStarted(msgspec.Struct, frozen=True, tag="turn-started"):
    """The model is about to be asked for its next response. `turn` is the number of that response in the thread, from
    1."""

    turn: int


class TurnFinished(msgspec.Struct, frozen=True, tag="turn-finished"):
    """The model has responded, and all tool calls of the response have a result."""

    turn: int


class ToolStarted(msgspec.Struct, frozen=True, tag="tool-started"):
    """The body of a tool is about to run. If the tool has effects, the intent to run it is already stored durably."""

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
    """The run resumes a turn, and a tool call of that turn already has a recorded result. This result is used, and the
    tool is not run again."""

    name: str
    call_id: str
    result: ToolResult


class ToolInDoubt(msgspec.Struct, frozen=True, tag="tool-in-doubt"):
    """A call was begun earlier, and its outcome is not on record. `becomes` says what is done with the call: it is run
    again, the tool's function `reconcile` has found out its outcome, the model is told that its outcome is unknown, or
    a person is asked."""

    name: str
    call_id: str
    becomes: Literal["run again", "reconciled", "told to the model", "asked"]


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """The conversation was too long for the model, so the model now sees a summary instead of the older messages. The
    thread's history keeps them."""

    turn: int


class Unwound(msgspec.Struct, frozen=True, tag="unwound"):
    """The conversation was too long for the model, so the last turn was removed from what the model sees. The thread's
    history keeps this turn."""

    turn: int


class CheckpointSaved(msgspec.Struct, frozen=True, tag="checkpoint-saved"):
    """The response of a turn and the results of its calls are stored durably. After a crash, a resume goes on after
    this turn."""

    turn: int


class SnapshotSaved(msgspec.Struct, frozen=True, tag="snapshot-saved"):
    """A snapshot of the files of the workspace is in the store. `files` is the number of files in it, and `turn` the
    number of the turn after which it was taken."""

    turn: int
    digest: str
    files: int


Kind = Literal["question", "approval", "in doubt"]
QUESTIONS = "clew:questions"
"""The key in the thread's state that holds its open questions."""


class Question(msgspec.Struct, frozen=True):
    """A question to a person, for which a run has stopped. Answer it with `agent.resume(thread_id=…, answer=…)`, in any
    process and at any time."""

    kind: Kind
    tool: str
    call_id: str
    text: str
    arguments: Any = None
    message: int = -1
    index: int = -1
    key: str = ""
    """The name under which the answer will be recorded, as a step of the tool call that asks. `message` and `index` say
    which tool call that is."""

    @property
    def id(self) -> str:
        """The id of this question within its thread. To answer several questions at once, give a dict from these ids to
        answers."""
        return f"{self.message}:{self.index}:{self.key}"


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """Event: the run ends here and waits until a person has answered these questions. A resume with the answers goes on
    with the work."""

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
