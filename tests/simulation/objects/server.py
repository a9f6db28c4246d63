"""The simulated bucket: objects with tags and times, and what each request does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from blake3 import blake3
from obstore import exceptions

from tests.simulation.loop import EPOCH, SimulatedLoop

__all__ = ["CONDITIONS", "Request", "Server", "Stored", "busy", "lost", "meta"]

CONDITIONS = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
"""The errors of a put whose condition does not hold."""
LATEST_DELETE = 20.0
"""Seconds after which a delete that was sent does nothing any more: twice as long as a client waits for its answer."""


class Stored(NamedTuple):
    """An object in the bucket."""

    data: bytes
    etag: str
    modified: datetime


class Request(msgspec.Struct, eq=False):
    """One request of a client: `kind` is "get", "put", "delete" or "list"."""

    kind: str
    keys: Sequence[str]
    sent: float
    data: bytes = b""
    mode: Any = "overwrite"
    part: tuple[int, int] | None = None
    """The first byte that is wanted, and the one after the last."""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(_short(key) for key in self.keys)}"


class Server:
    """A bucket and the server that holds it. It carries out one request at a time, each of them at once."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.dice = loop.dice
        self.objects: dict[str, Stored] = {}
        self.ahead = self.dice.choice((0.0, 0.0, -2.0, 500.0))
        """How many seconds its clock is ahead of the real one."""
        self.is_coarse = self.dice.random() < 0.5
        """Whether it tells times to the second, as S3 does in the header of an answer."""
        self.hashes_content = self.dice.random() < 0.5
        """Whether the tag of an object is made of its bytes, as with S3, or new with every put, as with Azure."""
        self.page = self.dice.choice((1, 3, 1000))
        """The most objects in one answer to a listing."""
        self.throttled = 0.0
        """The share of requests that it refuses with 503."""
        self.is_up = True
        self._thawed = asyncio.Event()
        self._thawed.set()

    # Faults

    def stop(self) -> None:
        """Take connections no more: every request fails at once."""
        self.loop.say("the server is stopped")
        self.is_up = False

    def start(self) -> None:
        self.loop.say("the server is started")
        self.is_up = True

    def freeze(self) -> None:
        """Take requests and answer none of them."""
        self.loop.say("the server freezes")
        self._thawed.clear()

    def thaw(self) -> None:
        self.loop.say("the server goes on")
        self._thawed.set()

    # Requests

    async def serve(self, request: Request) -> Any:
        """Carry out a request and return its answer. Raises the error of obstore that stands for the server's answer, or
        for none."""
        await self._thawed.wait()
        if not self.is_up:
            raise lost()
        if self.dice.random() < self.throttled:
            raise busy()
        if request.kind == "delete" and self.loop.time() - request.sent > LATEST_DELETE:
            raise lost()
        answer = getattr(self, f"_{request.kind}")(request)
        self.loop.say("%s is done", request)
        return answer

    def _get(self, request: Request) -> tuple[Stored, tuple[int, int]]:
        found = self.objects.get(request.keys[0])
        if found is None:
            raise absent(request.keys[0])
        start, stop = request.part or (0, len(found.data))
        if request.part and start >= len(found.data):
            raise exceptions.GenericError("status code: 416 Range Not Satisfiable")
        return found, (start, min(stop, len(found.data)))

    def _put(self, request: Request) -> str:
        key, found = request.keys[0], self.objects.get(request.keys[0])
        if request.mode == "create" and found is not None:
            raise exceptions.AlreadyExistsError("status code: 412 Precondition Failed")
        if isinstance(request.mode, dict):
            if found is None:
                raise absent(key)
            if found.etag != request.mode["e_tag"]:
                raise exceptions.PreconditionError("status code: 412 Precondition Failed")
        number = next(self.loop.numbers)
        etag = blake3(request.data).hexdigest(8) if self.hashes_content else f"etag {number}"
        self.objects[key] = Stored(request.data, etag, self._now())
        return etag

    def _delete(self, request: Request) -> None:
        for key in request.keys:
            self.objects.pop(key, None)

    def _list(self, request: Request) -> list[tuple[str, Stored]]:
        folder = request.keys[0] + "/"
        keys = sorted(key for key in self.objects if key.startswith(folder) and key > request.after)
        return [(key, self.objects[key]) for key in keys[: self.page]]

    def _now(self) -> datetime:
        now = datetime.fromtimestamp(EPOCH + self.loop.time() + self.ahead, UTC)
        return now.replace(microsecond=0) if self.is_coarse else now


def meta(key: str, found: Stored) -> dict[str, Any]:
    """Return what obstore tells of an object besides its bytes."""
    return {
        "path": key,
        "size": len(found.data),
        "e_tag": found.etag,
        "version": None,
        "last_modified": found.modified,
    }


def absent(key: str) -> Exception:
    return FileNotFoundError(f"Object at location {key} not found: status code: 404 Not Found <Code>NoSuchKey</Code>")


def busy() -> Exception:
    return exceptions.GenericError("status code: 503 Service Unavailable <Code>SlowDown</Code>")


def lost() -> Exception:
    """The connection was reset, or there never was one."""
    return exceptions.GenericError("error sending request")


def _short(key: str) -> str:
    """Return a key for the trace: without the folder of the namespace, and only the beginning of each name."""
    return "/".join(part[:8] for part in key.split("/")[1:])
