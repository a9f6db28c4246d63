"""A few seconds' worth of the fuzzer; `make fuzz` runs at least 300,000 a target with coverage as its guide."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest

from clew.log.weights import FLOOR
from tests.fuzz.seeds import seeds, spoil
from tests.fuzz.sessions import FORMS
from tests.fuzz.targets import TARGETS
from tests.limits import processor_time
from tests.sampling import dice

pytestmark = pytest.mark.slow

INPUTS = {"frame": 400, "weight": 1500, "archive": 500, "native": 1500}
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


def test_make_fuzz_runs_every_target_with_as_many_inputs_as_its_help_says() -> None:
    made = (Path(__file__).parents[2] / "Makefile").read_text().replace("\\\n", " ")
    lists = {name: words.split() for name, words in re.findall(r"^(FUZZ\w*) [:?]= (.*)$", made, re.MULTILINE)}
    slow, quick = lists["FUZZ_SLOW"], [name for name in lists["FUZZ"] if name.startswith("fuzz-")]
    assert sorted(slow + quick) == sorted(f"fuzz-{target}" for target in TARGETS)
    inputs = len(slow) * int(*lists["FUZZ_RUNS"]) + len(quick) * int(*lists["FUZZ_QUICK"])
    assert inputs // 10**6 == 11  # which is what `make help` and CONTRIBUTING.md say
    assert made.count("Give eleven million inputs") == 1


def test_each_form_of_a_native_session_begins_with_sound_ones() -> None:
    forms = {seed[0] for seed in seeds("native") if len(seed) > 100}
    assert forms == set(range(len(FORMS)))


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
