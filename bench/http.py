"""What an append over HTTP costs, beside the store behind the server and one bare round trip of the same bytes.

The server is `clew serve` in a process of its own, with one path more that reads a body and answers: the bare round trip
goes through the same uvicorn, and by the same client. The same round trip by httpx is shown for comparison.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec

from bench.corpus import Corpus
from bench.lanes import prepare
from bench.results import Result, at_most, spread
from bench.scale import Scale, progress, scratch
from bench.show import micros
from clew.checkpointers import Head, SQLiteCheckpointer
from clew.checkpointers.http.connections import Address, Answer, Pool
from clew.checkpointers.http.protocol import MSGPACK, Append
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.checkpointers.patience import Patience

__all__ = ["http"]

BARE = "/bare"
_OURS, _STORE, _TRIP, _HTTPX = "ours", "store", "trip", "httpx"

Times = dict[str, list[float]]


async def http(scale: Scale) -> list[Result]:
    turns = max(scale.turns)
    frames = [turn.json.encode() for turn in prepare(Corpus().conversation(turns))]
    runs: list[Times] = []
    for repeat in range(scale.repeats):
        progress(f"http: {turns} appends, repeat {repeat + 1} of {scale.repeats}")
        with scratch() as folder:
            runs.append(await _measure(frames, folder))
    floors = [[store + trip for store, trip in zip(run[_STORE], run[_TRIP], strict=True)] for run in runs]
    return [
        Result(
            f"append over HTTP, {turns} turns / the store + a bare round trip",
            micros(_typical([run[_OURS] for run in runs])),
            micros(_typical(floors)),
            spread([_middle(run[_OURS]) / _middle(floor) for run, floor in zip(runs, floors, strict=True)]),
            at_most(1.5),
        ),
        Result(
            "bare round trip: clew's client / httpx",
            micros(_typical([run[_TRIP] for run in runs])),
            micros(_typical([run[_HTTPX] for run in runs])),
            spread([_middle(run[_TRIP]) / _middle(run[_HTTPX]) for run in runs]),
        ),
    ]


def _middle(times: Sequence[float]) -> float:
    return statistics.median(times)


def _typical(runs: Sequence[Sequence[float]]) -> float:
    return statistics.median(map(_middle, runs))


async def _measure(frames: Sequence[bytes], folder: Path) -> Times:
    """Each frame every way before the next one, in an order drawn anew each time."""
    times: Times = {_OURS: [], _STORE: [], _TRIP: [], _HTTPX: []}
    order = Random(len(frames))
    async with (
        _server(folder / "served.db") as port,
        HTTPCheckpointer(f"http://127.0.0.1:{port}") as ours,
        SQLiteCheckpointer(folder / "alone.db") as alone,
        httpx.AsyncClient() as library,
    ):
        pool = Pool(Address("127.0.0.1", port, None), Patience("the bare server"))
        headers = [("host", f"127.0.0.1:{port}"), ("content-type", MSGPACK)]
        for at, frame in enumerate(frames):
            head = _head(at + 1)
            body = msgspec.msgpack.encode(Append(at, head, [frame]))

            ways: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                (_OURS, partial(ours.append, "bench", [frame], at=at, head=head)),
                (_STORE, partial(alone.append, "bench", [frame], at=at, head=head)),
                (_TRIP, partial(pool.exchange, "POST", BARE, headers, body, _ignored)),
                (_HTTPX, partial(library.post, f"http://127.0.0.1:{port}{BARE}", content=body)),
            ]
            order.shuffle(ways)
            for name, way in ways:
                start = time.perf_counter()
                await way()
                times[name].append(time.perf_counter() - start)
        await pool.close()
    return times


def _head(frames: int) -> Head:
    now = datetime.now(UTC)
    return Head(thread_id="bench", frames=frames, log_id="bench", status="running", created_at=now, updated_at=now)


def _ignored(answer: Answer) -> Any:
    return lambda data: None


@asynccontextmanager
async def _server(path: Path) -> AsyncIterator[int]:
    """A server in a process of its own; gives its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.http", str(path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


def _serve(path: str) -> None:
    """`clew serve` with its access log, and the bare path."""
    import logging

    from clew.server import Server, Settings

    class Reported(Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print(self.port, flush=True)

    log = logging.getLogger("clew.server")
    log.addHandler(logging.FileHandler(Path(path).with_name("access.log")))
    log.setLevel(logging.INFO)
    server = Reported(Settings(store=f"sqlite:///{path}", port=0, no_token=True))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != BARE:
            await server.gate(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    server.config.app = app
    server.run()


if __name__ == "__main__":
    _serve(sys.argv[1])
