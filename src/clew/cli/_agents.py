"""The agent that a setup describes: a model with its tools, or a provider."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from clew.errors import UsageError

if TYPE_CHECKING:
    from clew.agent import Agent
    from clew.agent.settings import Setup
    from clew.checkpointers import Checkpointer
    from clew.log import Checkpoint
    from clew.providers import ProviderAgent

__all__ = ["ToolsMissing", "make_agent"]


_OTHER_BUDGETS = "Limit tokens or time in its place: --budget 100ktokens or --budget 10min; --budget none is no limit."
"""What to write where dollars cannot be counted: the command line cannot be told a price."""


class ToolsMissing(UsageError):
    """A thread has tools that the command line does not know."""

    def __init__(self, thread_id: str, tools: Sequence[str], *, in_the_middle: bool) -> None:
        self.tools = tools
        self.in_the_middle = in_the_middle
        """Whether a call of one of them is open, so that nothing can go on without it."""
        several = len(tools) > 1
        unknown = f"has {'tools' if several else 'a tool'} that the command line does not know:"
        what = "is in the middle of a call of" if in_the_middle else unknown
        super().__init__(
            f"thread {thread_id!r} {what} {', '.join(tools)}. A program made it, and its record does not say where "
            f"{'they are' if several else 'it is'}. Nothing was changed."
        )


async def make_agent(
    setup: Setup,
    thread_id: str,
    before: Checkpoint | None,
    store: Checkpointer,
    stack: AsyncExitStack,
    stopped: Callable[[str], str],
    *,
    without_tools: bool = False,
) -> tuple[Agent | ProviderAgent, Setup, list[str]]:
    """The agent, with all it needs opened, which is closed with the stack; the setup, with the names of its tools; and what
    is to be known of it. `before` is the thread that it goes on with: `ToolsMissing` if that has tools which only a program
    has, unless it may go on `without_tools`. `stopped` makes of a thread's id the command that a signal leaves behind."""
    import msgspec

    from clew import Agent
    from clew.agent.settings import PriceUnknown

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
        notes = _missing(thread_id, before, set(tools), without_tools)
        setup = msgspec.structs.replace(setup, supplies=tuple(sorted(tools)))
        common |= {} if setup.max_turns is None else {"max_turns": setup.max_turns}
        try:
            made = Agent(setup.model, tools=tools.values(), workspace=setup.workspace or None, **common)
        except PriceUnknown as error:
            raise PriceUnknown(error.model, _OTHER_BUDGETS) from None
    return await stack.enter_async_context(made), setup, notes


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


def _missing(thread_id: str, before: Checkpoint | None, names: set[str], without: bool) -> list[str]:
    """A thread that a program made says which tools it had, and not where they are. It does not go on without them unless
    that is asked for, and never without one that it is in the middle of. What else is left out, and was given on a command
    line before, is said."""
    from clew.agent.way_forward import program_tools

    if before is None:
        return []
    missing = before.tools.keys() - names
    begun = sorted({call.call.name for call in before.calls if call.result is None and call.call.name in missing})
    if begun:
        raise ToolsMissing(thread_id, begun, in_the_middle=True)
    unknown = [name for name in program_tools(before) if name in missing]
    if unknown and not without:
        raise ToolsMissing(thread_id, unknown, in_the_middle=False)
    if not missing:
        return []
    listed = f"Without {'tools' if len(missing) > 1 else 'a tool'} that it had before: {', '.join(sorted(missing))}."
    return [listed if without else f"{listed} Give {'them' if len(missing) > 1 else 'it'} with --tool module:function."]
