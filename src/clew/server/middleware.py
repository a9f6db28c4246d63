"""The gate that every request passes before it reaches a route. It checks tokens and rate limits, refuses requests
while the service stops, and writes the access log and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec

from clew.checkpointers.http.protocol import NAMESPACE_HEADER, PROTOCOL, PROTOCOL_HEADER, Failure
from clew.server.audit import Audit
from clew.server.auth import ANYBODY, EVERY_NAMESPACE, NOBODY, Rates, Token
from clew.server.connections import Connection
from clew.server.failures import Refused, failure_of, log_failure, refusal
from clew.server.hosts import is_local_header
from clew.server.inspector import Inspector
from clew.server.limits import Bodies, Room, Streams
from clew.server.request import Request
from clew.server.response import Response, Stream
from clew.server.router import Router
from clew.server.routes.events import DELTAS
from clew.server.settings import CONNECTION, Settings
from clew.server.stores import Stores
from clew.server.token_file import Tokens

__all__ = ["OPEN", "Gate", "Metrics"]


OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""Paths that need no token, because they reveal nothing about what is stored."""
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_FROM_CLEW = (PROTOCOL_HEADER.encode(), str(PROTOCOL).encode())
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_TLS_ONLY = (b"strict-transport-security", b"max-age=31536000")
_LARGE = 2**22
"""A response of more bytes than this counts towards the limit on memory (`Bodies`)."""
_ONCE = frozenset({b"authorization", b"content-length", b"content-type", b"host", NAMESPACE_HEADER.encode()})
"""Headers that a request may have only once. Of two such headers, a proxy in front of the service may have checked
another one than the service uses."""

access = logging.getLogger("clew.server.access")


class Gate:
    """The ASGI application around the routes of the API (`api`) and the pages of the inspector. It admits or refuses
    requests, counts them, and writes the access log. When the service stops, it waits until the requests under way have
    ended, and then closes the stores."""

    def __init__(self, api: Router, stores: Stores, settings: Settings, metrics: Metrics, audit: Audit) -> None:
        self.api = api
        self._tokens = Tokens(settings.tokens, settings.token_file)
        self.inspector = Inspector(settings, self._tokens, audit.begin, lambda: self.is_draining)
        self.is_draining = False
        self._metrics = metrics
        self._audit = audit
        self._quiet = asyncio.Event()
        self._stores = stores
        self._settings = settings
        self._added = (_FROM_CLEW, _NO_SNIFFING, *([_TLS_ONLY] if settings.tls_cert else []))
        self._rates = Rates(settings.rate, settings.burst)
        self.bodies = Bodies(settings)
        self._streams = Streams(settings.max_streams)
        self._tenant_rates = Rates(settings.tenant_rate, None)

    @property
    def under_way(self) -> int:
        """How many requests are being worked on."""
        return self._metrics.under_way

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._handle(scope, _Counted(receive, send, self._added))
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Any, send: Any) -> None:
        """Wait until the server that runs this application shuts down, and then close the stores. `receive` and `send`
        are those of ASGI's lifespan protocol."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        try:
            try:
                await receive()
            finally:
                await self._stores.close()
                self._audit.close()
        except Exception:
            await send({"type": "lifespan.shutdown.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def drain(self, grace: float) -> None:
        """Refuse new requests from now on, and wait until the requests under way have ended, but at most `grace`
        seconds."""
        self.is_draining = True
        self._stores.channels.close()
        if not self.under_way:
            return
        try:
            async with asyncio.timeout(grace):
                await self._quiet.wait()
        except TimeoutError:
            return

    async def _handle(self, scope: Any, connection: _Counted) -> None:
        """Respond to one HTTP request, which `scope` describes in ASGI's form, and record it in the access log and the
        metrics. `connection` wraps the functions that receive the request and send the response."""
        start = time.perf_counter()
        request = Request(scope, connection.receive, self._stores, self._settings)
        request.room = Room(self.bodies)
        is_page = self.inspector.owns(request.path)
        if is_page:
            self.inspector.add_session(request)
        failure = _ambiguity(scope["headers"])
        if failure is not None:
            connection.close_after()
        else:
            failure = self._admit(request) or self._limit(request, scope.get(CONNECTION))
        self._metrics.under_way += 1
        try:
            if failure is None:
                response = await (self.inspector.router if is_page else self.api).answer(request)
                if not isinstance(response.body, bytes):
                    await self._stream(request, response, connection)
                    return
                if len(response.body) > _LARGE:
                    response = _counted_response(request, response, len(response.body))
            else:
                request.route = "refused"
                response = self.inspector.refusal(request, failure) if is_page else refusal(failure)
            await response.send(connection.receive, connection.send)
        except Exception as error:  # noqa: BLE001 - logged without its words, which a server's log would show
            log_failure(error)
        finally:
            request.room.leave()
            self._metrics.under_way -= 1
            if self.is_draining and not self.under_way:
                self._quiet.set()
            self._record(request, connection, time.perf_counter() - start)

    async def _stream(self, request: Request, response: Response, connection: _Counted) -> None:
        """Send a response that is a stream. If the token of the request has as many streams as it may have, send a
        refusal instead."""
        if not self._streams.enter(request.token):
            if not isinstance(response.body, bytes):
                await response.body.aclose()
            reason = f"a token may have {self._settings.max_streams} streams at a time; wait until one ends"
            response = refusal(Failure("limited", reason, retry_after=1))
            await response.send(connection.receive, connection.send)
            return
        if not isinstance(response.body, bytes):
            response.body = self._while_allowed(request.token, response.body)
        try:
            await response.send(connection.receive, connection.send)
        except _Revoked:  # the response is cut off, and the client's next request says why
            return
        finally:
            self._streams.leave(request.token)

    async def _while_allowed(self, token: Token, stream: Stream) -> Stream:
        """Yield the pieces of a stream. Raises `_Revoked` before the next piece once the token that asked for it was
        revoked, has expired, or may no longer read."""
        async with aclosing(stream):
            async for piece in stream:
                now = self._tokens.current(token)
                if now is None or not now.allows("read"):
                    raise _Revoked
                yield piece

    def _limit(self, request: Request, connection: Connection | None) -> Failure | None:
        """Note which token was shown on the connection of a request. Returns a `Failure` (an error code and a message
        for the client) if the token has too many connections, and otherwise None."""
        token = request.token
        if connection is None or token is NOBODY or connection.show(token.sha256):
            return None
        reason = f"a token may have {self._settings.max_connections_per_token} connections at a time; close one"
        request.token = NOBODY
        return Failure("limited", reason, retry_after=1)

    def _admit(self, request: Request) -> Failure | None:
        """Decide about a request. Returns None if it is admitted, and otherwise a `Failure` (an error code and a message
        for the client). Sets the token of an admitted request, unless its path needs none. Counts the request for the
        rate limit of its token."""
        path = request.path
        if self.is_draining and path != "/healthz":
            return Failure("draining", "the server is shutting down and takes no more requests", retry_after=1)
        if path in OPEN or self.inspector.is_open(path):
            return None
        token = self._who(request)
        if isinstance(token, Failure):
            return token
        spare = path.endswith(DELTAS)  # words on their way to readers must not delay the work that they come from
        if wait := self._rates.wait(token.sha256, spare=spare):
            reason = f"this token may make {self._settings.rate:g} requests a second; wait {wait} s"
            return Failure("limited", reason, retry_after=wait)
        request.token = token
        tenant = token.namespace
        if tenant != EVERY_NAMESPACE and (wait := self._tenant_rates.wait(tenant, spare=spare)):
            reason = (
                f"the tenant {tenant} may make {self._settings.tenant_rate:g} requests a second in all; wait {wait} s"
            )
            return Failure("limited", reason, retry_after=wait)
        if path == "/metrics" and not (token.namespace == EVERY_NAMESPACE and token.allows("metrics")):
            return Failure(
                "forbidden", "metrics are of all tenants; this needs a token of the namespace * with the scope metrics"
            )
        return None

    def _who(self, request: Request) -> Token | Failure:
        headers = request.headers
        if self._settings.needs_token:
            given = headers.get(b"authorization")
            found = request.session_token if given is None else self._tokens.find(given)
            return found or Failure("unauthenticated", "no token was given that this server knows")
        if self._settings.socket is not None:
            return ANYBODY  # no browser reaches a socket, and the system lets nobody else connect
        if not is_local_header(headers.get(b"host", b"").decode("latin-1")):
            return Failure(
                "forbidden",
                "this server has no tokens and answers only to a name of this machine, so that no web page elsewhere "
                "can use it through a browser here",
            )
        return ANYBODY

    def _record(self, request: Request, connection: _Counted, seconds: float) -> None:
        # Invented methods must not make the counters grow without end.
        method = request.method if request.method in _METHODS else "other"
        self._audit.end(request, connection.status)
        self._metrics.count(method, request.route, connection.status, seconds, connection.received, connection.sent)
        if not self._settings.access_log:
            return
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": "request",
            "method": method,
            "route": request.route,
            "status": connection.status,
            "ms": round(seconds * 1000, 3),
            "received": connection.received,
            "sent": connection.sent,
        }
        if request.token is not NOBODY:
            entry |= {"token": request.token.label, "tenant": request.token.namespace, "thread": request.thread}
        access.info(msgspec.json.encode(entry).decode())


class _Revoked(Exception):
    """Raised in the middle of a stream if the token that asked for it may not read any more."""


def _counted_response(request: Request, response: Response, size: int) -> Response:
    """Count the `size` bytes of a large response as memory in use until it is sent, and return the response. If the
    service's limit on this memory would be exceeded, return an error response instead: a client that asks for many
    blobs and does not read the answers could otherwise fill the memory."""
    try:
        if request.room is not None:
            request.room.take(request.token, size)
    except Refused as error:
        return refusal(failure_of(error))
    return response


def _ambiguity(headers: Iterable[tuple[bytes, bytes]]) -> Failure | None:
    """Return a `Failure` (an error code and a message) if two programs could read the headers of a request differently,
    and otherwise None. A proxy in front of the service and the service itself would then not agree where the request
    ends, or who sent it."""
    names = [name for name, _ in headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        return Failure("invalid", "the request has both Content-Length and Transfer-Encoding. Send one of them.")
    for name in _ONCE:
        if names.count(name) > 1:
            return Failure("invalid", f"the request has more than one header {name.decode().title()}. Send one.")
    return None


class _Counted:
    """Wraps the functions `receive` and `send` of ASGI for one request. They count the bytes of the bodies of request
    and response, and remember the status code. `send` also adds headers that every response has, such as the version of
    Clew's protocol."""

    __slots__ = ("_added", "_receive", "_send", "received", "sent", "status")

    def __init__(self, receive: Any, send: Any, added: tuple[tuple[bytes, bytes], ...]) -> None:
        self._added = added
        self._receive = receive
        self._send = send
        self.status = 0
        self.received = 0
        self.sent = 0

    def close_after(self) -> None:
        """Add a header to the response, so that the connection is closed after it. This is for a request whose headers
        do not say for certain where it ends and the next one begins."""
        self._added += ((b"connection", b"close"),)

    async def receive(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"].extend(self._added)
        else:
            self.sent += len(message["body"])
        await self._send(message)


_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests by method, route and status, and adds up their times and bytes, for Prometheus."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._received = 0
        self._sent = 0
        self.under_way = 0
        """How many requests are being worked on."""

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        self._requests[method, route, status] += 1
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(_BOUNDS) + 1)
        buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment] # a Counter adds whatever it is given
        self._received += received
        self._sent += sent

    def text(self) -> str:
        """Return all counters in the text format of Prometheus."""
        lines = [
            "# HELP clew_requests_total Requests that were answered.",
            "# TYPE clew_requests_total counter",
            *(
                f'clew_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
                for (method, route, status), count in sorted(self._requests.items())
            ),
            "# HELP clew_request_seconds Time from a request to the end of its answer.",
            "# TYPE clew_request_seconds histogram",
        ]
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*map(str, _BOUNDS), "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'clew_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}')
            lines.append(f'clew_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}')
            lines.append(f'clew_request_seconds_count{{route="{route}"}} {total}')
        for name, kind, help_text, value in (
            ("clew_requests_under_way", "gauge", "Requests that are being worked on.", self.under_way),
            ("clew_received_bytes_total", "counter", "Bytes of request bodies.", self._received),
            ("clew_sent_bytes_total", "counter", "Bytes of response bodies.", self._sent),
        ):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"
