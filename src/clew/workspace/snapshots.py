"""What a snapshot is to those who take one: its digest, what it holds, and what it does not."""

from __future__ import annotations

import os

import msgspec

from clew.log import WorkspaceSnapshot
from clew.threads.reader import Progress

__all__ = ["Progress", "Skipped", "SnapshotRef", "shown"]


class Skipped(msgspec.Struct, frozen=True):
    """Something in the folder that the snapshot does not hold, or not as it was, and why."""

    path: str
    """From the root of the workspace. Always printable and always UTF-8: `\\xff` stands for a byte that is neither."""
    reason: str


class SnapshotRef(msgspec.Struct, frozen=True):
    """A snapshot that is in the store, durably. Its digest is all that it takes to restore it."""

    digest: str
    files: int = 0
    bytes: int = 0
    """The sum of the sizes of all files."""
    new_bytes: int = 0
    """What this snapshot added to the store, as stored. What the store had already costs nothing."""
    skipped: tuple[Skipped, ...] = ()

    def entry(self) -> WorkspaceSnapshot:
        """This snapshot as an entry of a thread's log."""
        return WorkspaceSnapshot(self.digest, self.files, self.bytes)


def shown(path: bytes) -> str:
    """A path as text that can be printed and encoded whatever bytes it has."""
    text = os.fsdecode(path)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))
