"""Ask the user before something runs that only a thread's record names. `clew resume` and other commands make an agent
from the setup in the record: tools, MCP commands, folder, permissions, system prompt. If this user neither made that
setup on this machine nor agreed to it, all of it is printed, and the user is asked."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from clew._runtime.text import visible
from clew.cli.deferred import agent_settings, agent_trust, entry_lines, log, provider_registry, provider_settings
from clew.cli.output.console import agreed, hint, say
from clew.cli.output.conversation import json_text
from clew.cli.output.pages import print_whole
from clew.cli.setups import changes
from clew.errors import Corrupt, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clew.agent.settings import Setup
    from clew.checkpointers import Checkpointer, Head
    from clew.log import Checkpoint, Logged

__all__ = ["Review", "TrustOption", "agree", "keep_carried", "keep_trust", "review_of", "setup_text"]

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Agree to the tools, commands, folder and permissions that the record names.")
]


class Review(NamedTuple):
    """What a user is shown and has to agree to before a thread goes on: the setup (the options for its agent), what has
    changed in it, the tool calls that would be run at once, and who worked on the thread last."""

    thread_id: str
    setup: Setup
    """The setup (the options) from which the agent would be made."""
    changed: tuple[str, ...]
    """How `setup`, the options for the agent, differs from the last setup in the record that this user agreed to. Empty
    if the user agreed to none."""
    calls: tuple[tuple[str, str], ...]
    """The tool calls that would be run at once, because they have no result yet: name, and arguments as JSON."""
    author: str
    """Who worked on the thread last, as the thread's record says. The record does not prove this."""

    def text(self) -> str:
        """Return everything that the user has to agree to as text, with nothing cut."""
        parts = [
            f"You have neither made nor agreed to the setup of thread {self.thread_id!r} on this machine.",
            setup_text(self.setup),
        ]
        if self.changed:
            parts.append("\n".join(["Changed since you agreed:", *(f"  {line}" for line in self.changed)]))
        if self.calls:
            parts.append("\n".join(["It goes on with:", *(f"  {name} {given}" for name, given in self.calls)]))
        if self.author:
            parts.append(f"The record says that {self.author} worked on it last. That proves nothing.")
        return "\n".join(parts)


def setup_text(setup: Setup) -> str:
    """Return a setup, the options for a thread's agent, as text for people. Nothing is cut: there is a line for each
    option, and more lines for a value that has several."""
    lines = []
    for name, text in agent_trust.setup_facts(setup):
        first, *others = visible(text).split("\n")
        lines.append(f"  {name + ':':<15}{first}")
        lines += [f"  {'':<15}{line}" for line in others]
    return "\n".join(lines)


async def review_of(store: Checkpointer, head: Head, state: Checkpoint, setup: Setup) -> Review | None:
    """Return what the user has to agree to before an agent works on this thread. `setup` is the options from which the
    agent would be made: those in the thread's record, changed by the options that the user gave now. `state` is the
    thread's present state.

    Returns None if there is nothing to agree to. That is so in three cases: this user made `setup` or agreed to it on
    this machine; or the user made or agreed to the setup in the record, and `setup` runs nothing of it in another
    folder; or the record has neither a setup nor an unfinished tool call.
    """
    recorded = agent_settings.setup_of(state)
    calls = tuple((call.call.name, json_text(call.call.arguments)) for call in state.calls if call.result is None)
    if not agent_trust.setup_facts(recorded) and not calls:
        return None
    if agent_trust.is_trusted(head.log_id, setup):
        return None
    if agent_trust.is_trusted(head.log_id, recorded) and not _runs_elsewhere(recorded, setup):
        return None
    agreed_to, author = None, ""
    async for line in entry_lines.read_lines(store, head):
        if isinstance(line.entry, log.LeaseTaken):
            author = line.entry.owner
        found = _setup_in(line.entry)
        if found is not None and agent_trust.is_trusted(head.log_id, found):
            agreed_to = found
    changed = () if agreed_to is None else tuple(changes(agreed_to, setup, longest=None))
    return Review(head.thread_id, setup, changed, calls, author)


def _runs_elsewhere(recorded: Setup, setup: Setup) -> bool:
    """Return True if something that a user agreed to in the setup `recorded` would run in another folder with `setup`,
    the options that are used now. In another folder the same names can stand for other code: the modules of tools,
    commands of MCP servers, and the files on which a provider works."""
    if setup.folder == recorded.folder:
        return False
    is_kept = any(kept and kept == now for kept, now in ((recorded.tools, setup.tools), (recorded.mcp, setup.mcp)))
    return is_kept or bool(setup.provider and not setup.workspace)


def _setup_in(entry: Logged) -> Setup | None:
    """Return the setup, the options for a thread's agent, that an entry of the log stores. None if the entry stores no
    setup, or one that cannot be read."""
    if isinstance(entry, log.FoldedState):
        kept = entry.state.state.get(agent_settings.SETUP)
    elif isinstance(entry, log.StateSet) and entry.key == agent_settings.SETUP:
        kept = entry.value
    else:
        return None
    try:
        return agent_settings.read_setup(kept)
    except Corrupt:
        return None


def agree(review: Review | None, *, trust: bool, json: bool) -> None:
    """Show the setup in `review` (the options for an agent) to the user, and ask whether to go on with it. Returns if
    the answer is yes. Returns without asking if `review` is None, or if `trust`, the value of the option --trust, is
    set. Otherwise exits the command with the code 1, with nothing run.

    Raises `UsageError`, which names --trust, if `json` is set or there is no terminal to ask at.
    """
    if review is None or trust:
        return
    can_ask = not json and sys.stdin.isatty() and sys.stderr.isatty()
    if not can_ask:
        print_whole(review.text())
        raise UsageError(
            f"you have not agreed to the setup of thread {review.thread_id!r} on this machine, and there is no terminal "
            "to ask at. Nothing was run. Add --trust to agree to everything that is listed above."
        )
    if not (print_whole(review.text()) and agreed("Go on with this setup?", yes=False)):
        say("Nothing was run.", err=True)
        raise typer.Exit(1)


async def keep_trust(store: Checkpointer, thread_id: str, *setups: Setup) -> None:
    """Record on this machine that this user made these setups (options for an agent) for the thread, or agreed to them.
    The next resume then does not ask. If this cannot be recorded, print a hint and go on."""
    head = await store.head(thread_id)
    if head is None:
        return
    try:
        agent_trust.remember_setups(head.log_id, [each for setup in setups for each in _outcomes(setup)])
    except (OSError, UsageError) as error:
        hint(visible(f"That you agreed to this setup cannot be kept, so a resume will ask: {error}"))


def keep_carried(made: Sequence[tuple[Head, Head]]) -> None:
    """Record on this machine that this user made forks or copies of threads. A resume of a fork or copy then asks the
    user to agree to the tools, commands and permissions in its record only if a resume of the original would. `made`
    has a pair of heads for each: the original's, and that of its fork or copy. If this cannot be recorded, nothing is
    raised, and a resume will ask."""
    with suppress(OSError, UsageError):
        agent_trust.carry_trust((source.log_id, copy.log_id) for source, copy in made)


def _outcomes(setup: Setup) -> Sequence[Setup]:
    """Return the setups that a user agrees to together with `setup`. These are `setup` itself and, if its provider is
    `auto`, which stands for any known provider, a setup for each known provider. A setup is the options for a thread's
    agent."""
    if setup.provider != provider_settings.AUTO:
        return [setup]
    folder, permissions = setup.workspace or setup.folder, setup.permissions or "edit"
    return [
        setup,
        *(
            agent_settings.setup_at(setup, name, folder=folder, permissions=permissions)
            for name in provider_registry.provider_names()
        ),
    ]
