"""What client, workflow and activity send each other. Dataclasses, because Temporal's default converter writes those as
JSON. Histories on a server hold them for as long as workflows run: new fields come last, and have defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "RUN_ACTIVITY",
    "TASK_QUEUE",
    "Failure",
    "Letter",
    "Limits",
    "ThreadStart",
    "ThreadState",
    "ThreadStop",
    "Work",
]

TASK_QUEUE = "clew"
"""The task queue of workflows and activities if the user names none."""
RUN_ACTIVITY = "clew_run_thread"
"""The name of the activity that runs an agent until its thread stops."""


@dataclass(frozen=True)
class Limits:
    """Times that Temporal gives the work on a thread.

    A worker that is killed is noticed after `heartbeat_seconds`; then another worker goes on. One attempt may take
    `start_to_close_seconds`; after that it is interrupted, and the next attempt goes on where it stopped.
    """

    heartbeat_seconds: float = 10.0
    start_to_close_seconds: float = 86_400.0


@dataclass(frozen=True)
class Letter:
    """A pointer to something that was sent to a thread. `kind` is `prompt`, `answer` (to a question of the thread) or
    `resume` (go on with what is on record). What a prompt or an answer says is in the agent's store, under `id`."""

    id: str
    kind: str = "prompt"


@dataclass(frozen=True)
class Work:
    """The input of the activity: what an agent has to do on a thread.

    `prompt` and `answer` are set by `run_thread` only, whose workflow has them anyway; else the store has them. With
    `with_output` the activity returns the agent's answer too.
    """

    thread_id: str
    agent: str
    letter: Letter
    prompt: str | None = None
    answer: Any = None
    with_output: bool = False


@dataclass(frozen=True)
class ThreadStop:
    """How the work on a thread stopped. Only pointers: what was said is in the agent's store."""

    thread_id: str
    status: str
    """`done`, `waiting` (for answers to questions) or `interrupted` (by a limit of the agent, or by `interrupt`)."""
    position: int = 0
    """How many frames the thread's log had when the work stopped."""
    turns: int = 0
    questions: list[str] = field(default_factory=list)
    """The ids of the questions to people that the thread waits for."""
    output: Any = None
    """The agent's answer, only if `run_thread(with_output=True)` asked for it."""


@dataclass(frozen=True)
class Failure:
    """An error with which the work on a letter ended for good. `error` is the name of the error's class, and
    `attributes` are those of its attributes that are plain values."""

    letter: str
    error: str
    message: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ThreadStart:
    """The input of the workflow of a thread. All fields after `limits` are what an earlier run of the same workflow
    hands on when it continues as new."""

    thread_id: str
    agent: str
    activity_queue: str = ""
    """The task queue of the workers that run the agent; empty for the workflow's own."""
    limits: Limits = Limits()
    inbox: list[Letter] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    is_closing: bool = False
    last: ThreadStop | None = None


@dataclass(frozen=True)
class ThreadState:
    """The answer of the workflow to the query `state`."""

    pending: list[str]
    """The ids of the letters that are not done, the one that is worked on first."""
    failures: list[Failure]
    """The newest failures."""
