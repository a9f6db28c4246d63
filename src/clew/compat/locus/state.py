"""`AgentState`, the state of a conversation as Locus keeps it, with its messages and tool executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self
from uuid import uuid4

import msgspec

from clew.errors import InvalidInput

__all__ = ["AgentState", "Message", "ReasoningStep", "Role", "ToolCall", "ToolExecution", "ToolResult"]


def _now() -> datetime:
    return datetime.now(UTC)


class Role(StrEnum):
    """The role of a message: who said it."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model's request to run a tool."""

    id: str = ""
    name: str
    arguments: dict[str, Any] = {}
    malformed_arguments: str | None = None
    """What the model wrote, if that was not a JSON object. `arguments` is empty then."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool returned, or the error that it raised."""

    tool_call_id: str
    name: str
    content: str
    error: str | None = None
    duration_ms: float | None = None

    @property
    def success(self) -> bool:
        return self.error is None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the conversation. The result of each tool call is a message of its own."""

    role: Role
    content: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    name: str | None = None
    metadata: dict[str, Any] = {}

    @classmethod
    def system(cls, content: str) -> Self:
        return cls(role=Role.SYSTEM, content=content)

    @classmethod
    def user(cls, content: str) -> Self:
        return cls(role=Role.USER, content=content)

    @classmethod
    def assistant(cls, content: str | None = None, tool_calls: Sequence[ToolCall] = ()) -> Self:
        return cls(role=Role.ASSISTANT, content=content, tool_calls=list(tool_calls))

    @classmethod
    def tool(cls, result: ToolResult) -> Self:
        """Make the message that tells the model what a tool returned. If the result has no text, its error becomes the
        text."""
        text = result.content or ("" if result.error is None else f"Error: {result.error}")
        return cls(role=Role.TOOL, content=text, tool_call_id=result.tool_call_id, name=result.name)


class ToolExecution(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that was carried out, and how it ended."""

    tool_name: str
    tool_call_id: str
    arguments: dict[str, Any] = {}
    result: str | None = None
    error: str | None = None
    duration_ms: float | None = None
    timestamp: datetime | None = None
    idempotent_cache_hit: bool = False

    @property
    def success(self) -> bool:
        return self.error is None


class ReasoningStep(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration of an agent, in the form in which Locus records it: what the model said, its tool calls and their
    results."""

    iteration: int
    thought: str | None = None
    tool_calls: list[ToolCall] = []
    tool_results: list[ToolExecution] = []
    reflection: str | None = None
    confidence_delta: float = 0.0
    timestamp: datetime | None = None


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a conversation. It cannot be changed: each `with_…` method returns another state.

    The method `save` of a checkpointer takes such a state, and `load` returns one. Clew itself keeps messages, tokens
    and values of a thread. The fields that only Locus computes, such as `confidence`, are kept as they were saved; no
    run changes them.
    """

    run_id: str = msgspec.field(default_factory=lambda: uuid4().hex)
    agent_id: str | None = None
    messages: tuple[Message, ...] = ()
    """The whole conversation. The first message is the system prompt, if there is one."""
    iteration: int = 0
    """How many responses of the model the conversation has."""
    max_iterations: int = 20
    tool_executions: tuple[ToolExecution, ...] = ()
    reasoning_steps: tuple[ReasoningStep, ...] = ()
    confidence: float = 0.0
    confidence_threshold: float = 0.85
    confidence_history: tuple[float, ...] = ()
    tool_history: tuple[str, ...] = ()
    tool_loop_threshold: int = 3
    tool_loop_read_only_threshold: int | None = None
    tool_loop_read_only_tools: frozenset[str] = frozenset()
    tool_loop_warnings: tuple[tuple[str, int], ...] = ()
    terminal_tools: frozenset[str] = frozenset()
    total_tokens_used: int = 0
    prompt_tokens_used: int = 0
    completion_tokens_used: int = 0
    cache_creation_tokens_used: int = 0
    cache_read_tokens_used: int = 0
    cached_tokens_used: int = 0
    cache_write_tokens_used: int = 0
    reported_cost_usd: float = 0.0
    reported_cost_calls: int = 0
    token_budget: int | None = None
    input_price_per_mtok: float | None = None
    output_price_per_mtok: float | None = None
    cost_usd_used: float = 0.0
    cost_budget_usd: float | None = None
    completion_mode: str = "auto"
    errors: tuple[str, ...] = ()
    provider_state: Any = None
    metadata: dict[str, Any] = {}
    """Values by name. In Clew they are the thread's values, which tools read and set as `ctx.state`."""
    started_at: datetime = msgspec.field(default_factory=_now)
    updated_at: datetime = msgspec.field(default_factory=_now)

    def with_message(self, message: Message) -> Self:
        """Return a copy of this state with one more message at the end."""
        return self.with_messages([message])

    def with_messages(self, messages: Sequence[Message]) -> Self:
        """Return a copy of this state with these messages added at the end."""
        return self.model_copy(update={"messages": (*self.messages, *messages)})

    def with_metadata(self, key: str, value: Any) -> Self:
        """Return a copy of this state whose metadata has `value` under `key`."""
        return self.model_copy(update={"metadata": {**self.metadata, key: value}})

    def with_error(self, error: str) -> Self:
        """Return a copy of this state with one more error."""
        return self.model_copy(update={"errors": (*self.errors, error)})

    def with_iteration(self, iteration: int) -> Self:
        """Return a copy of this state in which `iteration` is the number of iterations."""
        return self.model_copy(update={"iteration": iteration})

    def next_iteration(self) -> Self:
        """Return a copy of this state in which the number of iterations is higher by one."""
        return self.with_iteration(self.iteration + 1)

    def with_tool_execution(self, execution: ToolExecution) -> Self:
        """Return a copy of this state with one more tool execution."""
        history = (*self.tool_history, execution.tool_name)
        return self.model_copy(update={"tool_executions": (*self.tool_executions, execution), "tool_history": history})

    def with_token_usage(self, prompt_tokens: int, completion_tokens: int) -> Self:
        """Return a copy of this state in which the tokens of one more response are added to the totals."""
        return self.model_copy(
            update={
                "total_tokens_used": self.total_tokens_used + prompt_tokens + completion_tokens,
                "prompt_tokens_used": self.prompt_tokens_used + prompt_tokens,
                "completion_tokens_used": self.completion_tokens_used + completion_tokens,
            }
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of this state with the fields in `update` changed. `updated_at` becomes the present time unless
        it is among them. Raises `InvalidInput` for a field that does not exist."""
        changes = {"updated_at": _now(), **(update or {})}
        if unknown := changes.keys() - set(self.__struct_fields__):
            raise InvalidInput(
                f"an AgentState has no {', '.join(sorted(unknown))}. Use metadata for values of your own."
            )
        return msgspec.structs.replace(self, **changes)

    @property
    def last_tool_calls(self) -> list[ToolCall]:
        """The tool calls of the model's last response that calls a tool; empty if there is none."""
        return next((list(message.tool_calls) for message in reversed(self.messages) if message.tool_calls), [])

    @property
    def total_tokens(self) -> int:
        """How many tokens were used so far, input and output together."""
        return self.total_tokens_used

    def to_checkpoint(self) -> dict[str, Any]:
        """Return this state as a dict of plain JSON values, with the names under which Locus stores them."""
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, order="deterministic"))
        return values

    @classmethod
    def from_checkpoint(cls, data: Mapping[str, Any]) -> Self:
        """Make a state from values that Locus has stored, in version 0.2 or 3. Values for which a state has no field
        are ignored.

        Raises `InvalidInput` if a field has a value of the wrong kind; the message names the field.
        """
        try:
            return msgspec.convert(data, cls, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"this is not a state of a Locus agent: {error}") from None
