"""The tools of an agent that is made from a command line: functions by where they are, MCP servers by how they are reached.

What is written here goes on record, so that a resume needs nobody to say it again. A secret is therefore never written out:
`$NAME` stands for a variable of the environment, and is looked up when the server is started.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from clew.tools import AnyTool, MCPTools

__all__ = ["check_server", "find_tools", "importing_from", "open_server", "own_tools"]

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
    from clew.tools import edit_file, list_files, read_file, run_command, write_file

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
    from clew.errors import InvalidInput

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
    from clew.errors import InvalidInput

    for name in _secrets(_read_server(text)):
        raise InvalidInput(
            f"--mcp has what looks like a secret ({name}), and what a thread is started with goes on record. Put it into a "
            "variable of the environment, and write its name in single quotes: "
            "'https://…?token=$NAME', 'Authorization=$NAME https://…' or 'TOKEN=$NAME command'."
        )


def open_server(text: str, folder: str) -> MCPTools:
    """The server's tools, still to be opened. A command is started in the folder, if that is on this machine."""
    from clew.tools import mcp_tools

    server = _read_server(text)
    given = {name: _expanded(value) for name, value in server.given.items()}
    words = [_expanded(word) for word in server.words]
    if server.url is not None:
        return mcp_tools(words[0], headers=given)
    cwd = folder if os.path.isdir(folder) else None
    return mcp_tools(words, env=given or None, cwd=cwd)


def _read_server(text: str) -> _Server:
    from clew.errors import InvalidInput

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
    from urllib.parse import parse_qsl, urlsplit

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
    from clew.errors import InvalidInput

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise InvalidInput(f"--mcp needs the variable {name} of the environment, which is not set.")
        return os.environ[name]

    return _VARIABLE.sub(value, text)
