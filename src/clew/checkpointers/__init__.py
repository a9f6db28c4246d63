"""The stores in which threads are kept, and `Checkpointer`, the base class that says what every store promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.checkpointers.base import Checkpointer
    from clew.checkpointers.files.store import FileCheckpointer
    from clew.checkpointers.heads import Head, HeadQuery, Lease, Owner, QueuePlace, Status
    from clew.checkpointers.http.store import HTTPCheckpointer
    from clew.checkpointers.live import Delta, LiveChannel, live_channel
    from clew.checkpointers.memory import MemoryCheckpointer
    from clew.checkpointers.mysql.store import MySQLCheckpointer
    from clew.checkpointers.objects.oci import OCICheckpointer
    from clew.checkpointers.objects.store import ObjectCheckpointer
    from clew.checkpointers.opensearch.store import OpenSearchCheckpointer
    from clew.checkpointers.oracle.store import OracleCheckpointer
    from clew.checkpointers.postgres.store import PostgresCheckpointer
    from clew.checkpointers.redis.store import RedisCheckpointer
    from clew.checkpointers.registry import open_checkpointer
    from clew.checkpointers.sealed import SealedCheckpointer
    from clew.checkpointers.sqlite.store import SQLiteCheckpointer

__all__ = [
    "Checkpointer",
    "Delta",
    "FileCheckpointer",
    "HTTPCheckpointer",
    "Head",
    "HeadQuery",
    "Lease",
    "LiveChannel",
    "MemoryCheckpointer",
    "MySQLCheckpointer",
    "OCICheckpointer",
    "ObjectCheckpointer",
    "OpenSearchCheckpointer",
    "OracleCheckpointer",
    "Owner",
    "PostgresCheckpointer",
    "QueuePlace",
    "RedisCheckpointer",
    "SQLiteCheckpointer",
    "SealedCheckpointer",
    "Status",
    "live_channel",
    "open_checkpointer",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Checkpointer": "clew.checkpointers.base",
        "Delta": "clew.checkpointers.live",
        "FileCheckpointer": "clew.checkpointers.files.store",
        "HTTPCheckpointer": "clew.checkpointers.http.store",
        "Head": "clew.checkpointers.heads",
        "HeadQuery": "clew.checkpointers.heads",
        "Lease": "clew.checkpointers.heads",
        "LiveChannel": "clew.checkpointers.live",
        "MemoryCheckpointer": "clew.checkpointers.memory",
        "MySQLCheckpointer": "clew.checkpointers.mysql.store",
        "OCICheckpointer": "clew.checkpointers.objects.oci",
        "ObjectCheckpointer": "clew.checkpointers.objects.store",
        "OpenSearchCheckpointer": "clew.checkpointers.opensearch.store",
        "OracleCheckpointer": "clew.checkpointers.oracle.store",
        "Owner": "clew.checkpointers.heads",
        "PostgresCheckpointer": "clew.checkpointers.postgres.store",
        "QueuePlace": "clew.checkpointers.heads",
        "RedisCheckpointer": "clew.checkpointers.redis.store",
        "SQLiteCheckpointer": "clew.checkpointers.sqlite.store",
        "SealedCheckpointer": "clew.checkpointers.sealed",
        "Status": "clew.checkpointers.heads",
        "live_channel": "clew.checkpointers.live",
        "open_checkpointer": "clew.checkpointers.registry",
    },
)
