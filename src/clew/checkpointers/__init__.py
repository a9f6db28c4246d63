"""The stores in which threads are kept, and `Checkpointer`, the base class that says what every store promises."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.files.store import FileCheckpointer
from clew.checkpointers.heads import Head, HeadQuery, Lease, Owner, Status
from clew.checkpointers.memory import MemoryCheckpointer
from clew.checkpointers.registry import open_checkpointer
from clew.checkpointers.sqlite.store import SQLiteCheckpointer

if TYPE_CHECKING:
    from clew.checkpointers.http.store import HTTPCheckpointer
    from clew.checkpointers.mysql.store import MySQLCheckpointer
    from clew.checkpointers.objects.oci import OCICheckpointer
    from clew.checkpointers.objects.store import ObjectCheckpointer
    from clew.checkpointers.opensearch.store import OpenSearchCheckpointer
    from clew.checkpointers.oracle.store import OracleCheckpointer
    from clew.checkpointers.postgres.store import PostgresCheckpointer
    from clew.checkpointers.redis.store import RedisCheckpointer

_HOMES = {
    "HTTPCheckpointer": "clew.checkpointers.http",
    "MySQLCheckpointer": "clew.checkpointers.mysql",
    "OCICheckpointer": "clew.checkpointers.objects.oci",
    "ObjectCheckpointer": "clew.checkpointers.objects",
    "OpenSearchCheckpointer": "clew.checkpointers.opensearch",
    "OracleCheckpointer": "clew.checkpointers.oracle",
    "PostgresCheckpointer": "clew.checkpointers.postgres",
    "RedisCheckpointer": "clew.checkpointers.redis",
}

__all__ = [
    "Checkpointer",
    "FileCheckpointer",
    "HTTPCheckpointer",
    "Head",
    "HeadQuery",
    "Lease",
    "MemoryCheckpointer",
    "MySQLCheckpointer",
    "OCICheckpointer",
    "ObjectCheckpointer",
    "OpenSearchCheckpointer",
    "OracleCheckpointer",
    "Owner",
    "PostgresCheckpointer",
    "RedisCheckpointer",
    "SQLiteCheckpointer",
    "Status",
    "open_checkpointer",
]


def __getattr__(name: str) -> Any:
    """Return the store class with this name, for the stores that need a server. Its module is imported only now,
    because most programs use at most one of these classes. Raises `AttributeError` for any other name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'clew.checkpointers' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
