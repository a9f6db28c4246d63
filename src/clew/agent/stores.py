"""The store of an agent: given, or opened on first use and closed with the agent."""

from __future__ import annotations

import os
from types import EllipsisType

from clew.checkpointers import Checkpointer, FileCheckpointer, MemoryCheckpointer, open_checkpointer
from clew.errors import InvalidInput, UsageError

__all__ = ["Store"]


class Store:
    """One for an agent and all forms of it: those in another folder, and its children that have none of their own."""

    def __init__(self, given: Checkpointer | str | EllipsisType | None) -> None:
        """A store, its URL, nothing said (the default store), or None: nothing is kept beyond the process."""
        if not (given is None or given is ... or isinstance(given, str | Checkpointer)):
            raise InvalidInput(
                f"checkpointer={given!r} is no store. Give a checkpointer, its URL such as 'sqlite:///clew.db', or None."
            )
        self._given = given
        self._opened: Checkpointer | None = None
        self._closed = False

    @classmethod
    def given(
        cls, checkpointer: Checkpointer | str | EllipsisType | None, data_dir: str | os.PathLike[str] | None
    ) -> Store:
        """As an agent's user says it: a store, or a folder to keep everything in."""
        if data_dir is None:
            return cls(checkpointer)
        if checkpointer is not ...:
            raise InvalidInput(
                "data_dir= is a store of files in a folder, and checkpointer= is a store: give one of them."
            )
        return cls(FileCheckpointer(os.path.abspath(data_dir)))

    @property
    def url(self) -> str:
        """As it was given; empty for a store that has no URL that is known here."""
        return self._given if isinstance(self._given, str) else ""

    @property
    def is_default(self) -> bool:
        """Whether nobody said which."""
        return self._given is ...

    def open(self) -> Checkpointer:
        """The store, opened if it is not yet."""
        if self._closed:
            raise UsageError("this agent is closed. Make another.")
        if self._opened is None:
            if isinstance(self._given, Checkpointer):
                self._opened = self._given
            elif self._given is None:
                self._opened = MemoryCheckpointer()
            else:
                self._opened = open_checkpointer(None if self._given is ... else self._given)
        return self._opened

    async def close(self) -> None:
        """Close what was opened here; a store that was given is its giver's."""
        self._closed = True
        if self._opened is not None and self._opened is not self._given:
            opened, self._opened = self._opened, None
            await opened.close()
