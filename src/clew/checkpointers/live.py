"""Live events of threads: words of a response while the model still writes it. Only some stores pass them on, and none
keeps them. `live_channel` tells whether a store does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

import msgspec

from clew.checkpointers.base import Checkpointer

__all__ = ["Changed", "Delta", "Dropped", "LiveChannel", "LiveEvent", "NoLiveEvents", "live_channel"]

LONGEST_DELTA = 2**14
"""The most characters of one delta."""
MOST_DELTAS = 64
"""The most deltas in one message to the service."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Delta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a response that a model is writing. It is never stored: the whole response is, once it has come.

    A delta that begins where the one before it ended continues it. A delta with `at` 0 begins the response anew: the
    model was asked again after a failure. A delta with a larger `at` than expected comes after a gap.
    """

    turn: _Number
    """The number of the turn that the response will be, from 1. Once that turn is on record, its deltas say nothing
    new."""
    at: _Number
    """How many characters of the response, thinking included, came before this piece."""
    text: Annotated[str, msgspec.Meta(max_length=LONGEST_DELTA)]
    kind: Literal["text", "thinking"] = "text"


class Dropped(msgspec.Struct, frozen=True):
    """Event: the reader was too slow, and this many messages with deltas were dropped for it, the oldest first."""

    messages: int


class Changed(msgspec.Struct, frozen=True):
    """Event: the thread may have changed. It has new frames, another status or another holder, or it is gone. The store
    says what it is now."""


LiveEvent = Changed | Delta | Dropped


class NoLiveEvents(Exception):
    """Raised if the service behind a store is older than live events. Everything else works without them."""


class LiveChannel(ABC):
    """What a store can do in addition to keeping threads if it passes live events on, best effort. `HTTPCheckpointer`
    can, because a service is between the agent and its readers. It is no part of the contract of a `Checkpointer`."""

    @abstractmethod
    async def publish(self, thread_id: str, deltas: Sequence[Delta]) -> int:
        """Pass pieces of a response on to those who follow the thread now, and return how many they are. Nothing is
        stored, and nothing is tried again. Raises `NoLiveEvents` if the service does not know live events, and
        `Unavailable` if it cannot be reached."""

    @abstractmethod
    def follow(self, thread_id: str, *, after: int = -1, log_id: str = "") -> AsyncIterator[LiveEvent]:
        """Yield live events of a thread: `Changed` at once and after each change, and deltas as they come. Ends if the
        thread is gone or is another than the one with this `log_id`; empty is any.

        `after` is the number of the last frame that the caller knows. Raises `Unavailable` when the connection breaks:
        look at the thread, then call this again. Raises `NoLiveEvents` if the service does not know live events.
        """


def live_channel(store: Checkpointer) -> LiveChannel | None:
    """Return the channel by which a store passes live events on; None if it has none.

    A store with an encryption key has none: what the key hides from the service must not reach it in deltas.
    """
    return store if isinstance(store, LiveChannel) else None
