"""How much a workspace may hold. What is over is told, and never cut off in silence."""

from __future__ import annotations

import msgspec

__all__ = ["DEEPEST", "LONGEST", "Limits", "is_too_deep"]

DEEPEST = 2000
LONGEST = 32 * 1024
"""How deep down a folder of a snapshot may be, and how long its path in bytes: to open one takes a step for each above it.
A walk keeps to these as a restore does, so that whatever was kept can be restored."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Raise these for a workspace that is larger on purpose; they are there for the folder that was named by mistake."""

    file_bytes: int = 2**30
    """A file with more data than this is skipped, and reported. Holes of a sparse file do not count."""
    names: int = 500_000
    """A workspace with more files, folders and links than this is refused."""


def is_too_deep(folder: bytes) -> bool:
    """Whether a folder with this path from the root is too deep down to be part of a snapshot."""
    return len(folder) > DEEPEST and (len(folder) > LONGEST or folder.count(b"/") >= DEEPEST)
