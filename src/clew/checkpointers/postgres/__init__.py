"""A store in PostgreSQL."""

from __future__ import annotations

from clew.checkpointers.postgres.store import PostgresCheckpointer

__all__ = ["PostgresCheckpointer"]
