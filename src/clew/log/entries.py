"""The kinds of entries in a thread's log. An entry is a small record of something that happened, and never changes once
it is written."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from clew.messages import Block, Message, ToolResult

__all__ = [
    "Compacted",
    "Described",
    "Entry",
    "InboxRead",
    "KnownEntry",
    "LeaseTaken",
    "MessageAdded",
    "ModelCallRefused",
    "ModelCallStarted",
    "Posted",
    "ProviderKey",
    "Queued",
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
    """The numbers of tokens that model calls used. Cached tokens are included in the input tokens, and reasoning tokens
    in the output tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class _Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of all entries. An entry is stored as an array that begins with its kind.

    New fields are added at the end and have defaults, so that old logs stay readable.
    """


class ThreadStarted(_Entry, tag="started", frozen=True):
    """The agent, model, system prompt, tools and limits that the thread's runs use from here on.

    The entry is written when the thread begins, and again when a resumed run uses another value for any of them.
    """

    agent: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: dict[str, str] = {}
    """For each tool's name, a digest of what the model is told about the tool, and of the effect that the tool
    declares.

    A digest that differs from the recorded one shows a resume that the tool has changed.
    """
    limits: dict[str, Any] = {}
    parent: tuple[str, int] | None = None
    """For a fork or a sub-agent's thread: the id of the thread from which it was made, and the number of that thread's
    turn."""


class MessageAdded(_Entry, tag="message", frozen=True):
    """A message was added to the conversation. If the message is a model's response, the entry also has the tokens and
    the money that the response cost."""

    message: Message
    usage: Usage | None = None
    cost_usd: float | None = None
    """The cost of the response.

    None although `usage` is given means that the price is unknown; then the thread's total cost becomes unknown too.
    """


class ModelCallStarted(_Entry, tag="model-call", frozen=True):
    """A request is about to be sent to a model.

    If the log has neither a response nor a `ModelCallRefused` after this entry, the request may have been charged. The
    thread's state counts such requests as `unaccounted`.
    """

    model: str = ""
    request: str = ""


class ModelCallRefused(_Entry, tag="refused", frozen=True):
    """The vendor did not run the last request that was sent to a model.

    The request cost nothing, so it is not counted as `unaccounted`. That is the number of requests that may have been
    charged although the log has no response to them.
    """

    reason: str = ""
    """Why the request was refused, in the vendor's own words."""


class ToolIntent(_Entry, tag="intent", frozen=True):
    """A tool is about to run. `message` is the index, in the history, of the message with the call. `index` is the
    index of the call among the calls of that message."""

    message: int
    index: int
    key: str = ""
    """The idempotency key, by which the tool can recognise a repeated call.

    It is the same for every attempt of this call.
    """
    attempt: int = 1


class ToolOutcome(_Entry, tag="outcome", frozen=True):
    """The result of a tool call. Once this entry is in the log, the call is done and is never run again. `message` is
    the index, in the history, of the message with the call, and `index` the index of the call among that message's
    calls."""

    message: int
    index: int
    result: ToolResult


class StepIntent(_Entry, tag="step-intent", frozen=True):
    """A step is about to run. A step is a section of a tool's code whose result is recorded, so that the section is not
    run again if the tool is. `key` is the name of the step.

    `message` and `index` say to which tool call the step belongs: the index of the message in the history, and the
    index of the call among the calls of that message.
    """

    message: int
    index: int
    key: str


class StepOutcome(_Entry, tag="step", frozen=True):
    """The value that a step returned. A step is a section of a tool's code whose result is recorded under a key.

    If the tool runs again, the step is not run again: it returns this value.
    """

    message: int
    index: int
    key: str
    value: Any


class WorkspaceSnapshot(_Entry, tag="workspace", frozen=True):
    """A snapshot of the files in the workspace, taken when all calls of the current turn were done.

    The snapshot is a tree of blobs, and `digest` names the blob at its root. `files` is the number of files, and `size`
    their total size in bytes.
    """

    digest: str
    files: int = 0
    size: int = 0


class WorkspaceChanging(_Entry, tag="changing", frozen=True):
    """From this entry on, tool calls may change files in the workspace, and no snapshot holds those changes yet.

    The entry is written once, before the first such call. It counts until the next snapshot, or until another entry of
    this kind with `since=0`, which is written when the folder was checked and found equal to the newest snapshot. If a
    crash comes first, the entry tells the resumed run that the newest snapshot is older than the conversation.
    """

    since: int = 0
    """The first turn whose calls may have changed files. 0 means that no change is left without a snapshot."""
    empty: str = ""
    """If the workspace's folder was empty when this entry was written, a text that identifies the empty folder, else
    "".

    The text of the folder changes as soon as a file is made in it. So if the folder still has this text when the thread
    is resumed, no file has been made in the folder since.
    """


class ProviderKey(_Entry, tag="provider", frozen=True):
    """The id under which an outside agent (such as Claude Code) knows this conversation. To continue the conversation
    in that agent, this id is needed."""

    provider: str
    key: str
    native: str = ""
    """Digest of the conversation in the outside agent's own storage format, kept as a tree of blobs like a file snapshot."""
    thread: str = ""
    """The id of the log that this key belongs to. A fork or copy has another log and gets a key of its own."""
    messages: int = 0
    """Number of messages, counted from the start of the history, that `native` covers."""


class Streamed(_Entry, tag="streamed", frozen=True):
    """Blocks of a model's response that is still arriving. The thread's state holds them until the complete response
    replaces them."""

    blocks: tuple[Block, ...]
    call: str = ""
    """If a sub-agent said these blocks: the vendor's id of the tool call that started it.

    Empty if the model of this conversation said them.
    """


class StatusChanged(_Entry, tag="status", frozen=True):
    """The thread has a new status. `reason` says why the work stopped, or what it waits for."""

    status: Literal["running", "waiting", "interrupted", "failed", "done", "queued"]
    reason: str = ""


class Queued(_Entry, tag="queued", frozen=True):
    """The thread waits for a worker (a process that takes queued threads and runs their agents). Its status is "queued"
    from here on. The entry holds until a run of the thread has ended with another status than "running" or "queued"."""

    log: str
    """The random id of the thread's log. A copy or fork has another, and is not in the queue."""
    due: int
    """When a worker should take the thread, in microseconds since 1970. Workers take the thread with the earliest time
    first. A time in the future delays the thread."""
    queued_at: int = 0
    """When the thread was queued, in microseconds since 1970. Earlier than `due` for a thread that is tried again later,
    and later than `due` for one with a high priority."""
    priority: int = 0
    tries: int = 0
    """How many runs of a worker, one after the other, have ended without a new turn and without an end of the work: they
    failed, or their process died."""
    reason: str = ""
    """Why the thread was queued again, such as the error of the last run."""
    turns: int = 0
    """How many turns the thread had then. If it has more after the next run, that run has made progress."""


class InboxRead(_Entry, tag="inbox", frozen=True):
    """Posts were taken out of the thread's inbox, the hidden thread to which others post prompts while this one runs.
    What they say is recorded in the same frame as this entry."""

    inbox: str
    """The random id of the inbox's log. An inbox that was deleted and made again, or that of a copy, has another."""
    posts: int
    """How many posts of the inbox, from its beginning, are on record in this thread's log. Each frame of an inbox is one
    post, so this is also the number of the first frame that is not read yet."""


class Posted(_Entry, tag="posted", frozen=True):
    """A prompt, or an answer to the questions of a thread, was posted to the thread's inbox. This entry is only in the
    logs of inboxes. It does not change the state of the inbox."""

    prompt: str | None = None
    prompt_id: str = ""
    """The id of the prompt, or of the post if it has an answer only. It keeps a post from being taken in twice."""
    answer: Any = None


class LeaseTaken(_Entry, tag="lease", frozen=True):
    """A process took the lease (the right to append to the thread) and began to write. An append must name the position
    of the log's end. This entry moves the end, so that appends of earlier holders fail.

    A holder that did not renew its lease in time takes the lease again, with the same token, before it goes on.
    """

    owner: str
    token: str


class Rewound(_Entry, tag="rewound", frozen=True):
    """The conversation continues from an earlier point.

    If `turn` is set, that point is the end of the turn with this number. Otherwise the model from now on sees only the
    first `messages` of the messages that it saw so far.
    """

    turn: int | None = None
    messages: int | None = None


class Compacted(_Entry, tag="compacted", frozen=True):
    """The conversation was made shorter for the model: from here on the model sees `summary` in place of all messages
    except the newest `keep` ones. The history still holds every message."""

    summary: Message
    keep: int = 0
    usage: Usage | None = None
    cost_usd: float | None = None


class StateSet(_Entry, tag="state", frozen=True):
    """Sets a value in the thread's state or, if `scope` is "turn", in the metadata of the current turn.

    If the thread is rewound to the end of an earlier turn, the value that held at that time holds again.
    """

    key: str
    value: Any
    scope: Literal["thread", "turn"] = "thread"


class Described(_Entry, tag="described", frozen=True):
    """Sets a new title or new tags of the thread. A field that is None leaves the current title or tags as they are."""

    title: str | None = None
    tags: dict[str, str] | None = None


class Spend(_Entry, tag="spend", frozen=True):
    """An entry that adds to the thread's totals: tokens and money that belong to no recorded message, and seconds of
    work."""

    usage: Usage = Usage()
    cost_usd: float | None = None
    seconds: float = 0.0


class UnknownEntry(msgspec.Struct, frozen=True):
    """An entry of a kind that this version of Clew does not know. It does not change the thread's state. If the thread
    is copied, the copy's log has the entry unchanged."""

    raw: bytes
    """The entry as it is stored, in msgpack."""


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
    | Queued
    | InboxRead
    | Posted
    | LeaseTaken
    | Rewound
    | Compacted
    | StateSet
    | Described
    | Spend
    | Streamed
)
Entry = KnownEntry | UnknownEntry
