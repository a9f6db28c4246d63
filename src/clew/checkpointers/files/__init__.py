"""The file store: a folder with one append-only file for each thread."""

from __future__ import annotations

from clew.checkpointers.files.store import FileCheckpointer

__all__ = ["FileCheckpointer"]
