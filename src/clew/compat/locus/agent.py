"""`Agent`, a class with the constructor and the methods that the agent of Locus (another agent library) has. A
`clew.Agent` does the work."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import msgspec

import clew
from clew.agent import Event, Question, Run, RunResult, Waiting
from clew.agent import events as clew_events
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.compat.locus.config import AgentConfig
from clew.compat.locus.conversion import messages_at
from clew.compat.locus.events import (
    InterruptEvent,
    TerminateEvent,
    ThinkEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from clew.compat.locus.memory.backends import MemoryCheckpointer
from clew.compat.locus.memory.checkpointer import BaseCheckpointer
from clew.compat.locus.stream import AgentRun, Tell
from clew.errors import InvalidInput, UsageError
from clew.messages import Assistant, Tool, ToolResult
from clew.models import Model, ModelRequest, ModelResponse, resolve_model
from clew.models.base import ModelEvent

__all__ = ["Agent"]

_heard: ContextVar[_Hearing] = ContextVar("clew_locus_heard")


class _Hearing:
    """Holds the responses that `model` gives in one run of an agent. Each is added when it comes, and removed when the
    reader of the run's events is given an event made from it."""

    def __init__(self, model: _HeardModel) -> None:
        self.model = model
        self.responses: deque[Assistant] = deque()


class _HeardModel:
    """Wraps a model: passes each request on to it, and keeps each response for the run that made the request. The run
    makes a `ThinkEvent` of the response, with the tool calls in it; Clew's own events do not hold these calls."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def context_window(self) -> int | None:
        return self._model.context_window

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        events = self._model.stream(request)
        try:
            async for event in events:
                hearing = _heard.get(None)
                if isinstance(event, ModelResponse) and hearing is not None and hearing.model is self:
                    hearing.responses.append(event.message)
                yield event
        finally:
            await _close(events)

    async def aclose(self) -> None:
        await _close(self._model)


async def _close(resource: object) -> None:
    close = getattr(resource, "aclose", None)
    if close is not None:
        await close()


class Agent:
    """An agent with the constructor and the methods of the agent in Locus: it lets a model work with tools, and keeps
    the conversation under a thread id.

        agent = Agent(model="openai:gpt-5", checkpointer=sqlite_checkpointer("clew.db"))
        await agent.run("Plan a trip to Paris.", thread_id="user-42").__anext__()

    Any agent with the same checkpointer can go on with the conversation under the same thread id, in any process. Every
    step is on record before the next depends on it, so a run that was killed goes on where it was when the thread is
    run again.
    """

    def __init__(
        self,
        model: str | Model | None = None,
        tools: list[Any] | None = None,
        system_prompt: str | None = None,
        max_iterations: int = 20,
        checkpointer: BaseCheckpointer | Checkpointer | str | None = None,
        config: AgentConfig | None = None,
        **others: Any,
    ) -> None:
        """Give either the arguments of `AgentConfig`, or, as `config`, an `AgentConfig` that exists already. Raises
        `InvalidInput` if both are given, or if there is no model. Also raises it for a setting of Locus that Clew does
        not have; the message says what Clew has instead."""
        given = {
            **({} if model is None else {"model": model}),
            **({} if tools is None else {"tools": tools}),
            **({} if system_prompt is None else {"system_prompt": system_prompt}),
            **({} if max_iterations == 20 else {"max_iterations": max_iterations}),
            **({} if checkpointer is None else {"checkpointer": checkpointer}),
            **others,
        }
        if config is not None and given:
            raise InvalidInput(f"config= holds all settings. Put {', '.join(given)} into it.")
        if config is None and model is None:
            raise InvalidInput("an agent needs a model: Agent(model='openai:gpt-5', …)")
        self.config = AgentConfig(**given) if config is None else config
        self._model = _HeardModel(resolve_model(self.config.model))
        self._owns_model = isinstance(self.config.model, str)
        kept = self.config.checkpointer
        if isinstance(kept, BaseCheckpointer):
            self.checkpointer = kept
        elif kept is None:
            self.checkpointer = MemoryCheckpointer()
        else:
            self.checkpointer = BaseCheckpointer(kept if isinstance(kept, Checkpointer) else open_checkpointer(kept))
        self._owns_store = not isinstance(kept, BaseCheckpointer | Checkpointer)
        self._agent = self._made(checkpointer=self.checkpointer.store)
        self._runs: set[asyncio.Task[None]] = set()
        self._waiting: str | None = None
        self._is_entered = False

    def _made(self, **store: Any) -> clew.Agent:
        """Return a new `clew.Agent`, which does the work. `store` has the argument `checkpointer` for it, if it is to
        have a store. An agent among the tools that has no checkpointer uses the store of the agent that calls it."""
        tools = [tool._as_child() if isinstance(tool, Agent) else tool for tool in self.config.tools]
        return clew.Agent(self._model, tools=tools, **self.config.settings(), **store)

    def _as_child(self) -> clew.Agent:
        return self._made() if self.config.checkpointer is None else self._agent

    def run(self, prompt: str, *, thread_id: str | None = None, metadata: Mapping[str, Any] | None = None) -> AgentRun:
        """Ask the agent a prompt, on the thread `thread_id` or else a new one, and return the events of the run as an
        async iterator.

        The run begins when the first event is asked for. It then goes on to its end even if no more events are read;
        calling `aclose` on the iterator stops the run. If another run works on the thread, in this process with the
        same checkpointer, the new run waits for its end. `metadata` are values of the thread, which tools read as
        `ctx.state`.
        """
        found = self._agent.new_id() if thread_id is None else thread_id
        limit = self.config.time_budget_seconds

        async def note() -> None:
            if metadata:
                await self.checkpointer.note(found, metadata)

        return self._started(found, note, lambda: self._agent.run(prompt, thread_id=found, timeout=limit))

    def resume(self, response: Any, *, thread_id: str | None = None) -> AgentRun:
        """Answer with `response` the question at which a run has stopped, and return the events of the run that goes
        on, as an async iterator. Without a `thread_id`, the thread is that of this agent's last run. Raises
        `UsageError` if no `thread_id` is given and that run did not stop at a question."""
        found = self._waiting if thread_id is None else thread_id
        limit = self.config.time_budget_seconds
        if found is None:
            raise UsageError("this agent has asked nothing. Say which thread waits: resume(response, thread_id=…)")

        async def nothing() -> None:
            """Do nothing: a thread that goes on needs no preparation."""

        return self._started(
            found, nothing, lambda: self._agent.resume(thread_id=found, answer=response, timeout=limit)
        )

    def _started(self, thread_id: str, prepare: Callable[[], Any], ask: Callable[[], Run[RunResult]]) -> AgentRun:
        def begin(work: Any) -> asyncio.Task[None]:
            task = asyncio.get_running_loop().create_task(work)
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)
            earlier[:] = [self.checkpointer.follow(thread_id, task)]
            return task

        earlier: list[asyncio.Task[None] | None] = []

        async def work(tell: Tell) -> None:
            if (before := earlier[0]) is not None:
                await asyncio.wait([before])
            try:
                await prepare()
                result = await _Telling(self._model, tell).tell_all(ask())
                self._waiting = thread_id if result.status == "waiting" else None
            finally:
                if not self._is_entered and len(self._runs) == 1:
                    await self._disconnect()

        return AgentRun(work, begin)

    async def _disconnect(self) -> None:
        """Close the connections to the model, if this agent opened them. The next run opens new ones. Called after each
        run, because agents are often dropped without being closed."""
        if self._owns_model:
            await self._model.aclose()

    async def aclose(self) -> None:
        """Wait for the runs that are under way. Then close the connections to the model, and close the store if this
        agent opened it. An agent on which this is never called closes its connections after each run."""
        while self._runs:
            await asyncio.wait(self._runs)
        await self._agent.aclose()
        await self._disconnect()
        if self._owns_store:
            await self.checkpointer.close()

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Telling:
    """Translates the events of one run of Clew into events of Locus, and passes each to the function `tell`."""

    def __init__(self, model: _HeardModel, tell: Tell) -> None:
        self._hearing = _Hearing(model)
        self._tell = tell
        self._turn = 0
        """The number of the turn whose response was not told yet; 0 if there is none."""
        self._turns = 0
        self._calls = 0
        self._begun: dict[str, float] = {}

    async def tell_all(self, run: Run[RunResult]) -> RunResult:
        """Let `run` go on to its end, pass each event to the reader in the form of Locus, and return the result. If the
        run fails, the reader gets an event that says so, and then the error is raised."""
        _heard.set(self._hearing)
        try:
            async for event in run:
                self._take(event)
        except Exception as error:
            self._tell(
                TerminateEvent(
                    reason="error", iterations_used=self._turns, total_tool_calls=self._calls, error=str(error)
                )
            )
            raise
        finally:
            await run.aclose()
        result = run.result
        if result.status != "waiting":
            self._tell(self._end(result))
        return result

    def _take(self, event: Event) -> None:
        match event:
            case clew_events.TurnStarted(turn):
                self._turn = turn
            case clew_events.Compacted():
                if self._hearing.responses:
                    self._hearing.responses.popleft()  # the summary is a response too, and nobody's answer
            case clew_events.TurnFinished(turn):
                self._turns = max(self._turns, turn)
                if turn == self._turn:
                    self._think()
            case clew_events.ToolStarted(name, call_id, arguments):
                self._think()
                self._calls += 1
                self._begun[call_id] = time.perf_counter()
                self._tell(ToolStartEvent(tool_name=name, tool_call_id=call_id, arguments=arguments))
            case clew_events.ToolFinished(name, call_id, result) | clew_events.ToolReplayed(name, call_id, result):
                self._think()
                self._tell(_completed(name, call_id, result, self._begun.pop(call_id, None)))
            case Waiting(questions):
                self._think()
                for question in questions:
                    self._tell(_asked(question))

    def _think(self) -> None:
        """Tell the reader of the run, with a `ThinkEvent`, that the model has responded in the present turn. Does
        nothing if the reader was told already, or if the response was recorded by an earlier run."""
        if not self._turn or not self._hearing.responses:
            return
        response = self._hearing.responses.popleft()
        self._turns = max(self._turns, self._turn)
        [[message]] = messages_at([response])
        self._tell(ThinkEvent(iteration=self._turn, reasoning=message.content or None, tool_calls=message.tool_calls))
        self._turn = 0

    def _end(self, result: RunResult) -> TerminateEvent:
        usage = result.usage
        return TerminateEvent(
            reason=_reason(result),
            iterations_used=result.turns,
            total_tool_calls=self._calls,
            final_message=_words(result.output) if result.status == "done" else None,
            usage=None
            if usage is None
            else {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens},
            cost_usd=result.cost,
            error=result.reason or None,
        )


def _completed(name: str, call_id: str, result: ToolResult, begun: float | None) -> ToolCompleteEvent:
    text = messages_at([Tool((result,))])[0][0].content or ""
    return ToolCompleteEvent(
        tool_name=name,
        tool_call_id=call_id,
        result=None if result.is_error else text,
        error=text if result.is_error else None,
        duration_ms=None if begun is None else (time.perf_counter() - begun) * 1000,
    )


def _asked(question: Question) -> InterruptEvent:
    return InterruptEvent(
        question=question.text,
        interrupt_id=question.id,
        metadata={"tool": question.tool, "kind": question.kind, "arguments": question.arguments},
    )


def _reason(result: RunResult) -> str:
    """Return the reason for which a run ended, as Locus names it: for example `complete` or `max_iterations`."""
    if result.status == "done":
        return "complete"
    kind, _, rest = result.reason.partition(":")
    if kind == "budget":
        return "cost_budget" if "dollars" in rest or "price" in rest else "token_budget"
    return {"max_turns": "max_iterations", "timeout": "time_budget"}.get(kind, "interrupted")


def _words(output: Any) -> str:
    return output if isinstance(output, str) else msgspec.json.encode(output, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    """Convert a value that msgspec cannot write as JSON to one that it can: a pydantic model to plain values, and any
    other object to its text, `str(value)`."""
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump(mode="json")
