"""What the agent of a thread was made with, on record in words, so that a resume needs nobody to say it again.

For agents that are made from a command line: tools by where they are, servers by how they are started. A program's own
objects have no such words, and what a thread's record tells of them is all there is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clew.agent.settings import Budget
from clew.checkpointers import Checkpointer
from clew.errors import Corrupt
from clew.log import Checkpoint, StateSet
from clew.threads.maintenance import put_aside
from clew.tools import DEFAULT_TOOLS

__all__ = ["SETUP", "Setup", "keep_setup", "kept_setup", "setup_of"]

SETUP = "clew:setup"
"""The thread's value that holds it. A rewind brings back the one of then, and a fork has its own."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Never holds a key or any other secret."""

    model: str = ""
    """As `Agent` takes it; at a provider, in that one's own words, or empty."""
    provider: str = ""
    """Empty for the built-in agent."""
    tools: tuple[str, ...] = ()
    """Each as `module:function`."""
    mcp: tuple[str, ...] = ()
    """MCP servers: URLs, or commands with $NAME where a variable of the environment is meant."""
    folder: str = ""
    """Where the command was given: modules are looked for there, and a provider without a workspace works there."""
    workspace: str = ""
    permissions: str = ""
    system: str = ""
    name: str = ""
    max_turns: int | None = None
    budget: Budget = Budget()
    supplies: tuple[str, ...] = ()
    """The names of the tools that all this brought when it was last used."""


async def keep_setup(checkpointer: Checkpointer, thread_id: str, setup: Setup) -> None:
    """Put it on record, before the thread is worked on. `ThreadBusy` if somebody does that already."""
    await put_aside(checkpointer, thread_id, StateSet(SETUP, msgspec.to_builtins(setup)))


def kept_setup(state: Checkpoint) -> Setup | None:
    """What was put on record; None for a thread that a program made."""
    kept = state.state.get(SETUP)
    try:
        return None if kept is None else msgspec.convert(kept, Setup)
    except msgspec.ValidationError as error:
        raise Corrupt(f"what this thread was started with is on record, and is not readable: {error}") from None


def setup_of(state: Checkpoint) -> Setup:
    """With what a thread goes on: as it was put on record, else as far as the rest of the record tells. Whoever worked on
    it last is meant: a thread may have been moved since."""
    kept = kept_setup(state)
    found = _guessed(state) if kept is None else kept
    provider = str(state.limits.get("provider") or "")
    if state.limits and provider != found.provider:
        return _moved(found, state, provider)
    return found


def _moved(setup: Setup, state: Checkpoint, provider: str) -> Setup:
    there: dict[str, Any] = {"tools": (), "mcp": (), "max_turns": None} if provider else {}
    return msgspec.structs.replace(
        setup,
        provider=provider,
        model=state.model,
        folder=str(state.limits.get("cwd") or setup.folder),
        permissions=str(state.limits.get("permissions") or setup.permissions),
        **there,
    )


def _guessed(state: Checkpoint) -> Setup:
    """From what every agent puts on record. Where its tools are is not among that, unless they are Clew's own."""
    limits = state.limits
    provider = str(limits.get("provider") or "")
    spend = {name: limits[name] for name in ("usd", "tokens", "seconds") if limits.get(name) is not None}
    own = [tool.name for tool in DEFAULT_TOOLS if state.tools.get(tool.name) == tool.digest]
    return Setup(
        model=state.model if provider or ":" in state.model else "",
        provider=provider,
        tools=tuple(f"clew.tools:{name}" for name in own),
        folder=str(limits.get("cwd") or ""),
        permissions=str(limits.get("permissions") or ""),
        system=state.system_prompt,
        name="" if state.agent == provider else state.agent,
        max_turns=limits.get("max_turns"),
        budget=Budget(**spend),
    )
