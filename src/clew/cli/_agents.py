"""The agent that a setup describes: a model with its tools, or a provider."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.agent import Agent
    from clew.agent.setups import Setup
    from clew.checkpointers import Checkpointer
    from clew.log import Checkpoint
    from clew.providers import ProviderAgent

__all__ = ["make_agent"]


async def make_agent(
    setup: Setup,
    before: Checkpoint | None,
    store: Checkpointer,
    stack: AsyncExitStack,
    stopped: Callable[[str], str],
) -> tuple[Agent | ProviderAgent, list[str]]:
    """The agent, with all it needs opened, which is closed with the stack; and what is to be known of it. `before` is the
    thread that it goes on with; `stopped` makes of a thread's id the command that a signal leaves behind."""
    from clew import Agent

    notes: list[str] = []
    common: dict[str, Any] = {
        "name": setup.name,
        "system_prompt": setup.system,
        "checkpointer": store,
        "budget": setup.budget,
        "handle_signals": stopped,
    }
    _make_folder(setup.workspace)
    if setup.provider:
        common |= {"workspace": setup.workspace} if setup.workspace else {"cwd": setup.folder}
        common["permissions"] = setup.permissions or "edit"
        made: Any = Agent(setup.model, provider=setup.provider, **common)
    else:
        tools = await _tools(setup, stack)
        _check_folder(setup, tools)
        notes = _missing(before, set(tools))
        common |= {} if setup.max_turns is None else {"max_turns": setup.max_turns}
        made = Agent(setup.model, tools=tools.values(), workspace=setup.workspace or None, **common)
    return await stack.enter_async_context(made), notes


def _make_folder(path: str) -> None:
    from clew.errors import InvalidInput

    try:
        if path:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--workspace {path}: the folder cannot be made: {error.strerror}.") from None


def _check_folder(setup: Setup, tools: dict[str, Any]) -> None:
    """Refuse tools that need a folder before there is a thread, in the words of the command."""
    from clew.errors import InvalidInput

    named = ", ".join(name for name, tool in tools.items() if not _is_agent(tool) and tool.needs_workspace)
    if named and not setup.workspace:
        raise InvalidInput(f"these tools need a folder to work in: {named}. Give it: --workspace FOLDER")


async def _tools(setup: Setup, stack: AsyncExitStack) -> dict[str, Any]:
    """By their names; those that the user gave come before those for files."""
    from clew.cli._toolboxes import find_tools, importing_from, open_server, own_tools
    from clew.errors import InvalidInput
    from clew.tools import as_tool

    if setup.tools:
        importing_from(os.getcwd(), setup.folder)
    found: dict[str, Any] = {}
    sources = [(where, find_tools(where)) for where in setup.tools]
    for server in setup.mcp:
        sources.append((server, list(await stack.enter_async_context(open_server(server, setup.folder)))))
    for where, tools in sources:
        for tool in tools:
            made = tool if _is_agent(tool) else as_tool(tool)
            if made.name in found:
                raise InvalidInput(f"{where}: there is another tool called {made.name!r}. Leave one of them out.")
            found[made.name] = made
    if setup.workspace:
        found |= {tool.name: tool for tool in own_tools(setup.permissions) if tool.name not in found}
    return found


def _is_agent(value: Any) -> bool:
    from clew import Agent

    return isinstance(value, Agent)


def _missing(before: Checkpoint | None, names: set[str]) -> list[str]:
    """A thread that a program made says which tools it had, and not where they are. To go on without one that it is in the
    middle of would be no resume; the others may be left out, and that is said."""
    from clew.errors import UsageError

    if before is None:
        return []
    missing = before.tools.keys() - names
    for call in before.calls:
        if call.result is None and call.call.name in missing:
            raise UsageError(
                f"this thread is in the middle of a call of {call.call.name!r}, and its record does not say where that tool "
                f"is. Give it: --tool module:{call.call.name}, or resume the thread with the program that made it."
            )
    listed = ", ".join(sorted(missing))
    return [f"Without tools that it had before: {listed}. Give them with --tool module:function."] if missing else []
