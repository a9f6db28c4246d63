"""The state a thread is in: what its log folds to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from clew.log.entries import ProviderKey, Usage, WorkspaceChanging, WorkspaceSnapshot
from clew.messages import Block, Message, ToolCall, ToolResult, tool_calls

__all__ = [
    "EMPTY",
    "PROMPT_IDS",
    "TURN_MARK",
    "Call",
    "Checkpoint",
    "Fact",
    "FoldedState",
    "Kind",
    "Ranges",
    "provider_key",
]

Ranges = tuple[tuple[int, int], ...]
"""Stretches of the history, from and up to but without, in order."""


TURN_MARK = "clew:turn:"
"""How the names of facts begin that are about one prompt; its place in the history follows."""

PROMPT_IDS = "clew:prompt-ids"
"""The thread's value that holds the ids of the prompts that wait, in their order."""

Kind = Literal["state", "turn", "workspace", "provider", "changing"]


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value that holds from a turn on, until a later one of the same key; unwound with its turn."""

    turn: int
    kind: Kind
    key: str
    value: Any


class Call(msgspec.Struct, frozen=True):
    """A tool call of the open turn and how far it came.

    `in_doubt`: its intent is on record and its outcome is not, so its effect may or may not have happened.
    """

    message: int
    index: int
    call: ToolCall
    status: Literal["done", "not_started", "in_doubt"]
    key: str = ""
    attempt: int = 0
    result: ToolResult | None = None
    steps: Mapping[str, Any] = {}
    open_steps: tuple[str, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Everything a thread is at one point of its log. The same log gives the same checkpoint, on every machine.

    `messages` is the conversation as the model sees it; `history` holds every message ever recorded, those that were
    rewound or compacted away included. Spend is never unwound: what was paid was paid.
    """

    agent: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: dict[str, str] = {}
    limits: dict[str, Any] = {}
    parent: tuple[str, int] | None = None
    title: str = ""
    tags: dict[str, str] = {}
    status: Literal["running", "waiting", "interrupted", "failed", "done"] = "interrupted"
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    unaccounted: int = 0
    """Model calls that no response followed and that may have been paid for. Refused ones are not counted."""
    history: tuple[Message, ...] = ()
    view: Ranges = ()
    marks: tuple[Ranges, ...] = ((),)
    """The view at the end of each turn, turn 0 first: what a rewind goes back to."""
    facts: tuple[Fact, ...] = ()
    open_message: int = -1
    """The place of the message whose calls are not all done, or -1."""
    intents: dict[int, tuple[str, int]] = {}
    """Key and attempt of the calls of that message whose bodies may have started, by index."""
    results: dict[int, ToolResult] = {}
    steps: dict[int, dict[str, Any]] = {}
    open_steps: dict[int, tuple[str, ...]] = {}
    in_flight: bool = False
    """A model call was started and has not been answered yet."""
    seconds: float = 0.0
    """How long runs worked on this thread, all together."""
    done_at: int = -1
    """How long the history was when the work was last said to be done; -1 if it never was."""
    partial: tuple[Block, ...] = ()
    """What came of a response that is not whole, in the pieces in which it came."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model sees it, rewinds and compactions applied."""
        if self.view == ((0, len(self.history)),):
            return self.history
        return tuple(message for start, stop in self.view for message in self.history[start:stop])

    @property
    def turns(self) -> int:
        """Responses of the model in the line of work that is current."""
        return len(self.marks) - 1

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the open turn, in order; empty once all are done and their results are a message."""
        if self.open_message < 0:
            return ()
        calls = tool_calls(self.history[self.open_message])
        return tuple(self._call(index, call) for index, call in enumerate(calls))

    def _call(self, index: int, call: ToolCall) -> Call:
        result = self.results.get(index)
        key, attempt = self.intents.get(index, ("", 0))
        return Call(
            message=self.open_message,
            index=index,
            call=call,
            status="done" if result else "in_doubt" if index in self.intents else "not_started",
            key=key,
            attempt=attempt,
            result=result,
            steps=self.steps.get(index, {}),
            open_steps=self.open_steps.get(index, ()),
        )

    @property
    def state(self) -> dict[str, Any]:
        """The user's values as of now."""
        return {fact.key: fact.value for fact in self.facts if fact.kind == "state"}

    @property
    def metadata(self) -> dict[int, dict[str, Any]]:
        """Tools' metadata by turn. What Clew itself keeps of each prompt is not among it."""
        found: dict[int, dict[str, Any]] = {}
        for fact in self.facts:
            if fact.kind == "turn" and not fact.key.startswith(TURN_MARK):
                found.setdefault(fact.turn, {})[fact.key] = fact.value
        return found

    @property
    def workspace(self) -> WorkspaceSnapshot | None:
        """The newest snapshot of the workspace's files."""
        for fact in reversed(self.facts):
            if fact.kind == "workspace":
                return WorkspaceSnapshot(*fact.value)
        return None

    @property
    def changing(self) -> WorkspaceChanging | None:
        """From where on calls may have changed the workspace's files with no snapshot on record that holds it; None if the
        newest snapshot is as new as the conversation."""
        for fact in reversed(self.facts):
            if fact.kind == "changing":
                return WorkspaceChanging(*fact.value) if fact.value else None
        return None

    @property
    def files_turn(self) -> int:
        """The turn that the files on record are of; 0 if they are older than the first."""
        changing = self.changing
        return self.turns if changing is None else changing.since - 1

    @property
    def provider_keys(self) -> dict[str, str]:
        """The names outside agents know this conversation by."""
        return {name: known.key for name, known in self.providers.items()}

    @property
    def providers(self) -> dict[str, ProviderKey]:
        """What is known of this conversation at each outside agent that ever had it."""
        return {fact.key: provider_key(fact) for fact in self.facts if fact.kind == "provider"}


def provider_key(fact: Fact) -> ProviderKey:
    """The entry that a fact about a provider comes from. One that says no more than a name is kept as that name."""
    return (
        ProviderKey(fact.key, *fact.value)
        if isinstance(fact.value, list | tuple)
        else ProviderKey(fact.key, fact.value)
    )


EMPTY = Checkpoint()


class FoldedState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="folded"):
    """A whole state inside the log: loading starts here instead of at the beginning."""

    state: Checkpoint
