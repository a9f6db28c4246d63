"""What the service itself promises: who may do what, limits, conditions, probes, logs, and an orderly end."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.checkpointers.base import MAX_FRAME
from clew.checkpointers.http.protocol import (
    JSON,
    MSGPACK,
    OCTETS,
    RECORDS,
    Append,
    Broken,
    RecordReader,
    encode_text,
    log_tag,
)
from clew.errors import InvalidInput
from clew.server import Server, Settings
from clew.testing.contract.builders import a_head, digest_of
from tests.limits import PATIENCE
from tests.server.serving import Running, a_token, serving

READER, WRITER, ADMIN, OPERATOR = (f"the-long-{name}-token" for name in ("reader", "writer", "admin", "operator"))
TOKENS = [
    a_token(READER, "team", ["read"]),
    a_token(WRITER, "team", ["read", "write"]),
    a_token(ADMIN, "team", ["admin"]),
    a_token(OPERATOR),
]
THREAD = f"/v1/threads/{encode_text('thread')}"
FRAMES = f"{THREAD}/frames"


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with serving(tokens=TOKENS, max_blob=100_000) as running:
        yield running


@pytest.fixture
def ask(service: Running) -> Iterator[Any]:
    with httpx.Client(base_url=service.url) as client:

        def ask(token: str, method: str, path: str, **options: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}", **options.pop("headers", {})}
            return client.request(method, path, headers=headers, **options)

        yield ask


def append_body(*frames: bytes, thread_id: str = "thread", at: int = 0, log_id: str = "log-1") -> dict[str, Any]:
    head = a_head(thread_id, at + len(frames), log_id=log_id)
    return {
        "content": msgspec.msgpack.encode(Append(at, head, list(frames))),
        "headers": {"content-type": MSGPACK},
    }


def conditional(body: dict[str, Any], **headers: str) -> dict[str, Any]:
    return {**body, "headers": {**body["headers"], **{name.replace("_", "-"): text for name, text in headers.items()}}}


def path_of(thread_id: str) -> str:
    return f"/v1/threads/{encode_text(thread_id)}"


# Who may do what


@pytest.mark.parametrize("token", ["x", "wrong", READER[:-1]])
@pytest.mark.parametrize("path", [THREAD, FRAMES, "/v1/blobs", "/metrics"])
def test_without_a_known_token_nothing_is_answered(ask: Any, token: str, path: str) -> None:
    answer = ask(token, "GET", path)
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated"
    assert answer.headers["www-authenticate"] == "Bearer"


CALLS = {
    "read": [("GET", THREAD), ("GET", FRAMES), ("GET", f"{THREAD}/refs"), ("POST", "/v1/threads/query"),
             ("GET", f"/v1/blobs/{'0' * 64}"), ("POST", "/v1/blobs/get"), ("POST", "/v1/blobs/missing")],
    "append": [("POST", FRAMES), ("PUT", f"/v1/blobs/{'0' * 64}"), ("POST", "/v1/blobs")],
    "delete": [("DELETE", THREAD)],
    "admin": [("GET", "/v1/blobs"), ("POST", "/v1/blobs/delete")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("token", "scopes"), [(READER, {"read"}), (WRITER, {"read", "append", "delete"}), (ADMIN, {"admin"})]
)
def test_a_token_does_what_its_scopes_say_and_nothing_else(ask: Any, token: str, scopes: set[str]) -> None:
    for scope, calls in CALLS.items():
        for method, path in calls:
            answer = ask(token, method, path)
            assert (answer.status_code == 403) == (scope not in scopes), (method, path)
            if scope not in scopes:
                assert f"scope '{scope}'" in answer.json()["message"]


def test_metrics_are_for_the_operator_alone(ask: Any) -> None:
    assert ask(ADMIN, "GET", "/metrics").status_code == 403
    assert ask(OPERATOR, "GET", "/metrics").status_code == 200


def test_without_tokens_a_name_of_another_machine_is_refused() -> None:
    with serving() as running, httpx.Client(base_url=running.url) as client:
        assert client.get(THREAD).status_code == 404
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil.example:8420"):
            assert client.get(THREAD, headers={"host": host}).status_code in (400, 403), host
        assert client.get(THREAD, headers={"host": "localhost:8420"}).status_code == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_without_tokens_it_refuses_to_be_reached_from_elsewhere(host: str) -> None:
    with pytest.raises(InvalidInput, match="no tokens"):
        Server(Settings(store="memory://", host=host, no_token=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_without_tokens_it_listens_on_this_machine(host: str) -> None:
    assert Server(Settings(store="memory://", host=host, no_token=True)).config.host == host


# Bodies and limits


def test_a_thread_id_with_two_names_is_refused(ask: Any) -> None:
    for path in ("/v1/threads/YQ==", "/v1/threads/YR", "/v1/threads/a", "/v1/threads/_w", "/v1/threads/AA"):
        assert ask(WRITER, "GET", path).json()["code"] == "invalid", path


def test_a_body_above_the_limit_is_refused_before_it_is_read(ask: Any) -> None:
    data = bytes(100_001)
    answer = ask(WRITER, "PUT", f"/v1/blobs/{digest_of(data)}", content=data, headers={"content-type": OCTETS})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "100000 bytes" in answer.json()["message"]


def test_a_body_above_the_limit_of_unstated_length_is_refused(ask: Any) -> None:
    pieces = (bytes(50_000) for _ in range(3))
    answer = ask(WRITER, "PUT", f"/v1/blobs/{'0' * 64}", content=pieces, headers={"content-type": OCTETS})
    assert answer.status_code == 413


def test_a_frame_above_the_limit_is_refused(ask: Any) -> None:
    answer = ask(WRITER, "POST", f"{path_of('large')}/frames", **append_body(bytes(MAX_FRAME + 1), thread_id="large"))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_blob_with_another_digest_is_refused_and_not_kept(ask: Any) -> None:
    path = f"/v1/blobs/{digest_of(b'one')}"
    answer = ask(WRITER, "PUT", path, content=b"another", headers={"content-type": OCTETS})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert ask(WRITER, "GET", path).status_code == 404


@pytest.mark.parametrize("content", [b"", b"\xc1", b"{}", b"\x93" * 5000, msgspec.msgpack.encode({"at": -1})])
def test_a_body_that_is_no_append_is_refused(ask: Any, content: bytes) -> None:
    answer = ask(WRITER, "POST", FRAMES, content=content, headers={"content-type": MSGPACK})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


# Conditions


def test_an_append_is_made_where_if_match_says_and_nowhere_else(ask: Any) -> None:
    path = f"{path_of('conditions')}/frames"
    first = append_body(b"one", thread_id="conditions")
    made = ask(WRITER, "POST", path, **conditional(first, if_none_match="*"))
    assert (made.status_code, made.headers["etag"]) == (200, log_tag(1, "log-1"))
    assert ask(WRITER, "GET", path_of("conditions")).headers["clew-log"] == made.headers["etag"]
    second = append_body(b"two", thread_id="conditions", at=1)
    for tag in (log_tag(2, "log-1"), log_tag(1, "log-2"), '"x"'):
        stale = ask(WRITER, "POST", path, **conditional(second, if_match=tag))
        assert (stale.status_code, stale.json()["code"]) == (412, "conflict")
    assert ask(WRITER, "POST", path, **conditional(second, if_none_match="*")).status_code == 412
    assert ask(WRITER, "POST", path, **conditional(second, if_match=f'"x", {made.headers["etag"]}')).status_code == 200


def test_an_append_made_again_succeeds_though_its_condition_no_longer_holds(ask: Any) -> None:
    path = f"{path_of('again')}/frames"
    body = conditional(append_body(b"one", thread_id="again"), if_none_match="*")
    assert [ask(WRITER, "POST", path, **body).status_code for _ in range(3)] == [200, 200, 200]


def test_a_head_and_a_blob_that_are_known_are_not_sent_again(ask: Any) -> None:
    ask(WRITER, "POST", f"{path_of('known')}/frames", **append_body(b"one", thread_id="known"))
    tag = ask(WRITER, "GET", path_of("known")).headers["etag"]
    assert ask(WRITER, "GET", path_of("known"), headers={"if-none-match": tag}).status_code == 304
    body = append_body(thread_id="known", at=1)
    body["content"] = msgspec.msgpack.encode(Append(1, a_head("known", 1, title="changed"), []))
    assert ask(WRITER, "POST", f"{path_of('known')}/frames", **body).status_code == 200
    assert ask(WRITER, "GET", path_of("known"), headers={"if-none-match": tag}).status_code == 200
    blob = f"/v1/blobs/{digest_of(b'known')}"
    ask(WRITER, "PUT", blob, content=b"known", headers={"content-type": OCTETS})
    assert ask(WRITER, "GET", blob).content == b"known"
    assert ask(WRITER, "GET", blob, headers={"if-none-match": f'"{digest_of(b"known")}"'}).status_code == 304


def test_a_head_is_json_for_those_who_do_not_ask_for_msgpack(ask: Any) -> None:
    ask(WRITER, "POST", f"{path_of('json')}/frames", **append_body(b"one", thread_id="json"))
    answer = ask(WRITER, "GET", path_of("json"))
    assert answer.headers["content-type"].startswith(JSON)
    assert answer.json()["thread_id"] == "json"


# Streams


def test_a_long_thread_is_read_in_pages_and_a_short_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int | None]] = []
    read = MemoryCheckpointer.read

    async def watched(self: Checkpointer, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        asked.append((start, stop))
        return await read(self, thread_id, start=start, stop=stop)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryCheckpointer, "read", watched)
    with serving() as running, httpx.Client(base_url=running.url) as client:
        frames = [b"%d" % number for number in range(3000)]
        client.post(FRAMES, **append_body(*frames)).raise_for_status()
        answer = client.get(FRAMES)
        assert answer.headers["content-type"] == RECORDS
        assert records(answer) == frames
        assert max((stop or 0) - start for start, stop in asked) <= 128
        asked.clear()
        assert records(client.get(FRAMES, params={"start": 2990})) == frames[2990:]
        assert len(asked) == 1


def records(answer: httpx.Response) -> list[bytes]:
    reader = RecordReader()
    reader.feed(answer.content)
    return reader.finish()


def test_a_thread_replaced_while_it_is_read_is_never_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = MemoryCheckpointer.read

    async def replaced(self: MemoryCheckpointer, thread_id: str, *, start: int = 0, stop: int | None = None) -> Any:
        found = await read(self, thread_id, start=start, stop=stop)
        if start > 500 and not found[0].startswith(b"new"):
            await self.delete(thread_id)
            new = [b"new %d" % number for number in range(1000)]
            await self.append(thread_id, new, at=0, head=a_head(thread_id, 1000, log_id="another"))
        return found

    monkeypatch.setattr(MemoryCheckpointer, "read", replaced)
    with serving() as running, httpx.Client(base_url=running.url) as client:
        frames = [b"%d" % number + bytes(2000) for number in range(1000)]
        client.post(FRAMES, **append_body(*frames)).raise_for_status()
        reader = RecordReader()
        with pytest.raises(Broken, match="could not go on") as caught:
            reader.feed(client.get(FRAMES).content)
        assert caught.value.failure is not None
        assert caught.value.failure.code == "unavailable"
        assert reader.records == frames[: len(reader.records)]
        assert records(client.get(FRAMES))[0] == b"new 0"


# Probes and logs


def test_probes_need_no_token_and_ready_asks_the_store(tmp_path: Path) -> None:
    with serving(tokens=TOKENS) as running, httpx.Client(base_url=running.url) as client:
        assert client.get("/healthz").text == client.get("/readyz").text == "ok\n"
        assert client.get("/openapi.json").json()["openapi"] == "3.1.0"
    with serving("sqlite:////proc/clew/clew.db") as running, httpx.Client(base_url=running.url) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        assert client.get(THREAD).json()["code"] == "unavailable"


def test_requests_are_counted_by_route_and_status(ask: Any) -> None:
    for _ in range(3):
        ask(READER, "GET", path_of("counted"))
    text = ask(OPERATOR, "GET", "/metrics").text
    [line] = [line for line in text.splitlines() if 'route="/v1/threads/{thread}",status="404"' in line]
    assert int(line.rsplit(" ", 1)[1]) >= 3
    assert 'clew_request_seconds_bucket{route="/v1/threads/{thread}",le="+Inf"}' in text
    assert "clew_requests_under_way 1" in text


def test_invented_methods_and_paths_do_not_make_the_counters_grow(ask: Any) -> None:
    def count() -> int:
        return int(ask(OPERATOR, "GET", "/metrics").text.count("clew_requests_total{"))

    ask(READER, "INVENTED", "/invented")
    before = count()
    for number in range(20):
        ask(READER, f"INVENTED{number}", f"/invented/{number}")
    assert count() - before <= 2


def test_the_access_log_is_json_without_tokens_ids_or_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "clew.server")
    running = Running(Settings(store="memory://", port=0, tokens=tuple(TOKENS)))
    running.start()
    with httpx.Client(base_url=running.url, headers={"authorization": f"Bearer {WRITER}"}) as client:
        path = path_of("a private name")
        client.post(f"{path}/frames", **append_body(b"private words", thread_id="a private name"))
        client.get(path)
        client.get(path, headers={"authorization": "Bearer a-wrong-secret-token"})
        client.post(f"{path}/frames", content=b"private rubbish", headers={"content-type": MSGPACK})
    running.stop()
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "clew.server.access"]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/threads/{thread}/frames", 200),
        ("GET", "/v1/threads/{thread}", 200),
        ("GET", "refused", 401),
        ("POST", "/v1/threads/{thread}/frames", 400),
    ]
    assert lines[0]["thread"] == lines[1]["thread"] != ""
    assert lines[0]["tenant"] == "team"
    for secret in ("private", encode_text("a private name"), WRITER, "a-wrong-secret-token"):
        assert secret not in caplog.text


def test_an_error_that_nobody_expected_is_logged_without_its_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("with private words")

    monkeypatch.setattr(MemoryCheckpointer, "head", fail)
    monkeypatch.setattr(MemoryCheckpointer, "append", fail)
    with serving() as running, httpx.Client(base_url=running.url) as client:
        for answer in (client.get(THREAD), client.post(FRAMES, **append_body(b"one"))):
            assert (answer.status_code, answer.json()["code"]) == (500, "internal")
            assert "private" not in answer.text
    assert "RuntimeError" in caplog.text
    assert "private" not in caplog.text


# Rates and the end


def test_too_many_requests_are_told_when_to_come_back() -> None:
    with serving(tokens=TOKENS, rate=0.0001, burst=2) as running, httpx.Client(base_url=running.url) as client:
        answers = [client.get(THREAD, headers={"authorization": f"Bearer {READER}"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [404, 404, 429]
        assert 9_000 <= int(answers[-1].headers["retry-after"]) <= 10_000
        assert client.get(THREAD, headers={"authorization": f"Bearer {WRITER}"}).status_code == 404


def test_what_is_under_way_finishes_and_new_requests_get_503(monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    append = MemoryCheckpointer.append

    async def slow(self: MemoryCheckpointer, *given: Any, **named: Any) -> None:
        started.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        await append(self, *given, **named)

    monkeypatch.setattr(MemoryCheckpointer, "append", slow)
    with (
        serving() as running,
        httpx.Client(base_url=running.url) as client,
        httpx.Client(base_url=running.url) as other,
    ):
        other.get("/healthz")
        answers: list[httpx.Response] = []
        caller = threading.Thread(target=lambda: answers.append(client.post(FRAMES, **append_body(b"one"))))
        caller.start()
        assert started.wait(PATIENCE)
        running.begin_to_stop()
        while not running.server.gate.is_draining:
            time.sleep(0.005)
        refused = other.get(THREAD)
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        go_on.set()
        caller.join(PATIENCE)
        assert [answer.status_code for answer in answers] == [200]
