"""The connections of a service, and the limits that hold before anybody has shown a token: how many there are in all and
from one address, and how long a client may take to send a request or to receive the response."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections import Counter
from contextlib import suppress
from typing import Any

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol

from clew.server.settings import CONNECTION, Settings

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["LARGEST_REQUEST_HEAD", "Connection", "Connections", "Listener", "listen"]

LARGEST_REQUEST_HEAD = 2**15
"""The most bytes that the request line and the headers of a request may have together."""
_ROUND = 1.0
"""Seconds between two rounds in which all connections are checked for clients that take too long."""
_SPARE_FILES = 512
"""How many of the files that the process may open are reserved for other uses than connections: the store needs files
for each namespace in use."""
_FEWEST = 16
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nclew-protocol: 1\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: 91\r\n\r\n"
    b'{"code":"unavailable","message":"the server has as many connections as it takes; wait 1 s"}'
)
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nclew-protocol: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_MALFORMED = (
    b"HTTP/1.1 400 Bad Request\r\nclew-protocol: 1\r\nx-content-type-options: nosniff\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: 58\r\n\r\n"
    b'{"code":"invalid","message":"this is not an HTTP request"}'
)


class _Entry:
    """What the limits know about one connection: its socket and address, when it was accepted, and the token that was
    shown on it. It is made as soon as the connection is accepted, before any TLS handshake."""

    __slots__ = ("address", "connection", "key", "since", "socket", "token")

    def __init__(self, key: int, accepted: socket.socket, address: str, since: float) -> None:
        self.key = key
        self.socket = accepted
        self.address = address
        self.since = since
        self.connection: Connection | None = None
        self.token: str | None = None
        """The hash of the token that was shown on this connection; None as long as none was shown."""


class Connections:
    """All open connections of a service. Admits new ones within the limits of the settings, and ends those whose
    clients take too long.

    A client that has shown a token is never pushed out by clients that have not. If there is no room for a new
    connection, the oldest one on which no token was shown makes room. So a client that opens connections and shows no
    token takes room only from other clients without a token.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._most = max(_FEWEST, min(settings.max_connections, _files() - _SPARE_FILES))
        self._entries: dict[int, _Entry] = {}
        self._strangers: Counter[str] = Counter()
        self._of_token: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def start(self) -> None:
        """Begin to look, about once a second, for clients that take too long, and to end their connections."""
        self._timer = asyncio.get_running_loop().call_later(_ROUND, self._check)

    def abort(self) -> None:
        """End all connections at once, whatever their clients do, and stop looking for clients that take too long."""
        if self._timer is not None:
            self._timer.cancel()
        for entry in list(self._entries.values()):
            self._end(entry)

    def admit(self, accepted: socket.socket, peer: Any) -> bool:
        """Count a connection that was just accepted from the address `peer`, and return True. If the address has as
        many connections without a token as it may, the oldest of them is ended. If the service has as many connections
        as it may, the oldest on which no token was shown is ended; if there is none, counts nothing and returns
        False."""
        address = _network(peer)
        if self._strangers[address] >= self.settings.max_connections_per_address:
            self._push_out(address)
        if len(self._entries) >= self._most and not self._push_out(None):
            self._forget_zero(address)
            return False
        entry = _Entry(accepted.fileno(), accepted, address, asyncio.get_running_loop().time())
        self._entries[entry.key] = entry
        self._strangers[address] += 1
        return True

    def leave(self, accepted: socket.socket) -> None:
        """Stop counting a connection, because its socket is being closed. Does nothing if the connection is not
        counted."""
        entry = self._entries.get(accepted.fileno())
        if entry is not None and entry.socket is accepted:
            self._forget(entry)

    def entry_of(self, connection: Connection, transport: asyncio.BaseTransport) -> _Entry | None:
        """Return the entry under which a new connection is counted, and link the entry to the connection. `transport`
        is that of the connection. Returns None if the connection is not counted, because no `Listener` (a socket that
        counts the connections that it accepts) accepted it, as on a unix socket."""
        found = transport.get_extra_info("socket")
        entry = None if found is None else self._entries.get(found.fileno())
        if entry is not None:
            entry.connection = connection
        return entry

    def show(self, entry: _Entry, token: str) -> bool:
        """Note that a token was shown on a connection; `token` is its hash. Returns False, and notes nothing, if the
        token has as many connections as it may have."""
        if entry.token == token or entry.key not in self._entries:
            return True
        if self._of_token[token] >= self.settings.max_connections_per_token:
            return False
        self._discount(entry)
        entry.token = token
        self._of_token[token] += 1
        return True

    def _push_out(self, address: str | None) -> bool:
        """End the oldest connection on which no token was shown: the oldest from `address`, or from anywhere if
        `address` is None. Returns whether there was such a connection."""
        for entry in self._entries.values():  # the oldest first
            if entry.token is None and address in (None, entry.address):
                self._end(entry)
                return True
        return False

    def _end(self, entry: _Entry) -> None:
        self._forget(entry)
        if entry.connection is not None:
            entry.connection.transport.abort()
        else:  # its TLS handshake is under way
            with suppress(OSError):
                entry.socket.shutdown(socket.SHUT_RDWR)

    def _forget(self, entry: _Entry) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            self._discount(entry)

    def _discount(self, entry: _Entry) -> None:
        counts, name = (self._strangers, entry.address) if entry.token is None else (self._of_token, entry.token)
        counts[name] -= 1
        if not counts[name]:
            del counts[name]

    def _forget_zero(self, address: str) -> None:
        if not self._strangers[address]:
            del self._strangers[address]

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for entry in list(self._entries.values()):
            if entry.connection is not None:
                entry.connection.check(now)
            elif now - entry.since > self.settings.header_timeout:
                self._end(entry)
        self._timer = loop.call_later(_ROUND, self._check)


_LENGTH = b"content-length:"
_CHUNK_HEAD = re.compile(rb"[0-9A-Fa-f]{1,16}(?:;[^\r\n]*)?\r\n")


class _StrictBuffer(ReceiveBuffer):
    """The bytes of requests that h11, the HTTP parser, has not parsed yet. Replaces the buffer that h11 makes. Raises
    `RemoteProtocolError` for bytes that h11 accepts but that a proxy in front of the service may read differently:
    proxy and service would then not agree where a request ends."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of the head of a request, or the lines after the last chunk of its body; None if they have
        not all arrived. Raises `RemoteProtocolError` if a line does not end with CRLF or continues the line before it,
        or if the header with the length of the body is not a single number."""
        data, start = self._data, self._multiple_lines_search
        if data[:2] != b"\r\n":
            end = data.find(b"\r\n\r\n", max(0, start - 2))
            end = len(data) if end < 0 else end
            # Counted, because a regular expression for this takes as long as all else that h11 does with the head.
            if data.count(b"\n", start, end) != data.count(b"\r\n", max(0, start - 1), end):
                raise h11.RemoteProtocolError("a line does not end with CRLF")
        lines = super().maybe_extract_lines()
        has_length = False
        for line in lines or ():
            if line[0] in b" \t":
                raise h11.RemoteProtocolError("a line continues the one before")
            if line[0] in b"cC" and line[: len(_LENGTH)].lower() == _LENGTH:
                if has_length or not line[len(_LENGTH) :].strip(b" \t").isdigit():
                    raise h11.RemoteProtocolError("the length of the body is not one number")
                has_length = True
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line in front of a chunk of a request's body, which gives the size of the chunk; None if the line
        has not arrived completely. Raises `RemoteProtocolError` if the size is not a plain number in hexadecimal
        digits, for example if a space follows it."""
        line = super().maybe_extract_next_line()
        if line is not None and not _CHUNK_HEAD.fullmatch(line):
            raise h11.RemoteProtocolError("the size of a chunk is not a number")
        return line


class Connection(H11Protocol):
    """One connection of a client, which carries one request after the other. Ends the connection if the client takes
    too long to send the head of a request, or to receive a response.

    How long a client may take for the body of a request is checked in the module `wire`, which reads bodies.
    """

    def __init__(self, limits: Connections, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn._receive_buffer = _StrictBuffer()
        self._application = self.app
        self.app = self._run
        self._limits = limits
        self._settings = limits.settings
        self._entry: _Entry | None = None
        self._running = 0
        self._waiting: float | None = None
        """The time since which the service waits for the client to send the head of a request, or the unread rest of a
        request that was refused. None while a request is handled, and while the connection is idle between two
        requests."""
        self._stalled: float | None = None
        """The time since which the client has not taken what was sent to it; None if the client takes it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._entry = self._limits.entry_of(self, transport)
        self._waiting = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None and not self._running:
            self._waiting = self.loop.time()
        try:
            super().data_received(data)
        except h11.ProtocolError:  # it broke the rules while its response was under way
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that breaks the rules of HTTP, unless a response is under way, and close the connection. The
        answer does not contain `msg`, the parser's description of the error."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_MALFORMED)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled = None

    def show(self, token: str) -> bool:
        """Note that a token was shown on this connection; `token` is its hash. Returns False if the token has as many
        connections as it may have."""
        return self._entry is None or self._limits.show(self._entry, token)

    def is_gone(self) -> bool:
        """Return whether the client has closed the connection, as far as this machine knows by now. May be called on
        any OS thread."""
        if self.transport.is_closing():
            return True
        if self._entry is None:
            return False
        try:
            return not self._entry.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def check(self, now: float) -> None:
        """End the connection if its client takes too long to send the head of a request or to receive a response. `now`
        is the time of the event loop, in seconds."""
        if self.transport.is_closing() and self._stalled is None:
            self._stalled = now  # what was sent last may never be taken
        if self._stalled is not None and now - self._stalled > self._settings.send_timeout:
            self.transport.abort()
        elif self._waiting is not None and now - self._waiting > self._settings.header_timeout:
            if self.conn.our_state is h11.IDLE:
                self.transport.write(_TOO_SLOW)
            self.transport.close()

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application for one request. While the application works, the time limit for sending the head of a
        request does not run."""
        scope[CONNECTION] = self
        self._running += 1
        self._waiting = None
        try:
            await self._application(scope, receive, send)
        finally:
            self._running -= 1
            # A client may go on with the body of a request that was refused. It gets as long as for the next head.
            if not self._running and self.conn.their_state is h11.SEND_BODY:
                self._waiting = self.loop.time()


class _Accepted(socket.socket):
    """The socket of an accepted connection. When it is closed, the connection is no longer counted."""

    connections: Connections | None = None

    def close(self) -> None:
        if self.connections is not None and self.fileno() >= 0:
            self.connections.leave(self)
        super().close()


class Listener(socket.socket):
    """A listening socket that accepts connections within the limits on their number. It answers any connection beyond
    the limits with 503 and closes it at once, which costs almost nothing."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection, and return it with the client's address. One that is over the limits (connections in
        all, or of one address) is closed, and the next one is tried. Raises `BlockingIOError` if none is left."""
        while True:
            number, peer = self._accept()  # type: ignore[attr-defined]
            accepted = _Accepted(self.family, self.type, self.proto, fileno=number)
            accepted.setblocking(False)
            if self.connections.admit(accepted, peer):
                accepted.connections = self.connections
                return accepted, peer
            with suppress(OSError):
                accepted.send(_FULL)
            accepted.close()


def listen(host: str, port: int, connections: Connections) -> list[socket.socket]:
    """Return sockets that listen on every address of this host. `connections` counts the connections that they accept.
    If `port` is 0, all the sockets have the same free port. Raises `OSError` if it is not possible to listen on one of
    the addresses."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = Listener(family, kind, protocol)
            listeners.append(listener)
            listener.connections = connections
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port, *address[2:]))
            port = port or listener.getsockname()[1]
    except BaseException:
        for opened in listeners:
            opened.close()
        raise
    return listeners


def _network(peer: Any) -> str:
    """Return the address by which a client is counted. This is its IPv4 address or, because one client can have 2**64
    IPv6 addresses, the /64 network of its IPv6 address. `peer` is the client's address as a socket gives it."""
    host = str(peer[0]).partition("%")[0] if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def _files() -> int:
    """Raise the number of files that this process may have open, as far as the system allows, to at most 65536. Returns
    the number that is allowed afterwards."""
    if resource is None:
        return 2**16
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2**16 if hard == resource.RLIM_INFINITY else min(hard, 2**16)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return 2**16 if soft == resource.RLIM_INFINITY else int(soft)
