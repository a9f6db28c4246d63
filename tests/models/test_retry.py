"""When a call is made again, and what an error is taken for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from clew.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from clew.models import ModelEvent, Retrying, TextDelta, retry
from clew.models.retry import StreamBroken
from tests.models.asking import Wire, ask, events_of, refusal, sse

pytestmark = pytest.mark.anyio

CHUNK = {
    "id": "c1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}],
}


def well() -> httpx2.Response:
    return sse(CHUNK, "[DONE]")


async def first_wait(**headers: str) -> float:
    wire = Wire(refusal(429, **headers), well())
    first, *_ = await events_of(wire.model("openai:m"), ask())
    assert isinstance(first, Retrying)
    return first.after


async def test_the_wait_is_read_in_every_form() -> None:
    long_ago = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert await first_wait(retry_after_ms="30") == pytest.approx(0.03)
    assert await first_wait(retry_after="0.05") == pytest.approx(0.05)
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)  # only now that the SDK is imported
    assert 0 < await first_wait(retry_after=soon) <= 2
    assert await first_wait(retry_after=long_ago) == 0
    assert await first_wait(retry_after="-5") == 0


@pytest.mark.parametrize("nonsense", ["soon", "nan", "inf", ""])
async def test_a_wait_that_is_none_leaves_the_pause_to_us(nonsense: str) -> None:
    assert 0.005 <= await first_wait(retry_after=nonsense) <= 0.01


async def test_pauses_double_up_to_a_limit_and_have_chance_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(thinking: bool) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("x")
        raise StreamBroken("a test")

    async def no_sleep(seconds: float) -> None:
        return None

    monkeypatch.setattr(retry, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr("asyncio.sleep", no_sleep)
    pauses: list[float] = []

    async def listen() -> None:
        async for event in retry.call(fails, ask(), model="m", max_retries=8):
            if isinstance(event, Retrying):
                pauses.append(event.after)

    with pytest.raises(ModelUnavailable) as caught:
        await listen()
    assert caught.value.attempts == 9
    for pause, longest in zip(pauses, [1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == len(pauses)


async def test_an_error_of_a_program_is_not_hidden() -> None:
    async def fails(thinking: bool) -> AsyncGenerator[ModelEvent, None]:
        yield TextDelta("x")
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        async for _ in retry.call(fails, ask(), model="m"):
            pass


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens",
        "the request exceeds the available context size, try increasing it",
        "Prompt contains 300 tokens, too large for model with 200 maximum context length",
        "Input is too long for requested model.",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    ],
)
async def test_a_conversation_that_is_too_long_is_known_by_the_words(message: str) -> None:
    with pytest.raises(ContextTooLong):
        await events_of(Wire(refusal(400, message)).model("openai:m"), ask())


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens: 99999 > 8192, which is the maximum allowed number of output tokens",
        "Invalid 'messages[0].content': string too long.",
        "Unsupported value: 'temperature' does not support 0.5 with this model.",
    ],
)
async def test_other_refusals_are_not_taken_for_it(message: str) -> None:
    with pytest.raises(ModelRefused):
        await events_of(Wire(refusal(400, message)).model("openai:m"), ask())


async def test_a_limit_on_tokens_a_minute_is_not_taken_for_it() -> None:
    message = "Request too large for m on tokens per min (TPM): maximum context length is not the matter"
    with pytest.raises(ModelUnavailable):
        await events_of(Wire(refusal(429, message)).model("openai:m", max_retries=0), ask())


@pytest.mark.parametrize(
    ("answer", "error", "calls"),
    [
        (httpx2.Response(413, text="<html>too large</html>"), ContextTooLong, 1),
        (httpx2.Response(502, text="<html>secret page</html>"), ModelUnavailable, 2),
        (httpx2.Response(429, json={"error": {"message": "Quota.", "code": "insufficient_quota"}}), ModelRefused, 1),
        (
            httpx2.Response(400, json={"error": {"message": "No.", "type": "exceed_context_size_error"}}),
            ContextTooLong,
            1,
        ),
        (refusal(500, x_should_retry="false"), ModelUnavailable, 1),
        (refusal(400, x_should_retry="true"), ModelUnavailable, 2),
        (httpx2.ConnectError("refused"), ModelUnavailable, 2),
        (httpx2.ReadError("broke off"), ModelUnavailable, 2),
        (httpx2.PoolTimeout("busy"), ModelUnavailable, 2),
    ],
)
@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_what_comes_of_an_answer(
    vendor: str, answer: httpx2.Response | Exception, error: type[ModelError], calls: int
) -> None:
    wire = Wire(answer)
    with pytest.raises(error) as caught:
        await events_of(wire.model(f"{vendor}:m", max_retries=1), ask())
    assert len(wire.bodies) == calls
    assert "html" not in str(caught.value)
    assert "secret page" not in str(caught.value)


def said(code: str) -> httpx2.Response:
    return httpx2.Response(400, json={"error": {"message": "No.", "code": code}})


@pytest.mark.parametrize(
    ("answers", "is_free"),
    [
        *(([refusal(status)], True) for status in (400, 401, 403, 404, 413, 422)),
        ([refusal(429), refusal(429)], True),
        ([refusal(503), refusal(429)], False),
        ([refusal(503), refusal(400)], False),
        ([refusal(408), refusal(408)], False),
        ([refusal(409), refusal(409)], False),
        ([httpx2.ReadError("broke off"), refusal(400)], False),
        ([said("content_filter")], False),
        ([sse({"error": {"message": "No.", "type": "invalid_request_error", "code": "invalid_prompt"}})], False),
    ],
)
async def test_a_call_is_free_only_if_the_vendor_refused_every_attempt_by_a_status(
    answers: list[httpx2.Response | Exception], is_free: bool
) -> None:
    with pytest.raises(ModelError) as caught:
        await events_of(Wire(*answers).model("openai:m", max_retries=1), ask())
    assert caught.value.is_free is is_free
