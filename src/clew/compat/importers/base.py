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
        """Open the data at `path`, a file or a folder as the system keeps it.

        Raises `InvalidInput` if there is nothing, or nothing of this kind; the message says what was looked for.
        """

    @abstractmethod
    def keys(self) -> Sequence[str]:
        """List the conversations by the keys under which `read` finds them, oldest first. Reads no conversation whole."""

    @abstractmethod
    def version(self, key: str) -> str:
        """Return a text that changes when the conversation changes, such as a digest of its file. An import that is run
        again leaves out the conversations whose version is on record already."""

    @abstractmethod
    def read(self, key: str) -> Conversation:
        """Read a conversation. Raises `InvalidInput` or `Corrupt`, with its name, if it cannot be read: the import
        reports it and goes on with the others."""

    def close(self) -> None:  # noqa: B027 - a source that keeps nothing open has nothing to close
        """Close the files that were opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
