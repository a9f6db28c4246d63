"""Defines `Agent`, which lets a model work with tools. Its runs are stored, and can be resumed after any kind of stop."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Literal, Self
from weakref import WeakValueDictionary

import msgspec

from clew._runtime.plugins import find
from clew.agent.arguments import (
    check_arguments,
    check_has_folder,
    check_price,
    in_own_folder,
    refuse_once,
    tools_by_name,
    window_of,
)
from clew.agent.children import as_child, draining, running
from clew.agent.events import Question, RunStarted
from clew.agent.handles import Handle, read_handle
from clew.agent.job import Job, run_job, turn_of
from clew.agent.journal import Ends
from clew.agent.output import Output, finish_tool
from clew.agent.prompts import check_prompt, check_resumed
from clew.agent.questions import open_questions
from clew.agent.run import Emit, Run, RunResult, stop_all
from clew.agent.session import OwnSession, Session, task_id
from clew.agent.settings import Budget, Folder, Overflow, Settings
from clew.agent.signals import stops_for
from clew.agent.stores import LastRun, Ran, Store
from clew.agent.trajectory import Trajectory, read_trajectory
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, UsageError
from clew.models import Model, Price, resolve_model
from clew.threads import Thread
from clew.threads.leases import Takeover
from clew.threads.redact import Redact
from clew.threads.thread import Durability
from clew.tools import AnyTool
from clew.workspace.folders import absolute

__all__ = ["Agent"]

log = logging.getLogger("clew.agent")
_KINDS = {"provider": "clew.providers.agent:ProviderAgent"}
"""Import path of the subclass that `Agent(provider=…)` makes. It is imported only on first use."""


class Agent:
    """Runs a conversation between a model and tools. Each step is on record before the next one depends on it.

        agent = Agent("anthropic:claude-opus-4-7", tools=[send_invoice], checkpointer="sqlite:///clew.db")
        result = await agent.run("Send the invoices of May.", thread_id="user-42")

    If the process is killed at any point, the same call in a new process goes on where it stopped. The model is not asked
    again for a response that is on record, and a tool that must not run twice is not run twice.
    """

    _ends: Ends | None = None
    """Decides what is recorded at the end of each run, if a program runs this agent for others; else None."""

    def __new__(cls, *args: Any, provider: str | Sequence[str] | None = None, **settings: Any) -> Self:
        """Make an `Agent` or, with a `provider`, a `ProviderAgent`, which works through an outside coding agent."""
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
        workspace: Folder | Callable[[str], Folder] | EllipsisType | None = ...,
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
        takeover: Takeover = False,
        label: str = "",
        allow_repeats: bool = False,
        handle_signals: bool | Callable[[str], str] = False,
        data_dir: str | os.PathLike[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        permissions: Literal["read", "edit", "full"] | None = None,
        timeout: float | None = None,
    ) -> None:
        """`model` is a name like `openai:gpt-5`, or a model object. `options` are added to its requests, and
        `max_tokens` limits each response. `budget` limits what a thread may spend; costs are counted with `prices`,
        then with Clew's own list of prices. `redact`, a function or regular expressions, removes secrets from what is
        stored. `checkpointer` is a store or its URL, by default the one that the environment variable `CLEW_STORE`
        names, or a local file; with None all is kept in memory only. `data_dir` is a folder for a store of files.

        `workspace` is the folder that tools work in, or a function that returns it for a thread's id. Without it, an
        agent with tools that need one, such as `DEFAULT_TOOLS`, is refused. `workspace=None` says that every
        `session(workspace=…)` brings its own. A snapshot of the files is taken after every `snapshot_every` turns that
        called tools. When a thread is resumed, the files on record are restored if the folder is empty or gone; with
        `restore_files=True` always, after a snapshot of it.

        `output` is the type of the final answer; the model has to correct one that does not fit. With `finish=True` the
        model can end its run only by calling a tool with its answer. `finish` can also be your own tool, whose result
        is the answer. An agent among the `tools` works on a thread of its own, which is resumed with this agent's.
        `max_turns` limits the turns for one prompt. The model is warned when exactly `warn_turns` turns are left, and
        before the last one; with 0 never. When the share `compact_at` of the context window is used (give
        `context_window`, in tokens, for a model that Clew does not know), a summary replaces the earlier messages. The
        same happens if the vendor finds the conversation too long; `on_overflow="unwind"` removes the last turn instead.

        `takeover=True` takes a thread from a process that still holds its lease; a function that gets the lease can
        decide instead. `label` names this process for others, in errors and listings. `durability="exit"` records
        nothing before the run ends, and refuses tools that must not run twice (effect `once`), unless
        `allow_repeats=True`. `handle_signals=True` is for programs: SIGTERM stops a run as Ctrl+C does. The run records
        its end and its files. The process prints to stderr how to resume the thread (or what your function returns for
        the thread's id), and exits with 130. A second signal ends the process at once; it then prints whether the files
        on record are older than the conversation. `provider` is `claude_code`, `codex` or `opencode`: the agent then
        works through that program. Of several names, the next takes over if a program cannot go on. `cwd`, `env`,
        `permissions` and `timeout` are only for such agents; `ProviderAgent` explains them."""
        if provider is not None:
            raise InvalidInput("a subclass of Agent has no provider=. Derive it from clew.providers.ProviderAgent.")
        if any(given is not None for given in (cwd, env, permissions, timeout)):
            raise InvalidInput("cwd, env, permissions and timeout are for Agent(provider=…); here, use workspace=")
        if isinstance(model, Mapping) or not model:
            raise InvalidInput(
                "an agent needs a model, Agent('anthropic:…'), or a provider, Agent(provider='claude_code')"
            )
        check_arguments(name=name, system_prompt=system_prompt, tools=tools, workspace=workspace, data_dir=data_dir)
        check_arguments(max_turns=max_turns, snapshot_every=snapshot_every, warn_turns=warn_turns)
        check_arguments(max_tokens=max_tokens, context_window=context_window, compact_at=compact_at, budget=budget)
        check_arguments(durability=durability, on_overflow=on_overflow, options=options, prices=prices, redact=redact)
        check_arguments(restore_files=restore_files, allow_repeats=allow_repeats, handle_signals=handle_signals)
        check_arguments(takeover=takeover, label=label)
        resolved = resolve_model(model)
        answer = None if output is None else Output(output)
        ending = finish_tool(finish, answer)
        given = list(tools)
        self._children = [one for one in given if isinstance(one, Agent)]
        given_tools = [as_child(one) if isinstance(one, Agent) else one for one in given]
        self._settings = Settings(
            name=name,
            model=resolved,
            system_prompt=system_prompt,
            tools=tools_by_name(given_tools if ending is None else [*given_tools, ending]),
            workspace=absolute(workspace) if isinstance(workspace, str | os.PathLike) else None,
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
        self._label = label
        self._folders = workspace if callable(workspace) else None
        self._handle_signals = handle_signals
        self._running: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last = LastRun[Settings]()
        self._trusted: dict[str, Store] = {}
        """The stores that this agent opened because a trusted handle named them, by URL."""

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def checkpointer(self) -> Checkpointer:
        """The store in which this agent keeps its threads. Opens it if nothing was run yet; the agent closes it."""
        return self._store.open()

    def run(
        self,
        prompt: str,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask the agent, on the thread `thread_id` or else a new one. Unfinished work of the thread is finished first.

        With a `prompt_id` the prompt is asked only once on its thread. Given again, the run goes on with that prompt or
        returns its answer, even if other prompts came later. Another id with the same words is a new prompt. Without an
        id, a prompt is new unless the thread's last prompt has the same words and is unfinished, as after a crash: then
        the run goes on with that one.

        If the earlier work waits for a person, this prompt is recorded but not asked yet. The result then has the
        status `waiting`, the open questions, and a `reason` that says so. The prompt is asked after `resume(answer=…)`.
        `max_turns` replaces the agent's own limit for this run. After `timeout` seconds the run is interrupted. After
        `turns` turns it ends too, but the model is not told that it should come to an end, and the next run goes on as
        if nothing had happened."""
        check_prompt(prompt, prompt_id)
        found = self.new_id() if thread_id is None else thread_id
        how: dict[str, Any] = {"max_turns": max_turns, "turns": turns, "timeout": timeout, "prompt_id": prompt_id}
        job = Job(found, prompt, named=thread_id is not None, **how)
        return Run(lambda emit: self._run(job, emit), job.drain)

    def resume(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Go on with a thread. `answer` answers the question that the thread asked a person; for several questions, give
        a dict by question id. A `prompt` is asked after that. The other arguments mean the same as for `run`.
        Without a `thread_id`, this resumes the thread that this agent object ran last, in the same folder and store. If
        the object has run none, this resumes the newest thread of an agent with this agent's name, and `RunStarted`, the
        first event, says which. If several such threads are unfinished, raises a `UsageError` that lists them."""
        check_resumed(prompt, prompt_id)
        job = Job(thread_id or "", prompt, answer, max_turns, timeout, prompt_id=prompt_id, turns=turns)

        async def work(emit: Emit) -> RunResult:
            agent, found = (self, thread_id) if thread_id is not None else await self._last_thread()
            await agent.check_thread(found)
            return await agent._run(msgspec.structs.replace(job, thread_id=found), emit)

        return Run(work, job.drain)

    def stream(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask a prompt, on the thread `thread_id` or else a new one, and return a run whose events can be iterated:
        `async for event in agent.stream("…")`. The run's `result` is there after the last event. Without a prompt, the
        run resumes the thread, with `answer` if given. The arguments mean the same as for `run` and `resume`."""
        limits: dict[str, Any] = {"max_turns": max_turns, "turns": turns, "timeout": timeout}
        if prompt is None:
            return self.resume(thread_id=thread_id, prompt_id=prompt_id, answer=answer, **limits)
        if answer is not None:
            raise UsageError("answer= is for a stream that goes on without a prompt: leave the prompt out.")
        return self.run(prompt, thread_id=thread_id, prompt_id=prompt_id, **limits)

    async def _last_thread(self) -> tuple[Agent, str]:
        """Find the thread for a `resume` without a thread id. Return two things: a copy of this agent that has the store and
        the settings with which that thread was last run, and the thread's id."""
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
        """Return a session, in which several prompts are asked on one thread:

            async with agent.session(...) as session:
                await session.run(...)

        With `resume=True`, a program that is run again goes on where it stopped: each prompt is recognized by its
        position in the session, and an answer on record is returned at once. Without a `thread_id`, the thread's id is
        then a hash of the agent's name, the first prompt and the folder. Such a thread is deleted when the session is
        left and its last run is done, unless `delete_when_done=False`; with `keep_when_stopped=False` it is also
        deleted if that run was interrupted or failed. Other threads are never deleted. `workspace` (or `output_dir`,
        another name for it) is the folder for the tools of this session, in place of the agent's own."""
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
        """Return the thread id that `session(resume=True)` makes for a session whose first prompt is `task`. Runs nothing.

        The id contains a hash of the agent's name, the task and the path of the folder. `workspace` is the folder that the
        session is given. Without it, the folder is the agent's own, or else the current one."""
        check_prompt(task)
        return task_id(self.name, task, self._folder if workspace is None else absolute(workspace))

    def start_session(self, *, thread_id: str | None = None) -> Session:
        """Return a session on a new thread or, with `thread_id`, on the thread with this id, which is made if it does
        not exist. The session's handle, a string with which any process can continue it, can be taken before the first
        prompt, and works once that prompt is on record."""
        return OwnSession(self, self.new_id() if thread_id is None else thread_id, folder=self._folder)

    def resume_session(self, handle: str, *, key: str | bytes | None = None, trust: bool = False) -> Session:
        """Return the session that a handle (the string from `session.resume_handle`) or a thread id names, in any
        process that reaches the store. With a `key`, only a handle that was signed with it is accepted. A store that a
        handle names as a hint is used only with `trust=True`, and only if this agent was given no store.

        A session of a provider can go on here too, with the same conversation, if the store has its thread. If the
        store does not have the thread, the first prompt raises `ThreadNotFound` and creates nothing."""
        found = read_handle(handle, key=key)
        agent = self._trusting(found) if trust else self
        return OwnSession(agent, found.session_id, folder=agent._folder, must_exist=True)

    @property
    def _folder(self) -> Path:
        """The folder for the agent's tools, by default the current one. `task_id` hashes it into a thread's id."""
        return self._settings.workspace or Path.cwd()

    def new_id(self) -> str:
        """Return a new random thread id that begins with the agent's name."""
        return f"{self.name or 'run'}-{secrets.token_hex(6)}"

    async def _run_on(self, thread_id: str, prompt: str | None, emit: Emit, **how: Any) -> RunResult:
        """Ask `prompt` on this thread, or resume the thread if `prompt` is None, and return the result. `emit` is
        called with each event. `how` are further arguments of the run, such as `timeout`."""
        return await self._run(Job(thread_id, prompt, **how), emit)

    @property
    def store_url(self) -> str:
        """The URL of the store if it was given as a URL; else empty."""
        return self._store.url

    async def check_thread(self, thread_id: str) -> None:
        """Raise `ThreadNotFound` unless the store has this thread. Creates nothing."""
        await self._store.check(thread_id)

    async def trajectory(self, thread_id: str) -> Trajectory:
        """Read what was done on a thread, prompt by prompt. Raises `ThreadNotFound` if the store does not have it."""
        await self.check_thread(thread_id)
        return (await read_trajectory(self._store.open(), thread_id))[0]

    def _trusting(self, handle: Handle) -> Agent:
        """Return this agent or, if it was given no store and `handle` names one, a copy that uses the named store."""
        if not handle.store or not self._store.is_default:
            return self
        agent = copy.copy(self)
        agent._store = self._trusted.setdefault(handle.store, Store(handle.store))
        return agent

    async def _moved(self, thread_id: str, provider: str, settings: dict[str, Any]) -> Session:
        """Return a session on this thread of a new agent, made with the arguments `settings`. It works through
        `provider`, or is the built-in agent if that is `clew`. Unless `settings` has them, it gets this agent's store
        and, at a provider, also this agent's name, system prompt and folder."""
        await self.check_thread(thread_id)
        if provider == "clew":
            return Agent(**{"checkpointer": self._store.open(), **settings}).start_session(thread_id=thread_id)
        prompt = self._settings.system_prompt
        made: dict[str, Any] = {"checkpointer": self._store.open(), "system_prompt": prompt, "name": self.name}
        if self._settings.workspace is not None and not {"cwd", "workspace"} & settings.keys():
            made["workspace"] = self._settings.workspace
        session = Agent(provider=provider, **{**made, **settings}).start_session(thread_id=thread_id)
        return await session.move_to(provider)

    def _check_as_tool(self) -> None:
        """Raise `InvalidInput` if this agent cannot be a tool: it lacks a name, or a folder that its tools need."""
        if not self.name:
            raise InvalidInput("an agent that is a tool needs a name: Agent(…, name=…)")
        check_has_folder(self._settings, "As a tool of another agent it needs its own: Agent(…, workspace=…)")

    def _once(self) -> list[str]:
        """Return the names of the tools that must not run twice, including those of sub-agents."""
        own = [tool.name for tool in self._settings.tools.values() if tool.effect == "once"]
        return [*own, *(f"{child.name}'s {name}" for child in self._children for name in child._once())]

    def _restore_always(self) -> None:
        self._settings = msgspec.structs.replace(self._settings, restore_files=True)

    def _in(self, workspace: Path) -> Agent:
        """Return a copy of this agent that works in another folder."""
        agent = copy.copy(self)
        agent._settings = msgspec.structs.replace(self._settings, workspace=workspace)
        return agent

    async def aclose(self) -> None:
        """Stop all runs, and close the store and the model's connections if this agent opened them. Does nothing in a
        forked child process."""
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
        assert task is not None  # noqa: S101 - for the type checker
        self._tasks.add(task)
        running.set(self)
        draining.set(job.drain)
        try:
            with stops_for(job.thread_id, self._handle_signals, is_named=job.named):
                async with turn_of(job, lock) as called:
                    return await self._run_alone(job, called, emit)
        finally:
            self._tasks.discard(task)

    async def _run_alone(self, job: Job, called: float, emit: Emit) -> RunResult:
        def began() -> None:
            self._last.ran = Ran(job.thread_id, self._store, self._settings)
            emit(RunStarted(job.thread_id))

        return await run_job(
            job,
            in_own_folder(self._settings, self._folders, job.thread_id),
            self._store,
            durability="exit" if self._durability == "exit" else "async",
            redact=self._redact,
            takeover=self._takeover,
            label=self._label,
            ends=self._ends,
            called=called,
            began=began,
            emit=emit,
        )

    async def questions(self, thread_id: str) -> list[Question]:
        """Return the questions to a person that a thread waits for. Raises `ThreadNotFound` if there is no such thread."""
        await self.check_thread(thread_id)
        return open_questions(await Thread.load(self._store.open(), thread_id))
