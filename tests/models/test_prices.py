"""What a response cost: known to the cent, or not known."""

from __future__ import annotations

from datetime import date

import pytest

from clew.log import Usage
from clew.models import PRICES, Price, cost_of
from clew.models.prices import PRICED_ON
from clew.models.windows import WINDOWS, context_window, output_limit

MILLION = Usage(1_000_000, 1_000_000)


def test_a_cost_is_the_sum_of_its_parts() -> None:
    price = Price(10, 20, 1, 12)
    usage = Usage(1_000_000, 500_000, cache_read_tokens=600_000, cache_write_tokens=100_000, reasoning_tokens=400_000)
    assert cost_of("m", usage, {"m": price}) == pytest.approx(0.3 * 10 + 0.5 * 20 + 0.6 * 1 + 0.1 * 12)


def test_cached_tokens_without_a_price_of_their_own_cost_what_input_does() -> None:
    usage = Usage(1_000_000, 0, cache_read_tokens=600_000, cache_write_tokens=100_000)
    assert cost_of("m", usage, {"m": Price(10, 20)}) == pytest.approx(10)


@pytest.mark.parametrize(
    "name",
    [
        "claude-opus-4-5",
        "claude-opus-4-5-20251101",
        "anthropic:claude-opus-4-5",
        "anthropic:claude-opus-4-5-20251101",
        "claude-opus-4-5-latest",
    ],
)
def test_a_model_is_known_by_all_its_names(name: str) -> None:
    assert cost_of(name, Usage(1_000_000, 0)) == 5


def test_dates_of_both_kinds_are_stripped() -> None:
    assert cost_of("gpt-5-2025-08-07", Usage(1000, 0)) == cost_of("openai-responses:gpt-5", Usage(1000, 0))


@pytest.mark.parametrize(
    "name", ["", "of-nobody", "gpt-5-huge", "claude-fable-5-2", "gpt", "ft:gpt-4o:me::1", "openai:"]
)
def test_an_unknown_model_is_not_free(name: str) -> None:
    assert cost_of(name, MILLION) is None


def test_the_name_it_answered_under_goes_first_and_the_one_that_was_asked_for_helps_out() -> None:
    assert cost_of(["gpt-5-mini", "gpt-5"], Usage(1_000_000, 0)) == 0.25
    assert cost_of(["of-nobody", "openai:gpt-5"], Usage(1_000_000, 0)) == 1.25
    assert cost_of(iter(["of-nobody", "openai:gpt-5"]), Usage(1_000_000, 0)) == 1.25


def test_prices_of_the_user_go_before_the_table() -> None:
    mine = {"openai:gpt-5": Price(1, 1), "local": Price(0, 0)}
    assert cost_of(["gpt-5-2025-08-07", "openai:gpt-5"], MILLION, mine) == 2
    assert cost_of("openai:local", MILLION, mine) == 0
    assert cost_of("gpt-5-mini", MILLION, mine) == 2.25


def test_a_dated_name_has_the_price_of_that_date_if_there_is_one() -> None:
    mine = {"m": Price(1, 1), "m-2026-01-01": Price(2, 2)}
    assert cost_of("m-2026-01-01", MILLION, mine) == 4
    assert cost_of("m-2026-02-02", MILLION, mine) == 2


def test_nothing_counted_is_nothing_known() -> None:
    assert cost_of("gpt-5", Usage()) is None


def test_a_long_request_is_charged_as_one_and_as_a_whole() -> None:
    assert cost_of("gpt-6-sol", Usage(272_000, 0)) == pytest.approx(0.272 * 2)
    assert cost_of("gpt-6-sol", Usage(272_001, 1_000_000)) == pytest.approx(0.272001 * 4 + 15)
    assert cost_of("claude-haiku-5-5", Usage(100_001, 0)) == pytest.approx(0.100001 * 0.5)


def test_more_cached_than_sent_is_not_a_refund() -> None:
    cost = cost_of("gpt-5", Usage(10, 0, cache_read_tokens=1000))
    assert cost is not None
    assert cost > 0


def test_the_table_is_dated_and_makes_sense() -> None:
    assert date(2026, 1, 1) < PRICED_ON
    for name, price in PRICES.items():
        assert 0 < price.input < price.output, name
        assert price.cache_read is None or 0 < price.cache_read < price.input, name
        assert price.cache_write is None or price.cache_write > price.input, name
        assert (price.long is None) == (price.long_from is None), name


def test_every_model_with_a_price_has_a_window() -> None:
    assert PRICES.keys() == WINDOWS.keys()
    assert all(window.output < window.context for window in WINDOWS.values())


def test_windows_are_known_by_the_same_names_or_not_at_all() -> None:
    assert context_window("openai:gpt-4o-2024-08-06") == 128_000
    assert output_limit("claude-sonnet-4-20250514") == 64_000
    assert context_window("of-nobody") is None
    assert output_limit("of-nobody") is None
