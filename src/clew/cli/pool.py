"""Run a worker in the foreground: find its agents, check its store, hear signals, and print what happens."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TextIO

import msgspec
from blake3 import blake3

from clew._runtime.text import elapsed, one_line, plural
from clew.agent import Agent
from clew.checkpointers import Checkpointer, HeadQuery, MemoryCheckpointer, open_checkpointer
from clew.checkpointers.wrapper import WrappedCheckpointer
from clew.cli.failures import INTERRUPTED
from clew.cli.imports import find_object, importing_from
from clew.cli.output.console import console, json_line, say
from clew.cli.output.heads import status_cell
from clew.errors import ClewError, Corrupt, InvalidInput, Unavailable, UsageError
from clew.workers import Ended, Retries, Taken, Worker, WorkerEvent
from clew.workers.probes import listening, parse_address

__all__ = ["Pool", "Summary", "find_agents"]

_LONGEST = 300
"""The most characters of a reason that is printed."""
_TRIAL = b"clew work"
"""A blob that is written to see whether the store takes it."""


class Summary(NamedTuple):
    """How the work has ended."""

    failed: int
    is_stopped: bool
    """Whether it was stopped at once, and not drained."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `clew work`."""

    agents: Sequence[str]
    store: str | None
    concurrency: int
    tags: Mapping[str, str]
    limits: Mapping[str, int]
    tries: int
    timeout: float | None
    label: str
    listen: str | None

    async def work(self, *, json: bool, until_empty: bool) -> Summary:
        """Take threads and run them until a signal comes or, with `until_empty`, until there is nothing to do. Print what
        happens, as JSON lines if `json` is set."""
        address = None if self.listen is None else parse_address(self.listen)
        with _printing(json) as view:
            agents = await find_agents(self.agents)
            async with AsyncExitStack() as stack:
                store = await stack.enter_async_context(open_checkpointer(self.store)) if self.store else None
                worker = Worker(
                    [await stack.enter_async_context(agent) for agent in agents],
                    store=store,
                    concurrency=self.concurrency,
                    tags=self.tags,
                    limits=self.limits,
                    retries=Retries(most=self.tries),
                    timeout=self.timeout,
                    label=self.label,
                    on_event=view.show,
                )
                await _check(worker.store)
                url = None
                if address is not None:
                    url = await stack.enter_async_context(listening(worker, *address))
                view.begin(worker, url)
                stops = _Stops(worker, view)
                with stops.heard():
                    try:
                        await worker.run(until_empty=until_empty)
                    except asyncio.CancelledError:
                        if not stops.is_at_once:
                            raise
                view.end(worker)
                return Summary(worker.counts.ended.get("failed", 0), stops.is_at_once)


async def find_agents(named: Sequence[str]) -> list[Agent]:
    """Import the agents that these texts name, each written `module:name`, from the current folder. A text may name an
    agent, a list or dict of agents, or a function that returns one of these, which may be async. An agent that is named
    twice is returned once."""
    importing_from(os.getcwd())
    found: dict[int, Agent] = {}
    for where in named:
        value = find_object(where, repr(where), "module:name, for example shop.agents:clerk")
        if not isinstance(value, Agent) and callable(value):
            try:
                value = value()
                value = await value if inspect.isawaitable(value) else value
            except ClewError:
                raise
            except Exception as error:
                raise InvalidInput(f"{where}: the function failed: {type(error).__name__}: {error}") from error
        for agent in _agents_in(value, where):
            found[id(agent)] = agent
    return list(found.values())


def _agents_in(value: Any, where: str) -> list[Agent]:
    if isinstance(value, Mapping):
        value = list(value.values())
    several = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if wrong := [each for each in several if not isinstance(each, Agent)]:
        kind = type(wrong[0]).__name__
        raise InvalidInput(f"{where} has a value of the type {kind}, and not agents: clew.Agent(…)")
    if not several:
        raise InvalidInput(f"{where} has no agents.")
    return several


async def _check(store: Checkpointer) -> None:
    """Raise an error, with the way out, if a worker cannot work on this store: other processes cannot put threads into
    it, or it cannot be read or written."""
    inner = store
    while isinstance(inner, WrappedCheckpointer):
        inner = inner.store
    if isinstance(inner, MemoryCheckpointer):
        raise InvalidInput(
            "the agents keep their threads in memory, where no other process can put any into the queue. Name a store "
            "that lasts: --store sqlite:///clew.db for workers of one machine, or postgresql://… for those of several."
        )
    try:
        async for _ in store.heads(HeadQuery(order="due", limit=1)):
            pass
        digest = blake3(_TRIAL).hexdigest()
        await store.put_blobs({digest: _TRIAL})
        with suppress(UsageError):
            await store.delete_blobs([digest], untouched_for=timedelta(0))
    except Corrupt:
        return  # the worker says so, and runs the other threads
    except Unavailable as error:
        error.add_note("Nothing was taken. Check that the store runs and can be reached, or name another with --store.")
        raise
    except UsageError as error:
        error.add_note("A worker reads and writes: give it a token with the scopes read and write.")
        raise


class _Stops:
    """Hears the signals that end a worker."""

    def __init__(self, worker: Worker, view: _View) -> None:
        self._worker = worker
        self._view = view
        self._count = 0
        self._task: asyncio.Task[Any] | None = None

    @property
    def is_at_once(self) -> bool:
        """Whether a second signal has come."""
        return self._count > 1

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside the context: the first drains the worker, the second cancels the current task,
        the third ends the process."""
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        signals = (signal.SIGINT, signal.SIGTERM)
        with suppress(NotImplementedError):  # Windows
            for each in signals:
                loop.add_signal_handler(each, self._hear)
        yield

    def _hear(self) -> None:
        self._count += 1
        if self._count == 1:
            self._worker.drain()
            self._view.drain(self._worker.running)
        elif self._count == 2 and self._task is not None:
            self._view.note("stopping at once; the threads go back to the queue")
            self._task.cancel()
        else:
            os._exit(INTERRUPTED)  # the leases of its threads end within 30 s


@contextmanager
def _printing(json: bool) -> Iterator[_View]:
    """Yield what prints the events of a worker. Except on a terminal, what the user's modules and tools print goes to
    the standard error. Log messages of Clew go there too, with control characters made visible."""
    handler, log = _Shown(), logging.getLogger("clew")
    log.addHandler(handler)
    propagates, log.propagate = log.propagate, False
    out = sys.stdout
    try:
        if not json and out.isatty():
            yield _View(out, json=False)
        else:
            with redirect_stdout(sys.stderr):
                yield _View(out, json=json)
    finally:
        log.removeHandler(handler)
        log.propagate = propagates


class _Shown(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        say(one_line(record.getMessage(), 4 * _LONGEST), err=True, dim=True)


class _View:
    """Prints what a worker does: lines for people, with colours on a terminal, or JSON lines."""

    def __init__(self, out: TextIO, *, json: bool) -> None:
        self._out = out
        self._json = json
        self._console = console() if not json and out.isatty() else None
        self._began = time.monotonic()

    def begin(self, worker: Worker, url: str | None) -> None:
        place = worker.store.place
        if self._json:
            self._object("started", agents=worker.agents, store=place, concurrency=worker.concurrency, url=url)
            return
        names = ", ".join(one_line(name) or "(no name)" for name in worker.agents)
        watched = f", watched at {url}" if url else ""
        self.note(f"works for {names} on {one_line(place)}, {worker.concurrency} at a time{watched}")

    def show(self, event: WorkerEvent) -> None:
        if self._json:
            self._object(type(event).__name__.lower(), **msgspec.to_builtins(event))
        elif isinstance(event, Taken):
            again = f", try {event.tries}" if event.tries > 1 else ""
            self._line("taken", event.thread_id, f"{one_line(event.agent)}{again}", "cyan")
        else:
            self._line(*_ending(event))

    def drain(self, running: int) -> None:
        if self._json:
            self._object("draining", running=running)
            return
        waits = f"waits for {plural(running, 'thread')} to end the open turn" if running else "nothing runs"
        self.note(f"draining: takes no more threads, and {waits}. Again to stop at once.")

    def end(self, worker: Worker) -> None:
        counts, seconds = worker.counts, time.monotonic() - self._began
        if self._json:
            self._object("summary", **msgspec.to_builtins(counts), seconds=round(seconds, 3))
            return
        parts = [f"{count} {'put back' if status == 'queued' else status}" for status, count in counts.ended.items()]
        said = f"{plural(counts.taken, 'thread')} taken{': ' if parts else ''}{', '.join(parts)}"
        recovered = f" · {counts.recovered} recovered from dead workers" if counts.recovered else ""
        self.note(f"{said}{recovered} · {elapsed(seconds)}")

    def note(self, text: str) -> None:
        if self._json:
            self._object("note", text=text)
        else:
            say(text, err=True, dim=True)

    def _line(self, word: str, thread_id: str, more: str, style: str) -> None:
        text = f"{word:<11} {one_line(thread_id)}{f'  {more}' if more else ''}"
        if self._console is None:
            self._write(text)
            return
        from rich.text import Text

        self._console.print(Text(text, style), soft_wrap=True)

    def _object(self, kind: str, **fields: Any) -> None:
        self._write(json_line({"type": kind, "at": datetime.now(UTC), **fields}))

    def _write(self, text: str) -> None:
        """Write a line. If nobody reads any more, go on working: the threads matter more than the lines."""
        with suppress(BrokenPipeError):
            self._out.write(f"{text}\n")
            self._out.flush()


def _ending(event: Ended) -> tuple[str, str, str, str]:
    """Return how to print the end of a run: a word, the thread's id, what more there is to say, and a style."""
    facts = [elapsed(event.seconds)]
    if event.turns:
        facts.insert(0, plural(event.turns, "turn"))
    if event.status not in ("done", "waiting") and event.reason:
        facts.insert(0, one_line(event.reason, _LONGEST))
    style = "yellow" if event.status in ("queued", "busy") else status_cell(event.status).style
    word = "put back" if event.status == "queued" else event.status
    return word, event.thread_id, " · ".join(facts), style
