"""What one prompt used and cost.

Up to 2.1.276 Claude Code prints what the run used. Since then it keeps totals of the whole session in its file, in rows
`cost-state`, goes on counting from them on a resume, and prints those.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clew.log import Usage
from clew.providers._files import lines_from_end
from clew.providers.base import Place, values
from clew.providers.claude_code.homes import locate
from clew.providers.claude_code.rows import decode

__all__ = ["Meter", "Spent"]

_KEPT = b'"cost-state"'
_DIGITS = 10
"""Of a difference of dollars: further ones are of the arithmetic, and not of the prices."""


class Spent(msgspec.Struct, frozen=True):
    """None stands for what nobody knows."""

    usage: Usage | None = None
    cost_usd: float | None = None


class Meter:
    """Made before the program starts: it knows what the session had used until then, and so what a run has added."""

    def __init__(self, place: Place | None = None, key: str = "") -> None:
        """Without a place the session is taken for a new one."""
        self._place = place
        self._key = key
        self._before = self._kept()

    def read(self, result: dict[str, Any] | None) -> Spent:
        """What the run used, now that it has ended: by its result, or by what it kept if it was ended before it had one.
        A run that was stopped before the first response was whole has used something that nobody counted."""
        if result is None:
            kept = self._kept()
            added = _minus(kept, self._before) if kept is not None else None
            return added if added is not None and _tokens(added) else Spent()
        total, main = _totals(result), _main_loop(result)
        if total is None:
            return Spent(main, _dollars(result.get("total_cost_usd")))
        return _since(self._before, total, main)

    def _kept(self) -> Spent | None:
        """The totals of the session's file, by its last row that has any; None if there is no such row."""
        path = locate(self._place, self._key) if self._place is not None else None
        for line in lines_from_end(path) if path is not None else ():
            if _KEPT in line and (row := _row(line)).get("type") == "cost-state":
                return Spent(_by_model(row) or Usage(), _dollars(row.get("totalCostUSD")))
        return None


def _since(before: Spent | None, total: Spent, main: Usage | None) -> Spent:
    """The part of the totals that is the run's. They are the session's if they are no less than it had before, and what
    is more still covers the run's own main loop, which is always printed alone; else the run's, by an older program."""
    if before is None:
        return total
    added = _minus(total, before)
    if added is None or added.usage is None:
        return total
    least = main or Usage()
    covers = added.usage.input_tokens >= least.input_tokens and added.usage.output_tokens >= least.output_tokens
    return added if covers else total


def _minus(total: Spent, before: Spent | None) -> Spent | None:
    """What was added; None if something has become less, so that these are no two totals of one session."""
    if before is None or total.usage is None or before.usage is None:
        return total
    pairs = zip(msgspec.structs.astuple(total.usage), msgspec.structs.astuple(before.usage), strict=True)
    counts = [more - less for more, less in pairs]
    cost = None
    if total.cost_usd is not None and before.cost_usd is not None:
        cost = round(total.cost_usd - before.cost_usd, _DIGITS)
    return None if min(counts) < 0 or (cost is not None and cost < 0) else Spent(Usage(*counts), cost)


def _totals(result: dict[str, Any]) -> Spent | None:
    """By model, it is of all that was asked, sub-agents among it."""
    usage = _by_model(result)
    return None if usage is None else Spent(usage, _dollars(result.get("total_cost_usd")))


def _by_model(record: dict[str, Any]) -> Usage | None:
    models = [values(model) for model in values(record.get("modelUsage")).values()]
    if not models:
        return None
    read, made = _sum(models, "cacheReadInputTokens"), _sum(models, "cacheCreationInputTokens")
    return Usage(_sum(models, "inputTokens") + read + made, _sum(models, "outputTokens"), read, made)


def _main_loop(result: dict[str, Any]) -> Usage | None:
    """Of the conversation itself, without sub-agents, and of the run alone in every version."""
    usage = values(result.get("usage"))
    if not usage:
        return None
    read, made = _sum([usage], "cache_read_input_tokens"), _sum([usage], "cache_creation_input_tokens")
    return Usage(_sum([usage], "input_tokens") + read + made, _sum([usage], "output_tokens"), read, made)


def _tokens(spent: Spent) -> bool:
    return spent.usage is not None and bool(spent.usage.input_tokens or spent.usage.output_tokens)


def _sum(parts: list[dict[str, Any]], name: str) -> int:
    counts = [part.get(name) for part in parts]
    return sum(int(count) for count in counts if isinstance(count, (int, float)) and count >= 0)


def _dollars(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _row(line: bytes) -> dict[str, Any]:
    try:
        return values(decode(line))
    except ValueError:
        return {}
