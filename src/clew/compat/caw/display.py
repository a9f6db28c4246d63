"""Print what a session does while it works: prompts, tool calls, answers, tokens and cost, and limits of the account
that were reached. The environment variable `CAW_LOG` says how much is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from clew._runtime.text import elapsed, one_line, plural, visible
from clew.agent import Event, TextDelta, ThinkingDelta, ToolFinished, ToolStarted
from clew.compat.caw.trajectory import Turn, UsageStats
from clew.errors import InvalidInput, ProviderLimited
from clew.messages import Text

__all__ = ["VARIABLE", "Display", "Mode"]

VARIABLE = "CAW_LOG"
"""The environment variable that says how much is printed."""
Mode = Literal["full", "short", "result", "off"]
"""How much is printed. `full`: everything. `short`: everything, each cut to one line. `result`: answers and what they
used. `off`: nothing."""
_LONGEST = 100


class Display:
    """Prints what a session does while it works, line by line. The lines go to the standard output, or to a function
    that is given."""

    def __init__(self, mode: Mode | None = None, write: Callable[[str], object] | None = None) -> None:
        """`mode` says how much is printed: `full`, `short`, `result` or `off`. If it is None, the environment variable
        `CAW_LOG` says it, and without that variable it is `short`. Each line is passed to `write`; if that is None,
        lines go to the standard output."""
        self.mode = _mode(os.environ.get(VARIABLE, "short")) if mode is None else mode
        self._write = write or _to_output
        self._heard = ""
        """Words of the agent that have come and are not printed yet."""
        self._kind = ""
        self._has_answered = False
        """Whether words of an answer to the last prompt have come."""

    def began(self, provider: str, model: str, session_id: str) -> None:
        """Print the provider, the model and the id of the session that begins. In the modes `result` and `off` this
        prints nothing."""
        self._say("session", " · ".join(part for part in (provider, model, session_id) if part))

    def asked(self, prompt: str) -> None:
        self._has_answered = False
        self._say("prompt", prompt)

    def take(self, event: Event) -> None:
        """Print the tool call, or the output of a tool, that `event` tells of. A piece of a text, or of the model's
        thinking, is collected and printed when something else follows. All other events are ignored. In the modes
        `result` and `off` this prints nothing."""
        if isinstance(event, TextDelta | ThinkingDelta):
            kind = "answer" if isinstance(event, TextDelta) else "thinking"
            if kind != self._kind:
                self._flush()
            self._kind, self._heard = kind, self._heard + event.text
            self._has_answered = self._has_answered or kind == "answer"
        elif isinstance(event, ToolStarted):
            self._flush()
            self._say("tool", f"{event.name} {_arguments(event.arguments)}")
        elif isinstance(event, ToolFinished):
            self._flush()
            parts = [part.text for part in event.result.content if isinstance(part, Text)]
            self._say("failed" if event.result.is_error else "output", "\n".join(parts))

    def answered(self, turn: Turn) -> None:
        """Print the end of a turn: the part of the answer that is not printed yet, the reason if the turn was stopped,
        and the tokens, cost and time of the turn."""
        self._flush()
        if not self._has_answered:
            self._say("answer", turn.result, "result")
        if turn.reason:
            self._say(turn.status, turn.reason, "result")
        self._say("usage", f"{_spent(turn.usage)} · {elapsed(turn.duration_ms / 1000)}", "result")

    def limited(self, error: ProviderLimited) -> None:
        """Print the message of `error`, which says that the account has reached a limit."""
        self._flush()
        self._say("limit", str(error), "result")

    def ended(self, turns: int, usage: UsageStats) -> None:
        """Print how many turns the session had, and their tokens and cost together. In caw a turn is a prompt with
        everything up to its answer."""
        self._say("session", f"{plural(turns, 'turn')} · {_spent(usage)}", "result")

    def _flush(self) -> None:
        heard, self._heard = self._heard, ""
        if heard.strip():
            self._say(self._kind, heard)

    def _say(self, kind: str, text: str, least: Mode = "short") -> None:
        if self.mode == "off" or (self.mode == "result" and least != "result"):
            return
        self._write(f"[{kind}] {one_line(text, _LONGEST) if self.mode == 'short' else visible(text.strip())}")


def _to_output(line: str) -> None:
    """Print a line. Characters that the output cannot show are printed as escapes: an answer that was paid for must not
    be lost because it cannot be shown."""
    output = sys.stdout
    if output is not None:  # as in a program without a console
        encoding = getattr(output, "encoding", None) or "utf-8"
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=output, flush=True)


def _mode(name: str) -> Mode:
    if name.lower() not in get_args(Mode):
        raise InvalidInput(f"{VARIABLE} is one of {', '.join(get_args(Mode))}, not {name!r}")
    return name.lower()  # type: ignore[return-value]


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _spent(usage: UsageStats) -> str:
    """Return the tokens and the cost in `usage` as text. The text says so if an amount is not known."""
    if usage.total_tokens is None:
        return "tokens not known"
    tokens = f"{usage.input_tokens:,} in, {usage.output_tokens:,} out"
    if usage.cache_read_tokens or usage.cache_write_tokens:
        tokens += f", {usage.cache_read_tokens or 0:,} cached, {usage.cache_write_tokens or 0:,} to the cache"
    return f"{tokens} · {'cost not known' if usage.cost_usd is None else f'${usage.cost_usd:.4f}'}"
