"""The client of `clew serve`: what it repeats, what it takes for an answer, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from clew.checkpointers import open_checkpointer
from clew.checkpointers.base import Checkpointer
from clew.checkpointers.http.protocol import END, MSGPACK, RECORDS, Broken, RecordReader, failure_record, record_size
from clew.checkpointers.http.protocol import Failure as WireFailure
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import Corrupt, InvalidInput, MissingExtra, NewerFormat, Unavailable, UsageError
from clew.testing.contract.builders import a_head, append, digest_of, every_call, listed, put
from tests.certificate import make_certificate
from tests.server.serving import a_token, serving

pytestmark = pytest.mark.anyio

SECRET = "a-long-and-secret-token"


def answer(status: int, body: bytes = b"", *, kind: str = "application/json", **headers: str) -> bytes:
    """The bytes of an answer, from a Clew server unless `clew_protocol` says otherwise."""
    given = {"content-type": kind, "content-length": str(len(body)), "clew-protocol": "1"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in given.items() if value)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def failing(status: int, code: str, **headers: str) -> bytes:
    return answer(status, json.dumps({"code": code, "message": "words of the server"}).encode(), **headers)


class Fake:
    """A server that answers with these bytes, one after the other, the last one for ever. None: it hangs up instead."""

    def __init__(self, *answers: bytes | None) -> None:
        self._answers = list(answers)
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(length[0] if length else 0)
                self.requests.append(head)
                said = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if said is None:
                    break
                writer.write(said)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def talking_to(fake: Fake, **options: object) -> AsyncIterator[HTTPCheckpointer]:
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = {"retries": 1, "token": SECRET, **options}
    async with HTTPCheckpointer(f"http://127.0.0.1:{port}", **options) as store:  # type: ignore[arg-type]
        yield store
    server.close()
    await server.wait_closed()


_TWO_LOOPS = """
import asyncio, sys
from clew.checkpointers.http import HTTPCheckpointer

store = HTTPCheckpointer(sys.argv[1], retries=1)
for use in (lambda: store.head("thread"), store.close):
    asyncio.run(use())
print("closed")
"""


async def test_it_is_closed_in_peace_once_the_event_loop_of_its_connections_has_ended() -> None:
    async with talking_to(Fake(failing(404, "absent"))) as store:
        command = (sys.executable, "-c", _TWO_LOOPS, store._where)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert (await process.communicate())[0] == b"closed\n"


async def test_it_is_not_closed_from_another_event_loop_while_its_own_still_runs() -> None:
    async with talking_to(Fake(failing(404, "absent"))) as store:
        await store.head("thread")
        with pytest.raises(UsageError, match=r"another event loop that still runs\. Close it there"):
            await asyncio.to_thread(lambda: asyncio.run(store.close()))
        assert await store.head("thread") is None


# Addresses and tokens


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://", "does not name a server"),
        ("http:host", "does not name a server"),
        ("http://host:port", "host or port"),
        ("http://host:99999", "host or port"),
        ("http://host/?a=b", "no option 'a'"),
        ("http://host/#a", "fragment"),
        ("http://user@host", "CLEW_TOKEN"),
        ("http://user:hidden@host", "CLEW_TOKEN"),
        ("ftp://host", "does not name a server"),
        ("http://host/a b", "base path"),
    ],
)
def test_a_bad_url_is_refused_with_what_is_wrong(url: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        HTTPCheckpointer(url)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("token", ["with space", "line\nend", "é", "a\r\nx: y"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        HTTPCheckpointer("http://host", token=token)
    assert token not in str(caught.value)


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"timeout": -1.0}, {"retries": -1}])
def test_options_that_mean_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        HTTPCheckpointer("http://host", **options)  # type: ignore[arg-type]


def test_a_url_opens_it_and_names_its_place_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_TOKEN", SECRET)
    store = open_checkpointer("https://example.com/base/", "mine")
    assert isinstance(store, HTTPCheckpointer)
    assert store.place == "https://example.com:443/base#mine"
    assert SECRET not in repr(store) + store.place


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(MissingExtra, match=r"clew\[server\]"):
        HTTPCheckpointer("http://host")


async def test_the_token_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_TOKEN", SECRET)
    fake = Fake(failing(404, "absent"))
    async with talking_to(fake, token=None) as store:
        assert await store.head("thread") is None
    assert f"authorization: Bearer {SECRET}".encode() in fake.requests[0]


@pytest.mark.parametrize(("status", "code"), [(401, "unauthenticated"), (403, "forbidden")])
async def test_a_token_that_is_not_enough_is_an_error_that_says_so(status: int, code: str) -> None:
    async with talking_to(Fake(failing(status, code))) as store:
        for name, call in every_call(store).items():
            with pytest.raises(UsageError, match="words of the server") as caught:
                pytest.fail(f"{name} returned {await call()!r}")
            assert SECRET not in str(caught.value)


async def test_a_service_that_knows_no_queue_is_told_as_that() -> None:
    async with talking_to(Fake(failing(400, "invalid"))) as store:
        with pytest.raises(
            InvalidInput, match=r"runs an older Clew. Update Clew there. It said: .*words of the server"
        ):
            await listed(store, order="due")
        with pytest.raises(InvalidInput, match="words of the server") as caught:
            await listed(store, order="created")
        assert "older Clew" not in str(caught.value)


async def test_a_missing_token_is_named() -> None:
    with serving(tokens=[a_token(SECRET)]) as running:
        async with HTTPCheckpointer(running.url, token="") as store:
            with pytest.raises(UsageError, match="CLEW_TOKEN"):
                await store.head("thread")


# What is no answer

NOT_CLEW = [
    answer(200, b"<html>welcome</html>", kind="text/html", clew_protocol=""),
    answer(404, b"<html>not found</html>", kind="text/html", clew_protocol=""),
    answer(404, b'{"code": "absent", "message": ""}', clew_protocol=""),
    answer(204, clew_protocol=""),
    answer(302, location="http://elsewhere/", clew_protocol=""),
    answer(403, b"<html>blocked</html>", kind="text/html", clew_protocol=""),
    answer(502, b"<html>bad gateway</html>", kind="text/html", clew_protocol=""),
]


@pytest.mark.parametrize("said", NOT_CLEW)
async def test_what_does_not_come_from_a_clew_server_is_unavailable(said: bytes) -> None:
    async with talking_to(Fake(said)) as store:
        for name, call in every_call(store).items():
            with pytest.raises(Unavailable, match=f"not answer as a Clew server.*status {said[9:12].decode()}"):
                pytest.fail(f"{name} returned {await call()!r}")


NO_ANSWERS = [
    failing(500, "internal"),
    failing(503, "unavailable"),
    answer(502, b"<html>bad gateway</html>", kind="text/html"),
    answer(404, b"rubbish"),
    failing(404, "no_such_path"),
    b"rubbish\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nclew-protocol: 1\r\ncontent-length: 100\r\n\r\ncut",
    None,
]


@pytest.mark.parametrize("said", NO_ANSWERS)
async def test_what_is_no_answer_is_unavailable_and_never_absent(said: bytes | None) -> None:
    async with talking_to(Fake(said), timeout=0.2, retries=0) as store:
        for name, call in every_call(store).items():
            with pytest.raises(Unavailable):
                pytest.fail(f"{name} returned {await call()!r}")


@pytest.mark.parametrize("said", [answer(200), answer(200, b"{}"), answer(200, b"\x80", kind="application/msgpack")])
async def test_a_success_of_the_wrong_kind_is_unavailable_and_never_absent(said: bytes) -> None:
    async with talking_to(Fake(said), retries=0) as store:
        calls = every_call(store)
        for name in ("read", "head", "heads", "refs", "get_blobs", "missing_blobs", "blobs"):
            with pytest.raises(Unavailable):
                pytest.fail(f"{name} returned {await calls[name]()!r}")


async def test_a_server_that_is_silent_is_unavailable_in_time() -> None:
    async with talking_to(Fake(b""), timeout=0.1) as store:
        with pytest.raises(Unavailable, match=r"0\.1 s"):
            await store.head("thread")


async def test_a_server_of_a_later_protocol_is_told_as_that() -> None:
    async with talking_to(Fake(answer(200, clew_protocol="2"))) as store:
        with pytest.raises(NewerFormat, match="version 2"):
            await store.head("thread")
    async with talking_to(Fake(answer(200, clew_protocol="9" * 5000))) as store:
        with pytest.raises(NewerFormat, match="the protocol of"):
            await store.head("thread")


async def test_damage_behind_the_server_is_corrupt() -> None:
    async with talking_to(Fake(failing(500, "corrupt"))) as store:
        with pytest.raises(Corrupt, match="words of the server"):
            await store.head("thread")


async def test_a_blob_damaged_on_the_way_is_corrupt() -> None:
    digest = digest_of(b"blob")
    body = record_size(36) + bytes.fromhex(digest) + b"blub" + END
    async with talking_to(Fake(answer(200, body, kind=RECORDS))) as store:
        with pytest.raises(Corrupt):
            await store.get_blobs([digest])


async def test_a_stream_that_was_cut_is_asked_for_again_and_never_taken_for_whole() -> None:
    whole = record_size(1) + b"a" + record_size(1) + b"b" + END
    cuts = [answer(200, whole[:-4], kind=RECORDS), answer(200, whole[:7], kind=RECORDS)]
    async with talking_to(Fake(*cuts, answer(200, whole, kind=RECORDS)), retries=3) as store:
        assert await store.read("thread") == [b"a", b"b"]
    async with talking_to(Fake(cuts[0])) as store:
        with pytest.raises(Unavailable, match="cut"):
            await store.read("thread")


# What is repeated


NOT_SETTLED = [
    None,
    failing(503, "unavailable"),
    failing(500, "internal"),
    answer(502, b"<html>bad gateway</html>", kind="text/html", clew_protocol=""),
]


@pytest.mark.parametrize("first", NOT_SETTLED)
@pytest.mark.parametrize(
    ("call", "then"),
    [
        (lambda store: append(store, "thread", b"frame"), answer(200)),
        (lambda store: store.head("thread"), failing(404, "absent")),
        (lambda store: put(store, b"blob"), answer(200)),
    ],
)
async def test_appends_reads_and_puts_are_made_again(
    first: bytes | None, call: Callable[[Checkpointer], Awaitable[object]], then: bytes
) -> None:
    fake = Fake(first, then)
    async with talking_to(fake) as store:
        await call(store)
    assert len(fake.requests) == 2


@pytest.mark.parametrize("first", NOT_SETTLED)
async def test_deletes_are_not_made_again_when_they_may_have_happened(first: bytes | None) -> None:
    fake = Fake(first, answer(200))
    async with talking_to(fake) as store:
        with pytest.raises(Unavailable):
            await store.delete("thread")
        assert len(fake.requests) == 1
        fake = Fake(first, answer(200))
    async with talking_to(fake) as store:
        with pytest.raises(Unavailable):
            await store.delete_blobs([digest_of(b"blob")], untouched_for=timedelta(0))
        assert len(fake.requests) == 1


@pytest.mark.parametrize("first", [failing(429, "limited", retry_after="0"), failing(503, "draining", retry_after="0")])
async def test_a_delete_that_the_server_did_not_begin_is_made_again(first: bytes) -> None:
    fake = Fake(first, answer(200))
    async with talking_to(fake) as store:
        await store.delete("thread")
    assert len(fake.requests) == 2


async def test_the_server_is_not_asked_before_it_says() -> None:
    fake = Fake(failing(429, "limited", retry_after="1"), failing(404, "absent"))
    async with talking_to(fake) as store:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await store.head("thread")
        assert loop.time() - start >= 1


async def test_a_wait_that_is_too_long_is_told_and_not_made() -> None:
    async with talking_to(Fake(failing(429, "limited", retry_after="3600"))) as store:
        with pytest.raises(Unavailable, match="wait 3600 s"):
            await store.head("thread")


async def test_a_server_started_again_is_a_hiccup(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    with serving(url) as running:
        port = running.server.port
        store = HTTPCheckpointer(running.url)
        await append(store, "thread", b"one")
        kept = len(store._client._pool._idle)  # type: ignore[union-attr]
    assert kept == 1
    with serving(url, fixed_port=port):
        await append(store, "thread", b"two", at=1)
        assert await store.read("thread") == [b"one", b"two"]
        await store.close()


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 5 * 2**20])
async def test_one_blob_of_any_size_is_kept(size: int) -> None:
    with serving() as running:
        async with HTTPCheckpointer(running.url) as store:
            [digest] = await put(store, bytes(size))
            assert await store.get_blobs([digest]) == {digest: bytes(size)}


async def test_a_blob_above_the_limit_of_the_server_is_refused_with_its_words() -> None:
    with serving(max_blob=3 * 2**20) as running:
        async with HTTPCheckpointer(running.url) as store:
            await put(store, bytes(3 * 2**20))
            for size in (3 * 2**20 + 1, 60 * 2**20):
                with pytest.raises(InvalidInput, match="3145728 bytes"):
                    await put(store, bytes(size))


# What a server may send


class Flood(Fake):
    """A server that sends the beginning of an answer, and then zeros for as long as the client takes them. Counts them."""

    sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answers[0] or b"")
            while self.sent < 2**28:
                writer.write(bytes(2**16))
                await writer.drain()
                self.sent += 2**16
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def endless(status: int, body: bytes = b"", kind: str = "application/json") -> bytes:
    return answer(status, body, kind=kind, content_length="", connection="close")


DIGEST = "0" * 64
FLOODS: dict[str, tuple[bytes, Callable[[HTTPCheckpointer], Awaitable[object]]]] = {
    "one frame": (endless(200, record_size(0xF0000000), RECORDS), lambda store: store.read("thread")),
    "one blob": (
        endless(200, record_size(0xF0000000), RECORDS),
        lambda store: store.get_blobs([DIGEST]),
    ),
    "many frames": (endless(200, b"", RECORDS), lambda store: store.read("thread", start=1, stop=3)),
    "many blobs": (endless(200, b"", RECORDS), lambda store: store.get_blobs([DIGEST])),
    "a head": (endless(200, b"", MSGPACK), lambda store: store.head("thread")),
    "digests": (endless(200, b"", MSGPACK), lambda store: store.missing_blobs([DIGEST])),
    "an append": (endless(200, b"", MSGPACK), lambda store: append(store, "thread", b"frame")),
    "records in place of a head": (endless(200, b"", RECORDS), lambda store: store.head("thread")),
    "records in place of digests": (endless(200, b"", RECORDS), lambda store: store.missing_blobs([DIGEST])),
    "records in place of an answer": (endless(200, b"", RECORDS), lambda store: append(store, "thread", b"frame")),
    "an error": (endless(500), lambda store: store.head("thread")),
}


@pytest.mark.parametrize("case", FLOODS)
async def test_a_server_that_sends_without_end_is_cut_off_soon(case: str) -> None:
    begun, call = FLOODS[case]
    flood = Flood(begun)
    async with talking_to(flood, retries=0) as store:
        with pytest.raises(Unavailable, match=r"limit|asked for"):
            await call(store)
    assert flood.sent < 2**26


async def test_a_blob_above_the_limit_of_the_client_is_refused_and_one_at_the_limit_taken() -> None:
    with serving() as running:
        async with HTTPCheckpointer(running.url, max_blob=1000, retries=0) as store:
            small, large = [*await put(store, bytes(1000)), *await put(store, bytes(1001))]
            assert await store.get_blobs([small]) == {small: bytes(1000)}
            with pytest.raises(Unavailable, match="record of 1033 bytes"):
                await store.get_blobs([large])


async def test_interim_answers_without_end_are_no_answer() -> None:
    async with talking_to(Fake(b"HTTP/1.1 102 Wait\r\n\r\n" * 1000), retries=0) as store:
        with pytest.raises(Unavailable):
            await store.head("thread")


async def test_the_head_of_another_thread_is_corrupt() -> None:
    body = msgspec.msgpack.encode(a_head("another"))
    async with talking_to(Fake(answer(200, body, kind="application/msgpack"))) as store:
        with pytest.raises(Corrupt, match="'another' where 'thread' was asked for"):
            await store.head("thread")
        assert await store.head("another") == a_head("another")


# TLS


async def test_tls_is_used_and_the_server_must_be_trusted(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    with serving(tls_cert=cert, tls_key=key) as running:
        async with HTTPCheckpointer(running.url, tls=ssl.create_default_context(cafile=str(cert))) as store:
            head = await append(store, "thread", b"frame")
            assert await store.head("thread") == head
        async with HTTPCheckpointer(running.url, retries=0) as store:
            with pytest.raises(Unavailable, match="certificate"):
                await store.head("thread")


# Records


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_records_come_back_whatever_the_pieces(step: int) -> None:
    records = [b"", b"a", bytes(300), b"\xff\xff\xff\xff", b""]
    data = b"".join(record_size(len(record)) + record for record in records) + END
    reader = RecordReader()
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    assert reader.finish() == records


def test_a_failure_in_the_stream_is_told_with_what_came_before() -> None:
    reader = RecordReader()
    reader.feed(record_size(1) + b"a")
    with pytest.raises(Broken) as caught:
        reader.feed(failure_record(WireFailure("corrupt", "damaged")))
    assert caught.value.failure == WireFailure("corrupt", "damaged")
    assert reader.records == [b"a"]


def test_bytes_after_the_end_are_no_stream() -> None:
    with pytest.raises(Broken):
        RecordReader().feed(END + b"more")
