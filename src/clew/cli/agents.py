"""Make the agent that a setup describes: a model with its tools and MCP servers, or a provider. A setup is the options
with which the command line makes a thread's agent; it is stored with the thread."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from clew import Agent
from clew.agent.settings import PriceUnknown
from clew.agent.way_forward import program_tools
from clew.cli.imports import find_object, importing_from
from clew.errors import InvalidInput, UsageError
from clew.tools import as_tool, edit_file, list_files, mcp_tools, read_file, run_command, write_file

if TYPE_CHECKING:
    from clew.agent import Agent
    from clew.agent.settings import Setup
    from clew.checkpointers import Checkpointer
    from clew.log import Checkpoint
    from clew.tools import AnyTool, MCPTools

__all__ = ["ToolsMissing", "check_server", "find_tools", "make_agent", "open_server", "own_tools"]


_OTHER_BUDGETS = "Limit tokens or time in its place: --budget 100ktokens or --budget 10min; --budget none is no limit."
"""Advice in the error about a budget in dollars for a model whose price is not known. The command line has no option
that sets a price."""


class ToolsMissing(UsageError):
    """Raised if a thread's agent has tools that are defined in the Python program which made the thread, and the
    command line does not know where to import these tools from."""

    def __init__(self, thread_id: str, tools: Sequence[str], *, in_the_middle: bool) -> None:
        self.tools = tools
        self.in_the_middle = in_the_middle
        """Whether a call of one of `tools` has no result yet. Then the thread cannot go on without that tool."""
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
) -> tuple[Agent, Setup, list[str]]:
    """Make and open the agent of a thread from `setup`, the options that are stored with the thread. Makes the
    workspace folder if it does not exist. `before` is the stored state of the thread; None for a new thread.

    Returns three things: the agent; the setup, with the names of the tools filled in if it is the built-in agent; and a
    list of notes to show to the user. Closing `stack` closes the agent and its MCP servers. If a signal stops the run,
    `stopped` is called with the thread's id, and must return the command to print, which resumes the thread.

    The built-in agent may lack tools that the thread had before. Then this raises `ToolsMissing` if a call of such a
    tool has no result yet, or if the tool comes from the Python program that made the thread and `without_tools` is not
    set.
    """
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
        made = Agent(setup.model, provider=setup.provider, **common)
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
    """Raise `InvalidInput` if one of the agent's tools needs a workspace folder, and `setup`, the agent's options,
    names no folder."""
    named = ", ".join(name for name, tool in tools.items() if not _is_agent(tool) and tool.needs_workspace)
    if named and not setup.workspace:
        raise InvalidInput(f"these tools need a folder to work in: {named}. Give it: --workspace FOLDER")


async def _tools(setup: Setup, stack: AsyncExitStack) -> dict[str, Any]:
    """Return the tools of the agent that `setup` describes, by name: those given with --tool and --mcp and, if there is
    a workspace, the built-in tools for files. A built-in tool is left out if a given tool has its name.

    Connects to the MCP servers; closing `stack` disconnects them. Raises `InvalidInput` if two given tools have the
    same name.
    """
    if setup.tools:
        importing_from(setup.folder)
    found: dict[str, Any] = {}
    sources = [(where, find_tools(where, setup.folder)) for where in setup.tools]
    for server in setup.mcp:
        sources.append((server, list(await stack.enter_async_context(open_server(server, setup.folder)))))
    for where, tools in sources:
        for tool in tools:
            made = tool if _is_agent(tool) else as_tool(tool)
            if made.name in found:
                raise InvalidInput(f"{where}: there are two tools called {made.name!r}. Leave one of them out.")
            found[made.name] = made
    if setup.workspace:
        found |= {tool.name: tool for tool in own_tools(setup.permissions) if tool.name not in found}
    return found


def _is_agent(value: Any) -> bool:
    return isinstance(value, Agent)


def _missing(thread_id: str, before: Checkpoint | None, names: set[str], without: bool) -> list[str]:
    """Find the tools that the thread had before and the agent lacks. Returns a list with one note for the user, which
    names them; an empty list if the agent lacks none.

    `before` is the stored state of the thread, None for a new one. `names` are the names of the agent's tools. Raises
    `ToolsMissing` if a missing tool has a call without a result, or if a missing tool comes from the Python program
    that made the thread and `without` is not set. A missing tool that an earlier `clew` command got with --tool or
    --mcp is only named in the note.
    """
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
    """Return the built-in tools that these permissions allow: `read` looks at files, `edit` also changes them, `full`
    also runs commands. Empty permissions mean `edit`. Raises `InvalidInput` for any other value, which the record of a
    thread may contain."""
    own: list[AnyTool] = [read_file, list_files, write_file, edit_file, run_command]
    if (permissions or "edit") not in _OWN:
        raise InvalidInput(f"{permissions!r} are no permissions. Choose with --permissions: {', '.join(_OWN)}.")
    return own[: _OWN[permissions or "edit"]]


def find_tools(where: str, folder: str = "") -> list[Any]:
    """Import the object that `where` names, written `module:function`, and return it as a list with one element. The
    object may be a function, a tool or an agent. If it is a list or a tuple of these, return its elements instead.

    Raises `InvalidInput` with the reason if the object cannot be imported. For a missing module the reason names
    `folder`, by default the current folder, as the place where it was not found.
    """
    found = find_object(where, f"--tool {where}", "module:function, for example shop.orders:send_invoice", folder)
    return list(found) if isinstance(found, list | tuple) else [found]


class _Server(NamedTuple):
    """A value of the option --mcp, split into its parts. It begins with any number of NAME=VALUE pairs, which are in
    `given`: environment variables for a command, headers for a URL. `words` has what follows them: the words of the
    command, or the URL alone."""

    given: dict[str, str]
    words: list[str]

    @property
    def url(self) -> str | None:
        return self.words[0] if len(self.words) == 1 and _URL.match(self.words[0]) else None


def check_server(text: str) -> None:
    """Raise `InvalidInput` if a value of --mcp cannot be parsed. Also raise `InvalidInput` if the value contains what
    looks like a secret, because the value will be stored with the thread."""
    for name in _secrets(_read_server(text)):
        raise InvalidInput(
            f"--mcp has what looks like a secret ({name}), and its value would be stored with the thread. Put it into "
            "an environment variable, and write its name in single quotes: "
            "'https://…?token=$NAME', 'Authorization=$NAME https://…' or 'TOKEN=$NAME command'."
        )


def open_server(text: str, folder: str) -> MCPTools:
    """Return the tools of the MCP server that a value of --mcp describes. The returned object is a context manager:
    entering it connects to the server. If the server is a command, it is started in `folder`, or in the current folder
    if `folder` does not exist on this machine."""
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
    """Yield the name of each header, variable or option of an MCP server that is named like a secret, such as `token`,
    and whose value is written out instead of being taken from an environment variable with $NAME."""
    pairs = list(server.given.items())
    if server.url is not None:
        pairs += _pairs_of_url(server.url)
    else:
        pairs += _pairs_of_command(server.words[1:])
    for name, value in pairs:
        if _SECRET.search(name) and value and not _VARIABLE.search(value):
            yield name


def _pairs_of_url(url: str) -> Iterator[tuple[str, str]]:
    """Yield the password of a URL and each of its query parameters, as pairs of name and value. The password has the
    name `password`, and is empty if the URL has none."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    yield "password", user.partition(":")[2]
    yield from parse_qsl(parts.query)


def _pairs_of_command(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a command as pairs of name and value. They are written `--name=value` or `--name value`."""
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
        elif word.startswith("-") and not following.startswith("-"):
            yield name, following


def _expanded(text: str) -> str:
    """Return the text with $NAME and ${NAME} replaced by environment variables. Raises `InvalidInput` if a variable is
    not set."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise InvalidInput(f"--mcp needs the environment variable {name}, which is not set.")
        return os.environ[name]

    return _VARIABLE.sub(value, text)
