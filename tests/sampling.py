"""What a run samples: which cases of a long matrix, on how many examples a property is tried, and by which seed.

With `CLEW_CRASH=full` (`make crash`) nothing is left out. Every other run takes samples, and the seed decides which:

- without `CLEW_SEED` (`make test`) they are the same in every run, on every machine;
- with `CLEW_SEED=random` (`make test-all`) they differ from run to run. The number that was drawn is printed first and last;
- with `CLEW_SEED=<that number>` the run is repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, MutableMapping
from random import Random, SystemRandom
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck

__all__ = ["FULL", "IS_FIXED", "ON_SPEED", "SEED", "dice", "draw_seed", "examples", "only_in_full", "sampled"]

FULL = os.environ.get("CLEW_CRASH") == "full"
T = TypeVar("T")
Test = TypeVar("Test", bound=Callable[..., Any])

ON_SPEED = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
"""Health checks of hypothesis that a busy machine can fail. A test that suppresses others names these as well."""


def draw_seed(environ: MutableMapping[str, str]) -> int:
    """Return the seed that `CLEW_SEED` names. Draws one for "random" and writes it back into the environment, so that all
    workers of this run and all processes that its tests start have the same."""
    given = environ.get("CLEW_SEED", "1")
    if given == "random":
        given = environ["CLEW_SEED"] = str(SystemRandom().randrange(1, 1_000_000))
    if not given.isdecimal():
        raise pytest.UsageError(f"CLEW_SEED={given!r} is not a seed. Write a number, or random.")
    return int(given)


IS_FIXED = "CLEW_SEED" not in os.environ
"""Whether this run takes the samples that `make test` always takes."""
SEED = draw_seed(os.environ)


def dice(name: str) -> Random:
    """Return the source of chance for one purpose. The same seed and name give the same numbers."""
    return Random(f"{SEED} {name}")


def sampled(cases: Iterable[T], count: int) -> list[T]:
    """Return all cases in full, else `count` of them, in their order: which ones, the seed decides."""
    every = list(cases)
    if FULL or len(every) <= count:
        return every
    chosen = set(Random(SEED).sample(range(len(every)), count))
    return [case for place, case in enumerate(every) if place in chosen]


def examples(count: int) -> int:
    """On how many examples a property is tried: fewest in `make test`, where they are always the same."""
    return count if FULL else count // (10 if IS_FIXED else 4)


def only_in_full(test: Test) -> Test:
    """Leave this test to `make crash`: it is too long for every other run."""
    marked: Test = pytest.mark.crash(pytest.mark.skipif(not FULL, reason="only with CLEW_CRASH=full")(test))
    return marked
