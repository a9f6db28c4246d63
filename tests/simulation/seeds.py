"""Which seeds a run simulates: some in `make test`, a thousand in `make test-all`, and in `make crash` as many as an hour
of processor time holds, a quarter of it for each of the four simulations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count as numbers

from tests.sampling import FULL, IS_FIXED, SEED
from tests.tally import count

__all__ = ["FIRST", "PARTS", "failure", "long_seeds", "simulate_all", "simulate_for_a_while"]

FIRST = 0 if IS_FIXED else SEED * 1000
"""The first seed of this run. `make test-all` takes others each time; the seed that failed is printed."""
PARTS = 6 if FULL else 1
"""In how many tests a simulation's quarter of an hour is divided, so that several processes share it."""
_SECONDS = 15 * 60 / 6
_LINES = 60
"""Lines of the trace that a failure shows."""


def failure(simulation: str, seed: int, error: Exception, trace: Sequence[str]) -> str:
    """Return what a failed seed prints: the command that replays it, the error, and the end of the trace."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    first = f"seed {seed}, replayed by `python -m tests.simulation.{simulation} {seed}`: {kind}{error}"
    return "\n".join((first, *trace[-_LINES:]))


def simulate_all(simulate: Callable[[int], object], seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(seed)
        count("seeds simulated")


def long_seeds(part: int) -> int:
    """Return the first seed of a part of `make crash`. The parts are too far apart to meet, as are runs with different
    numbers in `CLEW_SEED`, and all are beyond the seeds of other runs."""
    return (SEED * PARTS + part) * 1_000_000 + 1_000_000_000


def simulate_for_a_while(simulate: Callable[[int], object], part: int) -> None:
    """Simulate seeds that no other part and no run with another `CLEW_SEED` simulates, for two and a half minutes of
    processor time."""
    end = time.process_time() + _SECONDS
    for seed in numbers(long_seeds(part)):
        simulate_all(simulate, [seed])
        if time.process_time() > end:
            return
