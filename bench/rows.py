"""JSON rows as tools and services return them: many shapes, the usual kinds of values, no row twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from bench import words

__all__ = ["Row", "Rows"]

Row = dict[str, Any]
Value = Callable[[], Any]


class Rows:
    """Makes tables. Each table has a shape of its own; each row is different from every other row."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._made: set[str] = set()

    def table(self, size: int) -> list[Row]:
        """Rows of one shape that take about this many bytes as JSON."""
        shape = self._shape()
        rows: list[Row] = []
        length = 2
        while True:
            row = {name: value() for name, value in shape.items()}
            text = json.dumps(row)
            if text in self._made:
                continue
            if rows and length + len(text) / 2 > size:
                return rows
            self._made.add(text)
            rows.append(row)
            length += len(text) + 2

    def arguments(self, size: int) -> Row:
        """One flat object of about this many bytes, as a model writes the arguments of a call."""
        found: Row = {}
        while len(json.dumps(found)) < size - 15:
            kind = self._random.choice(list(_COLUMNS))
            found[self._column_name(kind)] = _COLUMNS[kind](self._random)()
        return found

    def _shape(self) -> dict[str, Value]:
        """A name and a source of values for each column: an id, then whatever this service happens to tell."""
        kind = self._random.choice(list(_IDS))
        shape = {kind: _IDS[kind](self._random)}
        for kind in self._random.sample(list(_COLUMNS), self._random.randrange(5, 10)):
            shape[self._column_name(kind)] = _COLUMNS[kind](self._random)
        return shape

    def _column_name(self, kind: str) -> str:
        return kind if self._random.random() < 0.4 else f"{self._random.choice(words.NOUNS)}_{kind}"


def _counter(random: Random) -> Value:
    last = random.randrange(1_000, 9_000_000)

    def value() -> int:
        nonlocal last
        last += random.randrange(1, 40)
        return last

    return value


def _reference(random: Random) -> Value:
    letters, count = "".join(random.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=3)), _counter(random)
    return lambda: f"{letters}-{count()}"


def _hex_id(random: Random) -> Value:
    kind = random.choice(words.NOUNS)[:4]
    return lambda: f"{kind}_{random.getrandbits(48):012x}"


def _moment(random: Random) -> Value:
    last = datetime(2021, 1, 1, tzinfo=UTC) + timedelta(seconds=random.randrange(5 * 365 * 86_400))

    def value() -> str:
        nonlocal last
        last += timedelta(seconds=random.randrange(1, 20_000))
        return last.strftime("%Y-%m-%dT%H:%M:%SZ")

    return value


def _one_of(*options: object) -> Callable[[Random], Value]:
    return lambda random: lambda: random.choice(options)


def _category(random: Random) -> Value:
    options = random.sample(words.NOUNS, random.randrange(2, 6))
    return lambda: random.choice(options)


def _title(random: Random) -> Value:
    about, where = random.sample(words.NOUNS, 4), random.choice(words.PREPOSITIONS)
    return lambda: (
        f"{random.choice(words.ADJECTIVES).capitalize()} {random.choice(about)} {where} {random.choice(words.NOUNS)}"
    )


def _email(random: Random) -> Value:
    host = f"{random.choice(words.NOUNS)}.example"
    return lambda: f"{words.invented_name(random).lower()}@{host}"


def _url(random: Random) -> Value:
    base = f"https://{random.choice(words.NOUNS)}.example/v{random.randrange(1, 5)}/{random.choice(words.NOUNS)}"
    return lambda: f"{base}/{random.randrange(99_999)}"


def _rounded(largest: float, digits: int) -> Callable[[Random], Value]:
    def column(random: Random) -> Value:
        scale = largest * random.random()
        return lambda: round(scale * random.random(), digits)

    return column


_IDS: dict[str, Callable[[Random], Value]] = {"id": _counter, "key": _hex_id, "ref": _reference, "number": _counter}

_COLUMNS: dict[str, Callable[[Random], Value]] = {
    "active": _one_of(True, True, False),
    "amount": _rounded(4000, 2),
    "city": lambda random: lambda: words.invented_name(random),
    "count": lambda random: lambda: int(10 ** (random.random() * 4)),
    "created_at": _moment,
    "currency": _one_of("EUR", "USD", "GBP", "CHF", "SEK"),
    "email": _email,
    "href": _url,
    "kind": _category,
    "level": _one_of("low", "normal", "high", "urgent"),
    "name": lambda random: lambda: f"{words.invented_name(random)} {words.invented_name(random)}",
    "note": lambda random: (
        lambda: random.choice((None, f"{random.choice(words.ADJECTIVES)} {random.choice(words.NOUNS)}"))
    ),
    "owner": lambda random: lambda: {"id": random.randrange(1, 999), "name": words.invented_name(random)},
    "place": lambda random: lambda: [round(random.uniform(40, 60), 4), round(random.uniform(-10, 30), 4)],
    "ratio": _rounded(1, 4),
    "score": _rounded(100, 2),
    "status": _one_of("open", "closed", "waiting", "failed", "done", "in_review"),
    "tags": lambda random: lambda: random.sample(words.NOUNS, random.randrange(3)),
    "team": _category,
    "title": _title,
    "updated_at": _moment,
    "verified": _one_of(True, False, None),
    "version": lambda random: lambda: f"{random.randrange(4)}.{random.randrange(12)}.{random.randrange(9)}",
}
