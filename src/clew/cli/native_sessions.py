"""Finds a session that a coding agent's program keeps on this machine, for commands whose user names it by its id, the
beginning of its id, or its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from clew.cli.deferred import provider_registry
from clew.errors import ClewError, InvalidInput, SessionNotFound

if TYPE_CHECKING:
    from clew.providers import Place

__all__ = ["Native", "SessionProvider", "find_native", "native_session"]

SessionProvider = Annotated[
    str | None,
    typer.Option(
        "--provider", "-p", metavar="NAME", help="The session's agent: claude_code, codex or opencode. Default: any."
    ),
]


class Native(NamedTuple):
    """A session that a coding agent's program keeps on this machine: the provider's name, and the id by which the
    provider knows the session."""

    provider: str
    key: str


def find_native(session: str, provider: str | None, place: Place) -> Native | None:
    """Find a coding agent's session by its id, the beginning of its id, or its file. Returns None if there is none.

    Searches the sessions of `provider`, or of all providers if that is None. `place` is a working folder and an
    environment; they decide where providers look for their sessions. Raises `InvalidInput` if sessions of several
    providers match. A provider whose sessions cannot be read is skipped; its error is raised only if no other provider
    has the session.
    """

    found: list[Native] = []
    trouble: list[ClewError] = []
    for name in provider_registry.wanted(provider):
        try:
            key = provider_registry.find_provider(name)(place).find(session)
        except ClewError as error:
            trouble.append(error)
            continue
        if key is not None:
            found.append(Native(name, key))
    if len(found) > 1:
        listed = ", ".join(f"{each.key} of {each.provider}" for each in found)
        raise InvalidInput(f"{session!r} matches several sessions: {listed}. Choose one with --provider.")
    if not found and trouble:
        raise trouble[0]
    return found[0] if found else None


def native_session(session: str, provider: str | None) -> Native:
    """Find a coding agent's session on this machine by its id, the beginning of its id, or its file. Searches the
    sessions of `provider`, or of all providers if that is None.

    Raises `SessionNotFound` if there is none, and `InvalidInput` if sessions of several providers match.
    """

    found = find_native(session, provider, provider_registry.default_place())
    if found is None:
        raise SessionNotFound(", ".join(provider_registry.wanted(provider)), session)
    return found
