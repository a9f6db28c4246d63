"""How much a workspace may hold. What is over is told, and never cut off in silence."""

from __future__ import annotations

import msgspec

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Raise these for a workspace that is larger on purpose; they are there for the folder that was named by mistake."""

    file_bytes: int = 2**30
    """A file with more data than this is skipped, and reported. Holes of a sparse file do not count."""
    names: int = 500_000
    """A workspace with more files, folders and links than this is refused."""
