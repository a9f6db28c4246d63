"""The simulated network, and the part of libpq that the store's connections use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from typing import Any
from unittest.mock import patch

import psycopg
from psycopg import pq

from clew.checkpointers.postgres import wire
from tests.simulation.loop import Machine, SimulatedLoop, current, current_machine
from tests.simulation.postgres.functions import Rows
from tests.simulation.postgres.server import Request, Server, Session
from tests.simulation.postgres.tables import Refused

__all__ = ["Fate", "Link", "Network", "WiredLoop"]

WINDOW = 2**16
"""The bytes of a statement that the client's system takes at once. A longer one goes in pieces of this size."""

Fate = str
FATES: tuple[Fate, ...] = (
    "cut before",  # the statement never arrives, and the connection is reset
    "cut after",  # the statement runs, and the connection is reset instead of an answer
    "reset while it runs",  # the connection is reset at once, and the statement arrives all the same
    "swallowed before",  # the statement never arrives, and nothing is ever heard on this connection
    "swallowed after",  # the statement runs, and nothing is ever heard on this connection
    "late",  # the statement arrives after a long while
    "late answer",  # the answer arrives after a long while
    "refused",  # the server answers with an error, and nothing was done
)
CODES = ("40001", "40P01", "25006", "53100", "57014", "57P01")
"""What a server refuses statements with: conflicts of transactions (two), it is a standby, its disk is full, the statement
was cancelled, and the session is ended."""


class WiredLoop(SimulatedLoop):
    """The event loop of the simulation with sockets: numbers for which `Network` says when they can be read or written."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed)
        self._readers: dict[int, tuple[Callable[[], object], Context]] = {}
        self._writers: dict[int, tuple[Callable[[], object], Context]] = {}

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._readers[fd] = callback, copy_context()

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._writers[fd] = callback, copy_context()

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    def can_read(self, fd: int) -> None:
        self._call(self._readers, fd)

    def can_write(self, fd: int) -> None:
        self._call(self._writers, fd)

    def _call(self, watched: dict[int, tuple[Callable[[], object], Context]], fd: int) -> None:
        """Let the machine that watches a socket call its callback, unless it has stopped to watch it by then."""
        if fd in watched:
            entry = watched[fd]
            self.call_soon(lambda: watched.get(fd) is entry and entry[0](), context=entry[1])


class Network:
    """All connections to one server. `rate` is the share of statements with a fate of their own."""

    def __init__(self, loop: WiredLoop, server: Server) -> None:
        self.loop = loop
        self.server = server
        self.latency = 0.003
        """The most seconds that something takes from one side to the other."""
        self.rate = 0.0
        self.attempts: dict[Machine, int] = {}
        """How often each machine has tried to connect."""
        self.moved_at: dict[Machine, float] = {}
        """When each machine last had a sign of life of the server, or its connection was reset."""
        self.heard_at: dict[Machine, float] = {}
        """When each machine last had a sign of life of the server. A reset is none: whatever is between may do it."""
        self.links: list[Link] = []
        self.context = copy_context()
        """The context of what belongs to no machine."""
        self.context.run(current.set, loop.outside)
        self._whole = asyncio.Event()
        self._whole.set()

    @contextmanager
    def replacing_libpq(self) -> Iterator[None]:
        """Let `psycopg` connect to the simulated server, for as long as the block runs."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(psycopg.AsyncConnection, "connect", self.connect))
            stack.enter_context(patch.object(wire, "unsent", lambda fd: self.links[fd].unsent()))
            yield

    @property
    def is_parted(self) -> bool:
        return not self._whole.is_set()

    def part(self) -> None:
        """Hold back everything between the clients and the server."""
        self.loop.say("the network is parted")
        self._whole.clear()

    def heal(self) -> None:
        """Deliver what was held back, as TCP does when it sends again. Some connections have been dropped meanwhile."""
        self.loop.say("the network is whole")
        self._whole.set()
        for link in self.links:
            if link.is_open and self.loop.dice.random() < 0.3:
                link.reset()
            link.to_server.release()
            link.to_client.release()

    def reset_all(self) -> None:
        """Reset every connection, as a firewall that restarts does."""
        self.loop.say("all connections are reset")
        for link in self.links:
            link.reset()

    def leave(self, machine: Machine) -> None:
        """A machine was killed: its system closes its connections."""
        for link in self.links:
            if link.machine is machine and link.is_open:
                link.finish()

    def delay(self) -> float:
        return self.loop.dice.uniform(0, self.latency)

    def moved(self, machine: Machine) -> None:
        self.moved_at[machine] = self.heard_at[machine] = self.loop.time()

    async def connect(self, conninfo: str, *, autocommit: bool) -> Any:
        machine = current_machine()
        self.attempts[machine] = self.attempts.get(machine, 0) + 1
        for _ in range(2):  # there and back
            await asyncio.sleep(self.delay())
            await self._whole.wait()
            if self.server.is_away:
                raise psycopg.OperationalError("connection refused")
        await self.server.step()
        if self.server.is_away or self.loop.dice.random() < self.rate / 2:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        link = Link(self, len(self.links), machine)
        self.links.append(link)
        self.moved(machine)
        self.loop.say("connected as %d", link.fd)
        return link

    def fate(self) -> Fate | None:
        return self.loop.dice.choice(FATES) if self.loop.dice.random() < self.rate else None


class _Pipe:
    """One direction of a connection. What is pushed into it arrives in the same order."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._last = 0.0
        self._held: list[Callable[[], object]] = []
        self.is_blocked = False
        """Whether nothing that is pushed ever arrives."""

    def push(self, arrive: Callable[[], object], extra: float = 0.0) -> None:
        loop = self._network.loop
        self._last = max(self._last, loop.time() + self._network.delay() + extra)
        loop.call_at(self._last, self._arrive, arrive, context=self._network.context)

    def _arrive(self, arrive: Callable[[], object]) -> None:
        if self._held or self._network.is_parted:
            self._held.append(arrive)
        elif not self.is_blocked:
            arrive()

    def release(self) -> None:
        held, self._held = self._held, []
        for arrive in held:
            self._arrive(arrive)


class Link:
    """One connection: a `psycopg.AsyncConnection` and its `pgconn`, as far as the store uses them, and the way to the
    server's session."""

    def __init__(self, network: Network, fd: int, machine: Machine) -> None:
        self.fd = self.socket = fd
        self.pgconn = self
        self.nonblocking = 0
        self.status = pq.ConnStatus.OK
        self.is_open = True
        self.to_server = _Pipe(network)
        self.to_client = _Pipe(network)
        self._network = network
        self._loop = network.loop
        self.machine = machine
        self._session = Session(network.server, self._reply, self.reset)
        self._arrived: list[_Result | None] = []
        self._read: list[_Result | None] = []
        self._is_broken = False
        self._fate: Fate | None = None
        self._sending: Request | None = None
        self._left = 0
        """The bytes of the statement that the other side has not confirmed."""

    # What `wire.py` calls

    def send_query(self, sql: bytes) -> None:
        self._send(Request(sql, ()))

    def send_query_params(
        self, sql: bytes, values: Sequence[bytes | None], types: object, formats: object, result_format: int
    ) -> None:
        self._send(Request(sql, values))

    def flush(self) -> int:
        if self._is_broken:
            raise psycopg.OperationalError("could not send data to server: Broken pipe")
        return int(self._sending is not None)

    def consume_input(self) -> None:
        if self._is_broken and not self._arrived:
            self.status = pq.ConnStatus.BAD
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        self._read += self._arrived
        self._arrived = []

    def is_busy(self) -> bool:
        return not self._read

    def get_result(self) -> _Result | None:
        return self._read.pop(0)

    def finish(self) -> None:
        self.is_open = False
        self._sending = None
        self.to_server.push(self._session.receive_end)

    # The network

    def unsent(self) -> int:
        return self._left

    def reset(self) -> None:
        """Tell the client that the connection is gone. The server goes on with what it has received."""
        if self.is_open and not self._is_broken:
            self._is_broken = True
            self.to_client.push(self._tell_end)
            self._session.receive_end()

    def _send(self, request: Request) -> None:
        self._fate = self._network.fate()
        if self._fate is not None:
            self._loop.say("%d: the next statement is %s", self.fd, self._fate)
        if self._fate == "refused":
            request = request._replace(code=self._loop.dice.choice(CODES))
        self._left = len(request.sql) + sum(len(value or b"") for value in request.values)
        if self._left > WINDOW:
            self._sending = request
            self.to_server.push(self._move, self._loop.dice.uniform(0, 0.2))
        else:
            self._sent(request)

    def _move(self) -> None:
        """A piece of a long statement has arrived, so that there is room for the next."""
        request = self._sending
        if not self.is_open or self._is_broken or request is None:
            return
        self._left = max(0, self._left - WINDOW)
        self._network.moved(self.machine)
        if self._left:
            self.to_server.push(self._move, self._loop.dice.choice((0.01, 0.2, 4.0)))
        else:
            self._sending = None
            self._sent(request)
        self._loop.can_write(self.fd)

    def _sent(self, request: Request) -> None:
        """Everything of a statement is with the client's system. What becomes of it, the fate decides."""
        dice = self._loop.dice

        def arrive() -> None:
            self._left = 0
            if self.is_open and not self._is_broken:  # the server's system has confirmed all bytes
                self._network.moved(self.machine)
            self._session.receive(request)

        match self._fate:
            case "cut before":
                self.to_client.push(self.reset)
            case "swallowed before":
                self.to_server.is_blocked = self.to_client.is_blocked = True
            case "late":
                self.to_server.push(arrive, dice.uniform(1, 40))
            case "reset while it runs":
                self.to_server.push(arrive, dice.uniform(0, 5))
                self.to_client.push(self.reset)
            case _:
                self.to_server.push(arrive)

    def _reply(self, answer: Rows | Refused) -> None:
        match self._fate:
            case "cut after":
                self.reset()
            case "swallowed after":
                self.to_client.is_blocked = True
            case fate:
                extra = self._loop.dice.uniform(1, 40) if fate == "late answer" else 0.0
                self.to_client.push(lambda: self._deliver(answer), extra)

    def _deliver(self, answer: Rows | Refused) -> None:
        if self.is_open and not self._is_broken:
            self._arrived += [_Result(answer), None]
            self._tell()
            if isinstance(answer, Refused) and answer.code.startswith("57P"):
                self._is_broken = True

    def _tell_end(self) -> None:
        self._network.moved_at[self.machine] = self._loop.time()
        self._loop.can_read(self.fd)

    def _tell(self) -> None:
        self._network.moved(self.machine)
        self._loop.can_read(self.fd)


class _Result:
    """A `pq.PGresult`, as far as the store uses it."""

    def __init__(self, answer: Rows | Refused) -> None:
        self._answer = answer
        self.error_message = b""
        if isinstance(answer, Refused):
            self.status = pq.ExecStatus.FATAL_ERROR
            self._rows: Rows = []
        else:
            self.status = pq.ExecStatus.TUPLES_OK
            self._rows = answer
        self.ntuples = len(self._rows)
        self.nfields = len(self._rows[0]) if self._rows else 0

    def get_value(self, row: int, column: int) -> bytes | None:
        return self._rows[row][column]

    def error_field(self, field: pq.DiagnosticField) -> bytes | None:
        assert isinstance(self._answer, Refused)
        return self._answer.code.encode() if field == pq.DiagnosticField.SQLSTATE else str(self._answer).encode()
