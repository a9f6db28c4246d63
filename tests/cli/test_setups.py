"""The options that describe an agent: budgets as they are written on the command line."""

from __future__ import annotations

import pytest

from clew.agent import Budget
from clew.cli.setups import read_budget
from clew.errors import InvalidInput


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2usd", Budget(usd=2)),
        ("$0.50", Budget(usd=0.5)),
        ("1 token", Budget(tokens=1)),
        ("100ktokens", Budget(tokens=100_000)),
        ("1.5MTOKENS", Budget(tokens=1_500_000)),
        ("10min", Budget(seconds=600)),
        (" 90 s ", Budget(seconds=90)),
        ("2h", Budget(seconds=7200)),
    ],
)
def test_it_is_read_as_people_write_it(written: str, meant: Budget) -> None:
    assert read_budget([written]) == meant


def test_several_are_one_budget() -> None:
    assert read_budget(["2usd", "5min"]) == Budget(usd=2, seconds=300)


@pytest.mark.parametrize(
    "written", ["", "2", "usd", "10m", "-1usd", "$2usd", "$5min", "2eur", "1e3usd", "kktokens", "0usd"]
)
def test_what_is_none_is_refused_with_how_to_write_one(written: str) -> None:
    with pytest.raises(InvalidInput):
        read_budget([written])


def test_the_same_thing_said_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="limits seconds twice"):
        read_budget(["5min", "10s"])
