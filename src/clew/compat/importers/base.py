"""The interface between the data of another system and Clew: a `Source` lists conversations and reads them one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import msgspec

from clew.log import Entry

if TYPE_CHECKING:
    from clew.providers import Provider

__all__ = ["Conversation", "Source"]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of another system, translated into the entries of a thread. It is not written to a store yet."""

    thread_id: str
    """The id that the thread gets unless the user gives another one. The same conversation always gets the same id."""
    entries: Sequence[Entry]
    """What the thread's log will hold, in this order. It begins with a `ThreadStarted` and ends with a
    `StatusChanged`. A `Described` among them sets the title, and tags such as the time at which the other system
    created the conversation."""
    files: Path | None = None
    """The folder with the files that belong to the conversation, or None. They become the thread's last snapshot."""
    losses: Sequence[str] = ()
    """For each part of the conversation that could not be carried over, a sentence that says what it was."""
    native: tuple[Provider, str] | None = None
    """For the session of a coding agent: its provider, and the key under which the provider finds it. The program's own
    files are then stored with the thread, so that the program can go on with the session on any machine."""


class Source(ABC):
    """The stored data of another system, opened for reading. Nothing in it is ever changed."""

    kind: ClassVar[str]
    """The name of the system, as in `clew import --from KIND`."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path) -> Self:
        """Open the data of the other system at `path`, which is a file or a folder.

        Raises `InvalidInput` if there is nothing at the path, or no data of this system; the message says what was
        looked for.
        """

    @abstractmethod
    def keys(self) -> Sequence[str]:
        """Return the keys of the conversations, that of the oldest conversation first. A key is the text by which the
        method `read` finds a conversation. No conversation is read as a whole for this."""

    @abstractmethod
    def version(self, key: str) -> str:
        """Return a text that changes when the conversation with this key changes, such as a digest of its file. An
        import that is run again skips a conversation if the store already has this version of it."""

    @abstractmethod
    def read(self, key: str) -> Conversation:
        """Read the conversation with this key, and return it as the entries of a thread. Raises `InvalidInput` or
        `Corrupt`, with the name of the conversation in the message, if it cannot be read. The import then reports the
        error and goes on with the other conversations."""

    def close(self) -> None:  # noqa: B027 - a source that keeps nothing open has nothing to close
        """Close the files that this source has opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
