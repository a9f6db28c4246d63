"""What the end of a run says: its seed, what was skipped and what to install for it, and which tests have become slow.

A pytest plugin, loaded by `tests/conftest.py`. Nothing here fails a run: it prints lines to look at.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from tests.sampling import FULL, IS_FIXED, SEED
from tests.tally import taken

__all__ = ["SLOW", "install_hint", "skip_line", "slow_lines", "tally_line"]

SLOW = 5.0
"""A test that takes more seconds of processor time than this belongs to `make test-all`: mark it `slow`."""

_CPU = "processor seconds"
_TALLY = "tally"
_HINT = re.compile(r"; install ([^;]+)$")
_IN_FULL = "only with CLEW_CRASH=full"


def install_hint(reason: str, install: str) -> str:
    """Return the reason of a skip, worded so that `skip_line` finds what to install."""
    return f"{reason}; install {install}"


def skip_line(reasons: Iterable[str]) -> str:
    """Return one line that says how many tests were skipped and what to install to run them; "" if there were none."""
    wanted: Counter[str] = Counter()
    total = in_full = 0
    for reason in reasons:
        total += 1
        in_full += _IN_FULL in reason
        if found := _HINT.search(reason):
            wanted[found[1]] += 1
    parts = [", ".join(f"{name} ({count})" for name, count in sorted(wanted.items()))] if wanted else []
    parts = [f"install {part}" for part in parts]
    if in_full:
        parts.append(f"{in_full} run only in `make crash`")
    if rest := total - in_full - wanted.total():
        parts.append(f"{rest} do not apply here (pytest -rs lists them)")
    return f"{total} skipped: {'; '.join(parts)}" if total else ""


def slow_lines(costs: dict[str, float]) -> list[str]:
    """Return the lines that name unmarked tests which took over `SLOW` seconds of processor time, the longest first."""
    slow = sorted(((cost, name) for name, cost in costs.items() if cost > SLOW), reverse=True)
    if not slow:
        return []
    named = [f"  {cost:5.1f} s  {name}" for cost, name in slow]
    return [f"Over {SLOW:.0f} s of processor time; mark these @pytest.mark.slow, or make them quicker:", *named]


def _spent() -> float:
    """Return the processor time of this process and of the processes that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


_began = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_began] = _spent()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties.append((_CPU, _spent() - item.stash[_began]))
    report.user_properties.append((_TALLY, taken()))
    return report


def pytest_report_header() -> str:
    return _seed_line()


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    stats = terminalreporter.stats
    costs, unmarked = _costs(report for reports in stats.values() for report in reports)
    lines = slow_lines(unmarked)
    lines.append(f"{costs:.0f} s of processor time, running servers not counted. {_seed_line()}")
    lines.append(tally_line(_tally(report) for reports in stats.values() for report in reports))
    lines.append(skip_line(_reason(report) for report in stats.get("skipped", ())))
    terminalreporter.ensure_newline()
    for line in filter(None, lines):
        terminalreporter.write_line(line)


def tally_line(tallies: Iterable[dict[str, int]]) -> str:
    """Return one line with the sums of what the tests counted; "" if they counted nothing."""
    sums: Counter[str] = Counter()
    for tally in tallies:
        sums.update(tally)
    return ", ".join(f"{number:,} {what}" for what, number in sorted(sums.items()))


def _seed_line() -> str:
    if FULL:
        return "Nothing is sampled (CLEW_CRASH=full)."
    how = "the same samples in every run" if IS_FIXED else f"CLEW_SEED={SEED} draws the same samples again"
    return f"Seed {SEED}: {how}."


def _costs(reports: Iterable[Any]) -> tuple[float, dict[str, float]]:
    """Return the processor time of all tests, and that of each one which is not marked slow: without its teardown, which
    may end a server that many tests shared."""
    total, unmarked = 0.0, {}
    for report in reports:
        when = getattr(report, "when", "")
        if when == "teardown":
            total += _cost(report)
        elif when == "call" and "slow" not in report.keywords:
            unmarked[report.nodeid] = _cost(report)
    return total, unmarked


def _cost(report: Any) -> float:
    """Return the processor time from the start of this test to the end of this phase of it."""
    return float(dict(report.user_properties)[_CPU])


def _tally(report: Any) -> dict[str, int]:
    """Return what was counted in this phase of a test; nothing for an entry of the summary that is no test's report."""
    found: dict[str, int] = dict(getattr(report, "user_properties", ())).get(_TALLY, {})
    return found


def _reason(report: Any) -> str:
    """Return why this test was skipped."""
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where)
