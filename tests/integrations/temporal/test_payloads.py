"""What is sent through Temporal: written by its default converter, and read by newer versions of Clew."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.converter import DataConverter

from clew.integrations.temporal.payloads import (
    Failure,
    Letter,
    Limits,
    ThreadStart,
    ThreadState,
    ThreadStop,
    Work,
)

FAILURE = Failure("p", "ModelRefused", "a bad key", {"model": "m", "status": None})
STOP = ThreadStop("t", "waiting", 7, 2, ["1:0:approve"], {"answer": [1]})
ALL = [
    FAILURE,
    STOP,
    Letter("p", "answer"),
    Limits(2.5, 60),
    Work("t", "biller", Letter("p"), "Go.", {"yes": True}, True),
    ThreadStart("t", "biller", "gpu", Limits(1, 2), [Letter("p")], [FAILURE], True, STOP),
    ThreadState(["p"], [FAILURE]),
]


@pytest.mark.anyio
@pytest.mark.parametrize("value", ALL, ids=lambda value: type(value).__name__)
async def test_the_default_converter_writes_and_reads_it(value: Any) -> None:
    payloads = await DataConverter.default.encode([value])
    assert payloads[0].metadata["encoding"] == b"json/plain"
    assert await DataConverter.default.decode(payloads, [type(value)]) == [value]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "least"),
    [
        (ThreadStart, {"thread_id": "t", "agent": "a"}),
        (Work, {"thread_id": "t", "agent": "a", "letter": {"id": "p"}}),
        (ThreadStop, {"thread_id": "t", "status": "done"}),
    ],
)
async def test_fields_that_an_older_or_a_newer_version_has_do_no_harm(kind: type, least: dict[str, Any]) -> None:
    payloads = await DataConverter.default.encode([{**least, "of_a_newer_version": 1}])
    (found,) = await DataConverter.default.decode(payloads, [kind])
    assert found.thread_id == "t"
