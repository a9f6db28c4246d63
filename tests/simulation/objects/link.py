"""The simulated network, and the part of obstore that the driver for buckets uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.clouds import ObstoreBucket
from tests.simulation.history import TIMEOUT
from tests.simulation.loop import Machine, SimulatedLoop, current_machine
from tests.simulation.objects.server import CONDITIONS, Request, Server, Stored, busy, lost, meta

__all__ = ["FATES", "Link", "Network"]

WHERE = "s3://simulated"
FATES = (
    "cut before",  # the request never arrives, and the connection is reset
    "cut after",  # the request is carried out, and the connection is reset instead of an answer
    "cut on its way",  # the connection is reset at once, and the request arrives all the same
    "swallowed before",  # the request never arrives, and nothing is ever heard
    "swallowed after",  # the request is carried out, and nothing is ever heard
    "late",  # the request arrives after a long while
    "late answer",  # the answer arrives after a long while
    "busy",  # the server answers with an error, and nothing was done
    "failed after",  # the server answers with an error, although the request was carried out
    "cut in the middle",  # a part of a deletion of many objects is carried out, or a part of an object arrives
)
HELD = 40.0
"""The most seconds by which a request or an answer comes late."""


class Network:
    """What lies between the clients and the bucket. `rate` is the share of requests with a fate of their own."""

    def __init__(self, loop: SimulatedLoop, server: Server) -> None:
        self.loop = loop
        self.server = server
        self.dice = loop.dice
        self.latency = 0.003
        """The most seconds that something takes from one side to the other."""
        self.rate = 0.0
        self.attempts: dict[Machine, int] = {}
        self.moved_at: dict[Machine, float] = {}
        self.heard_at = self.moved_at
        self._whole = asyncio.Event()
        self._whole.set()

    def part(self) -> None:
        """Hold back everything between the clients and the server."""
        self.loop.say("the network is parted")
        self._whole.clear()

    def heal(self) -> None:
        """Deliver what was held back, as TCP does when it sends again."""
        self.loop.say("the network is whole")
        self._whole.set()

    def store(self, namespace: str = "", timeout: float = TIMEOUT) -> BucketCheckpointer:
        """Open the store of the current machine on the simulated bucket."""
        link: Any = Link(self)
        driver = ObstoreBucket(link, WHERE)
        driver._obstore = link
        return BucketCheckpointer(driver, WHERE, "", namespace, timeout=timeout)

    async def ask(self, request: Request) -> Any:
        """Send a request of the current machine, and return its answer. The request goes on if its caller gives it up."""
        machine = current_machine()
        self.attempts[machine] = self.attempts.get(machine, 0) + 1
        answer: asyncio.Future[Any] = self.loop.create_future()
        fate = self.dice.choice(FATES) if self.dice.random() < self.rate else ""
        self.loop.say("%s is sent%s", request, f": {fate}" if fate else "")
        self.loop.start(self.loop.outside, self._carry(request, fate, answer, machine))
        return await answer

    def moved(self, machine: Machine) -> None:
        self.moved_at[machine] = self.loop.time()

    async def travel(self) -> None:
        """Wait for as long as something takes from one side to the other."""
        await asyncio.sleep(self.dice.random() * self.latency)
        await self._whole.wait()

    async def _carry(self, request: Request, fate: str, answer: asyncio.Future[Any], machine: Machine) -> None:
        """Take a request to the server and its answer back to the client, if one comes."""
        if fate == "cut on its way":
            self.loop.call_later(self.dice.random() * self.latency, _fail, answer, lost())
        try:
            result = await self._outcome(request, fate, machine)
        except _Swallowed:
            return
        except Exception as error:  # noqa: BLE001 - handed to the client, whatever it is
            _fail(answer, error)
        else:
            if not answer.done():
                answer.set_result((result, fate == "cut in the middle"))

    async def _outcome(self, request: Request, fate: str, machine: Machine) -> Any:
        """Return what the server answers to a request, as far as the fate of the request lets the answer come."""
        await self.travel()
        if fate in ("late", "cut on its way"):
            await asyncio.sleep(self.dice.uniform(0, HELD))
        if fate in _BEFORE:
            raise _BEFORE[fate]()
        if fate == "cut in the middle" and request.kind == "delete":
            request.keys = request.keys[: self.dice.randint(0, len(request.keys))]
        try:
            result = await self.server.serve(request)
        except (FileNotFoundError, *CONDITIONS):  # answers too
            await self.travel()
            self.moved(machine)
            raise
        if fate == "late answer":
            await asyncio.sleep(self.dice.uniform(0, HELD))
        await self.travel()
        if fate in _AFTER and (fate != "cut in the middle" or request.kind != "get"):
            raise _AFTER[fate]()
        self.moved(machine)
        return result


class _Swallowed(Exception):
    """Nothing is ever heard of this request."""


_BEFORE: dict[str, Callable[[], Exception]] = {"cut before": lost, "busy": busy, "swallowed before": _Swallowed}
_AFTER: dict[str, Callable[[], Exception]] = {
    "cut after": lost,
    "cut on its way": lost,
    "cut in the middle": lost,
    "failed after": busy,
    "swallowed after": _Swallowed,
}


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # it may be that nobody waits for it any more


class Link:
    """The functions of obstore that the driver calls. Each stands for one request to the bucket."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def get_async(self, store: object, path: str, *, options: dict[str, Any] | None = None) -> Any:
        part = options["range"] if options else None
        request = Request("get", (path,), self._network.loop.time(), part=part)
        (found, taken), is_cut = await self._network.ask(request)
        return _Answer(self._network, path, found, taken, is_cut)

    async def put_async(self, store: object, path: str, file: bytes, *, mode: Any, use_multipart: bool) -> Any:
        request = Request("put", (path,), self._network.loop.time(), data=bytes(file), mode=mode)
        etag, _ = await self._network.ask(request)
        return {"e_tag": etag, "version": None}

    async def delete_async(self, store: object, paths: str | Sequence[str]) -> None:
        keys = (paths,) if isinstance(paths, str) else tuple(paths)
        await self._network.ask(Request("delete", keys, self._network.loop.time()))

    def list(self, prefix: str, *, offset: str | None = None, chunk_size: int = 50) -> _Pages:
        return _Pages(self._network, prefix, offset or "")


class _Pages:
    """A listing of the objects in a folder, whose pages are requests of their own."""

    def __init__(self, network: Network, folder: str, after: str) -> None:
        self._network = network
        self._folder = folder
        self._after: str | None = after

    def __aiter__(self) -> _Pages:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        if self._after is None:
            raise StopAsyncIteration
        request = Request("list", (self._folder,), self._network.loop.time(), after=self._after)
        found, _ = await self._network.ask(request)
        self._after = found[-1][0] if len(found) == self._network.server.page else None
        if not found:
            raise StopAsyncIteration
        return [meta(key, stored) for key, stored in found]


class _Answer:
    """An object on its way to a client: what obstore calls a `GetResult`. If `is_cut`, the connection is reset while the
    bytes come."""

    def __init__(self, network: Network, key: str, found: Stored, taken: tuple[int, int], is_cut: bool) -> None:
        self._network = network
        self._machine = current_machine()
        self._data = found.data[slice(*taken)]
        self._is_cut = is_cut
        self.range = taken
        self.meta = meta(key, found)

    async def bytes_async(self) -> _Bytes:
        await self._network.travel()
        if self._is_cut:
            raise lost()
        self._network.moved(self._machine)
        return _Bytes(self._data)

    def stream(self, *, min_chunk_size: int) -> _Stream:
        return _Stream(self, min_chunk_size)

    async def piece(self, start: int, size: int) -> bytes:
        await self._network.travel()
        if self._is_cut and start:
            raise lost()
        self._network.moved(self._machine)
        return self._data[start : start + size]


class _Stream:
    """The bytes of an object, in pieces of `size` bytes."""

    def __init__(self, answer: _Answer, size: int) -> None:
        self._answer = answer
        self._size = size
        self._at = 0

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._answer.piece(self._at, self._size)
        if not piece:
            raise StopAsyncIteration
        self._at += len(piece)
        return piece


class _Bytes(bytes):
    def to_bytes(self) -> bytes:
        return bytes(self)
