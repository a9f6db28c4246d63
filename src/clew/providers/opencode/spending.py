"""What opencode counts: tokens and costs of a step, and of all steps of a prompt."""

from __future__ import annotations

from typing import Any

from clew.log import Usage
from clew.providers.base import values

__all__ = ["Spending"]


class Spending:
    """Adds up steps. opencode counts cached tokens beside the input, and those of reasoning beside the output."""

    def __init__(self) -> None:
        self._counts = [0, 0, 0, 0, 0]
        self._cost = 0.0
        self._steps = 0

    def add(self, step: dict[str, Any]) -> None:
        """What a step says of itself, as it finishes: `tokens` and `cost`."""
        tokens = values(step.get("tokens"))
        cache = values(tokens.get("cache"))
        read, wrote, thought = _count(cache.get("read")), _count(cache.get("write")), _count(tokens.get("reasoning"))
        asked = _count(tokens.get("input")) + read + wrote
        said = _count(tokens.get("output")) + thought
        self._counts = [had + more for had, more in zip(self._counts, (asked, said, read, wrote, thought), strict=True)]
        cost = step.get("cost")
        self._cost += cost if isinstance(cost, (int, float)) else 0.0
        self._steps += 1

    @property
    def usage(self) -> Usage | None:
        return Usage(*self._counts) if self._steps else None

    @property
    def cost_usd(self) -> float | None:
        """None where there is none: opencode says 0 of models whose price it does not know, and of subscriptions."""
        return self._cost or None


def _count(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
