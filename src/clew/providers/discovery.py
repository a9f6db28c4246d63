"""Finds the conversations that coding agents keep on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from clew.providers.base import NativeSession, Place
from clew.providers.registry import default_place, find_provider, wanted

__all__ = ["Discovered", "Problem", "discover"]

log = logging.getLogger("clew.providers")
_NEVER = datetime.min.replace(tzinfo=UTC)


class Problem(msgspec.Struct, frozen=True):
    """Says that not all conversations of a provider could be listed, and why."""

    provider: str
    reason: str


class Discovered(msgspec.Struct, frozen=True):
    """The conversations that were found, newest first. `problems` says for which providers the list is incomplete, and
    why. Iterating, indexing and `len` go to the conversations."""

    sessions: tuple[NativeSession, ...]
    problems: tuple[Problem, ...] = ()

    def __iter__(self) -> Iterator[NativeSession]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    def __getitem__(self, index: int) -> NativeSession:
        return self.sessions[index]


def discover(
    providers: str | Iterable[str] | None = None,
    *,
    cwd: str | os.PathLike[str] | None = None,
    place: Place | None = None,
) -> Discovered:
    """List the conversations that these providers keep on this machine, newest first; by default those of all known
    providers.

    With `cwd`, only the conversations of that working folder are listed. `place` says whose home folder is searched, by
    default this user's. No conversation is read in full, so listing thousands is fast. If the files of a provider are
    damaged or cannot be read, `problems` of the result says so, beside what could be listed.
    """
    place = place or default_place()
    found = [_list(name, place) for name in wanted(providers)]
    sessions = [session for listed, _ in found for session in listed]
    if cwd is not None:
        folder = os.path.realpath(cwd)
        sessions = [session for session in sessions if session.cwd and os.path.realpath(session.cwd) == folder]
    sessions.sort(key=lambda session: session.updated_at or session.created_at or _NEVER, reverse=True)
    return Discovered(tuple(sessions), tuple(problem for _, problem in found if problem is not None))


def _list(name: str, place: Place) -> tuple[list[NativeSession], Problem | None]:
    """Return the conversations that could be listed of the provider with this name, and the problem that ended the
    listing, or None. Never raises an error."""
    sessions: list[NativeSession] = []
    try:
        for session in find_provider(name)(place).sessions():
            sessions.append(session)
    except Exception as error:  # noqa: BLE001 - one provider's error must not hide the others
        reason = str(error) or type(error).__name__
        log.info("%s: its sessions could not all be listed: %s", name, reason)
        return sessions, Problem(name, reason)
    return sessions, None
