"""Targets that read what strangers send: setups, URLs, HTTP requests, SQL literals.

They are apart from `targets.py`, which has what Clew itself writes. Each is quick: the service is called without a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import h11
import msgspec

from clew.agent.handles import without_credentials
from clew.agent.settings import SETUP, setup_of
from clew.checkpointers.http.store import _parse as parse_http
from clew.checkpointers.mysql import address as mysql
from clew.checkpointers.mysql.wire import fill, literal
from clew.checkpointers.objects.store import _address, parse_url
from clew.checkpointers.opensearch import engine as opensearch
from clew.checkpointers.oracle import address as oracle
from clew.checkpointers.postgres import address as postgres
from clew.checkpointers.redis import address as redis
from clew.checkpointers.urls import without_options, without_password
from clew.cli.setups import changes
from clew.errors import ClewError
from clew.log import StateSet, fold
from clew.providers.opencode.database import quoted
from clew.server.app import create_app
from clew.server.settings import Settings

__all__ = ["http", "setup", "sql", "url"]


def setup(data: bytes) -> None:
    """The options of an agent, as a log says they are."""
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    with contextlib.suppress(ClewError):
        found = setup_of(fold([StateSet(SETUP, value)]))
        assert msgspec.convert(msgspec.to_builtins(found), type(found)) == found
        changes(type(found)(), found)


_PARSERS = (
    lambda url: postgres.parse(f"postgresql://{url}", None, None, None),
    lambda url: mysql.parse(f"mysql://{url}", None, None, None),
    lambda url: oracle.parse(f"oracle://{url}", None, None, None),
    lambda url: redis.parse_url(f"redis://{url}"),
    lambda url: opensearch.parse_url(f"opensearch://{url}"),
    lambda url: parse_http(f"http://{url}"),
    lambda url: _address(parse_url(f"s3://{url}", set(), {"secret_access_key"})[0]),
)
_SECRET = "s3cr3tMARK"


def url(data: bytes) -> None:
    """The URL of a store, as it is and with a password: what is said about it does not repeat the password. The first byte
    says of which store."""
    parse = _PARSERS[data[0] % len(_PARSERS)] if data else _PARSERS[0]
    text = data[1:].decode("utf-8", "replace")
    for given in (text, f"u:{_SECRET}@{text}"):
        said = ""
        try:
            parse(given)
        except ClewError as error:
            said = str(error)
        assert _SECRET not in said, said
    assert _SECRET not in without_password(f"x://u:{_SECRET}@{text}")
    without_options(f"sqlite:{text}")
    assert _SECRET not in without_credentials(f"redis://u:{_SECRET}@{text}")


@functools.cache
def _service() -> tuple[asyncio.AbstractEventLoop, Any]:
    loop = asyncio.new_event_loop()

    async def make() -> Any:
        return create_app(Settings(store="memory://", no_token=True, access_log=False))

    return loop, loop.run_until_complete(make())


def http(data: bytes) -> None:
    """The bytes of an HTTP request, parsed as the service's server does and answered by the service."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=2**16)
    body = b""
    try:
        parser.receive_data(data)
        request = parser.next_event()
        if not isinstance(request, h11.Request):
            return
        while isinstance(event := parser.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return
    path, _, query = request.target.partition(b"?")
    scope = {
        "type": "http",
        "method": request.method.decode("ascii"),
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "headers": [(name, value) for name, value in request.headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8420),
        "scheme": "http",
        "http_version": "1.1",
    }
    statuses: list[int] = []
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": body, "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    loop, app = _service()
    loop.run_until_complete(app(scope, receive, send))
    assert statuses, f"no answer for {data!r}"
    assert statuses[0] < 500, f"{statuses} for {data!r}"


def _read_literal(text: bytes, at: int) -> tuple[bytes, int]:
    """Read a literal as MySQL's lexer does: its value, and the place after it."""
    assert text[at : at + 1] == b"'", "no literal begins here"
    made, at = bytearray(), at + 1
    while text[at : at + 1] != b"'":
        at += text[at : at + 1] == b"\\"
        assert at < len(text), "a literal does not end"
        made += text[at : at + 1]
        at += 1
    return bytes(made), at + 1


def sql(data: bytes) -> None:
    """Values inside a statement: the server reads back what was written, and nothing of a value is read as SQL."""
    middle = len(data) // 2
    values = (data[:middle], data[middle:])
    text = fill(b"%b,%b", *values)
    first, at = _read_literal(text, 0)
    assert text[at : at + 1] == b","
    second, end = _read_literal(text, at + 1)
    assert ((first, second), end) == (values, len(text))
    assert literal(data.decode("utf-8", "replace")).startswith(b"'")
    name = quoted(data.decode("latin-1"))
    assert name[1:-1].replace('""', "").count('"') == 0
