"""Run the service on uvicorn. Checks on which addresses it may listen, and lets requests finish when it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import msgspec
import uvicorn

from clew import advice
from clew.checkpointers.http.services import announced
from clew.errors import InvalidInput, Unavailable
from clew.server.app import create_app
from clew.server.auth import EVERY_NAMESPACE, SCOPES, make_token
from clew.server.connections import LARGEST_REQUEST_HEAD, Connection, Connections, listen
from clew.server.hosts import is_local
from clew.server.logs import write_logs
from clew.server.middleware import Gate
from clew.server.settings import Settings

__all__ = ["Server", "serve"]

_ENDING = 3.0
"""The most seconds of the grace (the time in which the service must have ended) that are kept for closing connections
and the store, after the requests under way."""

logger = logging.getLogger("clew.server")


class Server(uvicorn.Server):
    """A uvicorn server that stops without breaking requests: it answers new ones with 503, lets those under way finish,
    and then closes the store. Once it listens, it calls the function `listening`, if given, with its address."""

    def __init__(self, settings: Settings, listening: Callable[[str], None] | None = None) -> None:
        _check_place(settings)
        self._settings = settings
        self._listening = listening
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
                loop="asyncio",  # on this loop a `Listener` counts the connections it accepts
                h11_max_incomplete_event_size=LARGEST_REQUEST_HEAD,
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=bool(settings.proxies),
                forwarded_allow_ips="*" if settings.socket else list(settings.proxies),
                timeout_keep_alive=settings.idle_timeout,  # type: ignore[arg-type] # it waits for parts of seconds too
                timeout_graceful_shutdown=1,  # `_drain` has waited before this, and cut off all other requests
            )
        )

    @property
    def port(self) -> int:
        """The port on which the server listens. Only valid once it has started."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The URL by which clients on this machine open the service. Only valid once it has started."""
        settings = self._settings
        if settings.socket is not None:
            return f"http://localhost?socket={quote(str(settings.socket.absolute()))}"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"{'https' if settings.tls_cert else 'http'}://{host}:{self.port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if self._settings.socket is not None:
            sockets = [_private_socket(self._settings.socket)]
        elif sockets is None and self.config.uds is None:
            try:
                sockets = listen(self._settings.host, self._settings.port, self.connections)
            except OSError:
                await self.lifespan.startup()
                await self.lifespan.shutdown()
                sys.exit(1)
        await super().startup(sockets)
        self.connections.start()
        if self.started:
            self._say({"event": "listening", "url": self.url})
            if self._listening is not None:
                self._listening(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._settings.socket is not None:
            self._settings.socket.unlink(missing_ok=True)
        await super().shutdown(sockets)

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
        """Wait for the requests under way, then cut off all connections. The wait takes only a part of the time in
        which the service must have ended. The rest of that time is for closing the store, and no client can use it up.
        """
        grace = self._settings.grace
        await self.gate.drain(max(grace - _ENDING, grace / 2))
        self.connections.abort()
        self.should_exit = True

    def _say(self, event: dict[str, object]) -> None:
        logger.info(msgspec.json.encode(event).decode())


def serve(settings: Settings, listening: Callable[[str, str], None] | None = None) -> None:
    """Run the service until a signal stops it. Writes its log as JSON lines to the standard error.

    If the settings have no tokens, makes one for this run, unless the settings say `no_token` or a unix socket. Once the
    service listens, calls `listening` with its address and the secret of that token; the secret is empty if none was
    made.

    Raises `Unavailable` if it cannot listen on the address, and `InvalidInput` for settings that cannot work.
    """
    write_logs()
    if not settings.needs_token and not settings.no_token and settings.socket is None:
        _check_place(settings)
        settings = with_made_token(settings)
    with announced() as announce:

        def tell(url: str) -> None:
            announce(url)
            if listening is not None:
                listening(url, settings.made_token)

        _run(Server(settings, tell), settings)


def with_made_token(settings: Settings) -> Settings:
    """Return these settings with one token only: a new one, which allows everything. The token is in no file, so it is
    valid only until the service ends. Its secret is in `made_token` of the result."""
    secret, token = make_token(EVERY_NAMESPACE, SCOPES, "made at the start")
    return msgspec.structs.replace(settings, tokens=(token,), made_token=secret)


_OPEN = (
    "no token: every user and every program of this machine can read, change and delete everything in this store, and "
    "what they write there may run in your name when you resume it. Leave out --no-token to be safe."
)


def _run(server: Server, settings: Settings) -> None:
    if settings.no_token:
        server._say({"event": "warning", "message": _OPEN})
    if settings.needs_token and settings.tls_cert is None and not is_local(settings.host):
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
    """Wait until `server` is told to stop. If the process still runs `grace` seconds later (at least 2), end it,
    whatever holds it up, such as a store that does not close. No write that a store has confirmed is lost. This runs in
    an OS thread of its own."""
    server.stopping.wait()
    time.sleep(max(grace, 2.0))
    server._say({"event": "ended", "message": f"not all work had ended {grace:g} s after the signal; it was cut off"})
    os._exit(1)


def _private_socket(path: Path) -> socket.socket:
    """Return a unix socket bound to this path, to which no other user can connect. Removes the socket of a service that
    is gone. Raises `Unavailable` if another service listens there, and `InvalidInput` if something else is there."""
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidInput("this system has no unix sockets. Leave out --socket; a token is made at the start then.")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        _remove_dead_socket(path)
        made.bind(str(path))
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        raise Unavailable(f"the service cannot listen on the socket {path}: {reason}. Choose another path.") from None
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


def _remove_dead_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidInput(f"{path} is not a socket, and is left alone. Choose another path for --socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise Unavailable(f"another service listens on the socket {path}. Stop it, or choose another path.")


def _check_place(settings: Settings) -> None:
    if settings.socket is None and not settings.needs_token and not is_local(settings.host):
        raise InvalidInput(
            f"{settings.host!r} can be reached from other machines, and there are no tokens: anybody could read and "
            f"delete everything. Give --token-file ({advice.new_token()} makes a token), or listen on 127.0.0.1 or "
            "localhost."
        )
