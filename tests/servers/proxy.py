"""A network that breaks: a proxy before a server that cuts connections, after some bytes or when told, or goes silent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]

_PIECE = 64 * 1024


class Proxy:
    """Listens on a port of 127.0.0.1 and passes everything on to a server, which it reaches through TCP or a Unix socket.

        async with Proxy(("127.0.0.1", server_port), cut_after=lambda: dice.randrange(5000)) as proxy:
            client = connect(port=proxy.port)
            proxy.cut()

    `cut_after` is asked once for each connection: after this many bytes, counted in both directions together, it is cut in
    the middle of what it carries. None lets it be. A cut ends both sides at once, as when a machine is gone: what was still
    under way is lost. `cut()` does the same at once to all connections; `refuse` does it to new ones as they come.
    `freeze()` holds all bytes back, while connections stay open and new ones are accepted, until `thaw()`.
    `slowness` is how many seconds each 64 KiB take.
    """

    def __init__(
        self,
        target: tuple[str, int] | str,
        *,
        cut_after: Callable[[], int | None] = lambda: None,
        slowness: float = 0.0,
    ) -> None:
        self._target = target
        self._slowness = slowness
        self._cut_after = cut_after
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.refuse = False
        self.connections = 0
        """How many came so far."""
        self.cuts = 0
        """How many of them were cut."""

    @property
    def port(self) -> int:
        assert self._server is not None, "it is not started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def is_carrying(self) -> bool:
        """Whether a connection is open, so that a cut has something to cut."""
        return bool(self._open)

    def cut(self) -> None:
        """Cut every connection there is."""
        for task in list(self._open):
            task.cancel()

    def freeze(self) -> None:
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        if self._slowness:  # else the system takes megabytes at once, and the slowness does not show
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
        self._server = await asyncio.start_server(self._connected, sock=listener)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._open)
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open[task] = [writer]
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        for writer in self._open.pop(task):
            writer.transport.abort()
        if not task.cancelled():
            task.exception()
        else:
            self.cuts += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry both directions until one side ends it, or its bytes are used up."""
        left = _Allowance(self._cut_after())
        task = asyncio.current_task()
        if self.refuse or task is None:
            raise asyncio.CancelledError
        await self._flowing.wait()
        there, back = await (
            asyncio.open_unix_connection(self._target)
            if isinstance(self._target, str)
            else asyncio.open_connection(*self._target)
        )
        self._open[task].append(back)
        both = (reader, back), (there, writer)
        ways = [asyncio.create_task(_carry(*one, left, self._flowing, self._slowness)) for one in both]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        if left.is_used_up:
            raise asyncio.CancelledError


class _Allowance:
    """How many bytes a connection may still carry."""

    def __init__(self, count: int | None) -> None:
        self._count = count

    @property
    def is_used_up(self) -> bool:
        return self._count is not None and self._count <= 0

    def take(self, data: bytes) -> bytes:
        """As much of this as may still go."""
        if self._count is None:
            return data
        part = data[: max(0, self._count)]
        self._count -= len(data)
        return part


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    left: _Allowance,
    flowing: asyncio.Event,
    slowness: float,
) -> None:
    with suppress(OSError):
        while not left.is_used_up and (data := await reader.read(_PIECE)):
            await flowing.wait()
            await asyncio.sleep(slowness * len(data) / _PIECE)
            writer.write(left.take(data))
            await writer.drain()
