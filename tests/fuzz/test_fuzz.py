"""A few seconds' worth of the fuzzer; `make fuzz` runs a million inputs with coverage as its guide."""

from __future__ import annotations

import tracemalloc

import pytest

from clew.log.weights import FLOOR
from tests.fuzz.seeds import seeds, spoil
from tests.fuzz.targets import TARGETS
from tests.limits import processor_time
from tests.sampling import dice

pytestmark = pytest.mark.slow

INPUTS = {"frame": 400, "weight": 1500, "archive": 500}
"""How many inputs a target gets; 5,000 unless it takes longer over each."""
MEMORY = 50
BASE = FLOOR
"""Bytes that any call may take, whatever its input."""


@pytest.mark.crash
@pytest.mark.parametrize("target", TARGETS)
def test_whatever_comes_in_nothing_but_a_clear_error_comes_out(target: str) -> None:
    random = dice(f"inputs for {target}")
    known = seeds(target)
    for seed in known:
        TARGETS[target](seed)
    for _ in range(INPUTS.get(target, 5_000)):
        data = spoil(random.choice(known), random)
        try:
            with processor_time(20):
                TARGETS[target](data)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            pytest.fail(f"{target}: {type(error).__name__}: {error} for {data.hex()}")


@pytest.mark.crash
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_takes_fifty_times_its_size(target: str) -> None:
    random = dice(f"sizes for {target}")
    known = seeds(target)
    TARGETS[target](known[0])
    tracemalloc.start()
    try:
        for _ in range(30):
            data = spoil(random.choice(known), random)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            TARGETS[target](data)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken <= BASE + MEMORY * len(data), f"{taken} bytes for {len(data)}: {data.hex()[:2000]}"
    finally:
        tracemalloc.stop()
