"""How often a run killed a process, cut a connection, simulated a seed or tried a damaged state.

A test counts what it does as it does it; the end of the run prints the sums of all tests (`tests/report.py`).
"""

from __future__ import annotations

from collections import Counter

__all__ = ["count", "taken"]

_counts: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Add to the sum of `what`, a plural such as "kills", in this process."""
    _counts[what] += number


def taken() -> dict[str, int]:
    """Return the sums since the last call, and begin again from zero."""
    found = dict(_counts)
    _counts.clear()
    return found
