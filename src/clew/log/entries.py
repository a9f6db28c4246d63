"""The facts a thread's log is made of. Each is small, immutable, and never changed once it is written."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from clew.messages import Block, Message, ToolResult

__all__ = [
    "Compacted",
    "Described",
    "Entry",
    "KnownEntry",
    "LeaseTaken",
    "MessageAdded",
    "ModelCallRefused",
    "ModelCallStarted",
    "ProviderKey",
    "Rewound",
    "Spend",
    "StateSet",
    "StatusChanged",
    "StepIntent",
    "StepOutcome",
    "Streamed",
    "ThreadStarted",
    "ToolIntent",
    "ToolOutcome",
    "UnknownEntry",
    "Usage",
    "WorkspaceChanging",
    "WorkspaceSnapshot",
]


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens, as vendors count them. Cached and reasoning tokens are parts of the input and the output."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class _Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Encoded as an array, its kind first. New fields come last and have defaults, so that old logs stay readable."""


class ThreadStarted(_Entry, tag="started", frozen=True):
    """Who works on this thread and with what. Written again when a resume changes any of it."""

    agent: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: dict[str, str] = {}
    """Digest of what the model is told of it and of its effect, by the tool's name."""
    limits: dict[str, Any] = {}
    parent: tuple[str, int] | None = None
    """The thread and turn that this one was forked or called from."""


class MessageAdded(_Entry, tag="message", frozen=True):
    """A message of the conversation; for a model's response, with what it cost."""

    message: Message
    usage: Usage | None = None
    cost_usd: float | None = None
    """None beside a usage: nobody knows the price, so nobody knows the total either."""


class ModelCallStarted(_Entry, tag="model-call", frozen=True):
    """A request is about to be sent. If neither a response nor a `ModelCallRefused` follows, it is lost and may have been
    paid for: it counts as `unaccounted`."""

    model: str = ""
    request: str = ""


class ModelCallRefused(_Entry, tag="refused", frozen=True):
    """The vendor did not carry out the request that was sent last. It cost nothing, so it is not `unaccounted`."""

    reason: str = ""
    """With the vendor's own words."""


class ToolIntent(_Entry, tag="intent", frozen=True):
    """A tool's body is about to start. A call is known by its message's place in the history and its index there."""

    message: int
    index: int
    key: str = ""
    """The idempotency key, the same for every attempt."""
    attempt: int = 1


class ToolOutcome(_Entry, tag="outcome", frozen=True):
    """What a call came to. With it the call is done, and is never run again."""

    message: int
    index: int
    result: ToolResult


class StepIntent(_Entry, tag="step-intent", frozen=True):
    """A step inside a tool is about to run."""

    message: int
    index: int
    key: str


class StepOutcome(_Entry, tag="step", frozen=True):
    """What a step inside a tool came to: replayed if the tool runs again."""

    message: int
    index: int
    key: str
    value: Any


class WorkspaceSnapshot(_Entry, tag="workspace", frozen=True):
    """The files the workspace held once the current turn was settled."""

    digest: str
    files: int = 0
    size: int = 0


class WorkspaceChanging(_Entry, tag="changing", frozen=True):
    """Calls may change the workspace's files from here on, and no snapshot holds those changes yet.

    Written once before the first such call. The next snapshot ends it; so does `since=0`, written when the folder was looked
    at and still is what the newest snapshot holds. A crash in between leaves it standing, so that a resume knows that the
    files on record are older than the conversation.
    """

    since: int = 0
    """The first turn whose calls may have changed files."""
    empty: str = ""
    """If the folder was empty then, what tells it from every other one and from itself once a file was made in it."""


class ProviderKey(_Entry, tag="provider", frozen=True):
    """The name an outside agent knows the conversation by: what resumes it there."""

    provider: str
    key: str
    native: str = ""
    """The digest of the conversation as that agent keeps it: a tree of blobs, as a snapshot of files is."""
    thread: str = ""
    """The id of the log that this name belongs to: a fork, or a copy, goes on under another."""
    messages: int = 0
    """How long the history was that `native` holds."""


class Streamed(_Entry, tag="streamed", frozen=True):
    """Blocks of a response as they come: kept in case no whole response ever follows, and replaced by the one that does."""

    blocks: tuple[Block, ...]
    call: str = ""
    """The vendor's id of the call whose sub-agent says this; empty for the conversation itself."""


class StatusChanged(_Entry, tag="status", frozen=True):
    """Where the work stands; `reason` says why it stopped, or what it waits for."""

    status: Literal["running", "waiting", "interrupted", "failed", "done"]
    reason: str = ""


class LeaseTaken(_Entry, tag="lease", frozen=True):
    """A process began to write here. Moves the log on, which is what fences every former holder."""

    owner: str
    token: str


class Rewound(_Entry, tag="rewound", frozen=True):
    """The conversation goes on from an earlier point: the end of a turn, or a number of messages of the view."""

    turn: int | None = None
    messages: int | None = None


class Compacted(_Entry, tag="compacted", frozen=True):
    """For the model a summary stands in place of all but the newest `keep` messages. History stays whole."""

    summary: Message
    keep: int = 0
    usage: Usage | None = None
    cost_usd: float | None = None


class StateSet(_Entry, tag="state", frozen=True):
    """A user's value, or, with `scope="turn"`, metadata of the current turn. Either goes when its turn is unwound."""

    key: str
    value: Any
    scope: Literal["thread", "turn"] = "thread"


class Described(_Entry, tag="described", frozen=True):
    """A new title or new tags; None leaves what is there."""

    title: str | None = None
    tags: dict[str, str] | None = None


class Spend(_Entry, tag="spend", frozen=True):
    """Tokens and money spent apart from any message on record, and seconds of work since it was last said."""

    usage: Usage = Usage()
    cost_usd: float | None = None
    seconds: float = 0.0


class UnknownEntry(msgspec.Struct, frozen=True):
    """A kind that this version does not know: carried through, written back as it was, and skipped by the fold."""

    raw: bytes
    """The entry as msgpack."""


KnownEntry = (
    ThreadStarted
    | MessageAdded
    | ModelCallStarted
    | ModelCallRefused
    | ToolIntent
    | ToolOutcome
    | StepIntent
    | StepOutcome
    | WorkspaceSnapshot
    | WorkspaceChanging
    | ProviderKey
    | StatusChanged
    | LeaseTaken
    | Rewound
    | Compacted
    | StateSet
    | Described
    | Spend
    | Streamed
)
Entry = KnownEntry | UnknownEntry
