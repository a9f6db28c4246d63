"""`Agent` and `ChatCompletionsClient` with the arguments that they have in Stirrup (another agent library), and the
sessions of an agent. In a session, each prompt is a task that goes on where it was stopped."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Annotated, Any, NamedTuple, Self

import msgspec

import clew
from clew._runtime.aio import settle
from clew.agent import RunResult
from clew.agent.arguments import check_flags, check_folder, check_tools
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.checkpointers.base import is_absent
from clew.compat.stirrup.cache import check_known, compute_task_hash, forget, thread_of
from clew.errors import ClewError, InvalidInput, ModelError, UsageError
from clew.messages import Message
from clew.models import Model, resolve_model
from clew.threads import Thread
from clew.threads.leases import is_live
from clew.tools import DEFAULT_TOOLS as _DEFAULT_TOOLS
from clew.tools import AnyTool, ToolContext, ToolError, tool
from clew.tools.builtin.files import locate
from clew.workspace.folders import absolute

__all__ = ["DEFAULT_TOOLS", "Agent", "ChatCompletionsClient", "FinishParams", "Outcome", "Session", "default_tools"]

DEFAULT_TOOLS: list[AnyTool] = list(_DEFAULT_TOOLS)
"""Clew's tools for files and commands, which work in the session's folder."""

_MAX_TURNS = 30
_CLEW = frozenset(inspect.signature(clew.Agent.__init__).parameters)
_NOT_HERE = frozenset(
    {"self", "model", "provider", "workspace", "output", "finish", "data_dir", "cwd", "env", "permissions", "timeout"}
)
"""Parameters of `clew.Agent` that this `Agent` does not pass on: it sets them itself, or has no use for them."""
_INSTEAD = {
    **dict.fromkeys(_NOT_HERE, "clew.Agent has it; use that class"),
    "model": "it is called client here",
    "workspace": "it is called output_dir here, and belongs to the session: agent.session(output_dir=…)",
    "context_summarization_cutoff": "it is called compact_at here",
    "turns_remaining_warning_threshold": "it is called warn_turns here, and warns once at that number and before the last",
    "finish_tool": "use clew.Agent(…, finish=your_tool)",
    "logger": "read the steps from events: async for event in clew.Agent(…).stream(prompt)",
    "run_sync_in_thread": "tools that are not async always run in an OS thread of their own",
    "text_only_tool_responses": "images in results are sent as each vendor takes them",
    "block_successive_assistant_messages": "conversations are always sent as the vendor takes them",
    "allow_successive_assistant_messages": "conversations are always sent as the vendor takes them",
    "share_parent_exec_env": "give a sub-agent the same workspace: clew.Agent(…, workspace='folder')",
    "data_dir": "it is called checkpointer, and takes the URL of a store, such as 'file:///absolute/folder'",
}
_INSTEAD_IN_SESSION = {
    "input_files": "put the files into the folder output_dir before the session, which is where the tools work",
    "skills_dir": "put that folder into output_dir, and say in the system prompt where it is",
    "cache_on_interrupt": "everything is always on record. For what a signal does, see Agent(…, handle_signals=…)",
    "workspace": "it is called output_dir here",
    "thread_id": "a task's thread is named by its hash, agent.task_hash(prompt). To name it yourself, use clew.Agent",
    "delete_when_done": "it is called clear_cache_on_success here",
}


def default_tools() -> list[AnyTool]:
    """Return a new list with the `DEFAULT_TOOLS`, which are Clew's tools for files and commands."""
    return list(DEFAULT_TOOLS)


class ChatCompletionsClient:
    """A model that is reached through OpenAI's Chat Completions API, at OpenAI or at any other endpoint that has this
    API. If you need only the default settings, pass the model's name instead: `Agent("openai:gpt-5", …)`.

    `api_key` is the key, by default that in the environment variable `OPENAI_API_KEY`. `base_url` is the URL of another
    endpoint, by default that in `OPENAI_BASE_URL`.
    """

    def __init__(
        self,
        model: str,
        max_tokens: int | None = None,
        *,
        context_window_tokens: int | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        reasoning_effort: str | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        """`max_tokens` limits each response; without it the endpoint decides. `context_window_tokens` is the size of
        the model's context window, for a model that Clew does not know. `reasoning_effort` and the items of `kwargs`
        are added to each request. `timeout` is in seconds. Raises `MissingExtra` if the `openai` package is not
        installed, and `InvalidInput` if there are any arguments in `unknown`."""
        check_known("ChatCompletionsClient", unknown, {})
        given = {
            "context_window": context_window_tokens,
            "base_url": base_url,
            "api_key": api_key,
            "timeout": timeout,
            "max_retries": max_retries,
        }
        self._settings = {name: value for name, value in given.items() if value is not None}
        self._slug = model
        self.max_tokens = max_tokens
        self.context_window_tokens = context_window_tokens
        effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
        self.options: dict[str, Any] = {**effort, **(kwargs or {})}
        """What is added to each request."""
        self.new_model()  # so that a wrong argument is reported here, and not in the first session

    @property
    def model_slug(self) -> str:
        """The model's name, as the endpoint knows it."""
        return self._slug

    def new_model(self) -> Model:
        """Return a model object for one session. It opens no connection before its first call."""
        return resolve_model(f"openai:{self._slug}", **self._settings)


class FinishParams(msgspec.Struct, frozen=True):
    """How the model ended a task: why, and which files it made or changed."""

    reason: str
    paths: list[str] = []


@tool(name="finish", effect="none", needs_workspace=True)
def _finish(
    reason: Annotated[str, "Why the task is done, or why it cannot be."],
    ctx: ToolContext,
    paths: Annotated[list[str], "The files that you made or changed for it, without folders."] = [],  # noqa: B006
) -> FinishParams:
    """End the task. Call this once, when all is done, or when you cannot go on."""
    missing = [path for path in paths if not locate(ctx, path).path.is_file()]
    if missing:
        raise ToolError(
            f"These are not files of the workspace: {', '.join(missing)}. Check the names, then finish again."
        )
    return FinishParams(reason, list(paths))


class Outcome(NamedTuple):
    """What `session.run` returns: how the model ended the task, the conversation, and what tools recorded about each
    turn. Use it as `finish_params, history, metadata = await session.run(prompt)`."""

    finish_params: FinishParams | None
    """How the model ended the task; None if the task was interrupted, for instance by the limit `max_turns`."""
    history: list[list[Message]]
    """The conversation as the model saw it last, in one list."""
    metadata: dict[int, dict[str, Any]]
    """What tools recorded about each turn, by the number of the turn."""


class Agent:
    """An agent whose tasks go on where they were stopped: by Ctrl+C, an error, a kill or the limit of turns.

        agent = Agent(client=client, name="researcher", tools=DEFAULT_TOOLS, max_turns=50)
        async with agent.session(output_dir="./output", resume=True) as session:
            await session.run("Analyze all datasets in the data folder")

    A task is one prompt and all the work for it. Each step is on record before the next one depends on it.
    """

    def __init__(
        self,
        client: ChatCompletionsClient | Model | str,
        name: str,
        *,
        max_turns: int = _MAX_TURNS,
        system_prompt: str | None = None,
        tools: Iterable[AnyTool | clew.Agent | Callable[..., Any]] | None = None,
        checkpointer: Checkpointer | str | EllipsisType = ...,
        **settings: Any,
    ) -> None:
        """`client` is the model: a `ChatCompletionsClient`, a name such as `openai:gpt-5`, or a model object of Clew.
        Without `tools`, the agent has the `DEFAULT_TOOLS`, which work on files and run commands; it always has the tool
        `finish`, with which the model ends a task.

        `checkpointer` is a store of Clew or its URL; by default the URL in the environment variable `CLEW_STORE`, or a
        local file. `settings` are other arguments of `clew.Agent` under their names there, such as `budget`,
        `compact_at`, `warn_turns` and `handle_signals`.
        """
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"name is the name of the agent, a text that is not empty, and not {name!r}")
        if tools is not None:
            check_tools(tools)
        if checkpointer is None:
            raise InvalidInput("checkpointer=None keeps nothing, so nothing could be resumed. Give a store or its URL.")
        check_known("Agent", settings.keys() - (_CLEW - _NOT_HERE), _INSTEAD)
        self._client = client
        self._checkpointer = checkpointer
        self._settings: dict[str, Any] = {
            **settings,
            "name": name,
            "max_turns": max_turns,
            "system_prompt": "" if system_prompt is None else system_prompt,
            "tools": default_tools() if tools is None else list(tools),
            "finish": _finish,
            "output": FinishParams,
        }
        if isinstance(client, ChatCompletionsClient):
            self._settings.setdefault("max_tokens", client.max_tokens)
            self._settings["options"] = {**client.options, **(settings.get("options") or {})}
        self._make(self._new_model(), None, None)  # so that a wrong argument is reported here, and not in a session

    @property
    def name(self) -> str:
        return str(self._settings["name"])

    @property
    def client(self) -> ChatCompletionsClient | Model | str:
        return self._client

    def task_hash(self, prompt: str) -> str:
        """Return the hash by which `CacheManager`, which lists and deletes tasks, knows the task of this prompt. The
        task is not run."""
        return compute_task_hash(prompt)

    def session(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        clear_cache_on_success: bool | None = None,
        clear_on_success: bool | None = None,
        **unknown: Any,
    ) -> Session:
        """Return a session, to be used as `async with agent.session(…) as session`.

        The tools work in the folder `output_dir`. Without it, they work in a temporary folder that is removed at the
        end of the session; the files in that folder are on record with the task.

        With `resume`, a prompt that was asked before goes on where it was stopped. Otherwise it is asked anew, and what
        was said and done for it before stays in the thread's history only. A task that has ended well is deleted from
        the store, unless `clear_cache_on_success=False`, for which `clear_on_success=False` is another name. Any
        argument in `unknown` raises `InvalidInput`.
        """
        check_known("session", unknown, _INSTEAD_IN_SESSION)
        if clear_cache_on_success is not None and clear_on_success is not None:
            raise InvalidInput(
                "clear_cache_on_success and clear_on_success are two names for the same. Give one of them."
            )
        clear = clear_on_success if clear_cache_on_success is None else clear_cache_on_success
        clear = True if clear is None else clear
        check_flags(resume=resume, clear_cache_on_success=clear)
        check_folder("output_dir", output_dir)
        folder = None if output_dir is None else absolute(output_dir)
        return Session(self, folder, resume=resume, clear=clear)

    def _new_model(self) -> Model:
        if isinstance(self._client, ChatCompletionsClient):
            return self._client.new_model()
        return resolve_model(self._client)

    def _open_store(self) -> tuple[Checkpointer, bool]:
        """Return two things: the store, and whether this call has opened it, so that the caller has to close it."""
        if isinstance(self._checkpointer, Checkpointer):
            return self._checkpointer, False
        return open_checkpointer(None if self._checkpointer is ... else self._checkpointer), True

    def _make(self, model: Model, store: Checkpointer | None, folder: Path | None) -> clew.Agent:
        return clew.Agent(model, checkpointer=store, workspace=folder, **self._settings)


class Session:
    """Works on tasks in one folder: each prompt given to `run` is a task, with a thread of its own. Made by
    `agent.session`."""

    def __init__(self, agent: Agent, folder: Path | None, *, resume: bool, clear: bool) -> None:
        self._agent = agent
        self._folder = folder
        self._resume = resume
        self._clear = clear
        self._temporary: Path | None = None
        self._store: Checkpointer | None = None
        self._owns_store = False
        self._model: Model | None = None
        self._clew: clew.Agent | None = None
        self.result: RunResult | None = None
        """What Clew says of the last task: its usage, cost, drift and more."""

    async def __aenter__(self) -> Self:
        if self._store is not None:
            raise UsageError("this session was entered before. Call agent.session again.")
        if self._folder is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="clew-session-"))
        self._store, self._owns_store = self._agent._open_store()
        self._model = self._agent._new_model()
        self._clew = self._agent._make(self._model, self._store, self._folder or self._temporary)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await settle(self._close())

    async def run(self, init_msgs: str) -> Outcome:
        """Work on the task that the prompt `init_msgs` asks for, until the model ends it with the tool `finish` or a
        limit such as `max_turns` interrupts it, and return the outcome.

        If the session has `resume=True`, a task that is on record goes on where it stopped, and the line "Resuming from
        cached state at turn …" is printed to stderr. For a task that has ended and was kept, the outcome is returned at
        once. If the task is interrupted or fails, "Cached state for task …" is printed with its hash. An error is
        raised.
        """
        agent, store = self._entered()
        task_hash = compute_task_hash(init_msgs)
        thread_id = thread_of(task_hash)
        is_done = await self._prepare(store, thread_id)
        try:
            work = agent.resume(thread_id=thread_id) if is_done else agent.run(init_msgs, thread_id=thread_id)
            self.result = await work
        except BaseException as error:
            if isinstance(error, ModelError) or not isinstance(error, ClewError):
                _say(f"Cached state for task {task_hash}")
            raise
        state = await Thread.load(store, thread_id)
        if self.result.status != "done":
            _say(f"Cached state for task {task_hash}")
        elif self._clear:
            await settle(forget(store, thread_id))
        return Outcome(self.result.output, [list(state.messages)], state.metadata)

    async def _prepare(self, store: Checkpointer, thread_id: str) -> bool:
        """Prepare the thread of a task for a run, and return True if the task is done already and need not run again.
        If the session was not made with `resume=True`, the messages of an earlier run are rewound, so that the prompt
        is asked anew, and the result is False. If the task goes on, prints a line that says so. Changes nothing and
        returns False if a live process works on the thread: the run will then raise an error."""
        head = None if is_absent(store) else await store.head(thread_id)
        if head is None or (head.lease is not None and is_live(head.lease)):
            return False  # a live holder's thread is refused by the run itself
        state = await Thread.load(store, thread_id)
        if not self._resume:
            if state.history:
                async with Thread.open(store, thread_id) as thread:
                    await thread.rewind(0)
            return False
        if state.status == "done" and state.messages:
            return True
        if state.messages:
            _say(f"Resuming from cached state at turn {state.turns}")
        return False

    def _entered(self) -> tuple[clew.Agent, Checkpointer]:
        if self._clew is None or self._store is None:
            raise UsageError("this session is not open. Write: async with agent.session(…) as session")
        return self._clew, self._store

    async def _close(self) -> None:
        if self._clew is not None:
            await self._clew.aclose()
            self._clew = None
        close = getattr(self._model, "aclose", None)
        if close is not None and isinstance(self._agent.client, ChatCompletionsClient | str):
            await close()
        if self._owns_store and self._store is not None:
            await self._store.close()
        if self._temporary is not None:
            await asyncio.to_thread(shutil.rmtree, self._temporary, ignore_errors=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
