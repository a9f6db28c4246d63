"""The types of the results in caw, a library that wraps coding agents. A trajectory is the record of a session, and
consists of turns. In caw, a turn is one prompt with everything up to its answer; Clew calls that an exchange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from clew.agent import Exchange, RunResult
from clew.agent import Trajectory as Exchanges
from clew.log import Usage
from clew.messages import Text, Thinking, ToolCall

__all__ = [
    "TextBlock",
    "ThinkingBlock",
    "ToolUse",
    "Trajectory",
    "Turn",
    "UsageStats",
    "as_trajectory",
    "as_turn",
    "trajectory_to_json",
    "turn_to_json",
]


class UsageStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Numbers of tokens, and their cost in dollars. An amount that is not known is None, never 0.

    As in caw, `input_tokens` leaves out the tokens that were read from a cache or written to one. Clew's own `Usage`
    counts them as input too.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def total_tokens(self) -> int | None:
        """The sum of `input_tokens` and `output_tokens`; None if one of them is not known."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text that the agent wrote."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """A piece of the model's reasoning, which comes before its answer."""

    text: str


class ToolUse(msgspec.Struct, frozen=True, tag="tool_use"):
    """A tool call of the agent, with what the tool returned."""

    id: str
    name: str
    arguments: Any
    output: str = ""
    is_error: bool = False


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and everything that was done for it, up to its answer. This is a turn as caw has it; Clew calls it an
    exchange."""

    input: str
    """The prompt."""
    output: tuple[TextBlock | ThinkingBlock | ToolUse, ...] = ()
    """What the agent said and did, in order."""
    usage: UsageStats = UsageStats()
    """What this prompt alone used, sub-agents included."""
    duration_ms: int = 0
    status: Literal["done", "waiting", "interrupted", "failed", "running"] = "done"
    """How the turn ended. It is `interrupted` if a timeout, a cancel or a crash stopped it."""
    reason: str = ""
    """Why the turn was interrupted or failed."""

    @property
    def result(self) -> str:
        """The agent's answer as text: the last block of text in `output`; empty if there is none."""
        return next((block.text for block in reversed(self.output) if isinstance(block, TextBlock)), "")

    @property
    def tool_calls(self) -> list[ToolUse]:
        """The tool calls that the agent made for this prompt, in order: the blocks of this type in `output`."""
        return [block for block in self.output if isinstance(block, ToolUse)]


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a session. Each of its turns is a prompt and all up to its answer; Clew calls that an exchange."""

    agent: str
    """The provider that has the session now, such as `claude_code`."""
    model: str = ""
    session_id: str = ""
    created_at: str = ""
    completed_at: str = ""
    """When the session was ended by `end`; empty before."""
    system_prompt: str = ""
    turns: tuple[Turn, ...] = ()
    usage: UsageStats = UsageStats(0, 0, 0, 0, 0.0)
    """What the whole session used, sub-agents included."""

    @property
    def num_turns(self) -> int:
        """How many prompts the session has had: the number of its turns. A turn of caw is a prompt with all the work
        for it."""
        return len(self.turns)

    @property
    def result(self) -> str:
        """The answer to the last prompt; empty if there is none."""
        return self.turns[-1].result if self.turns else ""

    @property
    def duration_ms(self) -> int:
        """How many milliseconds all turns took together."""
        return sum(turn.duration_ms for turn in self.turns)

    @property
    def total_tool_calls(self) -> int:
        return sum(len(turn.tool_calls) for turn in self.turns)

    @property
    def total_usage(self) -> UsageStats:
        """The tokens and the cost of the whole session, sub-agents included. This is `usage` under a second name that
        caw has for it."""
        return self.usage

    @property
    def is_complete(self) -> bool:
        """Whether the session was ended by its method `end`."""
        return bool(self.completed_at)


def as_turn(result: RunResult) -> Turn:
    """Convert the result of a prompt, or an exchange of a thread, to a `Turn`. caw calls a prompt with everything up to
    its answer a turn."""
    return Turn(
        input=result.prompt,
        output=tuple(_blocks(result)),
        usage=_usage(result.usage, result.cost),
        duration_ms=round(result.duration * 1000),
        status=result.status,
        reason=result.reason,
    )


def as_trajectory(found: Exchanges, provider: str, **about: str) -> Trajectory:
    """Convert `found`, the exchanges of a thread, to a `Trajectory`, the record of a session in caw. `provider` is the
    name of the provider that has the thread now, and `about` has further fields of the trajectory, such as
    `created_at`."""
    last: Exchange | None = found.exchanges[-1] if found.exchanges else None
    model = about.pop("model", "")
    return Trajectory(
        agent=provider,
        model=model if last is None else last.model or model,
        session_id=found.thread_id,
        turns=tuple(map(as_turn, found.exchanges)),
        usage=_usage(found.usage, found.cost),
        **about,
    )


def _usage(usage: Usage | None, cost: float | None) -> UsageStats:
    if usage is None:
        return UsageStats(cost_usd=cost)
    cached = usage.cache_read_tokens, usage.cache_write_tokens
    return UsageStats(max(0, usage.input_tokens - sum(cached)), usage.output_tokens, *cached, cost)


def _blocks(result: RunResult) -> Iterator[TextBlock | ThinkingBlock | ToolUse]:
    uses = iter(result.tool_uses)
    for block in result.blocks:
        if isinstance(block, Text):
            yield TextBlock(block.text)
        elif isinstance(block, Thinking):
            yield ThinkingBlock(block.text)
        elif isinstance(block, ToolCall):
            use = next(uses)
            yield ToolUse(block.id, use.name, use.arguments, use.output, use.is_error)


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """Return a turn as a dict in the form in which caw writes turns into a file, with one more field: `status`, how the
    turn ended. Tokens and costs that are not known are left out."""
    return {
        "input": turn.input,
        "output": msgspec.to_builtins(turn.output),
        "usage": msgspec.to_builtins(turn.usage),
        "duration_ms": turn.duration_ms,
        "status": turn.status,
    }


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory, the record of a session, as a dict in the form in which caw writes it into a file. The list
    of turns in it is empty, for the caller to fill. Tokens and costs that are not known are left out."""
    usage = msgspec.to_builtins(trajectory.usage)
    return {
        "agent": trajectory.agent,
        "model": trajectory.model,
        "session_id": trajectory.session_id,
        "created_at": trajectory.created_at,
        "completed_at": trajectory.completed_at,
        "system_prompt": trajectory.system_prompt,
        "turns": [],
        "usage": usage,
        "total_usage": usage,
        "duration_ms": trajectory.duration_ms,
    }
