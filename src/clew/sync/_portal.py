"""The portal: an event loop that runs in one background OS thread of the process, and the function `call`, with which
all other OS threads run functions on that event loop and wait for the result.

It does what the blocking portal of the package anyio does, and three things more. First, if the OS thread that waits is
interrupted (Ctrl+C), the interrupt is raised there only once the function has ended, even if it comes while the
function is being handed over to the event loop. Second, a forked child process never touches the event loop of its
parent, and does not wait for it at exit. Third, a call takes one switch between OS threads instead of two (measured: 40
% less time).
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from clew.errors import UsageError

__all__ = ["call", "close_at_exit", "stop_at_exit"]

EXIT_TIME = 1.0
"""How many seconds, at most, each of the four steps at exit may take: to end calls, to stop agents, to end asyncio
tasks that are left, and to close stores."""

_PATIENCE = 0.1 if sys.platform == "win32" else None
"""For how many seconds at most an OS thread that waits for a call sleeps before it checks again; None for no limit. On
Windows the time has to be short, because a signal such as Ctrl+C does not interrupt a sleeping thread."""

_INTERRUPTED_AGAIN = (
    "clew.sync was interrupted again while the first interrupt was being put on record. The call was cancelled and ends in "
    "the background; the exit of the interpreter waits a few seconds for it."
)


class Closes(Protocol):
    def close(self) -> Coroutine[Any, Any, None]: ...


class Stops(Protocol):
    def aclose(self) -> Coroutine[Any, Any, None]: ...


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a function in the OS thread of the event loop, wait, and return its result or raise its error. If the result
    is a coroutine or a future, it is awaited there.

    Other objects that can be awaited, such as a run of an agent, are returned as they are.

    If the caller is interrupted (Ctrl+C), the call is cancelled, and the interrupt is raised once the call has ended. A
    second interrupt is raised at once, although the call may still be ending; a note on the exception says so. When the
    interpreter exits, it waits a few seconds for such a call.
    """
    return _portal().call(_Operation(function, args, kwargs))


def close_at_exit(resource: Closes) -> None:
    """Close this object when the interpreter exits, if the object still exists then. Registering the object here does
    not keep it alive. It may be closed before by its user, so closing it twice must not be an error."""
    _to_close.add(resource)


def stop_at_exit(worker: Stops) -> None:
    """Stop this object, such as an agent, when the interpreter exits, if it still exists then. All such objects are
    stopped before stores are closed."""
    _to_stop.add(worker)


class _Operation:
    """A function with its arguments, to be called on the event loop while the caller waits in another OS thread."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._work = function, args, kwargs
        self._context = contextvars.copy_context()
        self._settled = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def start(self, portal: _Portal) -> None:
        """Begin to run the function that this object was made for, in an asyncio task of its own on the event loop of
        `portal`. Must be called in the OS thread of that event loop."""
        self._task = portal.loop.create_task(self._run(), context=self._context)
        portal.running.add(self._task)
        self._task.add_done_callback(functools.partial(self._settle, portal))

    def cancel(self) -> None:
        """Cancel the asyncio task in which the function runs. If the function was never started, only let the waiting
        caller go on. Must be called in the OS thread of the event loop."""
        if self._task is None:
            self._settled.set()
        else:
            self._task.cancel()

    async def _run(self) -> None:
        function, args, kwargs = self._work
        try:
            result = function(*args, **kwargs)
            self._result = await result if isinstance(result, Coroutine | asyncio.Future) else result
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
            self._error = error

    def _settle(self, portal: _Portal, task: asyncio.Task[None]) -> None:
        portal.running.discard(task)
        if not portal.stopping.is_set():  # at exit only daemon threads still wait, and they end with the interpreter
            self._settled.set()

    def wait(self) -> None:
        while not self._settled.wait(_PATIENCE):
            pass

    def outcome(self) -> Any:
        try:
            if self._error is not None:
                raise self._error
            return self._result
        finally:
            self._error = None  # break the reference cycle: the error holds this frame, and this frame holds the error


class _Portal:
    """The event loop of `clew.sync`, on which all blocking calls do their work, and the OS thread in which it runs."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()
        """The tasks of all calls under way. They are kept here because the event loop alone does not keep a task from
        being garbage-collected."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clew.sync", daemon=True)
        self._thread.start()
        self._ready.wait()

    def call(self, operation: _Operation) -> Any:
        if threading.get_ident() == self._thread.ident:
            raise UsageError(
                "a blocking call from inside clew.sync's own event loop would wait for itself for ever. "
                "In a callback use the async names of clew, or call from another thread."
            )
        try:
            self._hand_over(operation.start, self)
            operation.wait()
        except BaseException:
            self._hand_over(operation.cancel)
            try:
                operation.wait()
            except BaseException as again:
                again.add_note(_INTERRUPTED_AGAIN)
                raise again from None
            raise
        return operation.outcome()

    def _hand_over(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop is closed
            _end_with_the_interpreter()

    def stop(self) -> None:
        """Stop the event loop and wait for its end, for at most four times `EXIT_TIME` seconds. If Ctrl+C is pressed,
        return without waiting any longer."""
        with suppress(KeyboardInterrupt):
            self.loop.call_soon_threadsafe(self.stopping.set)
            self._thread.join(4 * EXIT_TIME)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self._ready.set()
        await self.stopping.wait()
        await _cancelled(self.running.copy())  # first: these may wait for other tasks, which finish their work
        await _ended([asyncio.ensure_future(worker.aclose()) for worker in list(_to_stop)])
        await _cancelled(asyncio.all_tasks() - self.running - {asyncio.current_task()})
        await _ended([asyncio.ensure_future(resource.close()) for resource in list(_to_close)])


async def _cancelled(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await _ended(tasks)


async def _ended(futures: Collection[asyncio.Future[Any]]) -> None:
    if futures:
        done, _ = await asyncio.wait(futures, timeout=EXIT_TIME)
        for future in done:
            if not future.cancelled():
                future.exception()  # mark it as retrieved, so that asyncio does not log it


_lock = threading.Lock()
_current: _Portal | None = None
_exiting = False
_to_close: weakref.WeakSet[Closes] = weakref.WeakSet()
_to_stop: weakref.WeakSet[Stops] = weakref.WeakSet()


def _portal() -> _Portal:
    global _current
    portal = _current
    if portal is None:
        with _lock:
            if not _exiting and (portal := _current) is None:
                portal = _current = _Portal()
    return portal or _end_with_the_interpreter()


def _end_with_the_interpreter() -> NoReturn:
    """Refuse a call that is made while the interpreter exits. Raises `UsageError` in the main OS thread, which runs the
    user's exit handlers. In a daemon thread it never returns: the interpreter ends that thread soon, nobody waits for
    its result, and an error would only print a traceback at the end of a program that went well."""
    while threading.current_thread().daemon:
        threading.Event().wait()
    raise UsageError("the interpreter is exiting and clew.sync has stopped. Make such calls earlier.")


def _stop() -> None:
    global _current, _exiting
    with _lock:
        portal, _current, _exiting = _current, None, True
    if portal is not None:
        portal.stop()


def _forget() -> None:
    """Make `clew.sync` begin with a new event loop in a forked child process. The old event loop cannot be used there,
    because the OS thread in which it runs exists only in the parent process."""
    global _current, _lock, _to_close, _to_stop
    _inherited.append((_current, _to_close, _to_stop))
    _current, _lock, _to_close, _to_stop = None, threading.Lock(), weakref.WeakSet(), weakref.WeakSet()


_inherited: list[object] = []
"""What a forked child process has from its parent: the portal (an event loop and its OS thread), and the sets of
objects to stop or close at exit. These references keep the child from finalizing them."""

atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
