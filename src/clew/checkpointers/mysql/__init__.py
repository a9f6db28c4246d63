"""A store in MySQL or MariaDB."""

from __future__ import annotations

from clew.checkpointers.mysql.store import MySQLCheckpointer

__all__ = ["MySQLCheckpointer"]
