"""The `clew` command. This module has the table of its commands, makes the help texts, and finds a command's module."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from clew import __version__
from clew.cli.failures import EXIT_CODES

__all__ = ["COMMANDS", "Entry", "LazyGroup", "app", "main"]


class LazyGroup(TyperGroup):
    """The group of all `clew` commands. It imports a command's module only when the command is called, or when a shell
    completes the command's options and arguments.

    `clew --help` and the completion of a command's name use the table `COMMANDS` alone, and import no command.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if ctx.resilient_parsing:  # a shell completes the name: it needs no options
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name].summary)
        return _imported(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the command that the arguments begin with, the command itself, and the arguments that
        follow.

        While a shell completes words, `get_command` returns commands without their options. So this imports the
        command, to complete its options too.
        """
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
    command = getattr(import_module(f"clew.cli.commands.{module}"), function)
    app.command(name, help=_flowing(command.__doc__))(command)
    return typer.main.get_command(app)


def _flowing(text: str) -> str:
    """Return a help text with the lines of each paragraph joined, so that it fills a terminal of any width. A paragraph
    that begins with \\b keeps its lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part.removeprefix("\b\n") if part.startswith("\b") else part.replace("\n", " ") for part in paragraphs
    )


_CODES = [f"{code} {meaning}" for code, meaning in EXIT_CODES.items()]
_EPILOG = f"""\
`clew COMMAND --help` has examples. The store is --store URL, else CLEW_STORE,
else a file of your own. Completion for your shell: clew --install-completion.
The version: clew --version.
Exit codes: {", ".join(_CODES[:5])},
            {", ".join(_CODES[5:])}."""

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clew {__version__}")
        raise typer.Exit


@app.callback()
def clew(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable AI agents: stopped in any way, resumed exactly where they were.

    Example: clew demo
    """


def main() -> None:
    app(prog_name="clew")


class Entry(NamedTuple):
    """A command in the table `COMMANDS`: what `clew --help` prints about it, and where its function is."""

    panel: str
    """The heading under which `clew --help` lists the command."""
    place: str
    """Where the command's function is, as `module:function`. The module is one of `clew.cli.commands`."""
    summary: str
    """The first sentence of the command's own help; at most 55 characters, so that its line fits."""


COMMANDS: dict[str, Entry] = {
    "run": Entry("Work", "run:run", "Give an agent a task, and watch it work."),
    "resume": Entry("Work", "resume:resume", "Go on with a thread where it stopped, or tell it more."),
    "send": Entry("Work", "send:send", "Say something to a thread, even while an agent runs it."),
    "enqueue": Entry("Work", "enqueue:enqueue", "Put a thread into the queue of the workers."),
    "work": Entry("Work", "work:work", "Take queued threads from a store, and run them."),
    "ls": Entry("Look", "ls:ls", "List the threads of a store, the newest first."),
    "show": Entry("Look", "show:show", "Show a thread: what was said, done, and went wrong."),
    "tail": Entry("Look", "tail:tail", "Follow a thread while another process works on it."),
    "diff": Entry("Look", "diff:diff", "Show what changed between two turns, files included."),
    "files": Entry("Look", "files:files", "List the files of a thread, or bring a copy of them."),
    "search": Entry("Look", "search:search", "Find words in the titles and messages of all threads."),
    "stats": Entry("Look", "stats:stats", "Count threads, tokens, dollars and storage."),
    "why": Entry("Look", "why:why", "Say what a thread waits for, and what to do about it."),
    "fork": Entry("Change", "fork:fork", "Start a new thread from a turn of another."),
    "rewind": Entry("Change", "rewind:rewind", "Go back to the end of an earlier turn."),
    "unlock": Entry("Change", "unlock:unlock", "Take a thread's lease from the process that has it."),
    "rm": Entry("Change", "rm:rm", "Remove threads from the store."),
    "prune": Entry("Keep", "prune:prune", "Remove old threads."),
    "gc": Entry("Keep", "gc:gc", "Free what no thread needs any more."),
    "verify": Entry("Keep", "verify:verify", "Check that everything stored is intact."),
    "rekey": Entry("Keep", "rekey:rekey", "Seal every thread with a new key."),
    "export": Entry("Keep", "export:export", "Write a thread to a file."),
    "import": Entry("Keep", "import_:import_", "Bring threads from a file, or from another system."),
    "copy": Entry("Keep", "copy:copy", "Copy threads to another store."),
    "sessions": Entry("Coding agents", "sessions:sessions", "List the sessions of Claude Code, Codex and opencode."),
    "adopt": Entry("Coding agents", "adopt:adopt", "Take a session of a coding agent into a thread."),
    "move": Entry("Coding agents", "move:move", "Carry a session from one coding agent to another."),
    "doctor": Entry("Machine", "doctor:doctor", "Check this machine, the store and the coding agents."),
    "serve": Entry("Machine", "serve:serve", "Serve a store over HTTP, with an inspector for people."),
    "tokens": Entry("Machine", "tokens:tokens", "List, make, rotate and revoke tokens of a service."),
    "demo": Entry("Machine", "demo:demo", "Kill an agent inside a tool, and resume it, offline."),
}
