"""What `run` and `resume` are told of the agent: their options, checked, and laid over what a thread has on record."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from clew._runtime.text import one_line
from clew.advice import NO_BUDGET
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.agent import Budget
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
    """As `clew.providers.Permissions`, for the command line."""

    READ = "read"
    EDIT = "edit"
    FULL = "full"


ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="NAME", help="anthropic:…, openai:…, or at a provider one of its own names."),
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
    typer.Option("--workspace", "-w", metavar="DIR", help="The folder to work in, which is snapshotted at each turn."),
]
ToolOption = Annotated[
    list[str] | None,
    typer.Option("--tool", "-t", metavar="MODULE:FUNCTION", help="A function it may call. May be given several times."),
]
McpOption = Annotated[
    list[str] | None,
    typer.Option("--mcp", metavar="COMMAND-OR-URL", help="An MCP server whose tools it may call; '$NAME' for secrets."),
]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option("--budget", metavar="LIMIT", help="What the thread may spend in all: 2usd, 100ktokens, 10min."),
]
TurnsOption = Annotated[
    int | None, typer.Option("--max-turns", min=1, metavar="N", help="Responses of the model for each prompt.")
]
SystemOption = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")]
PermissionsOption = Annotated[
    Permission | None,
    typer.Option("--permissions", help="In the folder: look, change files (edit, the default), or run commands too."),
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="Stop after so long; it can be resumed.")
]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="AGENT", help="The agent's name, to find its threads by.")
]


class Asked(NamedTuple):
    """The options as they were given; None for those that were not."""

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
    """Refuse a --timeout that is no length of time, before a store is opened or a thread is made."""

    if timeout is not None and not 0 < timeout < float("inf"):
        raise InvalidInput(f"--timeout {timeout:g} is not a time to stop after. Give seconds, more than 0.")


def merged(before: Setup, asked: Asked) -> Setup:
    """What was asked for laid over what there was, and all of it checked before anything is started. Tools, MCP servers and
    turns stay on record at a provider, which makes no use of them, for when the thread comes back."""

    provider = before.provider if asked.provider is None else _provider(asked.provider)
    moved = provider != before.provider
    setup = msgspec.structs.replace(
        before,
        provider=provider,
        model=asked.model or ("" if moved else before.model) or ("" if provider else os.environ.get("CLEW_MODEL", "")),
        folder=before.folder if os.path.isdir(before.folder) else os.getcwd(),
        **_given(asked),
    )
    if provider:
        _refuse_for_provider(asked, provider)
    else:
        _check_own(setup, asked)
    return setup


def _given(asked: Asked) -> dict[str, Any]:

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
    """The provider's one name; empty for `clew`, which is the built-in agent."""
    from clew.providers.registry import BUILT_IN_AGENT, find_provider, provider_name
    from clew.providers.settings import AUTO

    if name == BUILT_IN_AGENT:
        return ""
    if name != AUTO:
        find_provider(name)
    return provider_name(name)


def _refuse_for_provider(asked: Asked, provider: str) -> None:

    from clew.providers.registry import BUILT_IN_AGENT

    given = {"--tool": asked.tool, "--mcp": asked.mcp, "--max-turns": asked.max_turns}
    if wrong := [name for name, value in given.items() if value]:
        raise InvalidInput(
            f"{' and '.join(wrong)}: this is for models, and {provider} runs a loop with tools of its own. Leave it out, or "
            f"take a model of your own: --provider {BUILT_IN_AGENT} --model NAME"
        )


def _check_own(setup: Setup, asked: Asked) -> None:

    if not setup.model:
        raise InvalidInput(
            "which model? Give --model anthropic:NAME or openai:NAME, or a coding agent: --provider claude_code, codex or "
            "opencode. CLEW_MODEL in the environment says it once for all."
        )
    if asked.permissions is not None and not setup.workspace:
        raise InvalidInput("--permissions says what may be done in a folder. Name that with --workspace.")


def folder_of(given: str, option: str) -> str:
    """Its absolute path. It may be new; what is there and no folder is `InvalidInput`."""

    path = os.path.abspath(os.path.expanduser(given))
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidInput(f"{option} {given}: this is a file, and no folder.")
    return path


def changes(before: Setup, now: Setup) -> list[str]:
    """What is not as it was, in words."""
    names = {"tools": "tools", "mcp": "MCP servers", "system": "system prompt", "max_turns": "turns", "name": "agent"}
    found = []
    before, now = _used(before), _used(now)
    for name in before.__struct_fields__:
        if name == "supplies":
            continue  # it follows from the tools
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            found.append(f"{names.get(name, name)}: {_words(old)} → {_words(new)}")
    return found


def _used(setup: Setup) -> Setup:
    """Without what a provider makes no use of."""

    return msgspec.structs.replace(setup, tools=(), mcp=(), max_turns=None) if setup.provider else setup


def _words(value: Any) -> str:

    if isinstance(value, msgspec.Struct):
        value = [
            f"{_number(amount)} {name}" for name, amount in msgspec.structs.asdict(value).items() if amount is not None
        ]
    if isinstance(value, list | tuple):
        value = ", ".join(value)
    return one_line("none" if value in (None, "") else str(value), 100)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


_BUDGET = re.compile(r"\$?(\d+(?:\.\d+)?)\s*(usd|[km]?tokens?|s|sec|min|h)?", re.IGNORECASE)
_TOKENS = {"tokens": 1, "ktokens": 1_000, "mtokens": 1_000_000}
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


def read_budget(given: Sequence[str]) -> Budget:
    """All of them as one; `none`, alone, is no limit. `InvalidInput` for what is no budget, or said twice."""
    from clew.agent import Budget

    if [text.strip().lower() for text in given] == [NO_BUDGET]:
        return Budget()
    found: dict[str, Any] = {}
    for text in given:
        kind, amount = _read(text)
        if kind in found:
            raise InvalidInput(f"--budget says twice how many {kind} may be spent. Give one of them.")
        found[kind] = amount
    return Budget(**found)


def _read(text: str) -> tuple[str, float | int]:

    text = text.strip()
    written = _BUDGET.fullmatch(text)
    unit = "" if written is None else (written[2] or "").lower()
    is_dollars = text.startswith("$")
    if written is None or is_dollars == bool(unit):
        raise InvalidInput(
            f"--budget {text!r} is not a budget. Write 2usd, 100ktokens or 10min; none, alone, for no limit."
        )
    amount = float(written[1])
    if not amount > 0:
        raise InvalidInput(f"--budget {text} allows nothing. Give more than 0; none, alone, for no limit.")
    if unit in _SECONDS:
        return "seconds", amount * _SECONDS[unit]
    if unit.endswith(("token", "tokens")):
        return "tokens", round(amount * _TOKENS[unit.removesuffix("s") + "s"])
    return "usd", amount
