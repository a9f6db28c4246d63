"""The options of `run` and `resume` that describe the agent. A `Setup` is these options as they are stored with a
thread; this module makes it from the options given now and those stored before."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import clew
from clew._runtime.text import one_line
from clew.advice import NO_BUDGET
from clew.cli.deferred import msgspec, provider_registry, provider_settings
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.agent.settings import Setup

__all__ = [
    "Asked",
    "BudgetOption",
    "McpOption",
    "ModelOption",
    "NameOption",
    "Permission",
    "PermissionsOption",
    "ProviderOption",
    "SystemOption",
    "TimeoutOption",
    "ToolOption",
    "TurnsOption",
    "WorkspaceOption",
    "changes",
    "check_timeout",
    "folder_of",
    "merged",
    "read_budget",
]


class Permission(StrEnum):
    """The values that the option --permissions takes, the same as those of `clew.providers.Permissions`."""

    READ = "read"
    EDIT = "edit"
    FULL = "full"


ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="anthropic:NAME, openai:NAME, gemini:, azure:, oci:, ollama: or openrouter:NAME, or a name that the provider "
        "knows.",
    ),
]
ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--provider",
        "-p",
        metavar="NAME",
        help="A coding agent: claude_code, codex, opencode, or auto for any of them.",
    ),
]
WorkspaceOption = Annotated[
    str | None,
    typer.Option("--workspace", "-w", metavar="DIR", help="The folder to work in. It is snapshotted at each turn."),
]
ToolOption = Annotated[
    list[str] | None,
    typer.Option("--tool", "-t", metavar="MODULE:FUNCTION", help="A function that the agent may call. Repeatable."),
]
McpOption = Annotated[
    list[str] | None,
    typer.Option("--mcp", metavar="COMMAND-OR-URL", help="An MCP server whose tools it may call. Secrets as '$NAME'."),
]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option("--budget", metavar="LIMIT", help="The most that the thread may spend: 2usd, 100ktokens, 10min."),
]
TurnsOption = Annotated[
    int | None, typer.Option("--max-turns", min=1, metavar="N", help="The most model responses for each prompt.")
]
SystemOption = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")]
PermissionsOption = Annotated[
    Permission | None,
    typer.Option("--permissions", help="In the folder: read, edit files (the default), or run commands too."),
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="Stop after this time. The thread can be resumed.")
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="AGENT", help="The agent's name, by which its threads are found.")
]


class Asked(NamedTuple):
    """The options about the agent as the user gave them; None for an option that was not given."""

    model: str | None = None
    provider: str | None = None
    workspace: str | None = None
    tool: list[str] | None = None
    mcp: list[str] | None = None
    budget: list[str] | None = None
    max_turns: int | None = None
    system: str | None = None
    permissions: Permission | None = None
    name: str | None = None


def check_timeout(timeout: float | None) -> None:
    """Raise `InvalidInput` if a value of --timeout is not a finite number above 0. Accepts None, which means that the
    option was not given. Called before a store is opened or a thread is made."""
    if timeout is not None and not 0 < timeout < float("inf"):
        raise InvalidInput(f"--timeout {timeout:g} is not a time to stop after. Give a number of seconds above 0.")


def merged(before: Setup, asked: Asked) -> Setup:
    """Return a thread's new setup: `before`, the options that are stored with the thread, changed by `asked`, the
    options that the user gave now. Raises `InvalidInput` for options that cannot work, before anything starts.

    Tools, MCP servers and the turn limit stay in the setup while a provider works on the thread, although the provider
    ignores them: they are used again when the thread returns to the built-in agent.
    """
    provider = before.provider if asked.provider is None else _provider(asked.provider)
    moved = provider != before.provider
    setup = msgspec.structs.replace(
        before,
        provider=provider,
        model=asked.model or ("" if moved else before.model) or ("" if provider else os.environ.get("CLEW_MODEL", "")),
        folder=_folder(before, asked),
        **_given(asked),
    )
    if provider:
        _refuse_for_provider(asked, provider)
    else:
        _check_own(setup, asked)
    return setup


def _folder(before: Setup, asked: Asked) -> str:
    """Return the folder in which the tools' modules are looked for and MCP commands are started. It is the folder that
    `before`, the options stored with the thread, names. If that folder does not exist, or if the user names tools now
    (in `asked`), it is the current folder."""
    return before.folder if asked.tool is None and os.path.isdir(before.folder) else os.getcwd()


def _given(asked: Asked) -> dict[str, Any]:
    """Convert the options that the user gave to fields of `Setup`, a thread's stored options. Returns the values by the
    names of the fields; options that were not given are left out. Raises `InvalidInput` for a wrong value."""
    from clew.cli.agents import check_server

    for server in asked.mcp or ():
        check_server(server)
    found = {
        "tools": None if asked.tool is None else tuple(asked.tool),
        "mcp": None if asked.mcp is None else tuple(asked.mcp),
        "workspace": None if asked.workspace is None else folder_of(asked.workspace, "--workspace"),
        "permissions": None if asked.permissions is None else asked.permissions.value,
        "system": asked.system,
        "name": asked.name,
        "max_turns": asked.max_turns,
        "budget": None if asked.budget is None else read_budget(asked.budget),
    }
    return {name: value for name, value in found.items() if value is not None}


def _provider(name: str) -> str:
    """Return the canonical name of a provider; empty for `clew`, the built-in agent. Raises `InvalidInput` for an
    unknown name."""

    if name == provider_registry.BUILT_IN_AGENT:
        return ""
    if name != provider_settings.AUTO:
        provider_registry.find_provider(name)
    return provider_registry.provider_name(name)


def _refuse_for_provider(asked: Asked, provider: str) -> None:
    """Raise `InvalidInput` if the user gave options that only the built-in agent takes, such as --tool, although the
    work is for a provider. `provider` is the provider's name, for the error."""

    given = {"--tool": asked.tool, "--mcp": asked.mcp, "--max-turns": asked.max_turns}
    if wrong := [name for name, value in given.items() if value]:
        raise InvalidInput(
            f"{' and '.join(wrong)}: {provider} has its own loop and tools, so this cannot be set. Leave it out, or use the "
            f"built-in agent: --provider {provider_registry.BUILT_IN_AGENT} --model NAME"
        )


def _check_own(setup: Setup, asked: Asked) -> None:
    """Check the options of the built-in agent: raise `InvalidInput` if `setup` names no model, or if the user gave
    permissions and there is no workspace."""
    if not setup.model:
        raise InvalidInput(
            "which model? Give --model anthropic:NAME or openai:NAME, or a coding agent: --provider claude_code, codex or "
            "opencode. CLEW_MODEL in the environment sets a default."
        )
    if asked.permissions is not None and not setup.workspace:
        raise InvalidInput("--permissions needs a folder to work in. Give it: --workspace FOLDER")


def folder_of(given: str, option: str) -> str:
    """Return the absolute path of the folder `given`, which need not exist yet. `option` is the option with which the
    user gave it. Raises `InvalidInput`, which names the option, if the path is not a folder."""
    path = os.path.abspath(os.path.expanduser(given))
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidInput(f"{option} {given} is a file, not a folder.")
    return path


def changes(before: Setup, now: Setup, longest: int | None = 100) -> list[str]:
    """Describe how the setup `now` differs from the setup `before`. A setup is the options that are stored with a
    thread. Returns a line for each difference, such as `model: a → b`; options without effect are not compared. A value
    is cut after `longest` characters; None shows all of it."""
    names = {"tools": "tools", "mcp": "MCP servers", "system": "system prompt", "max_turns": "turns", "name": "agent"}
    found = []
    before, now = _used(before), _used(now)
    for name in before.__struct_fields__:
        if name == "supplies":
            continue  # it changes with the tools, which are listed
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            found.append(f"{names.get(name, name)}: {_words(old, longest)} → {_words(new, longest)}")
    return found


def _used(setup: Setup) -> Setup:
    """Return the setup (the options that are stored with a thread) without the options that have no effect. If a
    provider works on the thread, tools, MCP servers and the turn limit have no effect; with the built-in agent all
    options have an effect."""
    return msgspec.structs.replace(setup, tools=(), mcp=(), max_turns=None) if setup.provider else setup


def _words(value: Any, longest: int | None) -> str:
    if isinstance(value, msgspec.Struct):
        value = [
            f"{_number(amount)} {name}" for name, amount in msgspec.structs.asdict(value).items() if amount is not None
        ]
    if isinstance(value, list | tuple):
        value = ", ".join(value)
    return one_line("none" if value in (None, "") else str(value), longest)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


_BUDGET = re.compile(r"\$?(\d+(?:\.\d+)?)\s*(usd|[km]?tokens?|s|sec|min|h)?", re.IGNORECASE)
_TOKENS = {"tokens": 1, "ktokens": 1_000, "mtokens": 1_000_000}
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


def read_budget(given: Sequence[str]) -> clew.Budget:
    """Parse the values of --budget into one `Budget`. `none`, if it is the only value, means no limit.

    Raises `InvalidInput` for a value that is not a budget, and if the same kind of limit is given twice.
    """

    if [text.strip().lower() for text in given] == [NO_BUDGET]:
        return clew.Budget()
    found: dict[str, Any] = {}
    for text in given:
        kind, amount = _read(text)
        if kind in found:
            raise InvalidInput(f"--budget limits {kind} twice. Give one of the two.")
        found[kind] = amount
    return clew.Budget(**found)


def _read(text: str) -> tuple[str, float | int]:
    """Parse one value of --budget, such as `2usd`. Returns the name of the field of `Budget` that it sets, and the
    amount. Raises `InvalidInput` for anything else."""
    text = text.strip()
    written = _BUDGET.fullmatch(text)
    unit = "" if written is None else (written[2] or "").lower()
    is_dollars = text.startswith("$")
    if written is None or is_dollars == bool(unit):
        raise InvalidInput(f"--budget {text!r} is not a budget. Write 2usd, 100ktokens or 10min, or none for no limit.")
    amount = float(written[1])
    if not amount > 0:
        raise InvalidInput(f"--budget {text} allows nothing. Give more than 0, or none for no limit.")
    if unit in _SECONDS:
        return "seconds", amount * _SECONDS[unit]
    if unit.endswith(("token", "tokens")):
        return "tokens", round(amount * _TOKENS[unit.removesuffix("s") + "s"])
    return "usd", amount
