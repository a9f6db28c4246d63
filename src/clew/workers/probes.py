"""A small HTTP listener with which others watch a worker: `/healthz`, `/readyz` and `/metrics`, as `clew serve` has them.

It answers GET and HEAD, one request a connection. Anybody who can connect may ask, so each client gets little memory and
little time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from clew._runtime.aio import cancel_and_wait
from clew.errors import InvalidInput
from clew.workers.worker import Worker

__all__ = ["listening", "metrics", "parse_address"]

_LONGEST_HEAD = 8192
"""The most bytes of a request: its line and its headers."""
_PATIENCE = 5.0
"""Seconds that a client may take to send its request, and again to take the answer."""
_MOST_CLIENTS = 64
"""The most connections at a time. For a further one, the oldest is closed."""
_ALIVE = 60.0
"""The loop of a worker lives if it went round within so many seconds."""


def parse_address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`, such as `127.0.0.1:9090` or `[::1]:9090`. The port 0 is any free port. Raises `InvalidInput` for
    anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise InvalidInput(f"{text!r} is not an address to listen on. Write HOST:PORT, for example 127.0.0.1:9090.")
    return host.removeprefix("[").removesuffix("]"), int(port)


@asynccontextmanager
async def listening(worker: Worker, host: str, port: int) -> AsyncIterator[str]:
    """Answer those who watch this worker, inside the context. Yields the URL. Raises `InvalidInput` if it is not possible
    to listen at this address."""
    clients: dict[asyncio.Task[None], None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - the server runs this as a task
        if len(clients) == _MOST_CLIENTS:
            next(iter(clients)).cancel()
        clients[me] = None
        try:
            await _answer(worker, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):  # the client is gone, or too slow
            pass
        finally:
            clients.pop(me, None)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    try:
        server = await asyncio.start_server(serve, host, port, limit=_LONGEST_HEAD)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"cannot listen on {host}:{port}: {reason}. Choose another address or port.") from None
    try:
        bound = server.sockets[0].getsockname()
        yield f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
    finally:
        server.close()
        await cancel_and_wait(list(clients))


async def _answer(worker: Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        status, text, kind = _respond(worker, head)
    except asyncio.LimitOverrunError:
        head, (status, text, kind) = b"", (431, f"the request is longer than {_LONGEST_HEAD} bytes\n", "text/plain")
    body = text.encode()
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + (b"" if head.startswith(b"HEAD ") else body))
    async with asyncio.timeout(_PATIENCE):
        await writer.drain()
        with suppress(OSError):
            writer.write_eof()
        await reader.read(_LONGEST_HEAD)  # until the client closes: to close first could lose the answer


def _respond(worker: Worker, head: bytes) -> tuple[int, str, str]:
    """Return the status, the body and the content type of the answer to a request."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return 400, "this is not an HTTP request\n", "text/plain"
    if words[0] not in (b"GET", b"HEAD"):
        return 405, "only GET and HEAD\n", "text/plain"
    match words[1].split(b"?", 1)[0]:
        case b"/healthz":
            return _told(_ailment(worker))
        case b"/readyz":
            return _told(_unreadiness(worker))
        case b"/metrics":
            return 200, metrics(worker), "text/plain; version=0.0.4"
    return 404, "there are /healthz, /readyz and /metrics\n", "text/plain"


def _told(trouble: str) -> tuple[int, str, str]:
    return (503, f"{trouble}\n", "text/plain") if trouble else (200, "ok\n", "text/plain")


def _ailment(worker: Worker) -> str:
    """Return what is wrong with the loop of a worker; empty if nothing is."""
    at = worker.pulse.round_at
    if at is None:
        return "the worker has not begun yet"
    still = time.monotonic() - at
    return "" if still <= max(_ALIVE, 2 * worker.poll) else f"the worker's loop has stood still for {still:.0f} s"


def _unreadiness(worker: Worker) -> str:
    """Return why a worker takes no threads; empty if it does."""
    if worker.is_draining:
        return "the worker is draining"
    if worker.pulse.looked_at is None:
        return "the worker has not read the queue yet"
    return "" if worker.pulse.is_store_ok else "the store did not answer the last look"


def metrics(worker: Worker) -> str:
    """Return the numbers of a worker in the text format of Prometheus."""
    counts, pulse = worker.counts, worker.pulse
    ended = "clew_worker_ended_total"
    lines = [f"# HELP {ended} Runs that have ended, by the status of the thread.", f"# TYPE {ended} counter"]
    lines += [f'{ended}{{status="{status}"}} {counts.ended.get(status, 0)}' for status in _STATUSES]
    since = float("nan") if pulse.looked_at is None else max(0.0, time.monotonic() - pulse.looked_at)
    for name, kind, words, value in (
        ("taken_total", "counter", "Threads that were taken from the queue.", counts.taken),
        ("recovered_total", "counter", "Threads that were put back because their worker had died.", counts.recovered),
        ("limits_reached_total", "counter", "Threads that were left because of a limit.", counts.limits_reached),
        ("running", "gauge", "Threads that run in this worker now.", worker.running),
        ("concurrency", "gauge", "Threads that run in this worker at most.", worker.concurrency),
        ("draining", "gauge", "1 if the worker takes no more threads, because it is to end.", int(worker.is_draining)),
        ("queue_read_seconds", "gauge", "Seconds since the queue was last read.", f"{since:.3f}"),
        (
            "oldest_due_seconds",
            "gauge",
            "For how long the oldest due thread had waited at the last look.",
            f"{pulse.oldest_due:.3f}",
        ),
    ):
        full = f"clew_worker_{name}"
        lines += [f"# HELP {full} {words}", f"# TYPE {full} {kind}", f"{full} {value}"]
    return "\n".join(lines) + "\n"


_STATUSES = ("done", "waiting", "interrupted", "failed", "queued", "busy")
