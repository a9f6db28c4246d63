"""A real service on a thread of its own: uvicorn on 127.0.0.1, as `clew serve` runs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from clew.server import Server, Settings, Token
from clew.server.auth import SCOPES, Scope
from tests.limits import PATIENCE

__all__ = ["Running", "a_token", "serving"]


def a_token(secret: str, namespace: str = "*", scopes: Sequence[Scope] = SCOPES) -> Token:
    return Token(sha256(secret.encode()).hexdigest(), namespace, tuple(scopes), f"of {namespace}")


class Running:
    """A service that answers, and its address."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.server = Server(settings)
        self._thread = threading.Thread(target=self._run, name="clew-serve", daemon=True)

    @property
    def url(self) -> str:
        scheme = "https" if self._settings.tls_cert else "http"
        return f"{scheme}://127.0.0.1:{self.server.port}"

    def start(self) -> None:
        self._thread.start()
        self._up.wait(PATIENCE)
        assert self.server.started, "the service did not start"

    def stop(self) -> None:
        """In order, as a signal would."""
        self.begin_to_stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the service did not stop"

    def begin_to_stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.server.stop)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self.server.serve())
        while not self.server.started and not serving.done():
            await asyncio.sleep(0.005)
        self._up.set()
        await serving


@contextmanager
def serving(store: str = "memory://", *, fixed_port: int = 0, **settings: Any) -> Iterator[Running]:
    settings.setdefault("no_token", not any(map(settings.get, ("tokens", "token_file", "socket"))))
    running = Running(Settings(store=store, port=fixed_port, access_log=False, **settings))
    running.start()
    try:
        yield running
    finally:
        running.stop()
