"""The token bucket."""

from __future__ import annotations

from clew.server.auth import Rates


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_goes_through_and_then_the_rate() -> None:
    clock = Clock()
    rates = Rates(2.0, 5, clock)
    assert [rates.wait("a") for _ in range(6)] == [0, 0, 0, 0, 0, 1]
    clock.now += 0.5
    assert [rates.wait("a"), rates.wait("a")] == [0, 1]


def test_a_long_quiet_time_gives_no_more_than_a_burst() -> None:
    clock = Clock()
    rates = Rates(10.0, 3, clock)
    clock.now += 1000
    assert [rates.wait("a") for _ in range(4)] == [0, 0, 0, 1]


def test_the_time_to_wait_is_long_enough() -> None:
    clock = Clock()
    rates = Rates(0.1, 1, clock)
    assert rates.wait("a") == 0
    wait = rates.wait("a")
    assert wait == 10
    clock.now += wait
    assert rates.wait("a") == 0


def test_tokens_have_a_bucket_each() -> None:
    rates = Rates(1.0, 1, Clock())
    assert [rates.wait("a"), rates.wait("b"), rates.wait("a")] == [0, 0, 1]


def test_without_a_rate_there_is_no_limit() -> None:
    rates = Rates(None, None, Clock())
    assert {rates.wait("a") for _ in range(1000)} == {0}
