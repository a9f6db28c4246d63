"""A second corpus, in no language: turns of 3.2 KB, alternately prose of invented words and JSON rows as text.

The first corpus is English, so that a compression dictionary with English in it helps. Here it cannot: no word of this
corpus occurs in the dictionary, except for the names of the rows' columns. Words are drawn by Zipf's law, as those of a
language are: the tenth most frequent word comes a tenth as often as the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any

import msgspec

from clew.log import MessageAdded, Usage
from clew.messages import assistant, user

__all__ = ["COLUMNS", "PlainTurn", "Syllables"]

COLUMNS = ("id", "name", "path", "score", "tags")
"""The columns of each row."""
MODEL = "example-small"
_WORDS = 6000
_SHORTEST = 6
"""Letters of the shortest word: shorter ones may be words of a language by chance."""
_ASKED, _ANSWERED = 600, 2200
_ONSETS = ("b", "br", "d", "dz", "f", "fl", "g", "gw", "j", "k", "kl", "l", "m", "mn", "n", "p", "q", "r", "sk", "t")
_VOWELS = ("a", "e", "i", "o", "u", "aa", "ei", "oe", "uu", "y")
_CODAS = ("", "", "", "b", "f", "k", "l", "m", "n", "q", "r", "v", "x", "z")


class PlainTurn(msgspec.Struct, frozen=True):
    """One turn of a conversation without tools, in neither party's format."""

    user: str
    reply: str

    def entries(self) -> tuple[MessageAdded, MessageAdded]:
        """The turn as Clew records it: the user's words, and the response with what it cost."""
        used = Usage(len(self.user) // 4, len(self.reply) // 4)
        cost = used.input_tokens * 3e-6 + used.output_tokens * 15e-6
        return MessageAdded(user(self.user)), MessageAdded(assistant(self.reply, model=MODEL, stop="stop"), used, cost)

    def messages(self) -> list[dict[str, Any]]:
        """The turn as chat completions have it."""
        return [{"role": "user", "content": self.user}, {"role": "assistant", "content": self.reply}]

    def json(self) -> str:
        """The JSON text of the turn: what the floors write, and what sizes are measured against."""
        return json.dumps(self.messages())


class Syllables:
    """Makes conversations. The same seed makes the same ones, with the same words."""

    def __init__(self, seed: int = 2) -> None:
        self._random = Random(seed)
        self._last_id = self._random.randrange(10**5)
        self.words = self._invent(_WORDS)
        """The vocabulary, the most frequent word first."""
        self._weights = [*accumulate(1 / rank for rank in range(1, _WORDS + 1))]

    def conversation(self, turns: int) -> list[PlainTurn]:
        return [self._turn(self._prose if number % 2 == 0 else self._rows) for number in range(turns)]

    def _turn(self, write: Callable[[int], str]) -> PlainTurn:
        return PlainTurn(write(self._about(_ASKED)), write(self._about(_ANSWERED)))

    def _about(self, size: int) -> int:
        """Turns differ: between half and one and a half times this."""
        return int(size * self._random.uniform(0.5, 1.5))

    def _prose(self, size: int) -> str:
        parts: list[str] = []
        length = 0
        while length < size:
            sentence = " ".join(self._some(self._random.randrange(5, 18))).capitalize() + "."
            parts.append(sentence)
            length += len(sentence) + 1
        return " ".join(parts)

    def _rows(self, size: int) -> str:
        rows: list[dict[str, Any]] = []
        length = 2
        while length < size:
            rows.append(self._row())
            length += len(json.dumps(rows[-1])) + 2
        return json.dumps(rows)

    def _row(self) -> dict[str, Any]:
        random = self._random
        self._last_id += random.randrange(1, 50)
        name = " ".join(self._some(2)).title()
        path = "/" + "/".join(self._some(random.randrange(2, 5))) + f".{self._some(1)[0]}"
        tags = self._some(random.randrange(4))
        return dict(zip(COLUMNS, (self._last_id, name, path, round(random.random(), 4), tags), strict=True))

    def _some(self, count: int) -> list[str]:
        return self._random.choices(self.words, cum_weights=self._weights, k=count)

    def _invent(self, count: int) -> list[str]:
        """Words of two to four syllables, all different. The frequent ones are shorter, as in a language."""
        random = self._random
        found: dict[str, None] = {}
        while len(found) < count:
            syllables = random.choice((2, 2, 3) if len(found) < count // 10 else (2, 3, 3, 4))
            parts = [random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS) for _ in range(syllables)]
            if len(word := "".join(parts)) >= _SHORTEST:
                found[word] = None
        return [*found]
