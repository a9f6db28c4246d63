"""A simulated PostgreSQL server: sessions that run statements, and the moods of a server that is not well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.simulation.loop import EPOCH, SimulatedLoop
from tests.simulation.postgres.functions import Rows, answer
from tests.simulation.postgres.tables import Refused, Tables

__all__ = ["Request", "Server", "Session"]


class Request(NamedTuple):
    """A statement on its way. `code` is the SQLSTATE with which the server refuses it, or None."""

    sql: bytes
    values: Sequence[bytes | None]
    code: str | None = None


class Server:
    """One server with its tables. Time passes on it in `step`, between the statements of a function and before a commit.
    While it is frozen, it accepts connections, reads nothing and answers nothing."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.tables = Tables()
        self.is_away = False
        self.slowness = 0.002
        """The most seconds that one step takes."""
        self.sessions: dict[Session, None] = {}
        self._awake = asyncio.Event()
        self._awake.set()

    def now(self) -> int:
        return round((EPOCH + self.loop.time()) * 1e6)

    @property
    def is_frozen(self) -> bool:
        return not self._awake.is_set()

    async def step(self) -> None:
        await asyncio.sleep(self.loop.dice.uniform(0, self.slowness))
        await self._awake.wait()

    def freeze(self) -> None:
        self.loop.say("the server freezes")
        self._awake.clear()

    def thaw(self) -> None:
        self.loop.say("the server wakes up")
        self._awake.set()

    def stop(self) -> None:
        """End at once, as by a crash or a restart: transactions that have not committed are lost."""
        self.loop.say("the server stops")
        self.is_away = True
        self._awake.set()
        for session in list(self.sessions):
            session.end()

    def start(self) -> None:
        self.loop.say("the server is back")
        self.is_away = False


class Session:
    """The server's side of one connection. It runs one statement after the other. `reply` is called with the rows of each,
    or with the error. `ended` is called when the server ends the session by itself."""

    def __init__(self, server: Server, reply: Callable[[Rows | Refused], object], ended: Callable[[], object]) -> None:
        self._server = server
        self._reply = reply
        self._ended = ended
        self._requests: asyncio.Queue[Request | None] = asyncio.Queue()
        server.sessions[self] = None
        self._task = server.loop.start(server.loop.outside, self._serve())

    def receive(self, request: Request) -> None:
        self._requests.put_nowait(request)

    def receive_end(self) -> None:
        """The client has closed the connection: the session ends after what it has received before."""
        self._requests.put_nowait(None)

    def end(self) -> None:
        """End this session now. Its transaction is rolled back."""
        if self in self._server.sessions:
            del self._server.sessions[self]
            self._task.cancel()
            self._ended()

    async def _serve(self) -> None:
        while (request := await self._requests.get()) is not None:
            await self._server.step()
            if request.code is not None:
                self._reply(Refused(request.code, "so the seed decided"))
                continue
            try:
                rows = await answer(
                    self._server.tables, request.sql, request.values, self._server.now, self._server.step
                )
            except Refused as refused:
                self._reply(refused)
            except Exception as error:
                self._server.loop.failures.append(f"the simulated server cannot run {request.sql!r}: {error!r}")
                raise
            else:
                self._reply(rows)
        self._server.sessions.pop(self, None)
