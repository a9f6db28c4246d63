"""The class `Agent` of caw, a library that wraps coding agents. An agent says which coding agent works in its sessions,
and with which settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from clew import sync
from clew.agent.arguments import check_folder
from clew.compat.caw.files import SessionFile
from clew.compat.caw.session import Session
from clew.compat.caw.trajectory import Trajectory
from clew.errors import InvalidInput
from clew.providers import Handle, find_provider, read_handle

__all__ = ["Agent"]

DEFAULT = "claude_code"
PROVIDER, MODEL = "CAW_PROVIDER", "CAW_MODEL"
_ALIASES = {"cc": "claude_code"}
_PASSED_ON = frozenset(
    {"budget", "cwd", "env", "options", "permissions", "redact", "restore_files", "takeover", "timeout", "workspace"}
)
"""Arguments of Clew's own `Agent` that this one takes too."""
_CALLED = {
    "auto_wait": "Clew does not wait for the end of a limit: it raises ProviderLimited. Name several providers, and the "
    "next one goes on with the conversation: provider=['claude_code', 'codex']",
    "description": "leave it out: an agent has a name, and no description",
    "logger": "set CAW_LOG, or iterate the events of clew.sync.Agent: session.stream(…)",
    "metadata": "leave it out, and keep it in your own records under session.session_id",
    "reasoning": "give the program's own option: options=['--effort', 'high'] for Claude Code, "
    "options=['-c', 'model_reasoning_effort=\"high\"'] for Codex, options=['--variant', 'high'] for opencode",
    "stateless_tools": "only the built-in agent has tools of your own: clew.sync.Agent(model, tools=[…])",
    "tool_servers": "name MCP servers in the provider's own configuration, or give them to the built-in agent: "
    "clew.sync.Agent(model, tools=…)",
    "tools": "say what the program may do: permissions='read', 'edit' or 'full'",
    "traj_path": "give data_dir=…, which holds a trajectory.json for each session",
}
"""What Clew calls arguments of caw that this module does not have, or why it has nothing of the kind."""


class Agent:
    """The agent of caw (a library that wraps coding agents), built on Clew. It says which coding agent works, and with
    which settings. Calls of its sessions block until they are done.

    agent = Agent(provider="claude_code", data_dir="caw_data")
    session = agent.start_session()
    print(session.send("My deploy target is staging-eu. Remember that.").result)
    handle = session.resume_handle
    session.end()
    """

    def __init__(
        self,
        provider: str | Sequence[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        system_prompt: str | None = None,
        model: str | Mapping[str, str] | None = None,
        name: str = "",
        **settings: Any,
    ) -> None:
        """`provider` is `claude_code`, `codex` or `opencode`, or a list of them in the order in which they are tried.
        If it is None, the environment variable `CAW_PROVIDER` names the provider; if that is not set either, the
        provider is Claude Code. `model` is the provider's own name of a model: a text is for the first provider, a
        mapping has a name for each provider. If it is None, the environment variable `CAW_MODEL` names the model.

        `data_dir` is a folder in which everything is kept: `clew.db`, which is a store of Clew, and for each session a
        readable file, `sessions/ID/trajectory.json`. If it is None, nothing is kept beyond the session.

        `settings` are arguments of Clew's own `Agent`: `permissions`, `cwd`, `env`, `timeout`, `workspace`, `options`,
        `budget`, `redact`, `takeover` and `restore_files`. By default `permissions` is `full`, because caw asks for no
        permission either. Any other argument raises `InvalidInput`; the message says what Clew has instead.
        """
        if settings.get("auto_wait") is False:
            del settings["auto_wait"]  # Clew never waits for the end of a limit
        refuse(settings.keys() - _PASSED_ON)
        self._is_pinned, self._providers = _providers(provider)
        self._model = os.environ.get(MODEL) if model is None else model
        self._data_dir = data_dir
        self._settings = {
            "permissions": "full",
            **settings,
            "name": name,
            **({} if system_prompt is None else {"system_prompt": system_prompt}),
        }
        if not isinstance(self._model, str | Mapping | None):
            raise InvalidInput(
                f"model is the name of a model in the provider's own words, not {self._model!r}. Clew has no tiers: name "
                "the model, or leave it out"
            )
        check_folder("data_dir", data_dir)
        sync.Agent(
            **self._with(self._providers), checkpointer=None
        )  # refuses wrong values now, not in the first session

    def start_session(self, **others: Any) -> Session:
        """Return a new session. No program is started and nothing is written before the first prompt. Raises
        `InvalidInput` if there are any arguments in `others`."""
        refuse(others)
        session_id = str(uuid4())
        return Session(self._with(self._providers), self._file(session_id), session_id)

    def resume_session(self, resume_handle: str, **others: Any) -> Session:
        """Return the session that `resume_handle` stands for: the text that a session of caw or of Clew has given for
        this purpose, in this process or another. Raises `InvalidInput` if there are any arguments in `others`.

        If this agent has the `data_dir` of the session, the whole history of the session is there, and new turns are
        added to it. Then the id of the session is enough as a handle, and a session that caw itself made is first
        copied into Clew's store. If this agent has no system prompt, the one on record goes on. Without the `data_dir`,
        the coding program's own conversation goes on if it is on this machine, and the session's trajectory (its
        record) starts empty.

        If this agent names no provider, the one that the handle names goes on. Otherwise the first provider that this
        agent names goes on with the whole conversation.
        """
        refuse(others)
        handle = read_handle(resume_handle)
        is_bare = not handle.provider
        if is_bare and self._data_dir is None:
            raise InvalidInput(
                "this is not a whole handle, which begins with '{', and a session id alone is enough only with the data_dir "
                "that has the session: Agent(data_dir=…)"
            )
        file = self._file(handle.session_id)
        return Session(self._with(self._goes_on(handle, file)), file, handle.session_id, resume_handle)

    def completion(self, message: str, **others: Any) -> Trajectory:
        """Ask one prompt in a session of its own, end that session, and return its trajectory, the record of what was
        done. Raises `InvalidInput` if there are any arguments in `others`."""
        with self.start_session(**others) as session:
            session.send(message)
        return session.trajectory

    def _file(self, session_id: str) -> SessionFile | None:
        return None if self._data_dir is None else SessionFile(self._data_dir, session_id)

    def _goes_on(self, handle: Handle, file: SessionFile | None) -> list[str]:
        """Return the names of the providers that can go on with a session, in the order in which they are tried. These
        are the ones that this agent was given. If it was given none, it is the one in `handle`, a reference to the
        session, or else in the session's file; if neither names one, they are this agent's default ones."""
        if self._is_pinned:
            return self._providers
        known = handle.provider or (file.text("agent") if file else "")
        return [known] if known else self._providers

    def _with(self, providers: list[str]) -> dict[str, Any]:
        """Return the keyword arguments for a `clew.sync.Agent` that has the settings of this agent and tries
        `providers` in this order."""
        model = {providers[0]: self._model} if isinstance(self._model, str) and self._model else self._model
        return {**self._settings, "provider": providers, "model": model or ""}


def refuse(names: Any) -> None:
    """Raise `InvalidInput` if `names`, the names of arguments that this module does not take, is not empty. The message
    says what to use instead of the first of them."""
    for name in sorted(names):
        ways = ", ".join(sorted(_PASSED_ON))
        raise InvalidInput(f"{name}: {_CALLED.get(name, f'there is no such argument. Those of Clew are {ways}')}")


def _providers(given: str | Sequence[str] | None) -> tuple[bool, list[str]]:
    """Return two things: whether `given` names providers, and the names of the providers in the order in which they are
    tried. If `given` is None or `auto`, the first is False, and the names are those in the environment variable
    `CAW_PROVIDER`, or Claude Code if it is not set. Raises `InvalidInput` if `given` is neither a name nor names."""
    if given is None or given == "auto":
        named = [name.strip() for name in os.environ.get(PROVIDER, "").split(",") if name.strip()]
    else:
        named = [given] if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
        if not named or not all(isinstance(name, str) for name in named):
            raise InvalidInput(f"provider is the name of a provider, several names, or 'auto', not {given!r}")
    names = [_ALIASES.get(name, name) for name in named or [DEFAULT]]
    for name in names:
        find_provider(name)
    return given not in (None, "auto"), names
