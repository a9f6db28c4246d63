"""Runs of agents, their results, and how runs are stopped."""

from __future__ import annotations

import asyncio
import sys
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from clew import advice
from clew._runtime.aio import cancel_and_wait
from clew.agent.events import Event, Question
from clew.errors import UsageError
from clew.log import Usage
from clew.messages import Block, Text, ToolCall, ToolResult
from clew.messages.dialects import Loss

__all__ = ["DRAINED", "Drain", "Emit", "Run", "RunResult", "ToolUse", "stop_all"]

T = TypeVar("T", covariant=True)
Emit = Callable[[Event], None]
DRAINED = "drained"
"""The reason of a run that ended because it was asked to end after its open turn."""
_END = object()


class Drain:
    """Tells a run whether it was asked to end after its open turn."""

    def __init__(self) -> None:
        self.is_asked = False


async def stop_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these asyncio tasks, except the one that calls this, and return once they have ended.

    Raises `UsageError` for a task that runs on another event loop. Tasks of a closed event loop are skipped: they ended
    with it.
    """
    others = [task for task in tasks if task is not asyncio.current_task() and not task.done()]
    running = [task for task in others if not task.get_loop().is_closed()]
    for task in running:
        _check_loop(task)
    await cancel_and_wait(running)


class ToolUse(msgspec.Struct, frozen=True):
    """A tool call and its result. `result` is None if no result is on record."""

    name: str
    arguments: Any
    result: ToolResult | None = None

    @property
    def output(self) -> str:
        """The text of the result; empty if there is no result."""
        return (
            ""
            if self.result is None
            else "\n".join(part.text for part in self.result.content if isinstance(part, Text))
        )

    @property
    def is_error(self) -> bool:
        return self.result is not None and self.result.is_error


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: how it ended, what was said and done, and what it cost."""

    output: Any = None
    """The model's final answer; None if the run ended before there was one."""
    thread_id: str
    prompt: str = ""
    prompt_id: str = ""
    """The id of the prompt: the one that was given, or one that was made for it."""
    provider: str = "clew"
    """Who worked on the prompt: `clew` (the built-in agent) or the name of an outside agent."""
    model: str = ""
    session_id: str = ""
    """The id of the session that the run was part of. For the built-in agent it is the thread id."""
    status: Literal["done", "waiting", "interrupted", "failed", "running"]
    """How the run ended. `failed` and `running` occur only in a trajectory: the caller of a failed run gets the
    exception.
    """
    reason: str = ""
    """Why the run was interrupted: `max_turns: …`, `budget: …` or `timeout: …`, or `turns: …` or `drained` if it was
    told to end after so many turns or after the open turn. It may also say that the prompt was not
    asked yet, because earlier work on the thread waits for an answer or was interrupted. Such a prompt is on record,
    and is asked when the thread is resumed."""
    questions: tuple[Question, ...] = ()
    """The questions to people that have to be answered before the thread goes on."""
    usage: Usage | None = Usage()
    """Tokens that this run used; None if not known. Totals of the thread are in `trajectory.usage` and in its head."""
    cost: float | None = 0.0
    """What this run cost in dollars; None if a price or the usage is not known."""
    turns: int = 0
    """How many turns the whole thread has had by the end of this run, over all its runs."""
    position: int | None = None
    """The number of frames (appends) in the thread's log when the run had ended. A reader that has seen the thread up to
    this position has seen all that the run did. None if it is not known."""
    resumed_from: int | None = None
    """How many turns the thread had when this run began; None if the run began a new thread."""
    drift: Mapping[str, tuple[Any, Any]] = {}
    """What had changed since the last run on the thread, such as settings of the agent or files of the workspace. Maps
    the name of what changed to a pair: the recorded value, and the present one, which this run used."""
    waited: float = 0.0
    """Seconds that the run waited for the store: to open the thread, and until entries were stored. Releasing the
    thread is not counted, because that happens after the result."""
    duration: float = 0.0
    """Seconds that the run took."""
    blocks: tuple[Block, ...] = ()
    """What was said and done, in order: text, thinking, tool calls and their results."""
    losses: tuple[Loss, ...] = ()
    """Parts of the conversation that the provider could not be given in full, if the conversation came from another
    provider."""

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        """The tool calls of this run in order, each with its result if there is one. They are taken from `blocks`,
        which lists all that was said and done.

        Vendors may give several calls the same id. A result belongs to the first call before it that has its id and no
        result yet.
        """
        uses: list[ToolUse] = []
        open_calls: dict[str, list[int]] = {}
        for block in self.blocks:
            if isinstance(block, ToolCall):
                uses.append(ToolUse(block.name, block.arguments))
                open_calls.setdefault(block.id, []).append(len(uses) - 1)
            elif isinstance(block, ToolResult) and open_calls.get(block.call_id):
                place = open_calls[block.call_id].pop(0)
                uses[place] = msgspec.structs.replace(uses[place], result=block)
        return tuple(uses)


class Run(Generic[T]):
    """A run of an agent. Await it for its result, or iterate it for its events. It runs once.

        result = await agent.run("Send the invoices.")

        run = agent.stream("Send the invoices.")
        async for event in run:
            print(event)
        print(run.result.output)

    Nothing happens before it is awaited or iterated. If it is dropped before that, a warning says that nothing was run.

    A run that is iterated and then dropped, for instance by `break`, is cancelled: it records that it was interrupted,
    gives its lease back, and can be resumed. `await run.aclose()` does the same and returns once that is on record. A
    run that is iterated only in part and then awaited goes on to its end.
    """

    def __init__(self, work: Callable[[Emit], Awaitable[T]], drain: Drain | None = None) -> None:
        """`work` does the work of the run; it gets a function that it calls with each event. It looks at `drain` at the
        end of each turn. Without `drain`, the work does not end early if it is asked to."""
        self._work = work
        self._drain = drain or Drain()
        self._task: asyncio.Task[T] | None = None
        self._events: asyncio.Queue[Any] | None = None
        self._used = False

    def __await__(self) -> Generator[Any, None, T]:
        return self._finish().__await__()

    @property
    def result(self) -> T:
        """The result of a run that has finished. Reading it does not start the run, and does not wait.

        Raises `UsageError` if the run has not finished or was stopped, and the run's own error if it failed.
        """
        if self._task is None:
            raise UsageError("this run has not begun, so it has no result yet. Await it, or iterate it to its end.")
        if self._task.cancelled():
            raise UsageError(
                "this run was stopped before its end, so it has no result. What it did is on record: "
                f"{advice.resume_in_program('…')}"
            )
        if not self._task.done():
            raise UsageError("this run has not finished, so it has no result yet. Await it, or iterate it to its end.")
        return self._task.result()

    async def _finish(self) -> T:
        """Return the result; if the run has not ended, run it to its end first. Can be awaited several times, and after
        events were iterated."""
        task = self._task or self._start(lambda event: None)
        if task.cancelled() or not task.done():
            _check_loop(task)
        return await task

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._events is None:
            self._events = self._start_telling()
        elif self._task is not None:
            _check_loop(self._task)
        event = await self._events.get()
        if event is _END:
            self._events.put_nowait(_END)
            await self
            raise StopAsyncIteration
        return event  # type: ignore[no-any-return]

    def drain(self) -> None:
        """Ask the run to end after its open turn: when the tool calls under way have ended and are on record. Await the
        run for its result, which then has the status `interrupted` and the reason `drained`. A sub-agent that is at work
        ends after its own open turn. The thread goes on with the next run, as if nothing had happened.

        A provider's program cannot be stopped between turns: it works until it has answered its prompt. A run that has
        ended already, or finishes with this turn, is not changed.
        """
        self._drain.is_asked = True

    async def aclose(self) -> None:
        """Stop the run, and return once everything that it did is on record."""
        if self._task is None:
            self._used = True
            return
        await stop_all([self._task])

    def _begin(self) -> None:
        if self._used:
            raise UsageError("a run can be used only once, and this one was used before. Call agent.run again.")
        self._used = True

    def _start_telling(self) -> asyncio.Queue[Any]:
        events: asyncio.Queue[Any] = asyncio.Queue()
        self._start(events.put_nowait).add_done_callback(lambda task: events.put_nowait(_END))
        return events

    def _start(self, emit: Emit) -> asyncio.Task[T]:
        """Start the run in an asyncio task of its own and return the task. `emit` is called with each event. The task
        holds no reference to this `Run` object. So the object is garbage-collected when the program drops it, and the
        task is cancelled then."""
        self._begin()
        work = self._work

        async def run() -> T:
            return await work(emit)

        loop = asyncio.get_running_loop()
        self._task = loop.create_task(run())
        self._task.add_done_callback(_retrieve)
        finalizer = weakref.finalize(self, _cancel, loop, self._task)
        finalizer.atexit = False
        # The finalizer holds the task, and the task's error may hold this object: then neither would ever be freed.
        self._task.add_done_callback(lambda task: finalizer.detach())
        return self._task

    def __del__(self) -> None:
        if not self._used and not sys.is_finalizing():
            warnings.warn(
                "a run was dropped unused, so nothing happened: await agent.run(…), or iterate agent.stream(…)",
                RuntimeWarning,
                stacklevel=2,
            )


def _check_loop(task: asyncio.Task[Any]) -> None:
    """Raise `UsageError` if this asyncio task, in which a run works, belongs to another event loop than the current
    one. Without this check, asyncio would raise an error of its own, or would wait for ever."""
    loop = task.get_loop()
    if loop is asyncio.get_running_loop():
        return
    if loop.is_closed():
        raise UsageError(
            "this run was begun on another event loop, and was interrupted when that ended; every asyncio.run has its own. "
            f"Go on with its thread: {advice.resume_in_program('…')}"
        )
    raise UsageError(
        "this run goes on in another event loop, of another thread or of the process that this one was forked from. "
        "Await it, or stop it, there."
    )


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    if not task.done() and not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Read the exception of a finished asyncio task, so that asyncio does not warn that nobody has read it."""
    if not task.cancelled():
        task.exception()
