"""The gate that every request passes before it reaches a route. It checks tokens and rate limits, refuses requests
while the service stops, and writes the access log and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar.types import ASGIApp

from clew.checkpointers.http.protocol import PROTOCOL, PROTOCOL_HEADER, Failure
from clew.server.auth import ANYBODY, EVERY_NAMESPACE, Rates, Token, Tokens
from clew.server.failures import Answer, allowed, log_failure, not_allowed, refusal
from clew.server.inspector import Inspector
from clew.server.request import KEY, Call
from clew.server.routes.appends import TEMPLATE, answer, is_append
from clew.server.settings import Settings
from clew.server.stores import Stores

__all__ = ["OPEN", "Gate", "Metrics"]


OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""Paths that need no token, because they reveal nothing about what is stored."""
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_FROM_CLEW = (PROTOCOL_HEADER.encode(), str(PROTOCOL).encode())

access = logging.getLogger("clew.server.access")


class Gate:
    """The ASGI application around the routes. It admits or refuses requests, counts them, and writes the access log.
    When the service stops, it waits until the requests under way have ended."""

    def __init__(self, inner: ASGIApp, stores: Stores, settings: Settings) -> None:
        self.metrics = Metrics()
        self.is_draining = False
        self.under_way = 0
        self._quiet = asyncio.Event()
        self.inner = inner
        self.inspector = Inspector(settings, lambda: self.is_draining)
        self._stores = stores
        self._settings = settings
        self._tokens = Tokens(settings.tokens)
        self._rates = Rates(settings.rate, settings.burst)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        await _Exchange(self, scope, receive, send).run()

    async def drain(self, grace: float) -> None:
        """Refuse new requests from now on, and wait until the requests under way have ended, but at most `grace`
        seconds."""
        self.is_draining = True
        if not self.under_way:
            return
        try:
            async with asyncio.timeout(grace):
                await self._quiet.wait()
        except TimeoutError:
            return

    def enter(self) -> None:
        self.under_way += 1

    def leave(self) -> None:
        self.under_way -= 1
        if self.is_draining and not self.under_way:
            self._quiet.set()

    def admit(self, path: str, headers: Mapping[bytes, bytes]) -> Call | Failure | None:
        """Decide about a request. Returns a `Call` (the request with its token) if it is admitted, a `Failure` (an
        error code and a message for the client) if it is refused, and None if its path needs no token. Counts the
        request for the rate limit of its token."""
        if self.is_draining and path != "/healthz":
            return Failure("draining", "the server is shutting down and takes no more requests", retry_after=1)
        if path in OPEN or self.inspector.is_open(path):
            return None
        token = self._who(headers)
        if isinstance(token, Failure):
            return token
        if wait := self._rates.wait(token.sha256):
            reason = f"this token may make {self._settings.rate:g} requests a second; wait {wait} s"
            return Failure("limited", reason, retry_after=wait)
        if path == "/metrics" and not (token.namespace == EVERY_NAMESPACE and "admin" in token.scopes):
            return Failure("forbidden", "metrics are of all tenants; this needs a token of the namespace * with admin")
        return Call(token, headers, self._stores, self._settings)

    def _who(self, headers: Mapping[bytes, bytes]) -> Token | Failure:
        if self._tokens:
            found = self._tokens.find(headers.get(b"authorization", b""))
            return found or Failure("unauthenticated", "no token was given that this server knows")
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in _LOCAL_NAMES:
            return Failure(
                "forbidden",
                "this server has no tokens and answers only to a name of this machine, so that no web page elsewhere "
                "can use it through a browser here",
            )
        return ANYBODY

    def log(self, entry: dict[str, Any]) -> None:
        if self._settings.access_log:
            access.info(msgspec.json.encode(entry).decode())


class _Exchange:
    """Handles one HTTP request: lets the gate admit or refuse it, sends the response, and records both in the access
    log and the metrics."""

    def __init__(self, gate: Gate, scope: Any, receive: Any, send: Any) -> None:
        self._gate = gate
        self._scope = scope
        self._receive = receive
        self._send = send
        self._status = 0
        self._route = "other"
        self._received = 0
        self._sent = 0

    async def run(self) -> None:
        gate, scope = self._gate, self._scope
        start = time.perf_counter()
        path, headers = scope["path"], dict(scope["headers"])
        is_page = gate.inspector.owns(path)
        admitted = gate.admit(path, gate.inspector.with_session(headers) if is_page else headers)
        gate.enter()
        try:
            if isinstance(admitted, Failure):
                self._route = "refused"
                await self._reply(gate.inspector.refusal(admitted, scope, headers) if is_page else refusal(admitted))
            elif is_page:
                scope[KEY] = admitted
                await gate.inspector.app(scope, self._hear, self._say)
                self._route = str(scope.get("path_template") or "other").replace(":str", "")
            elif admitted is not None and is_append(scope["method"], path):
                self._route = TEMPLATE
                await self._reply(await answer(admitted, path, headers, self._hear))
            elif scope["method"] == "OPTIONS" and allowed(path):
                await self._reply(not_allowed(path))
            else:
                scope[KEY] = admitted
                await gate.inner(scope, self._hear, self._say)
                self._route = str(scope.get("path_template") or "other").replace(":str", "")
        except Exception as error:  # noqa: BLE001 - logged without its words, which a server's log would show
            log_failure(error)
        finally:
            gate.leave()
            self._record(admitted, time.perf_counter() - start)

    async def _hear(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
        return message

    async def _say(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [*message["headers"], _FROM_CLEW]
        else:
            self._sent += len(message.get("body", b""))
        await self._send(message)

    async def _reply(self, answer: Answer) -> None:
        status, headers, body = answer
        await self._say({"type": "http.response.start", "status": status, "headers": headers})
        await self._say({"type": "http.response.body", "body": body})

    def _record(self, admitted: Call | Failure | None, seconds: float) -> None:
        method, route = self._scope["method"], self._route
        if method not in _METHODS:
            method = "other"  # so that invented methods cannot make the counters grow without end
        self._gate.metrics.count(method, route, self._status, seconds, self._received, self._sent)
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": "request",
            "method": method,
            "route": route,
            "status": self._status,
            "ms": round(seconds * 1000, 3),
            "received": self._received,
            "sent": self._sent,
        }
        if isinstance(admitted, Call):
            entry |= {"token": admitted.token.label, "tenant": admitted.token.namespace, "thread": admitted.thread}
        self._gate.log(entry)


_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests by method, route and status, and adds up their times and bytes, for Prometheus."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._received = 0
        self._sent = 0

    def count(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        self._requests[method, route, status] += 1
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(_BOUNDS) + 1)
        buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment] # a Counter adds whatever it is given
        self._received += received
        self._sent += sent

    def text(self, under_way: int) -> str:
        """Return all counters in the text format of Prometheus. `under_way` is the number of open requests."""
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
            ("clew_requests_under_way", "gauge", "Requests that are being worked on.", under_way),
            ("clew_received_bytes_total", "counter", "Bytes of request bodies.", self._received),
            ("clew_sent_bytes_total", "counter", "Bytes of response bodies.", self._sent),
        ):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join(lines) + "\n"
