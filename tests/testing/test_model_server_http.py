"""The HTTP of `ModelServer`, byte by byte: what clients send well, torn, too long or wrong."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast
from urllib.parse import urlsplit

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.testing import Fault, ModelServer
from clew.testing.model_server import http
from tests.limits import PATIENCE
from tests.sampling import examples
from tests.testing.raw import BODIES, ask, connect

BODY = json.dumps(BODIES["openai-chat"][1]).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
CALL = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n5;x=1\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
    BODY[:5],
    len(BODY) - 5,
    BODY[5:],
)
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
}
LIST = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@contextmanager
def plain(server: ModelServer) -> Iterator[socket.socket]:
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=PATIENCE) as connection:
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def statuses(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


def test_a_connection_is_kept_alive_over_streams_and_errors() -> None:
    path, body = BODIES["openai-responses"]
    with ModelServer(["Hello."], faults={2: Fault(status=500)}) as server:
        connection = connect(server)
        sockets = set()
        for streamed in (True, False, False):
            connection.request("POST", path, json.dumps({**body, "stream": streamed}))
            sockets.add(connection.sock)
            connection.getresponse().read()
        connection.close()
    assert len(sockets) == 1
    assert server.calls == 3


@pytest.mark.parametrize("encoding", [*PACKED, "chunked"])
def test_bodies_may_be_packed_or_in_chunks(encoding: str) -> None:
    path, body = BODIES["openai-chat"]
    data = json.dumps(body).encode()
    with ModelServer(["Hello."]) as server:
        connection = connect(server)
        if encoding == "chunked":
            connection.request("POST", path, iter([data[:10], data[10:]]), encode_chunked=True)
        else:
            connection.request("POST", path, PACKED[encoding](data), {"content-encoding": encoding})
        assert connection.getresponse().status == 200
        connection.close()
    assert server.requests[0].body == body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nno colon\r\n\r\n", 400),
        (HEAD + b"content-length: -1\r\n\r\n", 400),
        (HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}", 400),
        (HEAD + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", 400),
        (HEAD + b"content-encoding: gzip\r\ncontent-length: 10\r\n\r\n" + gzip.compress(b"{}", mtime=0)[:10], 400),
        (HEAD + b"transfer-encoding: gzip\r\n\r\n", 501),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 8\r\n\r\nnot JSON", 400),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}", 400),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /other HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", 200),
        (b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n\r\n", 426),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 38\r\n\r\n"
            + b'{"model":"m","messages":[{"role":1}]} ',
            400,
        ),
        (
            b'POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 38\r\n\r\n{"model":"m","input":"x","tools":[55]}',
            400,
        ),
    ],
)
def test_what_is_no_sound_request_is_answered_and_the_server_goes_on(sent: bytes, status: int) -> None:
    with ModelServer(["Hello."]) as server:
        with plain(server) as connection:
            connection.sendall(sent)
            assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)
        assert ask(server, "openai-chat")[0] == 200


def test_any_base_url_and_query_will_do() -> None:
    with ModelServer(["Hello."]) as server:
        connection = connect(server)
        connection.request("POST", "/some/where/chat/completions?beta=true", json.dumps(BODIES["openai-chat"][1]))
        assert connection.getresponse().status == 200
        connection.close()
    assert server.requests[0].path == "/some/where/chat/completions"


@pytest.mark.parametrize("request_bytes", [CALL, CHUNKED], ids=["length", "chunked"])
def test_a_request_may_come_byte_by_byte(request_bytes: bytes) -> None:
    with ModelServer(["Hello."]) as server, plain(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request_bytes + LAST:
            connection.sendall(bytes([byte]))
        assert statuses(rest(connection)) == [200, 200]
    assert server.requests[0].body == json.loads(BODY)


def test_requests_in_one_packet_are_answered_in_their_order() -> None:
    with ModelServer(["Hello."]) as server, plain(server) as connection:
        connection.sendall(CALL + CHUNKED + b"GET /other HTTP/1.1\r\nhost: x\r\n\r\n" + LIST + LAST)
        assert statuses(rest(connection)) == [200, 200, 404, 200, 200]


def test_nothing_is_read_after_the_last_request_of_a_connection() -> None:
    with ModelServer(["Hello."]) as server, plain(server) as connection:
        connection.sendall(LAST + CALL)
        assert statuses(rest(connection)) == [200]
    assert server.calls == 0


@pytest.mark.parametrize("kept", [1, 30, len(CALL) - 1])
def test_half_a_request_is_no_request(kept: int) -> None:
    with ModelServer(["Hello."]) as server:
        with plain(server) as connection:
            connection.sendall(CALL[:kept])
            connection.shutdown(socket.SHUT_WR)
            assert rest(connection) == b""
        assert ask(server, "openai-chat")[0] == 200
    assert server.calls == 1


def test_a_client_that_sends_no_more_still_gets_its_answers() -> None:
    with ModelServer(["Hello."]) as server, plain(server) as connection:
        connection.sendall(LIST + CALL)
        connection.shutdown(socket.SHUT_WR)
        assert statuses(rest(connection)) == [200, 200]


def test_a_client_is_asked_for_the_body_that_it_holds_back() -> None:
    head, _, body = CALL.partition(b"\r\n\r\n")
    with ModelServer(["Hello."]) as server, plain(server) as connection:
        connection.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body + LAST)
        assert statuses(rest(connection)) == [200, 200]


def test_headers_of_almost_a_megabyte_are_taken() -> None:
    long = b"x-long: %b\r\n" % (b"x" * (http.MAX_HEAD - 1000))
    with ModelServer() as server, plain(server) as connection:
        connection.sendall(LAST.replace(b"\r\n\r\n", b"\r\n" + long + b"\r\n"))
        assert statuses(rest(connection)) == [200]


def test_headers_without_an_end_are_refused_while_they_still_come() -> None:
    with ModelServer() as server, plain(server) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"x-more: 1234567890\r\n" * 200_000)
        assert statuses(rest(connection)) == [431]


@pytest.mark.parametrize("request_bytes", [CALL, CHUNKED], ids=["length", "chunked"])
def test_a_body_over_the_limit_is_refused(request_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer(["Hello."]) as server:
        monkeypatch.setattr(http, "MAX_BODY", len(BODY) - 1)
        with plain(server) as connection:
            connection.sendall(request_bytes)
            assert statuses(rest(connection)) == [413]
        monkeypatch.setattr(http, "MAX_BODY", len(BODY))
        with plain(server) as connection:
            connection.sendall(request_bytes + LAST)
            assert statuses(rest(connection)) == [200, 200]
    assert server.calls == 1


def test_head_has_the_headers_of_get_and_no_body() -> None:
    with ModelServer() as server, plain(server) as connection:
        connection.sendall(LIST.replace(b"GET", b"HEAD") + b"HEAD /other HTTP/1.1\r\nhost: x\r\n\r\n" + LAST)
        first, second, third = rest(connection).split(b"HTTP/1.1 ")[1:]
    body = third.partition(b"\r\n\r\n")[2]
    assert (first[:3], second[:3]) == (b"200", b"404")
    assert b"content-length: %d\r\n" % len(body) in first
    assert first.endswith(b"\r\n\r\n")
    assert second.endswith(b"\r\n\r\n")


def test_a_client_of_http_1_0_gets_a_stream_without_chunks() -> None:
    body = json.dumps({**BODIES["openai-chat"][1], "stream": True}).encode()
    with ModelServer(["Hello."]) as server, plain(server) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        head, _, stream = rest(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert stream.startswith(b"data: {")
    assert stream.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("status", [204, 304, 599])
def test_a_fault_of_any_status_keeps_the_connection(status: int) -> None:
    with ModelServer(["Hello."], faults={1: Fault(status=status)}) as server, plain(server) as connection:
        connection.sendall(CALL + CALL + LAST)
        assert statuses(rest(connection)) == [status, 200, 200]


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.one_of(
            st.sampled_from([CALL, CHUNKED, LIST, HEAD, b"content-length: 3\r\n", b"\r\n", b"\r\n\r\n", b"5\r\n"]),
            st.binary(max_size=20),
        ),
        max_size=8,
    )
)
def test_any_bytes_are_requests_or_a_bad_request(pieces: list[bytes]) -> None:
    class Writer:
        def write(self, data: bytes) -> None:
            assert not data or data.startswith(b"HTTP/1.1 ")

        async def drain(self) -> None: ...

    async def serve() -> None:
        reader = asyncio.StreamReader()
        for piece in pieces:
            reader.feed_data(piece)
        reader.feed_eof()
        connection = http.Connection(reader, cast(asyncio.StreamWriter, Writer()))
        with suppress(http.BadRequest):
            while await connection.read() is not None:
                await connection.send(204, {}, b"")

    asyncio.run(serve())


WITHOUT_H11 = "import sys; sys.modules['h11'] = None\n"


def test_without_h11_the_server_says_what_to_install() -> None:
    code = WITHOUT_H11 + (
        "from clew.testing import Fault, RecordedRequest, ScriptedModel\n"
        "from clew.errors import MissingExtra\n"
        "try: from clew.testing import ModelServer\n"
        "except MissingExtra as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "ModelServer" in said
    assert "pip install 'clew[testing]'" in said


def test_without_h11_the_command_says_what_to_install() -> None:
    code = WITHOUT_H11 + (
        "from clew.testing.model_server.command import main\n"
        "import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), 'script.json')\n"
        "path.write_text('[\"Hello.\"]'); main([str(path)])"
    )
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert "pip install 'clew[testing]'" in run.stderr
    assert "Traceback" not in run.stderr
