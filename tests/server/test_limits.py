"""Limits that hold whoever calls, before a token is shown and after: connections, time, memory, streams."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from clew.checkpointers.http.protocol import MSGPACK, encode_text
from clew.errors import InvalidInput
from clew.server import Settings
from clew.server.connections import _FULL, _MALFORMED
from clew.server.failures import Refused
from clew.server.logs import LONGEST, JSONLines
from clew.server.request import Request
from clew.server.stores import Stores
from clew.server.wire import whole
from clew.testing.contract.builders import digest_of
from tests.certificate import make_certificate
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.server.serving import Running, a_token, serving
from tests.server.test_command import running
from tests.server.wires import Wire, until

pytestmark = pytest.mark.attack

ALICE, BOB = "the-long-token-of-alice", "the-long-token-of-bob"
TOKENS = (a_token(ALICE, "alice"), a_token(BOB, "bob"))
THREAD = f"/v1/threads/{encode_text('thread')}"
HALF = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-half: "


@contextmanager
def wires(running: Running, count: int, **options: Any) -> Iterator[list[Wire]]:
    opened = [Wire(running, **options) for _ in range(count)]
    try:
        yield opened
    finally:
        for wire in opened:
            wire.close()


def status_of(wire: Wire, token: str = ALICE) -> int:
    wire.head("GET", THREAD, token)
    return wire.answer()[0]


# Connections


def test_half_open_requests_lock_nobody_out() -> None:
    with serving(tokens=TOKENS, max_connections=20, header_timeout=3600) as running:
        with wires(running, 100) as strangers, wires(running, 1) as [innocent]:
            for stranger in strangers:
                stranger.send(HALF)
            assert status_of(innocent) == 404
            assert len(running.server.connections) <= 20
        with wires(running, 1) as [later]:
            assert status_of(later) == 404


def test_a_connection_that_has_shown_a_token_is_not_pushed_out_by_those_that_have_not() -> None:
    limits: dict[str, Any] = {"max_connections": 20, "max_connections_per_address": 5, "header_timeout": 3600}
    with serving(tokens=TOKENS, **limits) as running, wires(running, 1) as [known]:
        assert status_of(known) == 404
        with wires(running, 60) as strangers:
            for stranger in strangers:
                stranger.send(HALF)
            until(lambda: len(running.server.connections) <= 6)
            assert status_of(known) == 404


def test_one_address_takes_no_connections_from_another() -> None:
    limits: dict[str, Any] = {"max_connections": 40, "max_connections_per_address": 10, "header_timeout": 3600}
    with serving(tokens=TOKENS, **limits) as running, wires(running, 5, source="127.0.0.2") as others:
        for other in others:
            other.send(HALF[:20])
        with wires(running, 100):
            until(lambda: len(running.server.connections) == 15)
            for other in others:
                other.send(HALF[20:] + b"\r\nauthorization: Bearer " + ALICE.encode() + b"\r\n\r\n")
                assert other.answer()[0] == 200


def test_if_every_connection_has_shown_a_token_a_new_one_is_told_to_wait() -> None:
    with serving(tokens=TOKENS, max_connections=16) as running, wires(running, 16) as known:
        assert {status_of(wire) for wire in known} == {404}
        with wires(running, 1) as [new]:
            status, body = new.answer()
            assert (status, json.loads(body)["code"]) == (503, "unavailable")
        assert {status_of(wire) for wire in known} == {404}


def test_a_handshake_that_is_never_finished_is_counted_and_ended(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    limits: dict[str, Any] = {"max_connections": 20, "header_timeout": 3600}
    with serving(tls_cert=cert, tls_key=key, **limits) as running, wires(running, 50) as strangers:
        for stranger in strangers:
            stranger.send(b"\x16\x03\x01")
        until(lambda: len(running.server.connections) == 20)
        trusted = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{running.url}/healthz", verify=trusted).status_code == 200
    with serving(tls_cert=cert, tls_key=key, header_timeout=0.01) as running, wires(running, 1) as [stranger]:
        assert stranger.rest() == b""


def test_a_token_has_so_many_connections_and_another_token_its_own() -> None:
    with serving(tokens=TOKENS, max_connections_per_token=2) as running, wires(running, 4) as opened:
        assert [status_of(wire) for wire in opened] == [404, 404, 429, 429]
        assert status_of(opened[2], BOB) == 404
        opened[0].close()
        until(lambda: len(running.server.connections) == 3)
        assert status_of(opened[3]) == 404


# Time


@pytest.mark.parametrize("sent", [b"", b"G", HALF, b"GET /healthz HTTP/1.1\r\n"])
def test_a_head_that_does_not_come_to_its_end_ends_the_connection(sent: bytes) -> None:
    with serving(header_timeout=0.01) as running, wires(running, 1) as [slow]:
        slow.send(sent)
        assert slow.rest().startswith(b"HTTP/1.1 408 ")
        until(lambda: not len(running.server.connections))


def test_bytes_that_trickle_in_gain_no_time_for_a_head() -> None:
    with serving(header_timeout=0.5) as running, wires(running, 1) as [slow]:
        slow.send(HALF)
        slow.socket.settimeout(0.05)
        answer = b""
        while not answer:
            slow.send(b"x")
            try:
                answer = slow.rest()
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_does_not_come_is_answered_with_408_and_gives_its_memory_back() -> None:
    with serving(tokens=TOKENS, body_timeout=0.05) as running, wires(running, 1) as [slow]:
        slow.head(
            "PUT", f"/v1/blobs/{'0' * 64}", ALICE, "content-type: application/octet-stream", "content-length: 100000"
        )
        slow.send(bytes(1000))
        status, body = slow.answer()
        assert (status, json.loads(body)["code"]) == (408, "too_slow")
        until(lambda: not running.server.gate.bodies.held)


@pytest.mark.anyio
@pytest.mark.parametrize(("size", "seconds", "arrives"), [(2**20, 90, True), (2**20, 100, False), (1, 31, False)])
async def test_a_body_gets_as_much_time_as_its_bytes_have_earned(
    clock: Clock, size: int, seconds: int, arrives: bool
) -> None:
    parts = [{"type": "http.request", "body": bytes(size), "more_body": True}, {"type": "http.request", "body": b"end"}]

    async def receive() -> Any:
        if len(parts) == 1:
            clock.advance(seconds)
            await asyncio.sleep(0.001)
        return parts.pop(0)

    settings = Settings(store="memory://", body_timeout=30)
    scope = {"method": "PUT", "path": "/", "headers": []}
    request = Request(scope, receive, Stores("memory://"), settings)
    if arrives:
        assert len(await whole(request, 2**21)) == size + 3
    else:
        with pytest.raises(Refused, match="did not arrive"):
            await whole(request, 2**21)


def test_the_rest_of_a_refused_body_keeps_no_connection_open() -> None:
    with serving(tokens=TOKENS, header_timeout=0.05) as running, wires(running, 1) as [stubborn]:
        stubborn.head("PUT", f"/v1/blobs/{'0' * 64}", "", "content-length: 1000000000")
        assert stubborn.answer()[0] == 401
        stubborn.socket.settimeout(0.05)
        ended = False
        while not ended:
            stubborn.send(b"x")
            try:
                ended = stubborn.rest() == b""
            except TimeoutError:
                continue
        until(lambda: not len(running.server.connections))


def test_a_client_that_takes_nothing_of_its_response_is_cut_off() -> None:
    data = bytes(30 * 2**20)
    with serving(tokens=TOKENS, send_timeout=0.05) as running:
        address, headers = f"{running.url}/v1/blobs/{digest_of(data)}", {"authorization": f"Bearer {ALICE}"}
        kind = {"content-type": "application/octet-stream"}
        httpx.put(address, content=data, headers={**headers, **kind}).raise_for_status()
        with wires(running, 3, buffer=4096) as deaf:
            for wire in deaf:
                wire.head("GET", f"/v1/blobs/{digest_of(data)}", ALICE)
            until(lambda: running.server.gate.under_way == 0 and not len(running.server.connections))


def test_a_connection_without_a_request_is_closed_after_a_while() -> None:
    with serving(tokens=TOKENS, idle_timeout=0.05) as running, wires(running, 1) as [idle]:
        assert status_of(idle) == 404
        assert idle.rest() == b""


# Memory and streams


def test_unfinished_uploads_of_one_token_take_half_of_the_memory_and_no_more() -> None:
    part = bytes(20 * 2**20)
    with serving(tokens=TOKENS, max_blob=2**20, max_bodies=48 * 2**20) as running:
        with wires(running, 6) as opened:
            for wire in opened[:4]:
                wire.head("POST", "/v1/blobs", ALICE, "content-type: application/msgpack", "content-length: 24000000")
                wire.send(part)
                until(lambda: running.server.gate.bodies.held == len(part))
            assert {wire.answer()[0] for wire in opened[1:4]} == {429}
            data = b"of bob"
            length = [f"content-length: {len(data)}", "content-type: application/octet-stream"]
            opened[5].head("PUT", f"/v1/blobs/{digest_of(data)}", BOB, *length)
            opened[5].send(data)
            assert opened[5].answer()[0] == 200
        until(lambda: not running.server.gate.bodies.held)


def test_blobs_that_a_client_asks_for_and_never_takes_do_not_fill_the_memory() -> None:
    data = bytes(20 * 2**20)
    with serving(tokens=TOKENS, max_bodies=128 * 2**20) as running, wires(running, 8, buffer=4096) as deaf:
        path, kind = f"/v1/blobs/{digest_of(data)}", {"content-type": "application/octet-stream"}
        headers = {"authorization": f"Bearer {ALICE}"}
        httpx.put(running.url + path, content=data, headers={**headers, **kind}).raise_for_status()
        until(lambda: not running.server.gate.bodies.held)
        for wire in deaf[:3]:
            wire.head("GET", path, ALICE)
        until(lambda: running.server.gate.bodies.held == 60 * 2**20)
        for wire in deaf[3:]:
            wire.head("GET", path, ALICE)
            assert wire.answer()[0] == 429
        assert running.server.gate.bodies.held == 60 * 2**20
        body = msgspec.msgpack.encode({"digests": [digest_of(data)]})
        many = httpx.post(f"{running.url}/v1/blobs/get", content=body, headers={**headers, "content-type": MSGPACK})
        assert many.status_code == 429


def test_a_form_without_a_token_is_small() -> None:
    with serving(tokens=TOKENS) as running, wires(running, 1) as [stranger]:
        form = ["content-type: application/x-www-form-urlencoded", "content-length: 20000"]
        stranger.head("POST", "/login", "", *form)
        assert stranger.answer()[0] == 413


def test_a_token_has_so_many_streams_and_another_token_its_own() -> None:
    with serving(tokens=TOKENS, max_streams=2) as running, wires(running, 4) as opened:
        for wire in opened[:2]:
            wire.head("GET", "/threads/events", ALICE)
            assert wire.socket.recv(15) == b"HTTP/1.1 200 OK"
        opened[2].head("GET", "/threads/events", ALICE)
        assert opened[2].answer()[0] == 429
        opened[3].head("GET", "/threads/events", BOB)
        assert opened[3].socket.recv(15) == b"HTTP/1.1 200 OK"
        opened[0].close()
        until(lambda: running.server.gate.under_way == 2)
        opened[2].head("GET", "/threads/events", ALICE)
        assert opened[2].socket.recv(15) == b"HTTP/1.1 200 OK"


def test_limits_that_let_nothing_through_are_refused_at_the_start() -> None:
    for wrong in ({"max_connections": 0}, {"max_streams": 0}, {"header_timeout": 0.0}, {"max_bodies": 2**20}):
        with pytest.raises(InvalidInput):
            Settings(store="memory://", **wrong).check()


# Logs


@pytest.mark.slow
def test_malformed_requests_write_no_lines_into_the_log() -> None:
    with running("--store", "memory://") as (url, process):
        port = int(url.rpartition(":")[2])
        for data in (
            b"\0\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        ) * 20:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as wire:
                wire.sendall(data)
                wire.recv(100)
        process.terminate()
        assert process.stderr is not None
        events = [json.loads(line)["event"] for line in process.stderr]
    assert set(events) <= {"request", "stopping"}
    assert events.count("request") == 20


def test_every_line_of_the_log_is_json_of_bounded_length_without_the_words_of_errors() -> None:
    try:
        raise ValueError("private words\n" * 1000)
    except ValueError:
        error = sys.exc_info()
    records = [
        logging.LogRecord("uvicorn.error", logging.WARNING, "x.py", 1, "Invalid HTTP request received.", (), None),
        logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, "never retrieved\nprivate words", (), error),
        logging.LogRecord("py.warnings", logging.WARNING, "x.py", 1, "%s", ("long " * 100_000,), None),
        logging.LogRecord("clew.server", logging.INFO, "x.py", 1, '{"event":"' + "x" * 100_000 + '"}', (), None),
        logging.LogRecord("clew.server", logging.INFO, "x.py", 1, '{"event":"listening"}', (), None),
    ]
    lines = [JSONLines().format(record) for record in records]
    assert all(isinstance(json.loads(line), dict) and len(line) <= LONGEST and "\n" not in line for line in lines)
    assert "private" not in "".join(lines)
    assert json.loads(lines[1])["kind"] == "ValueError"
    assert lines[-1] == '{"event":"listening"}'


def test_the_answer_of_a_full_service_says_its_own_length() -> None:
    for answer in (_FULL, _MALFORMED):
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert json.loads(body)["code"]
