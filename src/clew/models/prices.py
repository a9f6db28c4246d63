"""A table of what models cost: the vendors' list prices for standard processing, on the day `PRICED_ON`.

Vendors change prices, and some gateways charge prices of their own. If a budget depends on a price, give that price to
the agent as `prices={name: Price(…)}`. The table does not have: faster and slower service tiers, batches, regional
surcharges, caches kept longer than the default, audio input of Gemini models, and tools that the vendors run
themselves. So a computed cost does not include these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import TypeVar

import msgspec

from clew.log import Usage

__all__ = ["PRICED_ON", "PRICES", "Price", "cost_of", "find", "has_price"]


PRICED_ON = date(2026, 11, 15)
"""The day for which the price table was made. Not every entry was checked against the vendor's own page on that day."""


_RESOLD = ("oci:", "openrouter:")
_ELSEWHERE = ("-cloud", ":cloud")
"""How the names of models end that Ollama does not run itself, but passes on to its maker's servers."""


class Price(msgspec.Struct, frozen=True):
    """What a model costs, in US dollars for a million tokens. Some models cost more for requests with a long input:
    then `long` is the price of such a request, and `long_from` is the number of input tokens above which it counts."""

    input: float
    output: float
    cache_read: float | None = None
    """The price of input tokens that the vendor reads from its cache. None: the same as other input."""
    cache_write: float | None = None
    """The price of input tokens that the vendor writes to its cache. None: the same as other input."""
    long_from: int | None = None
    """If a request has more input tokens than this, all its tokens are charged at the price `long`."""
    long: Price | None = None


def cost_of(names: str | Iterable[str], usage: Usage, prices: Mapping[str, Price] | None = None) -> float | None:
    """Return the cost of one response in US dollars, or None if it is unknown. The cost of an unknown model is None,
    never 0.

    `names` are the possible names of the model; the one that the vendor reported comes first. `prices` are the user's
    own prices, by name of the model, and go before the built-in table. The cost is also unknown if the usage has no
    tokens at all, since some endpoints do not count them.

    The table has the prices of the models' makers. A model that is reached through `oci:` or `openrouter:` has no price
    in it, because these two sell models at prices of their own. A model that Ollama runs on the user's machine is free.
    """
    known = [names] if isinstance(names, str) else list(names)
    price = find(known, prices or {})
    if price is None and any(name.startswith("ollama:") for name in known):
        return None if any(name.endswith(_ELSEWHERE) for name in known) else 0.0
    if price is None and not any(name.startswith(_RESOLD) for name in known):
        price = find(known, PRICES)
    if price is None or not (usage.input_tokens or usage.output_tokens):
        return None
    if price.long is not None and price.long_from is not None and usage.input_tokens > price.long_from:
        price = price.long
    read = price.input if price.cache_read is None else price.cache_read
    write = price.input if price.cache_write is None else price.cache_write
    fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
    dollars = fresh * price.input + usage.output_tokens * price.output
    dollars += usage.cache_read_tokens * read + usage.cache_write_tokens * write
    return dollars / 1_000_000


def has_price(name: str, prices: Mapping[str, Price] | None = None) -> bool:
    """Return whether the cost of a model's responses will be known. `name` is how the user names the model, and
    `prices` are the user's own prices by name. Always True for a model that is called through OpenRouter, which says in
    each response what it charged."""
    return name.startswith("openrouter:") or cost_of(name, Usage(1, 1), prices) is not None


def _claude(input: float, output: float, cache_read: float) -> Price:  # noqa: A002 - as in Price
    """Make the price of a Claude model. The arguments are dollars for a million tokens: of input, of output, and of
    input that is read from the vendor's cache. Writing to the cache, which keeps input for five minutes, costs a
    quarter more than other input."""
    return Price(input, output, cache_read, input * 1.25)


def _gpt(input: float, output: float, cache_read: float | None = None, *, written: bool = False) -> Price:  # noqa: A002
    return Price(input, output, cache_read, input * 1.25 if written else None)


def _long_gpt(input: float, output: float, cache_read: float | None = None, *, written: bool = False) -> Price:  # noqa: A002
    """Make the price of a GPT model that has a second price for long requests. The arguments are dollars for a million
    tokens: of input, of output, and of input that is read from the vendor's cache.

    If a request has more than 272,000 input tokens, all its input costs twice and all its output one and a half times
    as much. With `written`, writing to the cache costs a quarter more than other input.
    """
    short = _gpt(input, output, cache_read, written=written)
    dear = _gpt(input * 2, output * 1.5, None if cache_read is None else cache_read * 2, written=written)
    return msgspec.structs.replace(short, long_from=272_000, long=dear)


def _gemini(input: float, output: float, cache_read: float) -> Price:  # noqa: A002
    """Make the price of a Gemini model. The arguments are dollars for a million tokens: of input, of output with
    thoughts, and of input that is read from the vendor's cache. Input that the vendor caches by itself costs nothing
    more. Caches that users make cost storage by the hour, which is not in this price."""
    return Price(input, output, cache_read)


def _long_gemini(input: float, output: float) -> Price:  # noqa: A002
    """Make the price of a Gemini model that has a second price for requests with more than 200,000 input tokens: then
    all input costs twice and all output one and a half times as much. The arguments are dollars for a million tokens of
    shorter requests. Reading from the cache costs a tenth of other input."""
    dear = _gemini(input * 2, output * 1.5, input * 0.2)
    return msgspec.structs.replace(_gemini(input, output, input * 0.1), long_from=200_000, long=dear)


_HAIKU_5_5 = msgspec.structs.replace(_claude(0.1, 0.5, 0.01), long_from=100_000, long=_claude(0.5, 2.5, 0.05))
_GPT_5 = _gpt(1.25, 10, 0.125)
_GPT_5_2 = _gpt(1.75, 14, 0.175)
_GPT_5_6_SOL = _long_gpt(4, 20, 0.4, written=True)

PRICES: dict[str, Price] = {
    "claude-fable-5-1": _claude(10, 50, 0.25),
    "claude-mythos-5-1": _claude(10, 50, 0.25),
    "claude-fable-5": _claude(10, 50, 1),
    "claude-mythos-5": _claude(10, 50, 1),
    "claude-opus-5-5": _claude(4, 20, 0.2),
    "claude-opus-5": _claude(5, 25, 0.5),
    "claude-opus-4-8": _claude(5, 25, 0.5),
    "claude-opus-4-7": _claude(5, 25, 0.5),
    "claude-opus-4-6": _claude(5, 25, 0.5),
    "claude-opus-4-5": _claude(5, 25, 0.5),
    "claude-opus-4-1": _claude(15, 75, 1.5),
    "claude-opus-4-0": _claude(15, 75, 1.5),
    "claude-opus-4": _claude(15, 75, 1.5),
    "claude-sonnet-5-5": _claude(2, 10, 0.2),
    "claude-sonnet-5": _claude(2, 10, 0.2),
    "claude-sonnet-4-6": _claude(3, 15, 0.3),
    "claude-sonnet-4-5": _claude(3, 15, 0.3),
    "claude-sonnet-4-0": _claude(3, 15, 0.3),
    "claude-sonnet-4": _claude(3, 15, 0.3),
    "claude-3-7-sonnet": _claude(3, 15, 0.3),
    "claude-haiku-5-5": _HAIKU_5_5,
    "claude-haiku-4-5": _claude(1, 5, 0.1),
    "claude-3-5-haiku": _claude(0.8, 4, 0.08),
    "gpt-6.1-sol": _long_gpt(2, 10, 0.1, written=True),
    "gpt-6.1-terra": _long_gpt(1, 5, 0.05, written=True),
    "gpt-6-astra": _long_gpt(10, 50, 1, written=True),
    "gpt-6-sol": _long_gpt(2, 10, 0.2, written=True),
    "gpt-6-luna": _long_gpt(0.1, 0.5, 0.01, written=True),
    "gpt-5.6": _GPT_5_6_SOL,
    "gpt-5.6-sol": _GPT_5_6_SOL,
    "gpt-5.6-terra": _long_gpt(2, 12, 0.2, written=True),
    "gpt-5.6-luna": _long_gpt(0.2, 1.2, 0.02, written=True),
    "gpt-5.5": _long_gpt(5, 30, 0.5),
    "gpt-5.5-pro": _long_gpt(30, 180),
    "gpt-5.4": _long_gpt(2.5, 15, 0.25),
    "gpt-5.4-pro": _long_gpt(30, 180),
    "gpt-5.4-mini": _gpt(0.75, 4.5, 0.075),
    "gpt-5.4-nano": _gpt(0.2, 1.25, 0.02),
    "gpt-5.3-chat": _GPT_5_2,
    "gpt-5.3-codex": _GPT_5_2,
    "gpt-5.2": _GPT_5_2,
    "gpt-5.2-chat": _GPT_5_2,
    "gpt-5.2-codex": _GPT_5_2,
    "gpt-5.2-pro": _gpt(21, 168),
    "gpt-5.1": _GPT_5,
    "gpt-5.1-chat": _GPT_5,
    "gpt-5.1-codex": _GPT_5,
    "gpt-5.1-codex-max": _GPT_5,
    "gpt-5.1-codex-mini": _gpt(0.25, 2, 0.025),
    "gpt-5": _GPT_5,
    "gpt-5-chat": _GPT_5,
    "gpt-5-codex": _GPT_5,
    "gpt-5-mini": _gpt(0.25, 2, 0.025),
    "gpt-5-nano": _gpt(0.05, 0.4, 0.005),
    "gpt-5-pro": _gpt(15, 120),
    "gpt-4.1": _gpt(2, 8, 0.5),
    "gpt-4.1-mini": _gpt(0.4, 1.6, 0.1),
    "gpt-4.1-nano": _gpt(0.1, 0.4, 0.025),
    "gpt-4o": _gpt(2.5, 10, 1.25),
    "gpt-4o-mini": _gpt(0.15, 0.6, 0.075),
    "o4-mini": _gpt(1.1, 4.4, 0.275),
    "o3": _gpt(2, 8, 0.5),
    "o3-mini": _gpt(1.1, 4.4, 0.55),
    "o1": _gpt(15, 60, 7.5),
    "gemini-4-argon": _gemini(2, 10, 0.1),  # doubles on 2026-12-01
    "gemini-3.8-flash": _gemini(0.75, 3.75, 0.075),  # doubles on 2027-01-01, as the next one
    "gemini-3.7-flash": _gemini(0.75, 3.75, 0.075),
    "gemini-3.6-flash": _gemini(1.5, 7.5, 0.15),
    "gemini-3.5-flash": _gemini(1.5, 9, 0.15),
    "gemini-3.5-flash-lite": _gemini(0.3, 2.5, 0.03),
    "gemini-3.1-pro-preview": _long_gemini(2, 12),
    "gemini-3.1-pro-preview-customtools": _long_gemini(2, 12),
    "gemini-3.1-flash-lite": _gemini(0.25, 1.5, 0.025),
    "gemini-3-flash-preview": _gemini(0.5, 3, 0.05),
    "gemini-2.5-pro": _long_gemini(1.25, 10),
    "gemini-2.5-flash": _gemini(0.3, 2.5, 0.03),
    "gemini-2.5-flash-lite": _gemini(0.1, 0.4, 0.01),
}


_SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_T = TypeVar("_T")


def find(names: str | Iterable[str], table: Mapping[str, _T]) -> _T | None:
    """Return the value in the table for the first of these names that the table has; None if it has none of them. Each
    name is tried as it is, then without a date or `latest` at its end. After that, both forms are tried without a
    prefix such as `openai:`.

    Names that only begin alike do not match: `gpt-5-pro` is not `gpt-5`.
    """
    for name in [names] if isinstance(names, str) else names:
        for form in _forms(name):
            if form in table:
                return table[form]
    return None


def _forms(name: str) -> Iterator[str]:
    for form in (name, name.partition(":")[2]):
        if form:
            yield form
            if (short := _SNAPSHOT.sub("", form)) != form:
                yield short
