"""Where threads live: the contract every store keeps, and the stores that come with Clew."""

from __future__ import annotations

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.files import FileCheckpointer
from clew.checkpointers.heads import Head, HeadQuery, Lease, Owner, Status
from clew.checkpointers.memory import MemoryCheckpointer
from clew.checkpointers.registry import open_checkpointer
from clew.checkpointers.sqlite import SQLiteCheckpointer

__all__ = [
    "Checkpointer",
    "FileCheckpointer",
    "Head",
    "HeadQuery",
    "Lease",
    "MemoryCheckpointer",
    "Owner",
    "SQLiteCheckpointer",
    "Status",
    "open_checkpointer",
]
