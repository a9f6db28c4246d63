"""A group of commands of which only the one that is called is imported."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from clew.cli._commands import COMMANDS

__all__ = ["LazyGroup"]


class LazyGroup(TyperGroup):
    """Help for all of them is made from the table of commands alone, and fits a screen."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if ctx.resilient_parsing:  # a shell asks what there is
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name].summary)
        return _imported(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """To complete the words after a command, a shell needs that one with all its options."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _imported(name) if name in COMMANDS and ctx.resilient_parsing else command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(f"Usage: {ctx.command_path} COMMAND [OPTIONS]\n\n{self.help}\n\n")
        panel = ""
        for name, entry in COMMANDS.items():
            shown, panel = (entry.panel if entry.panel != panel else ""), entry.panel
            group, command = typer.style(f"{shown:<14}", bold=True), typer.style(f"{name:<9}", fg="cyan")
            formatter.write(f"{group} {command} {entry.summary}\n")
        formatter.write(f"\n{self.epilog}\n")


def _imported(name: str) -> Any:
    module, _, function = COMMANDS[name].place.partition(":")
    app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
    command = getattr(import_module(f"clew.cli.{module}"), function)
    app.command(name, help=_flowing(command.__doc__))(command)
    return typer.main.get_command(app)


def _flowing(text: str) -> str:
    """Help whose paragraphs fill the lines of any terminal. One that begins with \\b keeps its own."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part.removeprefix("\b\n") if part.startswith("\b") else part.replace("\n", " ") for part in paragraphs
    )
