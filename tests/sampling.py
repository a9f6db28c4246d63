"""What is run every time, and what only with CLEW_CRASH=full: `make crash`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

import pytest

__all__ = ["FULL", "examples", "only_in_full", "sampled"]

FULL = os.environ.get("CLEW_CRASH") == "full"
T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., Any])


def sampled(cases: Iterable[T], count: int) -> list[T]:
    """All of them in full, else this many: always the same ones."""
    every = list(cases)
    if FULL or len(every) <= count:
        return every
    chosen = set(Random(1).sample(range(len(every)), count))
    return [case for place, case in enumerate(every) if place in chosen]


def examples(count: int) -> int:
    """On how many examples a property is tried."""
    return count if FULL else count // 4


def only_in_full(test: Test) -> Test:
    """A test that is too long for every run."""
    marked: Test = pytest.mark.crash(pytest.mark.skipif(not FULL, reason="only with CLEW_CRASH=full")(test))
    return marked
