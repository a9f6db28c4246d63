"""What a run samples and what its end says, seen in runs of pytest in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.limits import PATIENCE
from tests.report import install_hint, skip_line, slow_lines, tally_line
from tests.sampling import ON_SPEED, draw_seed

ROOT = Path(__file__).parents[1]

SAMPLES = """
import pytest
from hypothesis import given, strategies as st
from tests.sampling import dice, sampled
from tests.servers.running import lacking

@pytest.mark.parametrize("case", sampled(range(10_000), 4))
def test_case(case):
    print("case", case)

def test_dice():
    print("dice", dice("a name").random())

@given(st.integers(0, 10**9))
def test_property(number):
    print("number", number)

def test_lacking():
    lacking("no strace here", install="strace")

@pytest.mark.slow
def test_slow():
    print("slow")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with tests that use this suite's own conftest, sampling and report."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: slow\n    crash: crash\n")
    (tmp_path / "test_samples.py").write_text(SAMPLES)
    return tmp_path


def run(project: Path, *options: str, seed: str = "", ci: str = "") -> str:
    """Return what a run of the project's tests prints."""
    taken = ("CLEW_SEED", "CLEW_CRASH", "CI", "PYTEST_ADDOPTS")
    env = {name: value for name, value in os.environ.items() if name not in taken and "XDIST" not in name}
    env |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONFAULTHANDLER": "1"}
    env |= ({"CLEW_SEED": seed} if seed else {}) | ({"CI": ci} if ci else {})
    command = [sys.executable, "-m", "pytest", "-s", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, *options], cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            return running.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGABRT)
            pytest.fail(f"the run did not end. It said, with its stacks:\n{running.communicate()[0]}")


def samples(said: str) -> list[str]:
    return re.findall(r"(?:case|dice|number) [\d.]+", said)


def drawn(said: str) -> str:
    """Return the seed that a run says it drew, first and last."""
    first, last = re.findall(r"Seed (\d+): CLEW_SEED=\1 draws the same samples again", said)
    assert first == last
    return str(first)


@pytest.mark.slow
def test_without_a_seed_every_run_takes_the_same_samples(project: Path) -> None:
    one, another = run(project), run(project)
    assert samples(one) == samples(another)
    assert len(samples(one)) > 4 + 1 + 10
    assert one.count("Seed 1: the same samples in every run.") == 2


@pytest.mark.slow
def test_a_drawn_seed_gives_other_samples_and_the_number_that_is_printed_repeats_them(project: Path) -> None:
    one, another = run(project, seed="random"), run(project, seed="random")
    assert samples(one) != samples(another)
    again = run(project, seed=drawn(one))
    assert drawn(again) == drawn(one)
    assert samples(again) == samples(one)


@pytest.mark.slow
def test_all_workers_of_a_run_draw_one_seed(project: Path) -> None:
    said = run(project, "-p", "xdist", "-n", "2", seed="random")
    assert "7 passed, 1 skipped" in said, said
    assert drawn(said).isdecimal()


def test_what_is_no_seed_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="'soon' is not a seed"):
        draw_seed({"CLEW_SEED": "soon"})


@pytest.mark.slow
def test_skips_end_in_one_line_that_says_what_to_install(project: Path) -> None:
    said = run(project)
    assert "1 skipped: install strace (1)\n" in said
    assert "SKIPPED" not in said


@pytest.mark.slow
def test_in_ci_a_skip_for_want_of_something_is_a_failure(project: Path) -> None:
    said = run(project, "-k", "lacking", ci="true")
    assert "no strace here; install strace (in CI this must be there)" in said
    assert "1 failed" in said


def test_the_line_of_skips_counts_what_to_install_and_the_rest() -> None:
    wanted = [install_hint("no strace", "strace")] * 2 + [install_hint("no Chromium", "chromium")]
    rest = ["Skipped: only with CLEW_CRASH=full", "Skipped: no fork there"]
    assert skip_line(wanted + rest) == (
        "5 skipped: install chromium (1), strace (2); 1 run only in `make crash`; "
        "1 do not apply here (pytest -rs lists them)"
    )
    assert skip_line([]) == ""


def test_tests_over_five_seconds_that_are_not_marked_are_named_and_fail_nothing() -> None:
    assert slow_lines({"quick": 4.9}) == []
    title, longest, long = slow_lines({"long": 6.0, "longest": 61.0, "quick": 0.1})
    assert "@pytest.mark.slow" in title
    assert longest == "   61.0 s  longest"
    assert long == "    6.0 s  long"


def test_no_property_fails_because_the_machine_is_busy() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert set(ON_SPEED) <= set(settings.default.suppress_health_check)
    assert HealthCheck.too_slow in ON_SPEED


def test_the_end_of_a_run_says_how_much_was_tried() -> None:
    counted = [{"times SIGKILL": 1200, "seeds simulated": 3}, {}, {"times SIGKILL": 1}]
    assert tally_line(counted) == "3 seeds simulated, 1,201 times SIGKILL"
    assert tally_line([]) == ""
