"""`ToolContext`: what a tool learns about the call that it runs for, and what it can ask of the agent. Also the values
that tools share and the record of a tool's steps."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from enum import Enum
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, TypeVar, cast, overload

import msgspec
from blake3 import blake3

from clew.errors import InvalidInput, UsageError
from clew.tools.signals import NOT_DONE, Interrupted, OutcomeUnknown
from clew.tools.values import json_like

__all__ = ["BlockingSteps", "Journal", "MemoryJournal", "Missing", "State", "ToolContext", "answer_key"]


T = TypeVar("T")
log = logging.getLogger("clew.tools")
_RESERVED = "clew:"


class ToolContext:
    """What a tool knows about the call that it runs for. A tool that has a parameter of this type receives one; the
    model does not see the parameter.

    Every argument has a default, so that a tool can be tested with `ToolContext()`.
    """

    def __init__(
        self,
        *,
        thread_id: str = "",
        call_id: str = "",
        idempotency_key: str = "",
        workspace: Path | None = None,
        state: MutableMapping[str, Any] | None = None,
        metadata: MutableMapping[str, Any] | None = None,
        attempt: int = 1,
        turn: int = 0,
        journal: Journal | None = None,
    ) -> None:
        self.thread_id = thread_id
        """The thread that the call belongs to."""
        self.call_id = call_id
        """The model's id for the call. The call's result carries the same id."""
        self.idempotency_key = idempotency_key
        """A key that is the same for every attempt at this call, and different for every other call. Pass it to outside
        services, such as payments, so that they can recognize a repeated request."""
        self.workspace = workspace
        """The folder that the agent's tools work in, or None if the agent has none."""
        self.state: MutableMapping[str, Any] = State() if state is None else state
        """The values that all tools of the thread share, by name. Changes that a tool makes here are recorded."""
        self.metadata: MutableMapping[str, Any] = State() if metadata is None else metadata
        """Values about the current turn that a tool wants on record, by name. They are JSON-like. Empty when the call
        begins. They are recorded with the outcome of the call as `checkpoint.metadata[turn]`, and removed when the turn
        is taken back."""
        self.attempt = attempt
        """The number of this attempt at the call, from 1. It is above 1 if the call was begun before, in this process
        or in one that died."""
        self.turn = turn
        """The turn of the thread that the call belongs to, counted from 1."""
        self._journal: Journal = MemoryJournal() if journal is None else journal
        self._stop = threading.Event()
        self._above: ToolContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keys: set[str] = set()
        self._questions = 0

    @property
    def cancelled(self) -> bool:
        """Whether the call was given up: it timed out, or the run is being stopped. Can be read from every OS thread.

        An async tool is cancelled anyway. A sync tool goes on in its OS thread, and should read this from time to time
        and stop if it is True.
        """
        return self._stop.is_set() or (self._above is not None and self._above.cancelled)

    def cancel(self) -> None:
        """Set `cancelled` to True: the call was given up. From then on, `step` runs no new step and `interrupt` asks no
        new question; both raise `OutcomeUnknown`."""
        self._stop.set()

    @property
    def blocking(self) -> BlockingSteps:
        """An object with the methods `step`, `fence` and `interrupt` of this context, for tools that are not async:
        `ctx.blocking.step("charge", charge)`."""
        return BlockingSteps(self)

    def step_key(self, key: str) -> str:
        """Return an idempotency key for one step of this call, a part of its work that is recorded by itself; `key` is
        the name of the step. The result is the same in every attempt at the call, and different for every other step.
        """
        return blake3(f"{self.idempotency_key}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @overload
    async def step(
        self, key: str, fn: Callable[[], Awaitable[T]], *, reconcile: Callable[[], Any] | None = None
    ) -> T: ...
    @overload
    async def step(self, key: str, fn: Callable[[], T], *, reconcile: Callable[[], Any] | None = None) -> T: ...
    async def step(self, key: str, fn: Callable[[], Any], *, reconcile: Callable[[], Any] | None = None) -> Any:
        """Run `fn`, sync or async, as one recorded part of this tool, and return what it returns.

        That the step begins is stored before `fn` runs, and its value as soon as it ends. So when the tool runs again
        after a crash, a step with a recorded value is not run again: the recorded value is returned. `key` names the
        step and can be used once in a call. The value must be JSON-like; it is returned as the log would return it, so
        a tuple becomes a list.

        A step that was begun earlier and has no recorded value may have happened. Then `reconcile` is called, if given:
        it returns the value, or `NOT_DONE` to have `fn` run. Without it `fn` runs again, and a warning is logged. Pass
        `ctx.step_key(key)` to the outside service that `fn` calls, so that it can recognize the repetition. If `fn`
        raises, no value is recorded, and the step runs again too.

        `fn` runs on the event loop: wrap work that blocks in `asyncio.to_thread`.
        """
        found = self._find(key)
        if not isinstance(found, Missing):
            return found
        if found is Missing.IN_DOUBT and reconcile is not None:
            value = await _settled(reconcile())
            if value is NOT_DONE and await self._journal.outwait_predecessor():
                value = await _settled(reconcile())
            if value is not NOT_DONE:
                return await self._finish(key, value)
        await self._begin(key, found)
        return await self._finish(key, await _settled(fn()))

    async def fence(self) -> None:
        """Return once the store has confirmed that this process still holds the thread. Call this right before an act
        that cannot be undone and must not happen twice, such as a payment.

        The process may have been frozen inside this tool for so long that another process took the thread over and did
        the same. Then this raises `Stopped`, which ends the run with `LeaseLost`, and the act does not happen here. It
        costs one write to the store. A freeze between this call and the act cannot be noticed: only
        `idempotency_key`, given to the outside service, protects against that.
        """
        self._check_going_on()
        await self._journal.fence()

    async def interrupt(self, question: str) -> Any:
        """Ask a person a question, and return the answer if it is on record.

        If there is no answer yet, this raises `Interrupted`, which ends the tool, and the thread waits. Once there is
        an answer, the tool runs again from its start, so put whatever must not happen twice into a `step`. Answers are
        matched to questions by their order: ask in the same order every time. Raises `InvalidInput` if the question is
        not a text.
        """
        if not isinstance(question, str) or not question.strip():
            raise InvalidInput(f"a question is a text for a person: ctx.interrupt('Pay Bob 900?'), not {question!r}")
        answer = self._answer(answer_key(self._questions), question)
        self._questions += 1
        return answer

    def _answer(self, key: str, question: str, **about: Any) -> Any:
        """Return a person's answer that is recorded under this key. If there is none, raise `Interrupted`, which ends
        the tool and has a person asked this `question`. `about` are further arguments for `Interrupted`."""
        found = self._journal.recorded(key)
        if isinstance(found, Missing):
            self._check_going_on()
            raise Interrupted(question, key, **about)
        return json_like(found, "the answer")

    def _find(self, key: str) -> Any:
        """Return the recorded value of the step with this key, or a `Missing` that says why there is none. A step is a
        part of a tool's work that is recorded by itself. Raises `InvalidInput` if the key is empty or not a text,
        begins with `clew:`, or was used before in this call."""
        if not isinstance(key, str) or not key or key.startswith(_RESERVED):
            raise InvalidInput(
                f"a step's key is a text that is not empty and does not begin with {_RESERVED!r}: {key!r}"
            )
        if key in self._keys:
            raise InvalidInput(
                f"the step {key!r} is made twice in one call. Give each its own key: f'{key}-{{number}}'."
            )
        self._keys.add(key)
        found = self._journal.recorded(key)
        return found if isinstance(found, Missing) else json_like(found, f"the step {key!r}")

    async def _begin(self, key: str, found: Missing) -> None:
        self._check_going_on()
        if found is Missing.IN_DOUBT:
            log.warning("thread %r: step %r was begun before, and is run again", self.thread_id, key)
        await self._journal.step_intent(key)

    async def _finish(self, key: str, value: Any) -> Any:
        try:
            kept = json_like(value, "its value")
        except InvalidInput as error:
            raise InvalidInput(f"the step {key!r} ran, and what it returned cannot be kept: {error}") from None
        await self._journal.step_outcome(key, kept)
        return json_like(kept, key)

    def _check_going_on(self) -> None:
        if self.cancelled:
            raise OutcomeUnknown("", "it was cancelled between two of its steps")

    def _for_attempt(self, attempt: int) -> ToolContext:
        """Return a context for one attempt to run the tool's function. It is for the same call as this context, but has
        its own `cancelled`, step keys and count of questions. `attempt` is the number of the attempt."""
        made = ToolContext(
            thread_id=self.thread_id,
            call_id=self.call_id,
            idempotency_key=self.idempotency_key,
            workspace=self.workspace,
            state=self.state,
            metadata=self.metadata,
            attempt=attempt,
            turn=self.turn,
            journal=self._journal,
        )
        made._above = self
        made._loop = asyncio.get_running_loop()
        return made


class BlockingSteps:
    """The methods `step`, `fence` and `interrupt` of a `ToolContext`, for sync tools, which run in an OS thread of
    their own. Everything is recorded as with the async methods.

    A function that is passed to `step` runs in the tool's own OS thread; only its record is written on the event loop.
    """

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx = ctx

    def step(self, key: str, fn: Callable[[], T], *, reconcile: Callable[[], Any] | None = None) -> T:
        """Run `fn` from a sync tool as one recorded part of its work, and return what `fn` returns. Blocks until the
        step has ended.

        `key` is the name of the step in this call. If the step has a recorded value from an earlier attempt at the
        call, that value is returned, and `fn` is not run. If the step was begun earlier and has no recorded value,
        `reconcile` is called, if given: it returns the value, or `NOT_DONE` to have `fn` run. Without `reconcile`, `fn`
        is run again. The value must be JSON-like.
        """
        ctx = self._ctx
        found = self._wait(_called(lambda: ctx._find(key)))
        if not isinstance(found, Missing):
            return cast(T, found)
        if found is Missing.IN_DOUBT and reconcile is not None:
            value = self._run(reconcile)
            if value is NOT_DONE and self._wait(ctx._journal.outwait_predecessor()):
                value = self._run(reconcile)
            if value is not NOT_DONE:
                return cast(T, self._wait(ctx._finish(key, value)))
        self._wait(ctx._begin(key, found))
        return cast(T, self._wait(ctx._finish(key, self._run(fn))))

    def fence(self) -> None:
        """Return once the store has confirmed that this process still holds the thread, for a sync tool that is about
        to do something that must not happen twice. Raises `Stopped` if another process has taken the thread over."""
        self._wait(self._ctx.fence())

    def interrupt(self, question: str) -> Any:
        """Ask a person a question from a sync tool, and return the answer if it is on record. Otherwise raise
        `Interrupted`, which ends the tool. Once there is an answer, the tool runs again from its start."""
        return self._wait(self._ctx.interrupt(question))

    def _run(self, fn: Callable[[], Any]) -> Any:
        value = fn()
        return self._wait(_settled(value)) if inspect.isawaitable(value) else value

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the agent's event loop, block until it ends, and return its result. Raises `UsageError` if
        no agent runs the tool, or if this is called on that event loop."""
        loop = self._ctx._loop
        try:
            if loop is None:
                raise UsageError("ctx.blocking works while an agent calls the tool. Use call_tool in a test.")
            if _running_loop() is loop:
                raise UsageError("ctx.blocking is for tools that are not async. Here it is `await ctx.step(…)`.")
            waiting = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # a UsageError from above, or the event loop is closed
            work.close()
            raise
        return waiting.result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _called(fn: Callable[[], Any]) -> Any:
    return fn()


_RESERVED_KEYS = "clew:"


class State(MutableMapping[str, Any]):
    """The values that the tools of a thread share, by name. Changes are recorded, and a resumed thread has them again.

    Values are JSON-like. Lists and dicts may be changed in place. Can be used from every OS thread. Deleting a name is
    recorded as setting it to None, so a name whose value is None counts as absent.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._recorded = {key: value for key, value in (values or {}).items() if value is not None}
        self._now: dict[str, Any] = {}
        """Copies of the values that were read or set, by name. Tools change these copies in place. The recorded values
        stay as they are until `take_changes` returns the changes to be recorded."""
        self._lock = RLock()

    def __getitem__(self, key: str) -> Any:
        with self._lock:
            if key not in self._now:
                self._now[key] = json_like(self._recorded[key], f"state[{key!r}]")
            if self._now[key] is None:
                raise KeyError(key)
            return self._now[key]

    def __setitem__(self, key: str, value: Any) -> None:
        json_like({key: None}, "state")
        if key.startswith(_RESERVED_KEYS):
            raise InvalidInput(f"the key {key!r} begins with {_RESERVED!r}, which is for Clew's own. Choose another.")
        kept = json_like(value, f"state[{key!r}]")
        with self._lock:
            self._now[key] = kept

    def __delitem__(self, key: str) -> None:
        with self._lock:
            if key not in self:
                raise KeyError(key)
            self._now[key] = None

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return (self._now[key] if key in self._now else self._recorded.get(key)) is not None  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            keys = [key for key in {**self._recorded, **self._now} if key in self]
        return iter(keys)

    def __len__(self) -> int:
        with self._lock:
            return sum(key in self for key in {**self._recorded, **self._now})

    def __repr__(self) -> str:
        return f"State({dict(self)!r})"

    def take_changes(self) -> dict[str, Any]:
        """Return the values that changed since the last call of this method, by name, to be recorded; None stands for a
        deleted name.

        From then on they count as recorded. Raises `InvalidInput` if a value was changed in place into one that cannot
        be stored.
        """
        with self._lock:
            now = {key: json_like(value, f"state[{key!r}]") for key, value in self._now.items()}
            changed = {key: value for key, value in now.items() if _encode(value) != _encode(self._recorded.get(key))}
            self._recorded.update(changed)
            self._recorded = {key: value for key, value in self._recorded.items() if value is not None}
            return {key: json_like(value, key) for key, value in changed.items()}


def _encode(value: Any) -> bytes:
    """Encode a value as MessagePack, to compare it with another value as a log would store both. In Python 1, 1.0 and
    True are equal, but their encoded bytes differ."""
    return msgspec.msgpack.encode(value)


class Missing(Enum):
    """Why a step (a part of a tool call's work that is recorded by itself) has no recorded value: it was never begun,
    or it was begun and its outcome is not on record."""

    NOT_RECORDED = "not recorded"
    """The step was never begun."""
    IN_DOUBT = "in doubt"
    """The step was begun in an earlier attempt, and its outcome is not on record."""


class Journal(Protocol):
    """The record of the steps of one tool call: in a thread's log, or in memory for tests. A step is a part of the
    tool's work whose value is recorded by itself."""

    async def step_intent(self, key: str) -> None:
        """Record that the step with this key, a part of a tool's work, is about to run. The record is durable when this
        returns."""

    async def step_outcome(self, key: str, value: Any) -> None:
        """Record the value, which is JSON-like, that the step with this key has returned. A step is a part of a tool's
        work. The record is durable when this returns."""

    async def fence(self) -> None:
        """Check that this process still holds the thread's lease, and return once that is confirmed. A confirmation
        from before this call does not count. Raises `Stopped` if the lease is lost or cannot be confirmed."""

    async def outwait_predecessor(self) -> bool:
        """Wait if this process has just taken the thread from another one that may still be at work. The wait ends when
        that process must have noticed that it lost the thread. Return True after such a wait, or False if no wait was
        needed."""

    def recorded(self, key: str) -> Any:
        """Return the recorded value of the step with this key, or a `Missing`, which says why there is none. A step is
        a part of a tool's work. This must not wait for anything, because it is called on the event loop."""


def answer_key(number: int) -> str:
    """Return the key with which the answer to a question of a tool is recorded. `number` counts the questions of one
    call from 0."""
    return f"clew:answer:{number}"


class MemoryJournal:
    """A record of the steps of one tool call that is kept in memory, for tests of a tool and for calls that need no
    lasting record."""

    def __init__(self, answers: Sequence[Any] = ()) -> None:
        """`answers` are the answers to the questions that the tool will ask a person (`ctx.interrupt`), in the order of
        the questions."""
        self.outcomes: dict[str, Any] = {answer_key(number): answer for number, answer in enumerate(answers)}
        self.intents: list[str] = []

    async def step_intent(self, key: str) -> None:
        self.intents.append(key)

    async def step_outcome(self, key: str, value: Any) -> None:
        self.outcomes[key] = value

    async def fence(self) -> None:
        pass

    async def outwait_predecessor(self) -> bool:
        return False

    def recorded(self, key: str) -> Any:
        if key in self.outcomes:
            return self.outcomes[key]
        return Missing.IN_DOUBT if key in self.intents else Missing.NOT_RECORDED
