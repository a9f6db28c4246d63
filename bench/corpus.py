"""The conversations that are measured: generated from a seed, half prose and half JSON rows, with no repeats.

A turn takes in about 2 KB (the user's words, then a tool's result) and gives out about 1 KB (the assistant's words and
the call of a tool). Prose is as hard to compress as technical English, rows as those of a web service: see
docs/benchmarks.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from bench import words
from bench.prose import Prose
from bench.rows import Row, Rows
from bench.syllables import PlainTurn
from clew.log import MessageAdded, Usage
from clew.messages import Text, ToolCall, ToolResult, assistant, tool, user

__all__ = ["Corpus", "Turn", "json_size"]

MODEL = "example-large"
_USER, _ROWS, _REPLY, _ARGUMENTS = 600, 1260, 780, 125


class Turn(msgspec.Struct, frozen=True):
    """One turn of a conversation, in neither party's format."""

    user: str
    reply: str
    call_id: str
    tool: str
    arguments: Row
    rows: list[Row]

    def entries(self) -> tuple[MessageAdded, MessageAdded, MessageAdded]:
        """The turn as Clew records it: the user's words, the response with what it cost, the tool's result."""
        arguments = json.dumps(self.arguments)
        asked = len(self.user) // 4, (len(self.reply) + len(arguments)) // 4
        return (
            MessageAdded(user(self.user)),
            MessageAdded(
                assistant(
                    self.reply, ToolCall(self.call_id, self.tool, self.arguments), model=MODEL, stop="tool_calls"
                ),
                Usage(*asked),
                asked[0] * 3e-6 + asked[1] * 15e-6,
            ),
            MessageAdded(tool(ToolResult(self.call_id, (Text(json.dumps(self.rows)),)))),
        )

    def messages(self) -> list[dict[str, Any]]:
        """The turn as chat completions have it: arguments and results are JSON inside text."""
        function = {"name": self.tool, "arguments": json.dumps(self.arguments)}
        return [
            {"role": "user", "content": self.user},
            {
                "role": "assistant",
                "content": self.reply,
                "tool_calls": [{"id": self.call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": self.call_id, "content": json.dumps(self.rows)},
        ]

    def json(self) -> str:
        """The JSON text of the turn: what the floors write, and what sizes are measured against."""
        return json.dumps(self.messages())


class Corpus:
    """Makes conversations. The same seed makes the same ones; no sentence and no row occurs twice in all of them."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)
        self._prose = Prose(self._random)
        self._rows = Rows(self._random)

    def conversation(self, turns: int) -> list[Turn]:
        return [self._turn() for _ in range(turns)]

    def _turn(self) -> Turn:
        random = self._random
        self._prose.change_subject()
        return Turn(
            user=self._prose.write(_about(random, _USER)),
            reply=self._prose.write(_about(random, _REPLY)),
            call_id=f"call_{random.getrandbits(96):024x}",
            tool=f"{random.choice(words.VERBS)}_{random.choice(words.NOUNS)}",
            arguments=self._rows.arguments(_about(random, _ARGUMENTS)),
            rows=self._rows.table(_about(random, _ROWS)),
        )


def _about(random: Random, size: int) -> int:
    """Turns differ: between half and one and a half times this."""
    return int(size * random.uniform(0.5, 1.5))


def json_size(turns: Sequence[Turn | PlainTurn]) -> int:
    """Bytes of the JSON text of a conversation."""
    return sum(len(turn.json().encode()) for turn in turns)
