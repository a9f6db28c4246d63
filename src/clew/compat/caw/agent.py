"""The agent of caw: it says with which coding agent, and how, sessions work."""

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
    """An agent of caw: which coding agent works, and how. Its sessions block.

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
        """`provider` is `claude_code`, `codex`, `opencode`, or a list of them in the order in which they are tried.
        Without one, the environment variable `CAW_PROVIDER` says it, and then it is Claude Code. `model` is the name of
        a model in the words of the first provider; without one, `CAW_MODEL` says it.

        `data_dir` is a folder in which everything is kept: `clew.db`, which is a store of Clew, and for each session a
        readable file, `sessions/ID/trajectory.json`. Without it, nothing is kept beyond the session.

        `settings` are `permissions`, `cwd`, `env`, `timeout`, `workspace`, `options`, `budget`, `redact`, `takeover` and
        `restore_files`, as Clew's own `Agent` has them; `permissions` is `full` here, because caw asks for no
        permission either. Any other argument raises `InvalidInput`, which says what Clew calls it.
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
            "system_prompt": "" if system_prompt is None else system_prompt,
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
        """Return a new session. Nothing is started or written yet. `others` raise `InvalidInput`."""
        refuse(others)
        session_id = str(uuid4())
        return Session(self._with(self._providers), self._file(session_id), session_id)

    def resume_session(self, resume_handle: str, **others: Any) -> Session:
        """Return the session that a handle stands for, one of caw or one of Clew, in any process. `others` raise
        `InvalidInput`.

        With the data_dir of the session, its whole history is there, and new turns are added to it; a session that caw
        made is brought into the store first. The id of the session is enough then. Without the data_dir, the program's
        own conversation goes on, if it is on this machine, and the trajectory starts empty.

        If this agent names no provider, the one in the handle goes on. If it names others, the first of them goes on
        with the whole conversation.
        """
        refuse(others)
        handle = read_handle(resume_handle)
        is_bare = not handle.provider
        if is_bare and self._data_dir is None:
            raise InvalidInput(
                f"{resume_handle!r} is not a whole handle, and a session id alone is enough only with the data_dir that "
                "has the session: Agent(data_dir=…)"
            )
        file = self._file(handle.session_id)
        return Session(self._with(self._goes_on(handle, file)), file, handle.session_id, resume_handle)

    def completion(self, message: str, **others: Any) -> Trajectory:
        """Ask one prompt in a session of its own, end that session, and return its trajectory. `others` raise
        `InvalidInput`."""
        with self.start_session(**others) as session:
            session.send(message)
        return session.trajectory

    def _file(self, session_id: str) -> SessionFile | None:
        return None if self._data_dir is None else SessionFile(self._data_dir, session_id)

    def _goes_on(self, handle: Handle, file: SessionFile | None) -> list[str]:
        """Return the providers that go on with the session of a handle, in the order in which they are tried."""
        if self._is_pinned:
            return self._providers
        known = handle.provider or (file.text("agent") if file else "")
        return [known] if known else self._providers

    def _with(self, providers: list[str]) -> dict[str, Any]:
        """Return the keyword arguments with which `clew.sync.Agent` is made for these providers."""
        model = {providers[0]: self._model} if isinstance(self._model, str) and self._model else self._model
        return {**self._settings, "provider": providers, "model": model or ""}


def refuse(names: Any) -> None:
    """Raise `InvalidInput` if there are any of these arguments, which this module does not have. The message says what
    Clew calls them."""
    for name in sorted(names):
        ways = ", ".join(sorted(_PASSED_ON))
        raise InvalidInput(f"{name}: {_CALLED.get(name, f'there is no such argument. Those of Clew are {ways}')}")


def _providers(given: str | Sequence[str] | None) -> tuple[bool, list[str]]:
    """Return whether the user has named providers, and the names in the order in which they are tried. `auto` leaves
    the choice to the environment variable `CAW_PROVIDER`, as None does."""
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
