"""Ends calls to a server that make no progress, in the same way for every store."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from clew._runtime.aio import Job
from clew.checkpointers.urls import not_this
from clew.errors import InvalidInput, Unavailable

try:
    import fcntl
    import termios
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["TIMEOUT", "Patience", "Waiting", "timeout_seconds", "unread_and_unsent", "unsent"]

TIMEOUT = 10.0
"""Seconds without progress after which a call raises `Unavailable`, if the user of the store sets nothing else."""
LONGEST = 3600.0
"""The most seconds that a user of a store may set as its `timeout`."""
SLOWEST_UPLOAD = 2**20
"""Bytes per second. If a driver does not show how much it has sent, the time limit of an upload is extended by the time
that its bytes take at this speed."""
_SMALL = 2**16
"""Uploads of fewer bytes get no additional time."""
_UNSEEN = object()
_LATE = 0.5
"""Seconds. If a check runs later than planned by more than this, then this process was stopped or busy. So it says
nothing about the server, and no call is ended yet."""

T = TypeVar("T")


class Waiting:
    """A call to a server that is ended if it makes no progress: when it began, and the function that ends it."""

    __slots__ = ("expire", "expired", "since")

    def __init__(self, since: float, expire: Callable[[], object]) -> None:
        self.since = since
        self.expire = expire
        self.expired = False


class Patience:
    """Ends calls to a server that make no progress for `seconds`. An ended call raises `Unavailable`, in which `where`
    names the server.

    A store has one such object for all its calls. It covers everything a call does: waiting for its turn, connecting,
    sending, retrying. A call ends when `seconds` have passed both since it began and since the server last showed a
    sign of life to any call of the store. So a call that waits in a queue goes on while the queue moves, and ends with
    the others when the server is silent.

    Each connection has another such object, made with `part`, so that one dead connection is noticed while others work.
    Progress on a connection counts as progress of its store.

    Progress shows in two ways: `moved` is called, or `sign` returns another value than before. `sign` is a function
    without arguments whose result changes while bytes move, such as the number of bytes that were received.
    """

    def __init__(
        self,
        where: str,
        seconds: float = TIMEOUT,
        *,
        whole: Patience | None = None,
        sign: Callable[[], object] | None = None,
    ) -> None:
        self.where = where
        self.seconds = seconds
        self._whole = whole
        self._sign = sign
        self._seen: object = _UNSEEN
        self._moved = -math.inf
        self._extra = 0.0
        self._waiting: dict[Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def part(self, sign: Callable[[], object] | None = None) -> Patience:
        """Return a new `Patience` for one connection of the store to which this `Patience` belongs. The new one ends
        calls on that connection that make no progress for `seconds`, the same time as here. Bytes that move on the
        connection count as progress of the whole store too. `sign` is a function without arguments whose result changes
        while bytes move on the connection."""
        return Patience(self.where, self.seconds, whole=self, sign=sign)

    def error(self) -> Unavailable:
        """Return the `Unavailable` error for a call that was ended because the server made no progress."""
        return Unavailable(
            f"{self.where}: no answer for {self.seconds:g} s. It is overloaded, frozen or cut off. The call may or may not "
            "have taken effect; the same call may be made again."
        )

    async def limit(self, work: Awaitable[T], *, is_progress: bool = True) -> T:
        """Await this work and return its result. If the server makes no progress for `seconds`, the time that this
        object was made with, cancels the work and raises `Unavailable`. When the work returns a result, that counts as
        progress of the server too. Pass `is_progress=False` for work that can return without an answer from the
        server."""
        task = asyncio.current_task()
        assert task is not None, "only a task can wait"  # noqa: S101 - said before
        before = task.cancelling()
        waiting = self.enter(task.cancel)
        try:
            result = await work
        except BaseException as error:
            if waiting.expired and not isinstance(error, GeneratorExit) and task.uncancel() <= before:
                raise self.error() from (None if isinstance(error, asyncio.CancelledError) else error)
            raise
        finally:
            self.leave(waiting)
        if waiting.expired:
            task.uncancel()
        if is_progress:
            self.moved()
        return result

    async def finish(self, job: Job) -> Any:
        """Await a job (work done elsewhere, which cannot be cancelled), and return its result. If the server makes no
        progress for `seconds`, the time that this object was made with, raises `Unavailable`, although the work of the
        job may go on; its result is then ignored. If the caller is cancelled, its cancellation is raised when the job
        has ended, with the error of the job as its `__cause__`."""

        def give_up() -> None:
            job.error = self.error()
            job.settle()

        waiting = self.enter(give_up)
        try:
            return await job
        except asyncio.CancelledError as cancelled:
            raise cancelled from (job.exception() if job.done() else None)
        finally:
            self.leave(waiting)

    def enter(self, expire: Callable[[], object]) -> Waiting:
        """Begin to watch a call that starts now. `expire` is called without arguments if the server makes no progress
        for `seconds`, the time that this object was made with. Call `leave` with the returned object when the call has
        ended."""
        loop = asyncio.get_running_loop()
        waiting = Waiting(loop.time(), expire)
        self._seen = _UNSEEN
        self._waiting[waiting] = None
        if self._timer is None:
            self._arm(loop, waiting.since + self.seconds + self._extra)
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """Stop watching this call, because it has ended. Does nothing if the call is not watched any more."""
        self._waiting.pop(waiting, None)

    def moved(self) -> None:
        """Note a sign of life of the server: an answer, or bytes that were sent or received."""
        now = asyncio.get_running_loop().time()
        self._moved = now
        if self._whole is not None:
            self._whole._moved = now

    @contextmanager
    def uploading(self, size: int) -> Iterator[None]:
        """Give calls more time during the `with` block, in which `size` bytes are sent in a way whose progress cannot
        be seen. They get one more second for each MiB (`SLOWEST_UPLOAD`), and none for less than 64 KiB."""
        if size < _SMALL:
            yield
            return
        extra = size / SLOWEST_UPLOAD
        parts = [part for part in (self, self._whole) if part is not None]
        for part in parts:
            part._extra += extra
        try:
            yield
        finally:
            for part in parts:
                part._extra -= extra
                part._set_timer_again()

    def _set_timer_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            since = max(next(iter(self._waiting)).since, self._moved)
            self._arm(asyncio.get_running_loop(), since + self.seconds + self._extra)

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Set the timer for the next check whether calls still make progress. The check is made at the time `due` of
        the event loop's clock. If this object has a function `sign`, whose result changes while bytes move, the check
        is made after at most a quarter of `seconds` (how long a call may make no progress): only checks call `sign`, so
        it has to be called often."""
        now = loop.time()
        self._due = due if self._sign is None else min(due, now + self.seconds / 4)
        self._timer = loop.call_later(self._due - now, self._check)

    def _check(self) -> None:
        """End the calls that have made no progress for `seconds`, the time that this object was made with, and set the
        timer for the next check. If the check itself runs late, because this process was held up, ends no calls and
        checks again a little later, because answers may have come that are not read yet."""
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._due > _LATE:  # answers may have arrived while this process was held up: let them be read first
            self._due = math.inf
            self._timer = loop.call_later(min(_LATE, self.seconds / 4), self._check)
            return
        if self._sign is not None:
            before, self._seen = self._seen, self._sign()
            if before is not _UNSEEN and self._seen != before:
                self.moved()
        while self._waiting:
            waiting = next(iter(self._waiting))
            due = max(waiting.since, self._moved) + self.seconds + self._extra
            if due > now:
                self._arm(loop, due)
                return
            del self._waiting[waiting]
            waiting.expired = True
            waiting.expire()


def unread_and_unsent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, int, int]:
    """Return three numbers of bytes for a connection: received but not read yet, waiting in this process to be sent,
    and given to the operating system but not yet confirmed by the other side. While a long request or answer is on its
    way, at least one of the numbers changes, which shows progress."""
    transport = writer.transport
    return len(reader._buffer), transport.get_write_buffer_size(), unsent(transport.get_extra_info("socket"))  # type: ignore[attr-defined]


def unsent(connection: Any) -> int:
    """Return how many of the bytes that were written to a socket the other side has not confirmed yet. The operating
    system still holds them, up to several MB. `connection` is the socket or its file number. Returns 0 where the system
    does not tell."""
    if fcntl is None or connection is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # closed by now
        return 0


def timeout_seconds(value: object) -> float:
    """Check the option `timeout`, as a URL or a caller gave it, and return it as a float: the seconds without progress
    after which a call ends. Raises `InvalidInput` unless it is a number more than 0 and at most 3600."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds <= LONGEST:
        raise InvalidInput(f"timeout must be more than 0 and at most {LONGEST:g} seconds{not_this(value)}")
    return seconds
