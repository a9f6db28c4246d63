"""The session of a coding agent that is meant by an id, a part of one, or a path: looked for where such sessions are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from clew.messages.dialects import Loss
    from clew.providers import Place

__all__ = ["Native", "find_native", "losses_in_words"]


class Native(NamedTuple):
    provider: str
    key: str


def find_native(session: str, provider: str | None, place: Place) -> Native | None:
    """At the provider that is named, or at whichever has it; None if none has. `InvalidInput` if several sessions may be
    meant. A provider whose sessions cannot be read does not hide another's; if nobody else has it, its error is told."""
    from clew.errors import ClewError, InvalidInput
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


def losses_in_words(losses: Iterable[Loss]) -> list[str]:
    """Each kind once, with how often it came."""
    counted: dict[tuple[str, str], int] = {}
    for loss in losses:
        counted[loss.what, loss.why] = counted.get((loss.what, loss.why), 0) + 1
    return [f"{what}{f' ({times} times)' if times > 1 else ''}: {why}" for (what, why), times in counted.items()]
