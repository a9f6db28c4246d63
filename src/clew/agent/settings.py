"""The settings of an agent, its budget, and `Setup`: the options from which the command line can make a thread's agent
again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from clew.agent.output import Output
from clew.checkpointers import Checkpointer
from clew.errors import Corrupt, InvalidInput
from clew.log import Checkpoint, Present, StateSet, ThreadStarted
from clew.models import Model, Price
from clew.threads.maintenance import put_aside
from clew.tools import DEFAULT_TOOLS, AnyTool

__all__ = [
    "SETUP",
    "Budget",
    "Overflow",
    "PriceUnknown",
    "Settings",
    "Setup",
    "drift_of",
    "keep_setup",
    "kept_setup",
    "read_setup",
    "setup_at",
    "setup_of",
    "started",
]


Overflow = Literal["compact", "unwind"]
"""What is tried first when a conversation no longer fits into the model's context window: a summary of the older
messages (`compact`), or removal of the last turn (`unwind`)."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much a thread may spend in dollars, tokens and seconds, over all runs on it together. None means no limit."""

    tokens: int | None = None
    """The most input and output tokens together."""
    usd: float | None = None
    seconds: float | None = None
    """The most seconds of work. It is checked between turns. Time in which no run was under way does not count."""

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise InvalidInput(f"a budget's {name} is a number, or None for no limit, not {value!r}")
            if value is not None and not value > 0:
                raise InvalidInput(
                    f"a budget of {value} {name} allows nothing. Give more than 0, or None for no limit."
                )

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that are set: a dict with the keys `tokens`, `usd` and `seconds`, without those that have no
        limit."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def exceeded(self, state: Checkpoint | Present) -> str | None:
        """Return a text that says which limit is used up, or that dollars are limited and the cost is not known. Return
        None if the thread may go on. `state` is the thread's present state."""
        spent = state.usage.input_tokens + state.usage.output_tokens
        if self.tokens is not None and spent >= self.tokens:
            return f"budget: {spent} of {self.tokens} tokens"
        if self.usd is not None and state.cost_usd is None:
            return "budget: what was spent is not known, because a price is not"
        if self.usd is not None and state.cost_usd is not None and state.cost_usd >= self.usd:
            return f"budget: {state.cost_usd:.4f} of {self.usd:.4f} dollars"
        if self.seconds is not None and state.seconds >= self.seconds:
            return f"budget: {state.seconds:.0f} of {self.seconds:g} seconds"
        return None


class PriceUnknown(InvalidInput):
    """Raised when a budget in dollars is given for a model that has no known price."""

    def __init__(self, model: str, what_to_do: str) -> None:
        self.model = model
        super().__init__(f"the price of {model} is not known, so a budget in dollars cannot be kept. {what_to_do}")


Folder = str | os.PathLike[str]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an `Agent`: its arguments, after they were checked."""

    name: str
    model: Model
    system_prompt: str
    tools: Mapping[str, AnyTool]
    workspace: Path | None
    max_turns: int
    budget: Budget
    snapshot_every: int
    max_tokens: int | None
    options: Mapping[str, Any]
    prices: Mapping[str, Price] | None
    output: Output | None = None
    finish: AnyTool | None = None
    warn_turns: int = 0
    window: int | None = None
    """How many tokens the conversation may fill before a summary replaces its older messages; None for no limit."""
    on_overflow: Overflow = "compact"
    restore_files: bool = False
    parent: tuple[str, int] | None = None
    """For a sub-agent: the thread that called it, and the turn of the call. They are recorded in the sub-agent's new
    thread."""


def started(settings: Settings, state: Checkpoint) -> ThreadStarted:
    """Return the log entry that says which agent works on a thread, and with which settings. `state` is the thread's
    present state."""
    return ThreadStarted(
        agent=settings.name,
        model=settings.model.name,
        system_prompt=settings.system_prompt,
        tools={name: tool.digest for name, tool in settings.tools.items()},
        limits={"max_turns": settings.max_turns, **settings.budget.limits},
        parent=state.parent or settings.parent,
    )


def drift_of(state: Checkpoint, now: ThreadStarted) -> dict[str, tuple[Any, Any]]:
    """Return which settings of the agent differ from those on record: a dict from the setting's name to a pair of its
    recorded and its present value. `now` is the entry with the present settings. The dict is empty for a new thread.

    The key `tools` is there only if tools were added or removed; its pair has the names of all tools. The key `changed
    tools` is there if tools kept their name while their description, parameters or `effect=` changed; both values of its
    pair are the list of these names.
    """
    if not state.model and not state.history:
        return {}
    names = ("agent", "model", "system_prompt", "limits")
    found = {
        name: (getattr(state, name), getattr(now, name)) for name in names if getattr(state, name) != getattr(now, name)
    }
    if state.tools.keys() != now.tools.keys():
        found["tools"] = (sorted(state.tools), sorted(now.tools))
    changed = {name for name in state.tools.keys() & now.tools.keys() if state.tools[name] != now.tools[name]}
    if changed:
        found["changed tools"] = (sorted(changed), sorted(changed))
    return found


SETUP = "clew:setup"
"""The name of the value in a thread's state that holds its `Setup`, the options of its agent. After a rewind, it is the
setup of the turn that was rewound to. A fork has a setup of its own."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options with which the command line made the agent of a thread. It is stored in the log, so it never holds a
    key or any other secret."""

    model: str = ""
    """The model as `Agent` takes it. With a provider, it is the provider's name for the model, or empty."""
    provider: str = ""
    """The name of the provider; empty for the built-in agent."""
    tools: tuple[str, ...] = ()
    """The tools, each as `module:function`."""
    mcp: tuple[str, ...] = ()
    """MCP servers: URLs, or commands, in which $NAME stands for an environment variable."""
    folder: str = ""
    """The folder in which the command was given. Modules with tools are looked for there, and a provider without a
    workspace works there."""
    workspace: str = ""
    permissions: str = ""
    system: str = ""
    name: str = ""
    max_turns: int | None = None
    budget: Budget = Budget()
    supplies: tuple[str, ...] = ()
    """The names of all tools that the agent had when it was last made from this setup."""


async def keep_setup(checkpointer: Checkpointer, thread_id: str, setup: Setup) -> None:
    """Record the setup (the options with which the command line makes the agent) on a thread, before work on the thread
    begins. Raises `ThreadBusy` if another process works on the thread already."""
    await put_aside(checkpointer, thread_id, StateSet(SETUP, msgspec.to_builtins(setup)))


def kept_setup(state: Checkpoint) -> Setup | None:
    """Return the setup of a thread: model, tools, limits and other options, as the command line recorded them when it
    started the thread. Returns None if the thread was not started from the command line. Raises `Corrupt` if the setup
    cannot be read."""
    return read_setup(state.state.get(SETUP))


def read_setup(kept: Any) -> Setup | None:
    """Decode a setup from the value that is stored for it. Returns None for None. Raises `Corrupt` if the value cannot
    be read."""
    try:
        return None if kept is None else msgspec.convert(kept, Setup)
    except msgspec.ValidationError as error:
        raise Corrupt(
            f"the options that this thread was started with are on record, but cannot be read: {error}"
        ) from None


def setup_of(state: Checkpoint) -> Setup:
    """Return the setup of a thread: the options with which the command line makes an agent to go on with it.

    It is the recorded one. If none is recorded, it is made from the settings that every agent records; of the tools it
    then has only Clew's own. If the thread has since moved to another provider or to the built-in agent, the result
    names what it moved to, and the model there.
    """
    kept = kept_setup(state)
    found = _guessed(state) if kept is None else kept
    provider = str(state.limits.get("provider") or "")
    if state.limits and provider != found.provider:
        folder, permissions = str(state.limits.get("cwd") or ""), str(state.limits.get("permissions") or "")
        return setup_at(found, provider, model=state.model, folder=folder, permissions=permissions)
    return found


def setup_at(setup: Setup, provider: str, *, model: str = "", folder: str = "", permissions: str = "") -> Setup:
    """Return a copy of `setup` for a thread that moved to this provider, or to the built-in agent if `provider` is
    empty. A setup is the options with which the command line makes a thread's agent.

    `model`, `folder` and `permissions` are those with which the thread goes on there. An empty folder or empty
    permissions leave those of `setup`; an empty model replaces that of `setup`. For a provider, the copy has no tools,
    no MCP servers and no limit of turns, because a provider has tools of its own.
    """
    there: dict[str, Any] = {"tools": (), "mcp": (), "max_turns": None} if provider else {}
    return msgspec.structs.replace(
        setup,
        provider=provider,
        model=model,
        folder=folder or setup.folder,
        permissions=permissions or setup.permissions,
        **there,
    )


def _guessed(state: Checkpoint) -> Setup:
    """Make a `Setup`, the options with which the command line makes a thread's agent, for a thread on which none is
    recorded. It is made from the settings that every agent records. These settings do not say in which Python modules
    the tools are, so only Clew's own tools are included. Raises `Corrupt` if a recorded limit, such as `max_turns`, has
    a value that no agent could have had."""
    limits = state.limits
    provider = str(limits.get("provider") or "")
    max_turns, budget = _recorded_limits(limits)
    own = [tool.name for tool in DEFAULT_TOOLS if state.tools.get(tool.name) == tool.digest]
    return Setup(
        model=state.model if provider or ":" in state.model else "",
        provider=provider,
        tools=tuple(f"clew.tools:{name}" for name in own),
        folder=str(limits.get("cwd") or ""),
        permissions=str(limits.get("permissions") or ""),
        system=state.system_prompt,
        name="" if state.agent == provider else state.agent,
        max_turns=max_turns,
        budget=budget,
    )


def _recorded_limits(limits: Mapping[str, Any]) -> tuple[int | None, Budget]:
    """Return the limit of turns (None if there is none) and the budget from `limits`, in which an agent recorded them.
    Raises `Corrupt` if one has an impossible value, such as a text as the limit of turns."""
    spend = {name: limits[name] for name in ("usd", "tokens", "seconds") if limits.get(name) is not None}
    max_turns = limits.get("max_turns")
    try:
        if max_turns is not None and (not isinstance(max_turns, int) or isinstance(max_turns, bool)):
            raise InvalidInput(f"max_turns is a number, not {max_turns!r}")
        return max_turns, Budget(**spend)
    except InvalidInput as error:
        raise Corrupt(f"the limits that this thread has on record are none: {error}") from None
