"""The agent that a setup describes: a model with its tools, or a provider."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from clew import Agent
from clew.agent.settings import PriceUnknown
from clew.agent.way_forward import program_tools
from clew.errors import InvalidInput, UsageError
from clew.tools import as_tool, edit_file, list_files, mcp_tools, read_file, run_command, write_file

if TYPE_CHECKING:
    from clew.agent import Agent
    from clew.agent.settings import Setup
    from clew.checkpointers import Checkpointer
    from clew.log import Checkpoint
    from clew.providers import ProviderAgent
    from clew.tools import AnyTool, MCPTools

__all__ = ["ToolsMissing", "check_server", "find_tools", "importing_from", "make_agent", "open_server", "own_tools"]


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

    try:
        if path:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--workspace {path}: the folder cannot be made: {error.strerror}.") from None


def _check_folder(setup: Setup, tools: dict[str, Any]) -> None:
    """Refuse tools that need a folder before there is a thread, in the words of the command."""

    named = ", ".join(name for name, tool in tools.items() if not _is_agent(tool) and tool.needs_workspace)
    if named and not setup.workspace:
        raise InvalidInput(f"these tools need a folder to work in: {named}. Give it: --workspace FOLDER")


async def _tools(setup: Setup, stack: AsyncExitStack) -> dict[str, Any]:
    """By their names; those that the user gave come before those for files."""

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

    return isinstance(value, Agent)


def _missing(thread_id: str, before: Checkpoint | None, names: set[str], without: bool) -> list[str]:
    """A thread that a program made says which tools it had, and not where they are. It does not go on without them unless
    that is asked for, and never without one that it is in the middle of. What else is left out, and was given on a command
    line before, is said."""

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


_OWN = {"read": 2, "edit": 4, "full": 5}
_SECRET = re.compile(
    r"(?:token|secret|passw(?:or)?d|passphrase|(?:^-*|(?:api|access|private)[-_]?)key|authorization|credential)s?$",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"([A-Za-z_][\w-]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_URL = re.compile(r"https?://", re.IGNORECASE)


def own_tools(permissions: str) -> list[AnyTool]:
    """Those for the files of a workspace: to look, to change them too, to run commands too."""

    own: list[AnyTool] = [read_file, list_files, write_file, edit_file, run_command]
    return own[: _OWN[permissions or "edit"]]


def importing_from(*folders: str) -> None:
    """Let modules of these folders be found, as those of the folder that Python was started in are."""
    for folder in reversed(folders):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)


def find_tools(where: str) -> list[Any]:
    """What `module:function` names: a function, a tool, an agent, or a list of them. `InvalidInput` says why it cannot be
    had."""

    module, colon, name = where.partition(":")
    if not colon or not module or not name or module.endswith(".py"):
        raise InvalidInput(f"--tool {where!r}: write module:function, for example shop.orders:send_invoice.")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        absent = f"there is no module {error.name!r}"
        at_all = (
            f"{module} needs it" if error.name and not module.startswith(error.name) else f"looked in {os.getcwd()}"
        )
        raise InvalidInput(f"--tool {where}: {absent}; {at_all}, and among what is installed.") from None
    except Exception as error:  # whatever the user's module raises
        raise InvalidInput(f"--tool {where}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidInput(f"--tool {where}: {module} has no {name!r}.")
        found = getattr(found, part)
    return list(found) if isinstance(found, list | tuple) else [found]


class _Server(NamedTuple):
    """An MCP server as it is written: NAME=VALUE before a command is its environment, before a URL its headers."""

    given: dict[str, str]
    words: list[str]

    @property
    def url(self) -> str | None:
        return self.words[0] if len(self.words) == 1 and _URL.match(self.words[0]) else None


def check_server(text: str) -> None:
    """That it can be read, and may go on record: `InvalidInput` if something in it looks like a secret."""

    for name in _secrets(_read_server(text)):
        raise InvalidInput(
            f"--mcp has what looks like a secret ({name}), and what a thread is started with goes on record. Put it into a "
            "variable of the environment, and write its name in single quotes: "
            "'https://…?token=$NAME', 'Authorization=$NAME https://…' or 'TOKEN=$NAME command'."
        )


def open_server(text: str, folder: str) -> MCPTools:
    """The server's tools, still to be opened. A command is started in the folder, if that is on this machine."""

    server = _read_server(text)
    given = {name: _expanded(value) for name, value in server.given.items()}
    words = [_expanded(word) for word in server.words]
    if server.url is not None:
        return mcp_tools(words[0], headers=given)
    cwd = folder if os.path.isdir(folder) else None
    return mcp_tools(words, env=given or None, cwd=cwd)


def _read_server(text: str) -> _Server:

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"--mcp {text!r} cannot be read as a command: {error}.") from None
    given: dict[str, str] = {}
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        given[assigned[1]] = assigned[2]
        words.pop(0)
    if not words:
        raise InvalidInput("--mcp takes the URL of a server, or the command that starts one.")
    return _Server(given, words)


def _secrets(server: _Server) -> Iterator[str]:
    """Names of what should not be written out."""
    pairs = list(server.given.items())
    if server.url is not None:
        pairs += _pairs_of_url(server.url)
    else:
        pairs += _pairs_of_command(server.words[1:])
    for name, value in pairs:
        if _SECRET.search(name) and value and not _VARIABLE.search(value):
            yield name


def _pairs_of_url(url: str) -> Iterator[tuple[str, str]]:

    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    yield "password", user.partition(":")[2]
    yield from parse_qsl(parts.query)


def _pairs_of_command(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
        elif word.startswith("-") and not following.startswith("-"):
            yield name, following


def _expanded(text: str) -> str:

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise InvalidInput(f"--mcp needs the variable {name} of the environment, which is not set.")
        return os.environ[name]

    return _VARIABLE.sub(value, text)
