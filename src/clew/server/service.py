"""Run the service on uvicorn. Checks on which addresses it may listen, and lets requests finish when it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from functools import partial
from types import FrameType

import msgspec
import uvicorn

from clew import advice
from clew.errors import InvalidInput, Unavailable
from clew.server.app import create_app
from clew.server.connections import LARGEST_REQUEST_HEAD, Connection, Connections, listen
from clew.server.hosts import is_local
from clew.server.logs import write_logs
from clew.server.middleware import Gate
from clew.server.settings import Settings

__all__ = ["Server", "serve"]

_ENDING = 3.0
"""Seconds of the grace that are kept for closing connections and the store, after the requests under way."""

logger = logging.getLogger("clew.server")


class Server(uvicorn.Server):
    """A uvicorn server that stops without breaking requests: it answers new ones with 503, lets those under way finish,
    and then closes the store."""

    def __init__(self, settings: Settings) -> None:
        _check_place(settings)
        self._settings = settings
        self.gate: Gate = create_app(settings)
        self.connections = Connections(settings)
        self.stopping = threading.Event()
        """Set once the service was told to stop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                self.gate,
                host=settings.host,
                port=settings.port,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                http=partial(Connection, self.connections),  # type: ignore[arg-type] # it is called, no more
                loop="asyncio",  # on which a `Listener` counts what it accepts
                h11_max_incomplete_event_size=LARGEST_REQUEST_HEAD,
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=settings.idle_timeout,  # type: ignore[arg-type] # it waits for parts of seconds too
                timeout_graceful_shutdown=1,  # `_drain` has waited before, and cut off the rest
            )
        )

    @property
    def port(self) -> int:
        """The port on which the server listens. Only valid once it has started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if sockets is None and self.config.uds is None:
            try:
                sockets = listen(self._settings.host, self._settings.port, self.connections)
            except OSError:
                await self.lifespan.startup()
                await self.lifespan.shutdown()
                sys.exit(1)
        await super().startup(sockets)
        self.connections.start()
        if self.started:
            scheme = "https" if self._settings.tls_cert else "http"
            host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
            self._say({"event": "listening", "url": f"{scheme}://{host}:{self.port}"})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: at the first, let the requests under way finish; at the second, stop at once. The process
        does not end with an error in either case."""
        if self._draining is not None or self._loop is None:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Begin to stop: refuse new requests, and let those under way finish. Call it on the event loop; from another
        OS thread, with `call_soon_threadsafe`."""
        if self._draining is None:
            self._say({"event": "stopping", "under_way": self.gate.under_way})
            self.stopping.set()
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Wait for the requests under way, then cut off all connections. Clients can delay this by nothing: some of the
        grace is kept for closing the store."""
        grace = self._settings.grace
        await self.gate.drain(max(grace - _ENDING, grace / 2))
        self.connections.abort()
        self.should_exit = True

    def _say(self, event: dict[str, object]) -> None:
        logger.info(msgspec.json.encode(event).decode())


def serve(settings: Settings) -> None:
    """Run the service until a signal stops it. Writes its log as JSON lines to the standard error.

    Raises `Unavailable` if it cannot listen on the address, and `InvalidInput` for settings that cannot work.
    """
    write_logs()
    server = Server(settings)
    if settings.tokens and settings.tls_cert is None and not is_local(settings.host):
        server._say(
            {"event": "warning", "message": "without TLS, tokens travel in the clear. Use --tls-cert and --tls-key."}
        )
    threading.Thread(target=_end_in_time, args=(server, settings.grace), name="clew-serve-end", daemon=True).start()
    try:
        server.run()
    except SystemExit:
        raise Unavailable(
            f"the service cannot listen on {settings.host}:{settings.port}: the port is taken, or the address is not one "
            "of this machine. Choose another."
        ) from None


def _end_in_time(server: Server, grace: float) -> None:
    """End the process `grace` seconds, but at least 2, after it was told to stop, whatever still holds it up: a store that
    does not close, a thread that does not return. Nothing acknowledged is lost: that is the promise of every store."""
    server.stopping.wait()
    time.sleep(max(grace, 2.0))
    server._say({"event": "ended", "message": f"not all work had ended {grace:g} s after the signal; it was cut off"})
    os._exit(1)


def _check_place(settings: Settings) -> None:
    if not settings.tokens and not is_local(settings.host):
        raise InvalidInput(
            f"{settings.host!r} can be reached from other machines, and there are no tokens: anybody could read and "
            f"delete everything. Give --token-file ({advice.new_token()} makes a token), or listen on 127.0.0.1 or "
            "localhost."
        )
