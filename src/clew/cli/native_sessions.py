"""The coding agents' own sessions that a command's argument can name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

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
    """A session of a coding agent: the provider's name, and the id that the provider knows the session by."""

    provider: str
    key: str


def find_native(session: str, provider: str | None, place: Place) -> Native | None:
    """Find a session by its id, a beginning of it or its file, at the named provider or at all; None if there is none.

    Raises `InvalidInput` if several providers have one that matches. A provider whose sessions cannot be read is skipped;
    if no other provider has the session, its error is raised.
    """
    from clew.providers.registry import find_provider, wanted

    found: list[Native] = []
    trouble: list[ClewError] = []
    for name in wanted(provider):
        try:
            key = find_provider(name)(place).find(session)
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
    """Find a session on this machine as `find_native` does. Raises `SessionNotFound` if there is none."""
    from clew.providers.registry import default_place, wanted

    found = find_native(session, provider, default_place())
    if found is None:
        raise SessionNotFound(", ".join(wanted(provider)), session)
    return found
