"""A quarter of a minute's worth of the fuzzer; `make fuzz` runs a million inputs with coverage as its guide."""

from __future__ import annotations

import os
import time
import tracemalloc
from random import Random

import pytest

from clew.log.weights import FLOOR
from tests.fuzz.seeds import seeds, spoil
from tests.fuzz.targets import TARGETS

SECONDS = float(os.environ.get("CLEW_FUZZ_SECONDS", "16")) / len(TARGETS)
MEMORY = 50
BASE = FLOOR
"""Bytes that any call may take, whatever its input."""


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_comes_in_nothing_but_a_clear_error_comes_out(target: str) -> None:
    random = Random(os.environ.get("CLEW_FUZZ_SEED", "1"))
    known = seeds(target)
    for seed in known:
        TARGETS[target](seed)
    ends = time.monotonic() + SECONDS
    inputs = 0
    while time.monotonic() < ends or inputs <= 100:
        data = spoil(random.choice(known), random)
        began = time.monotonic()
        try:
            TARGETS[target](data)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            pytest.fail(f"{target}: {type(error).__name__}: {error} for {data.hex()}")
        assert time.monotonic() - began < 5, f"{target} took too long for {data.hex()}"
        inputs += 1


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_takes_fifty_times_its_size(target: str) -> None:
    random = Random(2)
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
