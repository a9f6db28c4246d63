"""The agent: a model, tools and a store, and runs that survive every way of stopping."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Self

import msgspec

from clew.agent.events import Question
from clew.agent.journal import Journal
from clew.agent.loop import QUESTIONS, Ending, Loop
from clew.agent.outputs import Output
from clew.agent.runs import Emit, Run, RunResult
from clew.agent.sessions import Session, read_handle
from clew.agent.settings import Budget, Settings
from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer, open_checkpointer
from clew.errors import InvalidInput, ThreadNotFound, UsageError
from clew.log import Checkpoint, Logged, StateSet, StatusChanged, StepOutcome, Usage, encode_entries
from clew.models import Model, Price, cost_of, resolve_model
from clew.threads import Thread
from clew.threads.redacting import Redact
from clew.threads.thread import Durability
from clew.tools import AnyTool, Tool, ToolContext, ToolError, as_tool, tool
from clew.workspace import Workspace
from clew.workspace._folders import absolute

__all__ = ["Agent"]

log = logging.getLogger("clew.agent")


class Agent:
    """Runs a conversation between a model and tools, each step on record before the next depends on it.

        agent = Agent("anthropic:claude-opus-4-7", tools=[send_invoice], checkpointer="sqlite:///clew.db")
        result = await agent.run("Send the invoices of May.", thread_id="user-42")

    Killed at any point, the same call in a new process goes on where it stopped: no response on record is asked for again,
    and no tool that must not run twice does.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        name: str = "",
        system_prompt: str = "",
        tools: Iterable[AnyTool | Agent | Callable[..., Any]] = (),
        checkpointer: Checkpointer | str | EllipsisType | None = ...,
        workspace: str | os.PathLike[str] | None = None,
        max_turns: int = 50,
        budget: Budget | None = None,
        durability: Durability = "sync",
        checkpoint_every_n_iterations: int = 1,
        max_tokens: int | None = None,
        options: Mapping[str, Any] | None = None,
        prices: Mapping[str, Price] | None = None,
        output: Any = None,
        redact: Redact | None = None,
        takeover: bool = False,
    ) -> None:
        """`checkpointer` is a store or its URL; left out, it is the default store; None keeps nothing beyond the process.

        `checkpoint_every_n_iterations` is how often the workspace is snapshotted, in turns that called tools. Responses,
        intents and outcomes are always recorded before anything depends on them.

        `output` is a type that the last answer is to have; the model is told where its answer does not fit. Another agent
        among the `tools` works on a thread of its own, which is resumed with this one's.
        """
        if max_turns < 1 or checkpoint_every_n_iterations < 1:
            raise InvalidInput("max_turns and checkpoint_every_n_iterations are 1 or more")
        self._settings = Settings(
            name=name,
            model=resolve_model(model),
            system_prompt=system_prompt,
            tools=_by_name(self._as_child(given) if isinstance(given, Agent) else given for given in tools),
            workspace=None if workspace is None else absolute(workspace),
            max_turns=max_turns,
            budget=budget or Budget(),
            snapshot_every=checkpoint_every_n_iterations,
            max_tokens=max_tokens,
            options=options or {},
            prices=prices,
            output=None if output is None else Output(output),
        )
        _check_budget(self._settings)
        _check_durability(durability, self._settings)
        self._own_model = isinstance(model, str)
        self._given = checkpointer
        self._opened: Checkpointer | None = None
        self._above: Agent | None = None
        self._durability = durability
        self._redact = redact
        self._takeover = takeover
        self._running: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Any] | None] = set()

    @property
    def name(self) -> str:
        return self._settings.name

    def run(self, prompt: str, *, thread_id: str | None = None) -> Run[RunResult]:
        """Ask the agent. On a thread with an unfinished run, what that had begun is settled first, and then this is asked;
        if it was started with this very prompt, it is not asked twice: the same script run again after a crash goes on."""
        return Run(lambda emit: self._run(thread_id or self.new_id(), prompt, None, emit))

    def resume(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
    ) -> Run[RunResult]:
        """Go on with a thread: without an id, with the one that this agent worked on last. `answer` is for what it waits
        for; if it waits for several answers, a dict by call id."""

        async def work(emit: Emit) -> RunResult:
            found = thread_id or await self._last_thread()
            if await (await self._store()).head(found) is None:
                raise ThreadNotFound(found)
            return await self._run(found, prompt, answer, emit, max_turns)

        return Run(work)

    def session(
        self,
        *,
        thread_id: str | None = None,
        resume: bool = False,
        workspace: str | os.PathLike[str] | None = None,
        clear_cache_on_success: bool = True,
    ) -> Session:
        """Several prompts on one thread: `async with agent.session(...) as session: await session.run(...)`.

        Without a `thread_id` the first prompt is the task. With `resume=True` the thread is named by the agent, the task and
        the folder, so that the same script run again goes on where it was; once the task is done its thread is deleted,
        unless `clear_cache_on_success=False`. A thread that the user named is never deleted. `workspace` is the folder that
        tools work in, for this session in place of the agent's own.
        """
        agent = self if workspace is None else self._in(absolute(workspace))
        return Session(agent, thread_id, folder=agent._folder, resume=resume, clear=resume and clear_cache_on_success)

    def start_session(self, *, thread_id: str | None = None) -> Session:
        """A session on a new thread, whose handle is there before the first prompt."""
        return Session(self, thread_id or self.new_id(), folder=self._folder)

    def resume_session(self, handle: str) -> Session:
        """Go on with a session, from its handle or its thread's id, in any process that reaches the store."""
        return Session(self, read_handle(handle), folder=self._folder)

    @property
    def _folder(self) -> Path:
        """Where its tasks are at home."""
        return self._settings.workspace or Path.cwd()

    def new_id(self) -> str:
        """A name for a thread that nobody has."""
        return f"{self.name or 'run'}-{secrets.token_hex(6)}"

    async def run_on(self, thread_id: str, prompt: str, emit: Emit) -> RunResult:
        """The work of `run`, told to `emit` as it happens."""
        return await self._run(thread_id, prompt, None, emit)

    def _as_child(self, child: Agent) -> AnyTool:
        """Another agent as a tool. Its thread is named by the call, so that resuming the call resumes the child."""
        if not child.name:
            raise InvalidInput("an agent that is a tool needs a name: Agent(…, name=…)")

        async def ask(task: str, ctx: ToolContext) -> str:
            made = copy.copy(child)
            made._above = self
            made._settings = msgspec.structs.replace(child._settings, parent=(ctx.thread_id, 0))
            result = await made.run_on(
                f"{ctx.thread_id}/{child.name}:{ctx.idempotency_key[:16]}", task, lambda event: None
            )
            if result.status != "done":
                raise ToolError(f"{child.name} did not finish: it is {result.status} ({result.reason or 'a question'})")
            return result.output if isinstance(result.output, str) else msgspec.json.encode(result.output).decode()

        return tool(name=child.name, description=child._settings.system_prompt[:1000], effect="steps")(ask)

    async def forget(self, thread_id: str) -> None:
        """Delete a thread."""
        await (await self._store()).delete(thread_id)

    def _in(self, workspace: Path) -> Agent:
        """The same agent, working in another folder."""
        agent = copy.copy(self)
        agent._settings = msgspec.structs.replace(self._settings, workspace=workspace)
        return agent

    async def aclose(self) -> None:
        """Stop what still runs, and close the store and the model's connections, as far as this agent opened them."""
        running = [task for task in self._tasks if task is not None and task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        if self._own_model:
            close = getattr(self._settings.model, "aclose", None)
            if close is not None:
                await close()
        if self._opened is not None and self._opened is not self._given:
            await self._opened.close()
            self._opened = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(
        self, thread_id: str, prompt: str | None, answer: Any, emit: Emit, max_turns: int | None = None
    ) -> RunResult:
        settings = self._settings
        if max_turns is not None:
            settings = msgspec.structs.replace(settings, max_turns=max_turns)
        lock = self._running.setdefault(thread_id, asyncio.Lock())
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            async with lock:
                _make_folder(settings.workspace)
                answers = [] if answer is None else await self._answers(thread_id, answer)
                head = await (await self._store()).head(thread_id)
                return await self._run_alone(settings, thread_id, prompt, answers, head, emit)
        finally:
            self._tasks.discard(task)

    async def _run_alone(
        self,
        settings: Settings,
        thread_id: str,
        prompt: str | None,
        answers: list[Logged],
        head: Head | None,
        emit: Emit,
    ) -> RunResult:
        async with self._thread(thread_id) as thread:
            journal = Journal(thread)
            before = thread.checkpoint
            if answers:
                await journal.record(*answers)
            workspace = None if settings.workspace is None else Workspace(settings.workspace, await self._store())
            loop = Loop(settings, journal, workspace, emit)
            ending = await _recorded(journal, loop.run(prompt, again=head is not None and head.status == "done"))
            return _result(thread, before, loop, ending, journal.waited)

    async def questions(self, thread_id: str) -> list[Question]:
        """What a thread waits for."""
        state = await Thread.load(await self._store(), thread_id)
        return msgspec.convert(state.state.get(QUESTIONS) or [], list[Question])

    async def _answers(self, thread_id: str, answer: Any) -> list[Logged]:
        """A person's answers as outcomes of steps of the calls that asked: checked before the thread is touched."""
        questions = {question.call_id: question for question in await self.questions(thread_id)}
        if not questions:
            raise UsageError(f"thread {thread_id!r} waits for no answer")
        by_call = isinstance(answer, dict) and answer.keys() <= questions.keys()
        if not by_call and len(questions) > 1:
            raise InvalidInput(f"thread {thread_id!r} waits for several answers: give a dict by {', '.join(questions)}")
        answers = answer if by_call else dict.fromkeys(questions, answer)
        entries: list[Logged] = [
            StepOutcome(asked.message, asked.index, asked.key, answers[call_id])
            for call_id, asked in questions.items()
            if call_id in answers
        ]
        encode_entries(entries)
        return [*entries, StateSet(QUESTIONS, None)]

    @asynccontextmanager
    async def _thread(self, thread_id: str) -> AsyncIterator[Thread]:
        durability: Durability = "exit" if self._durability == "exit" else "async"
        opening = Thread.open(
            await self._store(), thread_id, takeover=self._takeover, durability=durability, redact=self._redact
        )
        async with opening as thread:
            yield thread

    async def _store(self) -> Checkpointer:
        if self._above is not None and self._given is ...:
            return await self._above._store()
        if self._opened is None:
            if self._given is None:
                self._opened = MemoryCheckpointer()
            elif isinstance(self._given, Checkpointer):
                self._opened = self._given
            else:
                self._opened = open_checkpointer(self._given if isinstance(self._given, str) else None)
        return self._opened

    async def _last_thread(self) -> str:
        if not self.name:
            raise UsageError("resume without a thread_id goes by the agent's name. Give it one: Agent(…, name=…)")
        async for head in Thread.list(await self._store(), HeadQuery(agent=self.name)):
            if head.parent is None:
                return head.thread_id
        raise UsageError(f"the agent {self.name!r} has no thread in this store yet. Start one with agent.run(…)")


async def _recorded(journal: Journal, running: Any) -> Ending:
    """A run that fails or is cancelled says so on record before it raises."""
    try:
        return await running  # type: ignore[no-any-return]
    except asyncio.CancelledError:
        await asyncio.shield(journal.record(StatusChanged("interrupted", "cancelled")))
        raise
    except Exception as error:
        await journal.record(StatusChanged("failed", type(error).__name__))
        raise


def _result(thread: Thread, before: Checkpoint, loop: Loop, ending: Ending, waited: float) -> RunResult:
    state = thread.checkpoint
    return RunResult(
        output=loop.output if ending.status == "done" else None,
        thread_id=thread.thread_id,
        status=ending.status,
        reason="" if ending.status == "waiting" else ending.reason,
        questions=ending.questions,
        usage=state.usage,
        cost_usd=state.cost_usd,
        turns=state.turns,
        resumed_from=before.turns if before.history else None,
        drift=loop.drift,
        waited=waited,
    )


def _make_folder(workspace: Path | None) -> None:
    """Before the thread is touched: a path that can be no folder is a mistake, and nothing that happened to the run."""
    try:
        if workspace is not None:
            workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"the workspace {workspace} cannot be made: {error.strerror}. Choose another folder."
        ) from error


def _by_name(tools: Iterable[AnyTool | Callable[..., Any]]) -> dict[str, AnyTool]:
    found: dict[str, AnyTool] = {}
    for given in tools:
        made = given if isinstance(given, Tool) else as_tool(given)
        if made.name in found:
            raise InvalidInput(f"two tools are called {made.name!r}. Give one another name: @tool(name=…)")
        found[made.name] = made
    return found


def _check_budget(settings: Settings) -> None:
    if settings.budget.usd is not None and cost_of(settings.model.name, Usage(1, 1), settings.prices) is None:
        raise InvalidInput(
            f"nobody knows what {settings.model.name} costs, so a budget in dollars cannot be kept. Give its price: "
            "Agent(…, prices={name: Price(input, output)})"
        )


def _check_durability(durability: Durability, settings: Settings) -> None:
    once = [tool.name for tool in settings.tools.values() if tool.effect == "once"]
    if durability == "exit" and once:
        raise InvalidInput(
            f"with durability='exit' nothing is on record before the run ends, and {', '.join(once)} must not run twice. "
            "Use durability='sync', or say effect='none' or 'idempotent' where that is true."
        )
