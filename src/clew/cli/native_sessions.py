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
        "--provider", "-p", metavar="NAME", help="Whose session: claude_code, codex or opencode. Else all are asked."
    ),
]


class Native(NamedTuple):
    provider: str
    key: str


def find_native(session: str, provider: str | None, place: Place) -> Native | None:
    """At the provider that is named, or at whichever has it; None if none has. `InvalidInput` if several sessions may be
    meant. A provider whose sessions cannot be read does not hide another's; if nobody else has it, its error is told."""
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
        raise InvalidInput(f"{session!r} may mean several sessions: {listed}. Say which with --provider.")
    if not found and trouble:
        raise trouble[0]
    return found[0] if found else None


def native_session(session: str, provider: str | None) -> Native:

    from clew.providers.registry import default_place, wanted

    found = find_native(session, provider, default_place())
    if found is None:
        raise SessionNotFound(", ".join(wanted(provider)), session)
    return found
