"""What a thread may spend, as people write it: `2usd`, `100ktokens`, `10min`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.agent import Budget

__all__ = ["read_budget"]

_WRITTEN = re.compile(r"\$?(\d+(?:\.\d+)?)\s*(usd|[km]?tokens?|s|sec|min|h)?", re.IGNORECASE)
_TOKENS = {"tokens": 1, "ktokens": 1_000, "mtokens": 1_000_000}
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


def read_budget(given: Sequence[str]) -> Budget:
    """All of them as one; `none`, alone, is no limit. `InvalidInput` for what is no budget, or said twice."""
    from clew.advice import NO_BUDGET
    from clew.agent import Budget
    from clew.errors import InvalidInput

    if [text.strip().lower() for text in given] == [NO_BUDGET]:
        return Budget()
    found: dict[str, Any] = {}
    for text in given:
        kind, amount = _read(text)
        if kind in found:
            raise InvalidInput(f"--budget says twice how many {kind} may be spent. Give one of them.")
        found[kind] = amount
    return Budget(**found)


def _read(text: str) -> tuple[str, float | int]:
    from clew.errors import InvalidInput

    text = text.strip()
    written = _WRITTEN.fullmatch(text)
    unit = "" if written is None else (written[2] or "").lower()
    is_dollars = text.startswith("$")
    if written is None or is_dollars == bool(unit):
        raise InvalidInput(
            f"--budget {text!r} is not a budget. Write 2usd, 100ktokens or 10min; none, alone, for no limit."
        )
    amount = float(written[1])
    if not amount > 0:
        raise InvalidInput(f"--budget {text} allows nothing. Give more than 0; none, alone, for no limit.")
    if unit in _SECONDS:
        return "seconds", amount * _SECONDS[unit]
    if unit.endswith(("token", "tokens")):
        return "tokens", round(amount * _TOKENS[unit.removesuffix("s") + "s"])
    return "usd", amount
