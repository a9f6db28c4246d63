"""`AgentConfig`, the settings of a `GenericAgent`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, NoReturn

from clew.agent import Budget
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.models import Model
from clew.providers import find_provider
from clew.providers.base import Permissions
from clew.sync import Checkpointer as BlockingCheckpointer
from clew.tools import AnyTool

__all__ = ["BUILT_IN", "AgentConfig"]

BUILT_IN = "clew"
"""The provider name of Clew's own agent, which calls a model's API itself."""
_PROVIDERS = {"claude": "claude_code", "openai": "codex"}
_HERE = {
    "prompt": "user_prompt",
    "instructions": "system_prompt",
    "provider": "model_provider",
    "model_name": "model",
    "session_id": "resume_from",
    "thread_id": "resume_from",
    "working_directory": "cwd",
    "working_dir": "cwd",
    "max_iterations": "max_turns",
    "timeout_seconds": "timeout",
    "permission_mode": "permissions, which is 'read', 'edit' or 'full'",
    "allowed_tools": "options=['--allowedTools', …] for Claude Code",
    "mcp_servers": "options=['--mcp-config', …] for Claude Code; tools for model_provider='clew'",
    "max_tokens": "budget=clew.Budget(tokens=…), for all that a session spends",
    "max_cost": "budget=clew.Budget(usd=…), for all that a session spends",
    "api_key": "env={**os.environ, 'ANTHROPIC_API_KEY': …}",
    "app_name": "name",
}
"""What other settings are called here, by the names that users may know them by."""


class AgentConfig:
    """The settings of a `GenericAgent`. Every attribute can be changed until the agent is used."""

    def __init__(
        self,
        user_prompt: str = "",
        *,
        model_provider: str = "claude",
        model: str | Model = "",
        system_prompt: str = "",
        name: str = "",
        tools: Iterable[AnyTool | Callable[..., Any]] = (),
        cwd: str | os.PathLike[str] | None = None,
        max_turns: int | None = None,
        timeout: float | None = None,
        resume_from: str | None = None,
        test_session_resumption: bool = False,
        permissions: Permissions = "edit",
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        workspace: str | os.PathLike[str] | None = None,
        budget: Budget | None = None,
        checkpointer: Checkpointer | BlockingCheckpointer | str | EllipsisType | None = ...,
        data_dir: str | os.PathLike[str] | None = None,
        **others: Any,
    ) -> None:
        """`user_prompt` is what `GenericAgent.run` asks. `model_provider` is `claude` (Claude Code), `openai` or
        `codex` (Codex), `opencode`, or `clew`, Clew's own agent, for which `model` is for example `openai:gpt-5`. For a
        coding agent, `model` is the provider's own name of a model. `tools` are functions for Clew's own agent; a
        coding agent has tools of its own, and takes none here.

        `max_turns` limits how many responses the model may give to one prompt; only Claude Code and Clew's own agent
        take it. `timeout` is in seconds, for each prompt. `resume_from` is the session id of an earlier response: `run`
        then continues that session. With `test_session_resumption=True`, `run` also tests in a session of its own
        whether resuming works, which costs two more prompts.

        `cwd`, `env`, `options` and `permissions` are for a coding agent's program: its folder, its environment, further
        options of its command line, and what it may do without asking. `workspace` is a folder of which snapshots are
        kept. `budget` limits what a session may spend. `checkpointer` is a store or its URL, by default the one that
        the environment variable `CLEW_STORE` names, or a local file; with None all is kept in memory only. `data_dir`
        is a folder for a store of files instead. Any argument in `others` raises `InvalidInput`.
        """
        for other in others:
            _refuse(other)
        self.user_prompt = user_prompt
        self.model_provider = model_provider
        self.model = model
        self.system_prompt = system_prompt
        self.name = name
        self.tools = tuple(tools)
        self.cwd = cwd
        self.max_turns = max_turns
        self.timeout = timeout
        self.resume_from = resume_from
        self.test_session_resumption = test_session_resumption
        self.permissions = permissions
        self.env = env
        self.options = options
        self.workspace = workspace
        self.budget = budget
        self.checkpointer = checkpointer
        self.data_dir = data_dir

    @property
    def provider(self) -> str:
        """The name that Clew has for the `model_provider`: `claude_code`, `codex`, `opencode`, `clew` …"""
        return _PROVIDERS.get(self.model_provider, self.model_provider)

    def changed(self, **settings: Any) -> AgentConfig:
        """Return a copy of this config in which the attributes named by `settings` have these values."""
        found = copy.copy(self)
        vars(found).update(settings)
        return found

    def check(self) -> None:
        """Raise `InvalidInput` if the settings do not fit together, such as tools for a provider that takes none.
        Whether each value is valid by itself is checked later, when an agent is made from the config."""
        if not isinstance(self.model_provider, str):
            raise InvalidInput(
                f"model_provider is the name of a provider such as 'claude', not {self.model_provider!r}."
            )
        if self.provider == BUILT_IN:
            programs = {"cwd": self.cwd, "env": self.env, "options": self.options or None}
            if given := [name for name, value in programs.items() if value is not None]:
                raise InvalidInput(f"{', '.join(given)}: model_provider='clew' has no program that this is for.")
            if not self.model:
                raise InvalidInput("model_provider='clew' needs a model: AgentConfig(…, model='anthropic:…').")
            return
        if ":" in self.model_provider:
            raise InvalidInput(
                f"model_provider={self.model_provider!r} is the name of a model. To call its API without a coding agent: "
                f"AgentConfig(…, model_provider='clew', model={self.model_provider!r})."
            )
        title = find_provider(self.provider).title
        if self.tools:
            raise InvalidInput(
                f"tools: {title} runs its own. Give it tools by its settings or options=…, or take model_provider='clew'."
            )
        if not isinstance(self.model, str):
            raise InvalidInput(f"model is {title}'s own name of a model, and not a {type(self.model).__name__}.")
        self.check_turns(self.max_turns)

    def check_turns(self, max_turns: int | None) -> None:
        """Raise `InvalidInput` if `max_turns`, a limit of turns, is not a whole number from 1, or if the provider
        cannot count turns. None means no limit, and is always accepted."""
        if max_turns is None:
            return
        if not isinstance(max_turns, int) or isinstance(max_turns, bool) or max_turns < 1:
            raise InvalidInput(f"max_turns is a whole number, 1 or more, and not {max_turns!r}.")
        if self.provider not in (BUILT_IN, "claude_code"):
            raise InvalidInput(
                f"max_turns={max_turns}: {find_provider(self.provider).title} counts no turns. Limit it by timeout= or "
                "budget=."
            )


def _refuse(name: str) -> NoReturn:
    here = _HERE.get(name)
    if here is None:
        names = ", ".join(vars(AgentConfig()))
        raise InvalidInput(f"AgentConfig({name}=…): there is no such setting here. There are {names}.")
    raise InvalidInput(f"AgentConfig({name}=…): here that is {here}.")
