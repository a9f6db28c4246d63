"""The agent: a model, tools and a store, and runs that survive every way of stopping."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Literal, Self, get_args
from weakref import WeakValueDictionary

import msgspec

from clew._runtime.plugins import find
from clew.agent.arguments import (
    check_budget,
    check_choice,
    check_count,
    check_flags,
    check_folder,
    check_has_folder,
    check_mapping,
    check_name,
    check_price,
    check_redact,
    check_share,
    check_signals,
    check_text,
    check_tools,
    refuse_once,
    tools_by_name,
    window_of,
)
from clew.agent.events import Question, RunStarted
from clew.agent.handles import Handle, read_handle
from clew.agent.job import Job, run_job
from clew.agent.output import Output, finish_tool
from clew.agent.prompts import check_prompt, check_resumed
from clew.agent.questions import open_questions
from clew.agent.run import Emit, Run, RunResult, stop_all
from clew.agent.session import OwnSession, Session, task_id
from clew.agent.settings import Budget, Overflow, Settings
from clew.agent.signals import stops_for
from clew.agent.stores import LastRun, Ran, Store
from clew.agent.subagents import child_tool
from clew.agent.trajectory import Trajectory, read_trajectory
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, UsageError
from clew.models import Model, Price, resolve_model
from clew.threads import Thread
from clew.threads.redact import Redact, both
from clew.threads.thread import Durability
from clew.tools import AnyTool, ToolContext
from clew.workspace.folders import absolute

__all__ = ["Agent"]

log = logging.getLogger("clew.agent")
_KINDS = {"provider": "clew.providers.agent:ProviderAgent"}
"""Kinds of agents that other packages bring, found by name because this package does not import them."""
_running: ContextVar[Agent] = ContextVar("clew_running_agent")
"""The agent whose tools run here: its children work on its store, and keep to what it keeps to."""


class Agent:
    """Runs a conversation between a model and tools, each step on record before the next depends on it.

        agent = Agent("anthropic:claude-opus-4-7", tools=[send_invoice], checkpointer="sqlite:///clew.db")
        result = await agent.run("Send the invoices of May.", thread_id="user-42")

    Killed at any point, the same call in a new process goes on where it stopped: no response on record is asked for again,
    and no tool that must not run twice does.
    """

    def __new__(cls, *args: Any, provider: str | Sequence[str] | None = None, **settings: Any) -> Self:
        """With a `provider`, make the subclass of `Agent` that works through that provider's program."""
        if provider is None or cls is not Agent:
            return super().__new__(cls)
        kind: type[Self] = find("provider", _KINDS, "clew.agents", "an agent of a provider")
        return super().__new__(kind)

    def __init__(
        self,
        model: str | Model | Mapping[str, str] = "",
        *,
        provider: str | Sequence[str] | None = None,
        name: str = "",
        system_prompt: str = "",
        tools: Iterable[AnyTool | Agent | Callable[..., Any]] = (),
        checkpointer: Checkpointer | str | EllipsisType | None = ...,
        workspace: str | os.PathLike[str] | EllipsisType | None = ...,
        max_turns: int = 50,
        budget: Budget | None = None,
        durability: Durability = "sync",
        snapshot_every: int = 1,
        max_tokens: int | None = None,
        options: Mapping[str, Any] | Sequence[str] | None = None,
        prices: Mapping[str, Price] | None = None,
        output: Any = None,
        finish: bool | AnyTool | Callable[..., Any] = False,
        warn_turns: int = 5,
        context_window: int | None = None,
        compact_at: float | None = 0.8,
        on_overflow: Overflow = "compact",
        restore_files: bool = False,
        redact: Redact | None = None,
        takeover: bool = False,
        allow_repeats: bool = False,
        handle_signals: bool | Callable[[str], str] = False,
        data_dir: str | os.PathLike[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        permissions: Literal["read", "edit", "full"] | None = None,
        timeout: float | None = None,
    ) -> None:
        """`checkpointer` is a store or its URL. Left out, it is the default store; None keeps nothing beyond the process.
        `data_dir` is a folder to keep everything in, in place of a `checkpointer`.

        `workspace` is the folder that tools work in. Tools that need a folder, such as `DEFAULT_TOOLS`, are refused without
        it. None says that every `session(workspace=…)` brings its own. The folder is snapshotted after every
        `snapshot_every` turns that called tools. A resume restores the files if the folder is gone or empty, and always with
        `restore_files=True`, after a snapshot of what is there.

        `output` is the type of the last answer; an answer that does not fit is returned to the model. With `finish=True` the
        model ends the task by calling a tool, and in no other way; `finish` can also be your own tool, whose result is the
        answer. An agent among the `tools` works on a thread of its own, which is resumed with this agent's.

        The model is warned when `warn_turns` turns are left and at the last one; 0 turns the warning off. When the share
        `compact_at` of the context window is used (give `context_window` for a model that Clew does not know), or when the
        vendor refuses the conversation as too long, a summary replaces the earlier messages. With `on_overflow="unwind"`
        the last turn is taken back instead.

        `takeover=True` takes a thread from a live process. `durability="exit"` refuses tools of effect `once`, unless
        `allow_repeats=True` says that they may be repeated after a crash.

        `handle_signals=True` is for programs: SIGTERM acts like Ctrl+C. The run records its end and its files, prints the
        command that resumes it to stderr, and exits with 130. Give a function from the thread's id to print another
        command. A second signal ends the process at once and says which turn the files on record are of, if they are
        older than the conversation.

        `provider` makes an agent that works through Claude Code, Codex or opencode. `clew.providers.ProviderAgent` describes
        `model`, `cwd`, `env`, `permissions`, `timeout` and `options` for it.
        """
        if provider is not None:
            raise InvalidInput("a subclass of Agent has no provider=. Derive it from clew.providers.ProviderAgent.")
        if any(given is not None for given in (cwd, env, permissions, timeout)):
            raise InvalidInput("cwd, env, permissions and timeout are for Agent(provider=…); here, use workspace=")
        if isinstance(model, Mapping) or not model:
            raise InvalidInput(
                "an agent needs a model, Agent('anthropic:…'), or a provider, Agent(provider='claude_code')"
            )
        check_name(name)
        check_text("system_prompt", system_prompt)
        check_tools(tools)
        check_folder("workspace", None if workspace is ... else workspace)
        check_folder("data_dir", data_dir)
        check_count("max_turns", max_turns)
        check_count("snapshot_every", snapshot_every)
        check_count("warn_turns", warn_turns, 0)
        check_count("max_tokens", max_tokens, optional=True)
        check_count("context_window", context_window, optional=True)
        check_budget(budget)
        check_choice("durability", durability, get_args(Durability))
        check_choice("on_overflow", on_overflow, get_args(Overflow))
        check_mapping("options", options)
        check_mapping("prices", prices, Price)
        check_redact(redact)
        check_signals(handle_signals)
        check_flags(restore_files=restore_files, takeover=takeover, allow_repeats=allow_repeats)
        check_share("compact_at", compact_at)
        resolved = resolve_model(model)
        answer = None if output is None else Output(output)
        ending = finish_tool(finish, answer)
        self._children: list[Agent] = []
        given_tools = [self._as_child(given) if isinstance(given, Agent) else given for given in tools]
        self._settings = Settings(
            name=name,
            model=resolved,
            system_prompt=system_prompt,
            tools=tools_by_name(given_tools if ending is None else [*given_tools, ending]),
            workspace=None if workspace is None or workspace is ... else absolute(workspace),
            max_turns=max_turns,
            budget=budget or Budget(),
            snapshot_every=snapshot_every,
            max_tokens=max_tokens,
            options={} if not isinstance(options, Mapping) else options,
            prices=prices,
            output=answer,
            finish=ending,
            warn_turns=warn_turns,
            window=window_of(resolved, context_window, compact_at),
            on_overflow=on_overflow,
            restore_files=restore_files,
        )
        check_price(self._settings)
        if workspace is ...:
            check_has_folder(
                self._settings,
                "Give it one: Agent(…, workspace='.'). If each agent.session(workspace=…) brings its own, say so: "
                "Agent(…, workspace=None)",
            )
        if durability == "exit" and not allow_repeats:
            refuse_once(self._once())
        self._own_model = isinstance(model, str)
        self._store = Store.given(checkpointer, data_dir)
        self._durability = durability
        self._redact = redact
        self._takeover = takeover
        self._handle_signals = handle_signals
        self._running: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last = LastRun[Settings]()
        self._trusted: dict[str, Store] = {}
        """Stores that handles hinted at, opened here, by their URLs."""

    @property
    def name(self) -> str:
        return self._settings.name

    def run(
        self,
        prompt: str,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask the agent. On a thread with an unfinished run, what that had begun is settled first, and then this is asked.

        With a `prompt_id` the prompt is asked once on its thread: the same id again goes on with it, or returns its answer,
        also if other prompts came after it; another id with the same words is a new prompt. Without one, a prompt with the
        words of the last one goes on with that as long as it is unfinished: the same script run again after a crash goes on.
        One that was answered is asked anew.

        If what was begun before waits for a person, this prompt is on record and is not asked yet: the result has its
        `prompt_id`, the status `waiting`, the questions, and a `reason` that says so. It is asked after `resume(answer=…)`.

        `max_turns` is for this run in place of the agent's own. After `timeout` seconds the run is interrupted, in the
        middle of whatever it does, and can be resumed."""
        check_prompt(prompt, prompt_id)
        found = self.new_id() if thread_id is None else thread_id
        named = thread_id is not None
        job = Job(found, prompt, max_turns=max_turns, timeout=timeout, named=named, prompt_id=prompt_id)
        return Run(lambda emit: self._run(job, emit))

    def resume(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Go on with a thread. `answer` is for what it waits for; if it waits for several answers, a dict by call id. A
        `prompt` is asked as by `run`: with a `prompt_id`, once.

        Without a `thread_id` it is the thread that this agent object began to run last, in the same folder and store. An
        agent object that has run nothing takes the newest thread of its name, which the first event, `RunStarted`, tells;
        if several threads of that name are unfinished, a `UsageError` lists them and nothing is run.
        """
        check_resumed(prompt, prompt_id)
        job = Job(thread_id or "", prompt, answer, max_turns, timeout, prompt_id=prompt_id)

        async def work(emit: Emit) -> RunResult:
            agent, found = (self, thread_id) if thread_id is not None else await self._last_thread()
            await agent.check_thread(found)
            return await agent._run(msgspec.structs.replace(job, thread_id=found), emit)

        return Run(work)

    def stream(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask as `run` does and iterate the events: `async for event in agent.stream("…")`. Its `result` is there after the
        last event. Without a prompt it goes on with a thread as `resume` does, with the `answer` if one is given."""
        if prompt is None:
            return self.resume(
                thread_id=thread_id, prompt_id=prompt_id, answer=answer, max_turns=max_turns, timeout=timeout
            )
        if answer is not None:
            raise UsageError("answer= is for a stream that goes on without a prompt: leave the prompt out.")
        return self.run(prompt, thread_id=thread_id, prompt_id=prompt_id, max_turns=max_turns, timeout=timeout)

    async def _last_thread(self) -> tuple[Agent, str]:
        """The thread that `resume` means when it is given none, and this agent in the folder and store of that thread."""
        found, agent = await self._last.or_newest(self.name, self._store, self._settings), copy.copy(self)
        agent._store, agent._settings = found.store, found.settings
        return agent, found.thread_id

    def session(
        self,
        *,
        thread_id: str | None = None,
        resume: bool = False,
        workspace: str | os.PathLike[str] | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        delete_when_done: bool = True,
        keep_when_stopped: bool = True,
    ) -> Session:
        """Several prompts on one thread: `async with agent.session(...) as session: await session.run(...)`.

        Without a `thread_id` the first prompt is the task. With `resume=True` the thread is named by the agent, the task and
        the folder, so that the same script run again goes on where it was. Its n-th prompt is the n-th on record: if that
        was answered, its answer is returned, and equal words further on are asked. Once the task is done its thread is
        deleted, unless `delete_when_done=False`; with `keep_when_stopped=False` also once it was interrupted or has
        failed. A thread that the user named is never deleted. `workspace`, or `output_dir`, is the folder that tools work
        in, for this session in place of the agent's own.
        """
        if workspace is not None and output_dir is not None:
            raise InvalidInput("workspace and output_dir are two names for the same folder. Give one of them.")
        folder = output_dir if workspace is None else workspace
        agent = self if folder is None else self._in(absolute(folder))
        return OwnSession(
            agent,
            thread_id,
            folder=agent._folder,
            resume=resume,
            clear_done=delete_when_done,
            keep_stopped=keep_when_stopped,
        )

    def task_id(self, task: str, *, workspace: str | os.PathLike[str] | None = None) -> str:
        """The id of the thread that `session(resume=True)` keeps a task in, known before it runs.

        `task` is the first prompt of the session, and `workspace` its folder, as they are given there; left out, the folder
        is the agent's own or the current one.
        """
        check_prompt(task)
        return task_id(self.name, task, self._folder if workspace is None else absolute(workspace))

    def start_session(self, *, thread_id: str | None = None) -> Session:
        """A session on a new thread, or on the one of this id. Its handle can be kept before the first prompt, and leads
        back to the session once that prompt is on record."""
        return OwnSession(self, self.new_id() if thread_id is None else thread_id, folder=self._folder)

    def resume_session(self, handle: str, *, key: str | bytes | None = None, trust: bool = False) -> Session:
        """Go on with a session, from its handle or its thread's id, in any process that reaches the store. With a `key`,
        only a handle that was signed with it is taken. Where a handle has hints that say otherwise than this agent was told,
        they are used only with `trust=True`.

        A session of a provider goes on here as well, if the store has it: the conversation is the same. If the store has no
        such thread, the first prompt raises `ThreadNotFound` and leaves nothing behind; `start_session(thread_id=…)` begins
        a thread of that name.
        """
        found = read_handle(handle, key=key)
        agent = self._trusting(found) if trust else self
        return OwnSession(agent, found.session_id, folder=agent._folder, must_exist=True)

    @property
    def _folder(self) -> Path:
        """The folder that names its tasks: the workspace, or else the current folder."""
        return self._settings.workspace or Path.cwd()

    def new_id(self) -> str:
        """A name for a thread that nobody has."""
        return f"{self.name or 'run'}-{secrets.token_hex(6)}"

    async def _run_on(self, thread_id: str, prompt: str | None, emit: Emit, **how: Any) -> RunResult:
        """The work of `run` and `resume`, told to `emit` as it happens; for sessions."""
        return await self._run(Job(thread_id, prompt, **how), emit)

    @property
    def store_url(self) -> str:
        """The URL of the store, if it was given as one."""
        return self._store.url

    async def check_thread(self, thread_id: str) -> None:
        """Raise `ThreadNotFound` unless the store has this thread. Nothing is made by asking."""
        await self._store.check(thread_id)

    async def trajectory(self, thread_id: str) -> Trajectory:
        """What was done on a thread, prompt by prompt."""
        await self.check_thread(thread_id)
        return (await read_trajectory(self._store.open(), thread_id))[0]

    def _trusting(self, handle: Handle) -> Agent:
        """This agent, told which store the handle hints at, if it was told none itself."""
        if not handle.store or not self._store.is_default:
            return self
        agent = copy.copy(self)
        agent._store = self._trusted.setdefault(handle.store, Store(handle.store))
        return agent

    async def _moved(self, thread_id: str, provider: str, settings: dict[str, Any]) -> Session:
        """A session of another agent on the same thread; for sessions."""
        await self.check_thread(thread_id)
        if provider == "clew":
            return Agent(**{"checkpointer": self._store.open(), **settings}).start_session(thread_id=thread_id)
        made: dict[str, Any] = {"checkpointer": self._store.open(), "system_prompt": self._settings.system_prompt}
        made["name"] = self.name
        if self._settings.workspace is not None and not {"cwd", "workspace"} & settings.keys():
            made["workspace"] = self._settings.workspace
        session = Agent(provider=provider, **{**made, **settings}).start_session(thread_id=thread_id)
        return await session.move_to(provider)

    def _as_child(self, child: Agent) -> AnyTool:
        """Another agent as a tool of this one: on this one's store, unless it was given its own."""
        child._check_as_tool()

        async def work(ctx: ToolContext, thread_id: str, task: str, answers: Any) -> RunResult:
            above, made = _running.get(), copy.copy(child)
            made._store = above._store if child._store.is_default else child._store
            made._redact = both(above._redact, child._redact)
            made._takeover = above._takeover or child._takeover
            made._handle_signals = False
            made._last = LastRun()
            made._settings = msgspec.structs.replace(child._settings, parent=(ctx.thread_id, ctx.turn))
            return await made._run(Job(thread_id, task, answers, nth=0), lambda event: None)

        self._children.append(child)
        return child_tool(child.name, child._settings.system_prompt[:1000], work)

    def _check_as_tool(self) -> None:
        """Raise `InvalidInput` if this agent cannot be a tool of another one."""
        if not self.name:
            raise InvalidInput("an agent that is a tool needs a name: Agent(…, name=…)")
        check_has_folder(self._settings, "As a tool of another agent it needs its own: Agent(…, workspace=…)")

    def _once(self) -> list[str]:
        """The tools that must not run twice, those of its children included."""
        own = [tool.name for tool in self._settings.tools.values() if tool.effect == "once"]
        return [*own, *(f"{child.name}'s {name}" for child in self._children for name in child._once())]

    def _in(self, workspace: Path) -> Agent:
        """The same agent, working in another folder."""
        agent = copy.copy(self)
        agent._settings = msgspec.structs.replace(self._settings, workspace=workspace)
        return agent

    async def aclose(self) -> None:
        """Stop what still runs, and close the store and the model's connections, as far as this agent opened them. In a
        forked child nothing is done."""
        if self._store.is_inherited:
            return
        await stop_all(self._tasks)
        if self._own_model:
            close = getattr(self._settings.model, "aclose", None)
            if close is not None:
                await close()
        for store in (self._store, *self._trusted.values()):
            await store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, job: Job, emit: Emit) -> RunResult:
        self._store.enter()
        lock = self._running.setdefault(job.thread_id, asyncio.Lock())
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._tasks.add(task)
        _running.set(self)
        try:
            with stops_for(job.thread_id, self._handle_signals, is_named=job.named):
                async with lock:
                    result = await self._run_alone(job, emit)
        finally:
            self._tasks.discard(task)
        return result

    async def _run_alone(self, job: Job, emit: Emit) -> RunResult:
        def began() -> None:
            self._last.ran = Ran(job.thread_id, self._store, self._settings)
            emit(RunStarted(job.thread_id))

        return await run_job(
            job,
            self._settings,
            self._store,
            durability="exit" if self._durability == "exit" else "async",
            redact=self._redact,
            takeover=self._takeover,
            began=began,
            emit=emit,
        )

    async def questions(self, thread_id: str) -> list[Question]:
        """What a thread waits for."""
        await self.check_thread(thread_id)
        return open_questions(await Thread.load(self._store.open(), thread_id))
