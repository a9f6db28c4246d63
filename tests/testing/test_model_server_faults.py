"""Faults on demand, and how the vendors' clients take them."""

from __future__ import annotations

import http.client
import json
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google.genai.errors import APIError

from clew.errors import ContextTooLong, ModelUnavailable
from clew.testing import Fault, ModelServer, call
from tests.limits import PATIENCE
from tests.testing.raw import BODIES, ask, connect, events_of, request_of
from tests.testing.test_model_server import HI, anthropic_client, gemini_client, openai_client

DIALECTS = list(BODIES)
LONG = "One two three four five six."


def say_hello(server: ModelServer, dialect: str, **options: Any) -> str:
    """The answer of a vendor's client, streamed."""
    if dialect == "gemini":
        return say_hello_with_gemini(server, **options)
    if dialect == "anthropic":
        with (
            anthropic_client(server, **options) as claude,
            claude.messages.stream(model="m", max_tokens=9, messages=HI) as stream,
        ):
            return stream.get_final_text()
    with openai_client(server, **options) as gpt:
        if dialect == "openai-chat":
            with gpt.chat.completions.stream(model="m", messages=HI) as chunks:
                return chunks.get_final_completion().choices[0].message.content or ""
        with gpt.responses.stream(model="m", input="Hi") as events:
            return events.get_final_response().output_text


def say_hello_with_gemini(server: ModelServer, *, max_retries: int = 0, timeout: float = 60) -> str:
    with gemini_client(server, timeout=timeout) as client:
        while True:
            try:
                stream = client.models.generate_content_stream(model="m", contents="Hi")
                return "".join(chunk.text or "" for chunk in stream)
            except (APIError, httpx.HTTPError):
                if not max_retries:
                    raise
                max_retries -= 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_status_is_met_by_a_second_try(dialect: str, status: int) -> None:
    with ModelServer(["Hello."], faults={1: Fault(status=status, retry_after=0.01)}) as server:
        assert say_hello(server, dialect, max_retries=1) == "Hello."
    assert [record.outcome for record in server.requests] == ["failed", "answered"]


@pytest.mark.parametrize(
    ("dialect", "status", "kind"),
    [
        ("anthropic", 429, "rate_limit_error"),
        ("anthropic", 500, "api_error"),
        ("anthropic", 529, "overloaded_error"),
        ("openai-chat", 429, "requests"),
        ("openai-responses", 503, "server_error"),
    ],
)
def test_an_error_has_the_vendors_shape(dialect: str, status: int, kind: str) -> None:
    with ModelServer(["Hello."], faults=Fault(status=status, retry_after=7, message="Not now.")) as server:
        given, headers, body = ask(server, dialect)
    assert (given, headers["retry-after"]) == (status, "7")
    error = json.loads(body)["error"]
    assert (error["type"], error["message"]) == (kind, "Not now.")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_conversation_that_is_too_long_is_told_in_each_vendors_words(streamed: bool) -> None:
    with ModelServer(["Hello."], faults=Fault(overflow=True)) as server:
        found = {dialect: ask(server, dialect, stream=streamed) for dialect in DIALECTS}
    assert [status for status, _, _ in found.values()] == [400] * len(DIALECTS)
    errors = {dialect: json.loads(body)["error"] for dialect, (_, _, body) in found.items()}
    assert errors["anthropic"]["message"] == "prompt is too long: 210000 tokens > 200000 maximum"
    assert errors["openai-chat"]["code"] == errors["openai-responses"]["code"] == "context_length_exceeded"
    assert "maximum context length is 128000 tokens" in errors["openai-chat"]["message"]
    assert "exceeds the context window" in errors["openai-responses"]["message"]
    assert "exceeds the maximum number of tokens allowed (1048576)" in errors["gemini"]["message"]


def test_a_window_can_be_given_and_then_only_long_requests_are_too_long() -> None:
    long: Any = [{"role": "user", "content": "x" * 44}]
    with ModelServer(["Hello."], context_window=10) as server, anthropic_client(server) as client:
        assert client.messages.create(model="m", max_tokens=9, messages=HI)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 11 tokens > 10 maximum"):
            client.messages.create(model="m", max_tokens=9, messages=long)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_stream_that_is_dropped_ends_after_so_many_events(dialect: str, after: int) -> None:
    with ModelServer([LONG], faults=Fault(drop_after=after)) as server:
        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(server, dialect, stream=True)
        assert len(events_of(caught.value.partial)) == after
        with pytest.raises(http.client.IncompleteRead):
            ask(server, dialect)
        with pytest.raises(Exception, match=r"peer closed connection|Connection error"):
            say_hello(server, dialect)
    assert {record.outcome for record in server.requests} == {"failed"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_connection_is_reset_before_the_answer(dialect: str) -> None:
    with ModelServer(["Hello."], faults={1: Fault(reset=True)}) as server:
        with pytest.raises(ConnectionResetError):
            ask(server, dialect)
        server.fail(Fault(reset=True), calls=2)
        assert say_hello(server, dialect, max_retries=2) == "Hello."
    assert server.calls == 4


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_may_come_in_the_middle_of_a_stream(dialect: str) -> None:
    with ModelServer([LONG], faults=Fault(status=529, error_after=3)) as server:
        status, _, body = ask(server, dialect, stream=True)
        events = events_of(body)
        assert (status, len(events)) == (200, 4)
        if dialect == "openai-responses":
            assert [data["sequence_number"] for _, data in events] == [0, 1, 2, 3]
            assert events[-1][1]["response"]["error"]["code"] == "server_error"
        with pytest.raises((anthropic.APIError, openai.APIError, APIError, RuntimeError)):
            say_hello(server, dialect)
        assert ask(server, dialect)[0] == 529


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_event_may_be_malformed(dialect: str) -> None:
    with ModelServer([LONG], faults=Fault(malformed=True)) as server:
        with pytest.raises(json.JSONDecodeError):
            events_of(ask(server, dialect, stream=True)[2])
        with pytest.raises(json.JSONDecodeError):
            json.loads(ask(server, dialect)[2])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_may_be_slow_to_begin_and_slow_to_go_on(dialect: str) -> None:
    with ModelServer([LONG], faults={1: Fault(first_byte=0.2), 2: Fault(between=0.03)}) as server:
        for least in (0.2, 0.2):
            start = time.monotonic()
            assert say_hello(server, dialect) == LONG
            assert time.monotonic() - start >= least
        server.fail(Fault(first_byte=5))
        with pytest.raises((anthropic.APITimeoutError, openai.APITimeoutError, httpx.TimeoutException)):
            say_hello(server, dialect, timeout=0.1)
    assert [record.outcome for record in server.requests[:2]] == ["answered"] * 2


def test_faults_can_be_added_and_taken_away_while_it_runs() -> None:
    with ModelServer(["Hello."]) as server:
        server.fail(Fault(status=500))
        server.fail(Fault(status=503), calls=2)
        assert [ask(server, "openai-chat")[0] for _ in range(4)] == [500, 503, 503, 200]
        server.fail(Fault(status=529), calls=None)
        assert [ask(server, "openai-chat")[0] for _ in range(2)] == [529, 529]
        server.heal()
        assert ask(server, "openai-chat")[0] == 200


def test_a_fault_takes_no_response_of_a_script_that_goes_by_order() -> None:
    with ModelServer(["One.", "Two."], by="order", faults={1: Fault(status=500), 2: Fault(drop_after=2)}) as server:
        assert ask(server, "openai-responses")[0] == 500
        with pytest.raises(http.client.IncompleteRead):
            ask(server, "openai-responses", stream=True)
        assert [say_hello(server, "openai-responses") for _ in range(2)] == ["One.", "Two."]


@pytest.mark.parametrize(
    ("response", "status"),
    [
        (Fault(status=503), 503),
        (ContextTooLong("m", "too long"), 400),
        (ModelUnavailable("m", "a 529", attempts=1, status=529), 529),
    ],
)
def test_a_script_may_hold_faults_and_errors(response: Any, status: int) -> None:
    with ModelServer([response]) as server:
        assert ask(server, "anthropic")[0] == status
    with ModelServer([ConnectionError]) as server, pytest.raises(ConnectionResetError):
        ask(server, "anthropic")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_that_hangs_says_all_its_words_and_stays_open_until_the_client_hangs_up(dialect: str) -> None:
    path, body = request_of(dialect, stream=True)
    with ModelServer([Fault(hang=True, saying="Once upon a"), "Never."]) as server:
        connection = connect(server)
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        data = b""
        while not data.endswith(b"\n\n") or words_of(data) != "Once upon a":
            data += response.read1()
        wait_for_outcome(server, "hanging")
        assert not select.select([response], [], [], 0)[0]
        response.close()
        connection.close()
        wait_for_outcome(server, "abandoned")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_that_hangs_and_is_no_stream_does_not_begin(dialect: str) -> None:
    path, body = BODIES[dialect]
    with ModelServer(["Hello."], faults=Fault(hang=True)) as server:
        connection = connect(server)
        connection.request("POST", path, json.dumps(body))
        wait_for_outcome(server, "hanging")
        assert not select.select([connection.sock], [], [], 0)[0]
        connection.close()
        wait_for_outcome(server, "abandoned")


def test_a_fault_in_a_script_may_spoil_words_of_its_own() -> None:
    script = [Fault(drop_after=5, saying=LONG)]
    with ModelServer(script) as server, pytest.raises(http.client.IncompleteRead) as caught:
        ask(server, "openai-chat", stream=True)
    assert words_of(caught.value.partial) == "One two three four"


def words_of(stream: bytes) -> str:
    """What the events of any dialect's stream say, of a text alone."""
    found = ""
    for _, data in events_of(stream):
        if data.get("type") == "content_block_delta":
            found += data["delta"]["text"]
        elif data.get("type") == "response.output_text.delta":
            found += data["delta"]
        for choice in data.get("choices", ()):
            found += choice["delta"].get("content") or ""
        for candidate in data.get("candidates", ()):
            found += "".join(part["text"] for part in candidate["content"]["parts"])
    return found


def wait_for_outcome(server: ModelServer, outcome: str) -> None:
    end = time.monotonic() + PATIENCE
    while (found := [record.outcome for record in server.requests]) != [outcome]:
        assert time.monotonic() < end, found
        time.sleep(0.01)


def test_many_clients_are_served_at_once() -> None:
    with ThreadPoolExecutor(20) as pool:
        with ModelServer(["Never."], delay=3600) as busy:
            asking = [pool.submit(ask, busy, DIALECTS[number % 3]) for number in range(20)]
            busy.wait_for_blocking(20, timeout=PATIENCE)
            assert not any(one.done() for one in asking)
        assert all(one.exception(PATIENCE) is not None for one in asking)
        with ModelServer([call("add", a=1)]) as server:
            statuses = list(pool.map(lambda number: ask(server, DIALECTS[number % 3])[0], range(40)))
    assert statuses == [200] * 40
    assert sorted(record.call for record in server.requests) == list(range(1, 41))


def test_closing_drops_calls_on_the_way_and_leaves_no_thread() -> None:
    server = ModelServer(["Hello."], delay=30)
    with server, ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask, server, "openai-chat")
        server.wait_for_blocking(1)
        server.close()
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            call.result(10)
    assert not any(thread.name == "clew-model-server" for thread in threading.enumerate())
