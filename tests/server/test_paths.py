"""What the service answers to each way of writing a request: paths, methods, queries, headers, versions of HTTP."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.checkpointers.http.protocol import encode_text
from clew.server.hosts import is_local, is_local_header
from tests.certificate import make_certificate
from tests.limits import PATIENCE
from tests.server.serving import Running, a_token, serving
from tests.server.wires import Wire

pytestmark = pytest.mark.attack

READER, OPERATOR = "a-token-that-reads", "a-token-of-the-operator"
NAMED = encode_text("nobody")
DIGEST = "0" * 64
HTML = "text/html; charset=utf-8"


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with serving(tokens=[a_token(READER, "team", ["read"]), a_token(OPERATOR)]) as running:
        yield running


@pytest.fixture(scope="module")
def ask(service: Running) -> Any:
    def ask(method: str, target: str, token: str = "", version: int = 11, **headers: str) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", service.server.port, timeout=PATIENCE)
        connection._http_vsn, connection._http_vsn_str = version, f"HTTP/1.{version - 10}"  # type: ignore[attr-defined]
        connection.putrequest(method, target, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if token:
            connection.putheader("authorization", f"Bearer {token}")
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read()
        connection.close()
        return found

    return ask


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", f"/v1/threads/{NAMED}", 404, "absent"),
        ("GET", f"/v1/threads/{NAMED}/", 404, "absent"),
        ("GET", f"//v1//threads///{NAMED}", 404, "absent"),
        ("GET", f"/%76%31/threads/{NAMED}", 404, "absent"),
        ("GET", f"/v1/threads/{NAMED}?", 404, "absent"),
        ("GET", f"/v1/threads%2F{NAMED}", 404, "absent"),
        ("GET", f"/v1/threads/{NAMED}%2Ffrom", 404, "no_such_path"),
        ("GET", f"/v1/threads/{NAMED}%252Fframes", 400, "invalid"),
        ("GET", "/v1/threads/%7Bthread%7D", 400, "invalid"),
        ("GET", "/v1/threads/{thread}", 400, "invalid"),
        ("GET", "/v1/threads/%00", 400, "invalid"),
        ("GET", "/v1/threads/%FF", 400, "invalid"),
        ("GET", "/v1/threads/%zz", 400, "invalid"),
        ("GET", "/v1/threads/..", 400, "invalid"),
        ("GET", "/v1/threads/query/frames", 400, "invalid"),
        ("GET", "/v1/threads/query/nothing", 404, "no_such_path"),
        ("GET", "/v1/threads", 404, "no_such_path"),
        ("GET", "/v1/threads/", 404, "no_such_path"),
        ("GET", "/v1", 404, "no_such_path"),
        ("GET", "/V1/threads/x", 404, "no_such_path"),
        ("GET", f"/v1/threads/{NAMED}/frames/x", 404, "no_such_path"),
        ("GET", f"/v1/blobs/{DIGEST}", 404, "absent"),
        ("GET", f"/v1/blobs/{DIGEST}/", 404, "absent"),
        ("GET", "/v1/blobs/nonsense", 400, "invalid"),
        ("GET", "*", 404, "no_such_path"),
        ("OPTIONS", "*", 404, "no_such_path"),
        ("POST", f"/v1/threads/{NAMED}/frames", 400, "invalid"),
        ("POST", f"/v1/threads/{NAMED}/frames/", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?start=", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?start", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?start=+1", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?start=%zz", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?start=%FF", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?start=1&start=2", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?start=1;stop=2", 400, "invalid"),
        ("GET", f"/v1/threads/{NAMED}/frames?Start=1", 400, "invalid"),
    ],
)
def test_a_path_that_is_not_answered(ask: Any, method: str, target: str, status: int, code: str) -> None:
    found, headers, body = ask(method, target, OPERATOR)
    assert (found, headers["content-type"]) == (status, "application/json")
    assert f'"code":"{code}"'.encode() in body
    assert headers["content-length"] == str(len(body))


@pytest.mark.parametrize(
    "query", ["", "start=1&stop=2", "%73tart=%31", "&&start=1&&", "start=000", "start=9&stop=1", "stop=" + "1" * 30]
)
def test_a_query_that_is_answered(ask: Any, query: str) -> None:
    status, headers, _ = ask("GET", f"/v1/threads/{NAMED}/frames?{query}", OPERATOR)
    assert (status, headers["content-type"]) == (200, "application/vnd.clew.records")


METHODS = {
    "/healthz": "GET",
    "/metrics": "GET",
    f"/v1/threads/{NAMED}": "DELETE, GET",
    f"/v1/threads/{NAMED}/": "DELETE, GET",
    f"/v1/threads/{NAMED}/frames": "GET, POST",
    f"/v1/threads/{NAMED}/frames/": "GET, POST",
    f"/v1/threads/{NAMED}/refs": "GET",
    "/v1/threads/query": "POST",
    "/v1/blobs": "GET, POST",
    "/v1/blobs/": "GET, POST",
    "/v1/blobs/get": "POST",
    f"/v1/blobs/{DIGEST}": "GET, PUT",
}


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "TRACE", "INVENTED", "get"])
@pytest.mark.parametrize("path", METHODS)
def test_another_method_is_answered_with_those_that_the_path_has(ask: Any, method: str, path: str) -> None:
    status, headers, body = ask(method, path, OPERATOR)
    assert (status, headers["allow"]) == (405, METHODS[path])
    assert body == b"" if method == "HEAD" else f"other methods: {METHODS[path]}".encode() in body


@pytest.mark.parametrize(("path", "methods"), {"/": "GET", "/login": "GET, POST", "/logout": "POST"}.items())
def test_another_method_of_a_page_is_answered_with_those_that_it_has(ask: Any, path: str, methods: str) -> None:
    allow = ", ".join(sorted([*methods.split(", "), "OPTIONS"]))
    status, headers, _ = ask("PATCH", path, OPERATOR)
    assert (status, headers["allow"], headers["content-type"]) == (405, allow, HTML)
    status, headers, body = ask("OPTIONS", path, OPERATOR)
    assert (status, headers["allow"], headers["content-type"], body) == (204, allow, None, b"")
    assert headers["content-length"] is None


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/metrics/", "//metrics", "/%6Detrics", "/metrics%2F", "/metrics%2f", "/%2Fmetrics", "/metrics//"],
)
def test_no_way_of_writing_the_path_leads_a_tenant_to_the_metrics(ask: Any, path: str) -> None:
    assert ask("GET", path, READER)[0] == 403
    assert ask("GET", path)[0] == 401
    assert ask("GET", path, OPERATOR)[1]["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize("path", ["/healthz", "/healthz/", "/readyz", "/openapi.json", "/login", "/login/"])
def test_an_open_path_needs_no_token_however_it_is_written(ask: Any, path: str) -> None:
    assert ask("GET", path)[0] == 200


@pytest.mark.parametrize("path", ["/", "/overview", "/overview/", f"/t/{NAMED}", "//t//x", "/t/", "/assets"])
def test_a_page_without_a_token_is_the_login_form(ask: Any, path: str) -> None:
    status, headers, body = ask("GET", path)
    assert (status, headers["content-type"]) == (401, HTML)
    assert b'data-test="login"' in body


@pytest.mark.parametrize("host", ["127.0.0.1:<x>", '"', "a b", "\xe9"])
def test_a_host_that_no_address_can_have_is_refused(ask: Any, host: str) -> None:
    assert ask("GET", f"/v1/threads/{NAMED}", OPERATOR, host=host)[0] == 400
    assert ask("GET", "/", OPERATOR, host=host)[0] == 400


@pytest.mark.parametrize(
    "path", ["/", "/login", "/healthz", "/metrics", f"/v1/threads/{NAMED}", "/nothing", "/assets/x"]
)
def test_no_response_lets_a_browser_guess_its_type(ask: Any, path: str) -> None:
    for token in (OPERATOR, ""):
        assert ask("GET", path, token)[1].get_all("x-content-type-options") == ["nosniff"]


def test_with_tls_browsers_are_told_to_use_nothing_else(ask: Any, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    with serving(tls_cert=cert, tls_key=key) as running:
        trusted = ssl.create_default_context(cafile=str(cert))
        for path in ("/", "/healthz"):
            answer = httpx.get(running.url + path, verify=trusted)
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
    assert ask("GET", "/")[1]["strict-transport-security"] is None


DOUBTFUL = {
    "length and encoding": ["content-length: 3", "transfer-encoding: chunked"],
    "encoding and length": ["transfer-encoding: chunked", "content-length: 3"],
    "two tokens": [f"authorization: Bearer {READER}", f"Authorization: Bearer {OPERATOR}"],
    "the same token twice": [f"authorization: Bearer {READER}"] * 2,
    "two namespaces": ["clew-namespace: YQ", "clew-namespace: Yg"],
    "two types": ["content-type: application/msgpack", "content-type: application/json"],
    "two lengths": ["content-length: 3", "content-length: 4"],
    "a list of lengths": ["content-length: 3, 4"],
    "a list of equal lengths": ["content-length: 5, 5"],
    "the same length twice": ["content-length: 5"] * 2,
    "no length": ["content-length:"],
    "a line that ends with LF": ["x: y\ntransfer-encoding: chunked"],
    "a folded length": ["content-length: 5\r\n , 5"],
    "two hosts": ["host: localhost"],
    "a length with a sign": ["content-length: +3"],
    "an unknown encoding": ["transfer-encoding: identity, chunked"],
    "a folded line": ["x-folded: a\r\n b", "content-length: 3 4"],
    "a space before the colon": ["content-length : 3"],
}


@pytest.mark.parametrize("path", ["/healthz", "/login", f"/v1/threads/{NAMED}"])
@pytest.mark.parametrize("lines", DOUBTFUL.values(), ids=DOUBTFUL)
def test_headers_that_can_be_read_in_two_ways_are_refused_and_nothing_after_them_is_a_request(
    service: Running, path: str, lines: list[str]
) -> None:
    wire = Wire(service)
    hidden = f"GET /healthz HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {OPERATOR}\r\n\r\n"
    wire.head("POST", path, "", *lines)
    wire.send(b"0\r\n\r\n" + hidden.encode())
    answer = wire.rest()
    wire.close()
    assert re.match(rb"HTTP/1.1 (400|501) ", answer), answer
    assert answer.count(b"HTTP/1.1 ") == 1


CHUNKS = {
    "a space behind the size": b"5 \r\nhello\r\n0\r\n\r\n",
    "a tab behind an extension's place": b"5\t;a\r\nhello\r\n0\r\n\r\n",
    "a size that ends with LF": b"5\nhello\n0\n\n",
    "a last chunk that ends with LF": b"5\r\nhello\r\n0\r\n\n",
    "lines after the last chunk that end with LF": b"5\r\nhello\r\n0\r\nx: y\n\r\n",
    "a size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "a size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS)
def test_chunks_that_can_be_read_in_two_ways_are_refused_and_nothing_after_them_is_a_request(
    service: Running, body: bytes
) -> None:
    wire = Wire(service)
    hidden = f"GET /healthz HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {OPERATOR}\r\n\r\n"
    form = "content-type: application/x-www-form-urlencoded"
    wire.head("POST", "/login", "", form, "transfer-encoding: chunked")
    wire.send(body + hidden.encode())
    answer = wire.rest()
    wire.close()
    assert re.match(rb"HTTP/1.1 4\d\d ", answer), answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_chunks_that_can_be_read_in_one_way_only_are_taken_in_any_pieces(service: Running) -> None:
    wire = Wire(service)
    form = "content-type: application/x-www-form-urlencoded"
    wire.head("POST", "/login", "", form, "transfer-encoding: chunked")
    for byte in b"5;x=y\r\nhello\r\n00A\r\n0123456789\r\n0\r\nx: y\r\n\r\n":
        wire.send(bytes([byte]))
    wire.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    answer = wire.rest()
    wire.close()
    assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"403", b"200"]


LOCAL = ["localhost", "LOCALHOST", "localhost.", "app.localhost", "127.0.0.1", "127.0.0.2", "127.255.255.254", "[::1]"]
FOREIGN = ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "[::]", "[2001:db8::1]",
           "evil-localhost", "0.0.0.0", "127.1", "2130706433", "localhost:80:80", "[::1", "::1", "a@localhost"]  # fmt: skip


@pytest.mark.parametrize("port", ["", ":8420"])
@pytest.mark.parametrize("name", LOCAL + FOREIGN)
def test_a_service_without_tokens_answers_to_the_names_on_which_it_may_listen_and_to_no_other(
    name: str, port: str
) -> None:
    assert is_local_header(name + port) == (name in LOCAL)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.0.2", "::1"])
def test_a_service_without_tokens_that_may_listen_on_a_name_answers_to_it(name: str) -> None:
    assert is_local(name)
    assert is_local_header(f"[{name}]:80" if ":" in name else name)


def test_a_name_that_only_a_lookup_makes_local_is_none_to_listen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.0.1", 0))])
    assert is_local("localhost")
    assert not is_local("evil.example")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("192.0.2.1", 0))])
    assert not is_local("localhost")


@pytest.mark.parametrize(
    "path", ["/healthz", f"/v1/threads/{NAMED}", f"/v1/threads/{NAMED}/frames", "/login", "/nothing"]
)
def test_the_older_http_gets_the_same_answer(ask: Any, path: str) -> None:
    now, before = ask("GET", path, OPERATOR), ask("GET", path, OPERATOR, version=10)
    assert (now[0], now[1]["content-type"], now[1]["content-length"]) == (
        before[0],
        before[1]["content-type"],
        before[1]["content-length"],
    )
    bodies = [re.sub(rb'name="csrf" value="[0-9a-f]+"', b"", answer[2]) for answer in (now, before)]
    assert bodies[0] == bodies[1]  # but for the proof in a form, which fits one browser only
