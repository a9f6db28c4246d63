"""Payloads that nobody meant: an error that says so, soon, and without a heap of memory."""

from __future__ import annotations

import contextlib
import json
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.errors import ClewError, InvalidInput
from clew.messages.dialects import DIALECTS, Dialect, from_dialect, to_dialect
from tests.limits import processor_time
from tests.messages.dialects import fuzz
from tests.messages.dialects.conversations import examples
from tests.strategies import json_values

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
pytestmark = pytest.mark.crash


@each_dialect
@given(payload=json_values | st.lists(st.dictionaries(st.sampled_from(["role", "content", "type"]), json_values)))
@settings(max_examples=examples(2000, 100))
def test_arbitrary_json_is_read_or_refused(dialect: Dialect, payload: Any) -> None:
    with contextlib.suppress(ClewError):
        from_dialect(payload, dialect)


def test_spoilt_payloads_are_read_or_refused_and_what_was_read_is_a_fixed_point() -> None:
    read = sum(fuzz.try_one(random.Random(number)) for number in range(examples(50_000, 5_000)))
    assert read > 1_000


@each_dialect
def test_a_payload_nested_too_deeply_is_refused(dialect: Dialect) -> None:
    deep: Any = "x"
    for _ in range(50_000):
        deep = [deep]
    part = {"type": "novel", "x": deep}
    message = {"role": "user", "content": [part]}
    payloads = {
        "anthropic": {"messages": [message]},
        "openai-chat": [message],
        "openai-responses": [{"type": "novel", "x": deep}],
        "gemini": [{"role": "user", "parts": [{"novel": deep}]}],
    }
    with pytest.raises(InvalidInput, match="nested too deeply"):
        from_dialect(payloads[dialect], dialect)


MANY = 5_000
LARGE: dict[str, list[Any]] = {
    "anthropic": [
        [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a"}, {"type": "text", "text": "x"}] * MANY,
            }
        ],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}] * MANY}],
        [{"role": role, "content": "x"} for role in ("system", "assistant") for _ in range(MANY)],
    ],
    "openai-chat": [
        [{"role": "tool", "tool_call_id": "a", "content": "x"}] * MANY,
        [{"role": "assistant", "tool_calls": [{"id": "", "function": {"name": "f", "arguments": "{}"}}] * MANY}],
    ],
    "openai-responses": [
        [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}] * MANY,
        [{"type": "reasoning", "id": f"rs_{n}", "summary": []} for n in range(MANY)],
        [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}] * MANY, "id": "m"}],
    ],
    "gemini": [
        [{"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}, {"text": "x"}] * MANY}],
        [
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}] * MANY},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}] * MANY},
        ],
        [{"role": role, "parts": [{"text": "x"}]} for role in ("user", "model") for _ in range(MANY)],
    ],
}


@pytest.mark.parametrize(("dialect", "payload"), [(name, one) for name, every in LARGE.items() for one in every])
def test_a_long_payload_takes_no_more_than_its_length(dialect: Dialect, payload: Any) -> None:
    with processor_time(20):
        to_dialect(from_dialect(payload, dialect), dialect)


@each_dialect
def test_reading_takes_no_more_memory_than_fifty_times_the_payload(dialect: Dialect) -> None:
    payload = LARGE[dialect][0]
    size = len(json.dumps(payload))
    tracemalloc.start()
    try:
        from_dialect(payload, dialect)
        assert tracemalloc.get_traced_memory()[1] < 50 * size
    finally:
        tracemalloc.stop()
